"""Integer dot products written as vector code, since what LLVM makes of a plain loop over bytes takes three times as long.

code_dot_1 .. code_dot_8    one code of 1, 2, 4 or 8 bits a dimension with one int8 query in planes
int8_dot                    one int8 row with one int8 query
four_code_dots              four 8-bit codes that follow each other with one int16 query: the query is widened and read once

Sixteen bytes at a time are widened to 16 bits, multiplied and added in pairs (one instruction where the processor has
AVX2: vpmaddwd, which cannot overflow here), and the pairs summed in 32 bits. Addresses and sizes in, int32 out: no arrays,
so that a caller may loop over rows without Numba counting references.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16

_BYTE, _HALF, _WORD, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_BYTES, _HALVES, _WORDS = (ir.VectorType(kind, LANES) for kind in (_BYTE, _HALF, _WORD))
_PAIRS = ir.VectorType(_WORD, LANES // 2)
# Numba annotates it in part only.
_declared: Any = cgutils.get_or_insert_function


def _products(builder: Any, features: str, a: Any, b: Any) -> Any:
    """Products of <16 x i16>, added in pairs: <8 x i32>."""
    if "+avx2" in features:
        kind = ir.FunctionType(_PAIRS, [_HALVES, _HALVES])
        return builder.call(_declared(builder.module, kind, "llvm.x86.avx2.pmadd.wd"), [a, b])
    wide = builder.mul(builder.sext(a, _WORDS), builder.sext(b, _WORDS))
    even, odd = (
        builder.shuffle_vector(wide, wide, ir.Constant(ir.VectorType(_WORD, LANES // 2), list(range(at, LANES, 2))))
        for at in (0, 1)
    )
    return builder.add(even, odd)


def _sum(builder: Any, lanes: Any) -> Any:
    """The lanes of <8 x i32>, added in halves."""
    width = LANES // 2
    while width > 1:
        width //= 2
        low, high = (
            builder.shuffle_vector(lanes, lanes, ir.Constant(ir.VectorType(_WORD, width), list(range(at, at + width))))
            for at in (0, width)
        )
        lanes = builder.add(low, high)
    return builder.extract_element(lanes, _WORD(0))


def _loop(builder: Any, start: Any, stop: Any, step: int, totals: list[Any], body: Any) -> list[Any]:
    """totals after body(t, totals) for t = start, start + step, ... below stop."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("dot.head", "dot.body", "dot.after"))
    builder.branch(head)
    builder.position_at_end(head)
    t = builder.phi(_LONG)
    t.add_incoming(start, before)
    carried = [builder.phi(total.type) for total in totals]
    for phi, total in zip(carried, totals):
        phi.add_incoming(total, before)
    builder.cbranch(builder.icmp_signed("<", t, stop), inside, after)
    builder.position_at_end(inside)
    for phi, value in zip(carried, body(t, carried)):
        phi.add_incoming(value, builder.block)
    t.add_incoming(builder.add(t, _LONG(step)), builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried


def _dot(bits: int, *, signed: bool) -> Any:
    """An intrinsic: dot(row address, query address, bytes of a row) -> int32. The query's planes follow each other."""
    planes = 8 // bits

    @intrinsic
    def dot(typing_context: Any, row: Any, query: Any, width: Any) -> Any:
        signature = types.int32(types.intp, types.intp, types.intp)

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            row, query, width = args
            features = context.codegen().magic_tuple()[2]

            def load(address: Any, kind: Any) -> Any:
                return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)

            def level(value: Any, plane: int, kind: Any) -> Any:
                """The dimension of a code's byte that belongs to a plane."""
                if bits == 8:
                    return value
                if plane:
                    value = builder.lshr(value, _same(kind, plane * bits))
                return builder.and_(value, _same(kind, 2**bits - 1))

            def step(bytes_kind: Any, wide: Any, multiply: Any) -> Any:
                def body(t: Any, totals: list[Any]) -> list[Any]:
                    value = load(builder.add(row, t), bytes_kind)
                    summed = list(totals)
                    for plane in range(planes):
                        at = builder.add(query, builder.add(t, builder.mul(width, _LONG(plane))))
                        part = level(value, plane, bytes_kind)
                        left = builder.sext(part, wide) if signed else builder.zext(part, wide)
                        right = builder.sext(load(at, bytes_kind), wide)
                        place = plane % len(summed)
                        summed[place] = builder.add(summed[place], multiply(left, right))
                    return summed

                return body

            whole = builder.and_(width, _LONG(-LANES))
            zeros = [ir.Constant(_PAIRS, None)] * min(planes, 2)
            lanes = _loop(
                builder, _LONG(0), whole, LANES, zeros,
                step(_BYTES, _HALVES, lambda a, b: _products(builder, features, a, b)),
            )  # fmt: skip
            total = lanes[0] if len(lanes) == 1 else builder.add(lanes[0], lanes[1])
            return _loop(builder, whole, width, 1, [_sum(builder, total)], step(_BYTE, _WORD, builder.mul))[0]

        return signature, codegen

    return dot


def _same(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * LANES if isinstance(kind, ir.VectorType) else value)


code_dot_1, code_dot_2, code_dot_4, code_dot_8 = (_dot(bits, signed=False) for bits in (1, 2, 4, 8))
int8_dot = _dot(8, signed=True)


@intrinsic
def four_code_dots(typing_context: Any, rows: Any, query: Any, width: Any, out: Any) -> Any:
    """Write int32 dots of four consecutive uint8 rows of `width` bytes, a multiple of 16, with an int16 query, to out."""
    signature = types.void(types.intp, types.intp, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, query, width, out = args
        features = context.codegen().magic_tuple()[2]
        starts = [builder.add(rows, builder.mul(width, _LONG(r))) for r in range(4)]

        def load(address: Any, kind: Any) -> Any:
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)

        def body(t: Any, totals: list[Any]) -> list[Any]:
            right = load(builder.add(query, builder.add(t, t)), _HALVES)
            left = [builder.zext(load(builder.add(start, t), _BYTES), _HALVES) for start in starts]
            return [builder.add(total, _products(builder, features, one, right)) for total, one in zip(totals, left)]

        totals = _loop(builder, _LONG(0), width, LANES, [ir.Constant(_PAIRS, None)] * 4, body)
        # Pairs of rows are halved together: <8> + <8> -> <8> twice, then <4>, one lane a row.
        ab, cd = (_halve(builder, totals[r], totals[r + 1]) for r in (0, 2))
        low, high = (_pick(builder, ab, cd, places) for places in _FOURS)
        quads = builder.add(low, high)
        low, high = (_pick(builder, quads, quads, places) for places in _LAST)
        pointer = builder.inttoptr(out, ir.VectorType(_WORD, 4).as_pointer())
        builder.store(builder.add(low, high), pointer, align=4)
        return context.get_dummy_value()

    return signature, codegen


_FOURS = ([0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15])
_LAST = ([0, 2, 4, 6], [1, 3, 5, 7])


def _pick(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_WORD, len(places)), places))


def _halve(builder: Any, a: Any, b: Any) -> Any:
    """<8 x i32>: the halves of a added, then those of b."""
    low = _pick(builder, a, b, [0, 1, 2, 3, 8, 9, 10, 11])
    return builder.add(low, _pick(builder, a, b, [4, 5, 6, 7, 12, 13, 14, 15]))
