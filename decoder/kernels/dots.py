"""Dot products in one fixed order, whatever calls them: float32 sums over rows of float32, float16 or bfloat16.

The order: component t goes to lane t % 16 of sixteen running sums (fused multiply-add where the machine has it), the
lanes are added in halves (8, 4, 2, 1), and components past the last sixteen follow one by one. Written as vector code
for LLVM, since a loop in Python's form is vectorised in another order in each function that it is inlined into. A tile
of several rows and states shares loads and does not change the order, so alone, in a batch, in a walk or in a scan, the
same row and state give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
LANES = 16

# Numba annotates these in part only.
_declared: Any = cgutils.get_or_insert_function
_several: Any = types.UniTuple

_FLOAT, _WORD, _HALF, _LONG = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(64)
_FLOATS = ir.VectorType(_FLOAT, LANES)


def _like(scalar: Any, shape: Any) -> Any:
    return ir.VectorType(scalar, shape.count) if isinstance(shape, ir.VectorType) else scalar


def _same(kind: Any, value: Any) -> Any:
    """The constant `value` of a scalar type, or in each lane of a vector type."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


class _Emitter:
    """Writes one function's vector code. Knows what the processor that is compiled for can do."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.builder = builder
        features = context.codegen().magic_tuple()[2].split(",")
        self.has_fma = "+fma" in features or "+neon" in features
        self.has_f16c = "+f16c" in features or "+fullfp16" in features

    def load(self, kind: int, address: Any, shape: Any) -> Any:
        """Components at an address as float32: a vector of LANES, or one."""
        stored = _like(_FLOAT if kind == FLOAT32 else _HALF, shape)
        value = self.builder.load(
            self.builder.inttoptr(address, stored.as_pointer()), align=4 if kind == FLOAT32 else 2
        )
        if kind == FLOAT32:
            return value
        if kind == FLOAT16 and self.has_f16c:
            return self.builder.fpext(self.builder.bitcast(value, _like(ir.HalfType(), shape)), shape)
        words = _like(_WORD, shape)
        wide = self.builder.zext(value, words)
        if kind == BFLOAT16:
            return self.builder.bitcast(self.builder.shl(wide, _same(words, 16)), shape)
        # Without F16C: exponent and mantissa move up by 13 bits, 2^112 corrects the exponent's bias; denormals come out
        # right too. Infinities and NaN do not: an output layer refuses them.
        magnitude = self.builder.shl(self.builder.and_(wide, _same(words, 0x7FFF)), _same(words, 13))
        scaled = self.builder.fmul(self.builder.bitcast(magnitude, shape), _same(shape, 5.192296858534828e33))
        sign = self.builder.shl(self.builder.and_(wide, _same(words, 0x8000)), _same(words, 16))
        return self.builder.bitcast(self.builder.or_(self.builder.bitcast(scaled, words), sign), shape)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        """a * b + total."""
        if self.has_fma:
            name = f"llvm.fma.v{LANES}f32" if isinstance(a.type, ir.VectorType) else "llvm.fma.f32"
            fused = _declared(self.builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
            return self.builder.call(fused, [a, b, total])
        return self.builder.fadd(self.builder.fmul(a, b), total)

    def sum_of_lanes(self, lanes: Any) -> Any:
        """The lanes of a vector, added in halves."""
        width = LANES
        while width > 1:
            width //= 2
            low, high = (
                self.builder.shuffle_vector(
                    lanes, lanes, ir.Constant(ir.VectorType(_WORD, width), list(range(at, at + width)))
                )
                for at in (0, width)
            )
            lanes = self.builder.fadd(low, high)
        return self.builder.extract_element(lanes, _WORD(0))

    def loop(
        self, start: Any, stop: Any, step: int, totals: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> Any:
        """totals after body(t, totals) for t = start, start + step, ... below stop."""
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("dot.head", "dot.body", "dot.after"))
        builder.branch(head)
        builder.position_at_end(head)
        t = builder.phi(_LONG)
        t.add_incoming(start, before)
        carried = []
        for total in totals:
            carried.append(builder.phi(total.type))
            carried[-1].add_incoming(total, before)
        builder.cbranch(builder.icmp_signed("<", t, stop), inside, after)
        builder.position_at_end(inside)
        for phi, value in zip(carried, body(t, carried)):
            phi.add_incoming(value, builder.block)
        t.add_incoming(builder.add(t, _LONG(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return carried


def _emit_tile(context: Any, builder: Any, kind: int, rows: list[Any], states: list[Any], dim: Any) -> list[list[Any]]:
    """Dot products [state][row] of rows at these addresses (of `kind`) and float32 states at those."""
    emitter = _Emitter(context, builder)
    size = 4 if kind == FLOAT32 else 2

    def step(shape: Any) -> Callable[[Any, list[Any]], list[Any]]:
        def body(t: Any, totals: list[Any]) -> list[Any]:
            at_row, at_state = builder.mul(t, _LONG(size)), builder.mul(t, _LONG(4))
            left = [emitter.load(kind, builder.add(row, at_row), shape) for row in rows]
            right = [emitter.load(FLOAT32, builder.add(state, at_state), shape) for state in states]
            pairs = [(w, h) for h in right for w in left]
            return [emitter.multiply_add(w, h, total) for (w, h), total in zip(pairs, totals)]

        return body

    whole = builder.and_(dim, _LONG(-LANES))
    count = len(rows) * len(states)
    lanes = emitter.loop(_LONG(0), whole, LANES, [_same(_FLOATS, 0.0)] * count, step(_FLOATS))
    sums = [emitter.sum_of_lanes(total) for total in lanes]
    sums = emitter.loop(whole, dim, 1, sums, step(_FLOAT))
    return [sums[s * len(rows) : (s + 1) * len(rows)] for s in range(len(states))]


def _tile(kind: int, rows: int, states: int) -> Any:
    """An intrinsic: tile(row address, ..., state address, ..., dim, out address, out stride); addresses are uintp.

    Writes float32 at out + s * stride + 4 * r for row r and state s; stride in bytes.
    """

    @intrinsic
    def tile(typing_context: Any, row_addresses: Any, state_addresses: Any, dim: Any, out: Any, stride: Any) -> Any:
        number = types.intp
        signature = types.void(_several(number, rows), _several(number, states), number, number, number)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            of_rows = [builder.extract_value(args[0], r) for r in range(rows)]
            of_states = [builder.extract_value(args[1], s) for s in range(states)]
            for s, sums in enumerate(_emit_tile(context, builder, kind, of_rows, of_states, args[2])):
                line = builder.add(args[3], builder.mul(args[4], _LONG(s)))
                for r, value in enumerate(sums):
                    pointer = builder.inttoptr(builder.add(line, _LONG(4 * r)), _FLOAT.as_pointer())
                    builder.store(value, pointer, align=4)
            return context.get_dummy_value()

        return signature, codegen

    return tile


float32_1, float16_1, bfloat16_1 = (_tile(kind, 1, 1) for kind in (FLOAT32, FLOAT16, BFLOAT16))
float32_4, float16_4, bfloat16_4 = (_tile(kind, 4, 1) for kind in (FLOAT32, FLOAT16, BFLOAT16))
float32_3x2, float16_3x2, bfloat16_3x2 = (_tile(kind, 3, 2) for kind in (FLOAT32, FLOAT16, BFLOAT16))
