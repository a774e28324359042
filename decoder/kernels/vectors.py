"""Vector code for LLVM, where Numba's own loops are not enough: a sum whose order must not depend on what it is inlined
into, half precision read by the machine's own instruction, fused multiply-add.

Emitter   writes loads, sums of lanes, loops and exponentials into the function that is being compiled

All vectors have LANES float32. LLVM cuts them to what the processor has (two of 8 on AVX2, four of 4 on SSE and NEON), which
changes no bit; only whether multiply-add is fused does, and that is the same in all functions compiled on one machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

FLOAT32, FLOAT16, BFLOAT16 = 0, 1, 2
LANES = 16

# Numba annotates this in part only.
_declared: Any = cgutils.get_or_insert_function

FLOAT, DOUBLE, WORD, HALF, LONG = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(16), ir.IntType(64)
FLOATS = ir.VectorType(FLOAT, LANES)


def like(scalar: Any, shape: Any) -> Any:
    """The type of as many of these scalars as `shape` has lanes; the scalar type itself where it is none."""
    return ir.VectorType(scalar, shape.count) if isinstance(shape, ir.VectorType) else scalar


def same(kind: Any, value: Any) -> Any:
    """The constant `value` of a scalar type, or in each lane of a vector type."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def _lanes(places: list[int]) -> Any:
    return ir.Constant(ir.VectorType(WORD, len(places)), places)


