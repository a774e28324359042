"""Dot products in one fixed order, whatever calls them: float32 sums over rows of float32, float16 or bfloat16.

The order: component t goes to lane t % 16 of sixteen running sums (fused multiply-add where the machine has it), the
lanes are added in halves (8, 4, 2, 1), and components past the last sixteen follow one by one. Written as vector code
for LLVM, since a loop in Python's form is vectorised in another order in each function that it is inlined into. A tile
of several rows and states shares loads and does not change the order, so alone, in a batch, in a walk or in a scan, the
same row and state give the same bits.

    float16_3x2((row, row, row), (state, state), dim, out, stride)     addresses as integers

writes 3 x 2 float32: row r and state s at out + s * stride + 4 * r. States are float32; nothing is checked. widen_bfloat16
writes a row as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic

from decoder.kernels.vectors import BFLOAT16, FLOAT, FLOAT16, FLOAT32, FLOATS, LANES, LONG, Emitter, same

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "LANES",
    "bfloat16_1",
    "bfloat16_3x2",
    "bfloat16_4",
    "float16_1",
    "float16_3x2",
    "float16_4",
    "float32_1",
    "float32_3x2",
    "float32_4",
    "widen_bfloat16",
    "widen_float16",
    "widen_float32",
]

# Numba annotates this in part only.
_several: Any = types.UniTuple


def _sums(emitter: Emitter, kind: int, rows: list[Any], states: list[Any], dim: Any) -> list[Any]:
    """Dot products of rows at these addresses (of `kind`) with float32 states at those, states outermost."""
    builder = emitter.builder
    size = 4 if kind == FLOAT32 else 2

    def step(shape: Any) -> Callable[[Any, list[Any]], list[Any]]:
        def body(t: Any, totals: list[Any]) -> list[Any]:
            at_row, at_state = builder.mul(t, LONG(size)), builder.mul(t, LONG(4))
            left = [emitter.load(kind, builder.add(row, at_row), shape) for row in rows]
            right = [emitter.load(FLOAT32, builder.add(state, at_state), shape) for state in states]
            pairs = [(w, h) for h in right for w in left]
            return [emitter.multiply_add(w, h, total) for (w, h), total in zip(pairs, totals)]

        return body

    whole = builder.and_(dim, LONG(-LANES))
    zeros = [same(FLOATS, 0.0)] * (len(rows) * len(states))
    sums = emitter.sums_of_lanes(emitter.loop(LONG(0), whole, LANES, zeros, step(FLOATS)))
    return emitter.loop(whole, dim, 1, sums, step(FLOAT))


def _tile(kind: int, rows: int, states: int) -> Any:
    """The intrinsic for this many rows and states."""

    @intrinsic
    def tile(typing_context: Any, row_addresses: Any, state_addresses: Any, dim: Any, out: Any, stride: Any) -> Any:
        number = types.intp
        signature = types.void(_several(number, rows), _several(number, states), number, number, number)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emitter = Emitter(context, builder)
            of_rows = [builder.extract_value(args[0], r) for r in range(rows)]
            of_states = [builder.extract_value(args[1], s) for s in range(states)]
            for place, value in enumerate(_sums(emitter, kind, of_rows, of_states, args[2])):
                line = builder.add(args[3], builder.mul(args[4], LONG(place // rows)))
                address = builder.add(line, LONG(4 * (place % rows)))
                builder.store(value, emitter.pointer(FLOAT, address), align=4)
            return context.get_dummy_value()

        return signature, codegen

    return tile


def _widen(kind: int) -> Any:
    """The intrinsic that writes a row as float32: widen(row address, dim, out address)."""

    @intrinsic
    def widen(typing_context: Any, row: Any, dim: Any, out: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            emitter = Emitter(context, builder)
            size = 4 if kind == FLOAT32 else 2

            def step(shape: Any) -> Callable[[Any, list[Any]], list[Any]]:
                def body(t: Any, totals: list[Any]) -> list[Any]:
                    value = emitter.load(kind, builder.add(args[0], builder.mul(t, LONG(size))), shape)
                    address = builder.add(args[2], builder.mul(t, LONG(4)))
                    builder.store(value, emitter.pointer(shape, address), align=4)
                    return totals

                return body

            whole = builder.and_(args[1], LONG(-LANES))
            emitter.loop(LONG(0), whole, LANES, [], step(FLOATS))
            emitter.loop(whole, args[1], 1, [], step(FLOAT))
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, types.intp), codegen

    return widen


float32_1, float16_1, bfloat16_1 = (_tile(kind, 1, 1) for kind in (FLOAT32, FLOAT16, BFLOAT16))
float32_4, float16_4, bfloat16_4 = (_tile(kind, 4, 1) for kind in (FLOAT32, FLOAT16, BFLOAT16))
float32_3x2, float16_3x2, bfloat16_3x2 = (_tile(kind, 3, 2) for kind in (FLOAT32, FLOAT16, BFLOAT16))
widen_float32, widen_float16, widen_bfloat16 = (_widen(kind) for kind in (FLOAT32, FLOAT16, BFLOAT16))
