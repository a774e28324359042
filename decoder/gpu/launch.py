"""What a kernel is compiled with, and the few device functions that kernels share.

Launch         constants, warps and stages of one compiled variant
ordered        floats as integers that sort the same way; unordered turns them back
finite         which numbers are neither infinite nor NaN
finish         raw logits -> scaled, soft-capped
log_or_nothing log of a sum that may be empty

Fusing a product and a sum into one rounding is switched off everywhere: an estimate is then the same float32 number in a
kernel and in its torch twin, and ties are ties in both.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-decorators=False, disallow-incomplete-defs=False
# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Launch(NamedTuple):
    """One compiled variant of a kernel."""

    constants: dict[str, int]
    warps: int = 4
    stages: int = 3

    def options(self) -> dict[str, int | bool]:
        """What the compiler is told beside the constants."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}

    def keywords(self) -> dict[str, int | bool]:
        """Everything a launch passes by name."""
        return {**self.constants, **self.options()}


@triton.jit
def finite(x):
    """Which of these float32 numbers are neither infinite nor NaN."""
    return tl.abs(x) < 3.0e38


@triton.jit
def ordered(x):
    """float32 -> int32 with the same order, -0 as 0; NaN must not come."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(bits):
    """The inverse of ordered."""
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def finish(raw, scale, softcap, CAPPED: tl.constexpr):
    """Logits from raw products: scaled, then soft-capped where the layer asks for it. The same order as raw (scale > 0)."""
    logits = raw * scale
    if CAPPED:
        # tanh by exp: the interpreter has no tanh, and 1 - 2 / (1 + e^2x) keeps its sign and limits at both ends.
        # Past 40 it is 1 in float32, and a larger exponential would overflow.
        logits = softcap * (1.0 - 2.0 / (1.0 + tl.exp(tl.minimum(2.0 * (logits / softcap), 80.0))))
    return logits


@triton.jit
def log_or_nothing(total):
    """log of a sum of exponentials; -inf for an empty sum (the interpreter warns of log 0)."""
    return tl.where(total > 0.0, tl.log(tl.maximum(total, 1e-37)), float("-inf"))