class Emitter:
    """Writes one function's vector code. Knows what the processor that is compiled for can do."""

    def __init__(self, context: Any, builder: Any) -> None:
        self.builder = builder
        triple, _, features = context.codegen().magic_tuple()
        arm = triple.startswith(("aarch64", "arm64"))
        self.has_fma = arm or "+fma" in features.split(",")
        self.has_f16c = arm or "+f16c" in features.split(",")

    def pointer(self, kind: Any, address: Any) -> Any:
        """An address as a pointer to this type."""
        return self.builder.inttoptr(address, kind.as_pointer())

    def load(self, kind: int, address: Any, shape: Any) -> Any:
        """Components at an address as float32: a vector of LANES, or one."""
        stored = like(FLOAT if kind == FLOAT32 else HALF, shape)
        value = self.builder.load(self.pointer(stored, address), align=4 if kind == FLOAT32 else 2)
        if kind == FLOAT32:
            return value
        if kind == FLOAT16 and self.has_f16c:
            return self.builder.fpext(self.builder.bitcast(value, like(ir.HalfType(), shape)), shape)
        words = like(WORD, shape)
        wide = self.builder.zext(value, words)
        if kind == BFLOAT16:
            return self.builder.bitcast(self.builder.shl(wide, same(words, 16)), shape)
        # Without F16C: exponent and mantissa move up by 13 bits, 2^112 corrects the exponent's bias; denormals come out
        # right too. Infinities and NaN do not: an output layer refuses them.
        magnitude = self.builder.shl(self.builder.and_(wide, same(words, 0x7FFF)), same(words, 13))
        scaled = self.builder.fmul(self.builder.bitcast(magnitude, shape), same(shape, 5.192296858534828e33))
        sign = self.builder.shl(self.builder.and_(wide, same(words, 0x8000)), same(words, 16))
        return self.builder.bitcast(self.builder.or_(self.builder.bitcast(scaled, words), sign), shape)

    def multiply_add(self, a: Any, b: Any, total: Any) -> Any:
        """a * b + total."""
        if self.has_fma:
            name = f"llvm.fma.v{LANES}f32" if isinstance(a.type, ir.VectorType) else "llvm.fma.f32"
            fused = _declared(self.builder.module, ir.FunctionType(a.type, [a.type] * 3), name)
            return self.builder.call(fused, [a, b, total])
        return self.builder.fadd(self.builder.fmul(a, b), total)

    def larger(self, a: Any, b: Any) -> Any:
        """b where it is larger than a, else a: NaN in b counts as nothing."""
        return self.builder.select(self.builder.fcmp_ordered(">", b, a), b, a)

    def shuffled(self, a: Any, b: Any, places: list[int]) -> Any:
        """Lanes of a (from 0) and b (from a's length) in this order."""
        return self.builder.shuffle_vector(a, b, _lanes(places))

    def folded(self, lanes: Any, join: Callable[[Any, Any], Any]) -> Any:
        """All lanes of a vector joined into one, in halves: lane t with lane t + width / 2, until one is left."""
        width = lanes.type.count
        while width > 1:
            width //= 2
            low = self.shuffled(lanes, lanes, list(range(width)))
            lanes = join(low, self.shuffled(lanes, lanes, list(range(width, 2 * width))))
        return self.builder.extract_element(lanes, WORD(0))

    def sums_of_lanes(self, vectors: list[Any]) -> list[Any]:
        """The sum of each vector's lanes, added in halves as folded() does; the vectors share the instructions.

        Two vectors that hold groups of lanes yet to be added become one with twice as many groups of half the width.
        """
        add = self.builder.fadd
        half = LANES // 2
        low, high = list(range(half)), list(range(half, LANES))
        held = [(add(self.shuffled(v, v, low), self.shuffled(v, v, high)), [i]) for i, v in enumerate(vectors)]
        width = half
        while width > 1:
            width //= 2
            joined = []
            for at in range(0, len(held), 2):
                (a, in_a), (b, in_b) = held[at], held[min(at + 1, len(held) - 1)]
                starts = [start for g in range(len(in_a)) for start in (2 * width * g, half + 2 * width * g)]
                first = [start + t for start in starts for t in range(width)]
                second = [place + width for place in first]
                total = add(self.shuffled(a, b, first), self.shuffled(a, b, second))
                joined.append((total, [i for both in zip(in_a, in_b) for i in both]))
            held = joined
        found: dict[int, Any] = {}
        for vector, owners in held:
            for lane, owner in enumerate(owners):
                if owner not in found:
                    found[owner] = self.builder.extract_element(vector, WORD(lane))
        return [found[i] for i in range(len(vectors))]

    def exp_below_zero(self, x: Any) -> Any:
        """exp of vectors x <= 0 to about 1 part in 10^7; see exponent.py, whose steps these are."""
        shape, words = x.type, like(WORD, x.type)
        # NaN is not below -87 and stays.
        x = self.builder.select(self.builder.fcmp_ordered("<", x, same(shape, -87.0)), same(shape, -87.0), x)
        magic = same(shape, 12582912.0)
        shifted = self.multiply_add(x, same(shape, 1.4426950216293335), magic)
        k = self.builder.fsub(shifted, magic)
        r = self.multiply_add(k, same(shape, -0.693359375), x)
        r = self.multiply_add(k, same(shape, 2.1219444170128554e-4), r)
        p = same(shape, 0.0013888889225199819)
        for coefficient in (0.008333333767950535, 0.0416666679084301, 0.1666666716337204, 0.5, 1.0, 1.0):
            p = self.multiply_add(p, r, same(shape, coefficient))
        exponent = self.builder.shl(self.builder.bitcast(shifted, words), same(words, 23))
        return self.builder.bitcast(self.builder.add(self.builder.bitcast(p, words), exponent), shape)

    def loop(
        self, start: Any, stop: Any, step: int, totals: list[Any], body: Callable[[Any, list[Any]], list[Any]]
    ) -> list[Any]:
        """totals after body(t, totals) for t = start, start + step, ... below stop."""
        builder = self.builder
        before = builder.block
        head, inside, after = (builder.append_basic_block(name) for name in ("lanes.head", "lanes.body", "lanes.after"))
        builder.branch(head)
        builder.position_at_end(head)
        t = builder.phi(LONG)
        t.add_incoming(start, before)
        carried = []
        for total in totals:
            carried.append(builder.phi(total.type))
            carried[-1].add_incoming(total, before)
        builder.cbranch(builder.icmp_signed("<", t, stop), inside, after)
        builder.position_at_end(inside)
        for phi, value in zip(carried, body(t, carried)):
            phi.add_incoming(value, builder.block)
        t.add_incoming(builder.add(t, LONG(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return carried
