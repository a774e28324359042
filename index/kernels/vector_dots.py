"""Integer dot products written as vector code, since what LLVM makes of a plain loop over bytes takes three times as long.

code_dot_1 .. code_dot_8    one code of 1, 2, 4 or 8 bits a dimension with one int8 query in planes
int8_dot                    one int8 row with one int8 query
four_code_dots              four 8-bit codes that follow each other with one int16 query: the query is widened and read once
four_nibble_dots            four 4-bit codes that follow each other with one int8 query: bytes are multiplied as they are

Sixteen bytes at a time are widened to 16 bits, multiplied and added in pairs (one instruction where the processor has
AVX2: vpmaddwd, which cannot overflow here), and the pairs summed in 32 bits. Where it has AVX-512 VNNI, 64 unsigned bytes
are multiplied with 64 signed ones and summed in one instruction (vpdpbusd). The integers are the same either way. Addresses
and sizes in, int32 out: no arrays, so that a caller may loop over rows without Numba counting references.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
WIDE = 64
"""Bytes that one vpdpbusd takes."""

_BYTE, _HALF, _WORD, _LONG = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_BYTES, _HALVES, _WORDS = (ir.VectorType(kind, LANES) for kind in (_BYTE, _HALF, _WORD))
_PAIRS = ir.VectorType(_WORD, LANES // 2)
_WIDE_BYTES = ir.VectorType(_BYTE, WIDE)
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


def _has_byte_products(features: str) -> bool:
    return "+avx512vnni" in features and "+avx512bw" in features


def _add_byte_products(builder: Any, total: Any, codes: Any, levels: Any) -> Any:
    """total <16 x i32> plus products of unsigned <64 x i8> codes and signed levels, in fours."""
    kind = ir.FunctionType(_WORDS, [_WORDS, _WORDS, _WORDS])
    product = _declared(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(product, [total, builder.bitcast(codes, _WORDS), builder.bitcast(levels, _WORDS)])


def _in_halves(builder: Any, lanes: Any) -> Any:
    """<16 x i32> -> <8 x i32>: the second half added to the first."""
    return builder.add(_pick(builder, lanes, lanes, list(range(8))), _pick(builder, lanes, lanes, list(range(8, 16))))


def _load(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


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
                return _load(builder, address, kind)

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

            def wide_step(t: Any, totals: list[Any]) -> list[Any]:
                value = load(builder.add(row, t), _WIDE_BYTES)
                summed = list(totals)
                for plane in range(planes):
                    at = builder.add(query, builder.add(t, builder.mul(width, _LONG(plane))))
                    place = plane % len(summed)
                    part = level(value, plane, _WIDE_BYTES)
                    summed[place] = _add_byte_products(builder, summed[place], part, load(at, _WIDE_BYTES))
                return summed

            chains = min(planes, 2)
            begin, totals = _LONG(0), [ir.Constant(_PAIRS, None)] * chains
            if not signed and _has_byte_products(features):
                begin = builder.and_(width, _LONG(-WIDE))
                wide = _loop(builder, _LONG(0), begin, WIDE, [ir.Constant(_WORDS, None)] * chains, wide_step)
                totals = [_in_halves(builder, each) for each in wide]
            whole = builder.and_(width, _LONG(-LANES))
            lanes = _loop(
                builder, begin, whole, LANES, totals,
                step(_BYTES, _HALVES, lambda a, b: _products(builder, features, a, b)),
            )  # fmt: skip
            total = lanes[0] if len(lanes) == 1 else builder.add(lanes[0], lanes[1])
            return _loop(builder, whole, width, 1, [_sum(builder, total)], step(_BYTE, _WORD, builder.mul))[0]

        return signature, codegen

    return dot


def _same(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


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

        def body(t: Any, totals: list[Any]) -> list[Any]:
            right = _load(builder, builder.add(query, builder.add(t, t)), _HALVES)
            left = [builder.zext(_load(builder, builder.add(start, t), _BYTES), _HALVES) for start in starts]
            return [builder.add(total, _products(builder, features, one, right)) for total, one in zip(totals, left)]

        totals = _loop(builder, _LONG(0), width, LANES, [ir.Constant(_PAIRS, None)] * 4, body)
        _store_four(builder, totals, out)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def four_nibble_dots(typing_context: Any, rows: Any, query: Any, width: Any, out: Any) -> Any:
    """Write int32 dots of four consecutive rows of `width` bytes, a multiple of 32, with an int8 query, to out.

    Byte t of a row holds dimension t in its low half and dimension width + t in its high half.
    """
    signature = types.void(types.intp, types.intp, types.intp, types.intp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows, query, width, out = args
        features = context.codegen().magic_tuple()[2]
        starts = [builder.add(rows, builder.mul(width, _LONG(r))) for r in range(4)]
        # pmaddubsw adds pairs in 16 bits: twice 15 * 127, and that of both halves, stay far below its limit.
        joined = "+avx2" in features
        step = 2 * LANES if joined else LANES

        def multiply(nibbles: Any, levels: Any) -> Any:
            if joined:
                kind = ir.FunctionType(_HALVES, [nibbles.type, levels.type])
                return builder.call(_declared(builder.module, kind, "llvm.x86.avx2.pmadd.ub.sw"), [nibbles, levels])
            return _products(builder, features, builder.zext(nibbles, _HALVES), builder.sext(levels, _HALVES))

        def halves(t: Any, kind: Any) -> tuple[Any, Any, list[tuple[Any, Any]]]:
            """The query's levels for both halves of the bytes at t, and these halves of each row."""
            at = builder.add(query, t)
            codes = [_load(builder, builder.add(start, t), kind) for start in starts]
            split = [(builder.and_(code, _same(kind, 15)), builder.lshr(code, _same(kind, 4))) for code in codes]
            return _load(builder, at, kind), _load(builder, builder.add(at, width), kind), split

        def body(t: Any, totals: list[Any]) -> list[Any]:
            low, high, split = halves(t, ir.VectorType(_BYTE, step))
            sums = [builder.add(multiply(ones, low), multiply(others, high)) for ones, others in split]
            if joined:
                sums = [_products(builder, features, both, _same(_HALVES, 1)) for both in sums]
            return [builder.add(total, one) for total, one in zip(totals, sums)]

        def wide_body(t: Any, totals: list[Any]) -> list[Any]:
            low, high, split = halves(t, _WIDE_BYTES)
            totals = [_add_byte_products(builder, total, ones, low) for total, (ones, _) in zip(totals, split)]
            return [_add_byte_products(builder, total, others, high) for total, (_, others) in zip(totals, split)]

        begin, totals = _LONG(0), [ir.Constant(_PAIRS, None)] * 4
        if _has_byte_products(features):
            begin = builder.and_(width, _LONG(-WIDE))
            wide = _loop(builder, _LONG(0), begin, WIDE, [ir.Constant(_WORDS, None)] * 4, wide_body)
            totals = [_in_halves(builder, each) for each in wide]
        totals = _loop(builder, begin, width, step, totals, body)
        _store_four(builder, totals, out)
        return context.get_dummy_value()

    return signature, codegen


_FOURS = ([0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15])
_LAST = ([0, 2, 4, 6], [1, 3, 5, 7])


def _store_four(builder: Any, totals: list[Any], out: Any) -> None:
    """The sums of four <8 x i32>, next to each other at the address `out`."""
    # Pairs of rows are halved together: <8> + <8> -> <8> twice, then <4>, one lane a row.
    ab, cd = (_halve(builder, totals[r], totals[r + 1]) for r in (0, 2))
    low, high = (_pick(builder, ab, cd, places) for places in _FOURS)
    quads = builder.add(low, high)
    low, high = (_pick(builder, quads, quads, places) for places in _LAST)
    pointer = builder.inttoptr(out, ir.VectorType(_WORD, 4).as_pointer())
    builder.store(builder.add(low, high), pointer, align=4)


def _pick(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_WORD, len(places)), places))


def _halve(builder: Any, a: Any, b: Any) -> Any:
    """<8 x i32>: the halves of a added, then those of b."""
    low = _pick(builder, a, b, [0, 1, 2, 3, 8, 9, 10, 11])
    return builder.add(low, _pick(builder, a, b, [4, 5, 6, 7, 12, 13, 14, 15]))
