"""What is kept of a stretch of logits, as vector code: the largest, and the sum of their exponentials.

Both take the address of float32 values and their number, a multiple of LANES: pad with minus infinity.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from decoder.kernels.vectors import DOUBLE, FLOAT32, FLOATS, LANES, LONG, Emitter, like, same


def _values(emitter: Emitter, address: Any, t: Any) -> Any:
    return emitter.load(FLOAT32, emitter.builder.add(address, emitter.builder.mul(t, LONG(4))), FLOATS)


@intrinsic
def largest(typing_context: Any, address: Any, count: Any) -> Any:
    """The largest value, float32; NaN counts as nothing."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emitter = Emitter(context, builder)

        def body(t: Any, totals: list[Any]) -> list[Any]:
            return [emitter.larger(totals[0], _values(emitter, args[0], t))]

        (lanes,) = emitter.loop(LONG(0), args[1], LANES, [same(FLOATS, float("-inf"))], body)
        return emitter.folded(lanes, emitter.larger)

    return types.float32(types.intp, types.intp), codegen


@intrinsic
def sum_of_exponentials(typing_context: Any, address: Any, count: Any, top: Any) -> Any:
    """Sum of exp(value - top), float64; no value may be above top, which is finite.

    Each lane adds up in float32, so `count` should be some hundreds; the lanes' sums are added in float64.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emitter = Emitter(context, builder)
        tops = builder.insert_element(same(FLOATS, 0.0), args[2], LONG(0))
        tops = emitter.shuffled(tops, tops, [0] * LANES)

        def body(t: Any, totals: list[Any]) -> list[Any]:
            below = builder.fsub(_values(emitter, args[0], t), tops)
            return [builder.fadd(totals[0], emitter.exp_below_zero(below))]

        (lanes,) = emitter.loop(LONG(0), args[1], LANES, [same(FLOATS, 0.0)], body)
        return emitter.folded(builder.fpext(lanes, like(DOUBLE, FLOATS)), builder.fadd)

    return types.float64(types.intp, types.intp, types.float32), codegen
