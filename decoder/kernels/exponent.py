"""exp and tanh as plain arithmetic, so that loops over them vectorise and their bits are the same wherever they stand.

Both reduce to exp(x) = 2^k p(r), |r| <= log(2) / 2; k is rounded by adding 1.5 * 2^23 (2^52), which leaves k in the low
bits of the sum, from where it is moved into p's exponent. Nothing here may be compiled with fastmath.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

SMALL = 0.05


def _bitcast(source: Any, target: Any, kind: Any) -> Any:
    @intrinsic
    def cast(typing_context: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.bitcast(args[0], kind)

        return target(source), codegen

    return cast


_bits32 = _bitcast(types.float32, types.uint32, ir.IntType(32))
_float32 = _bitcast(types.uint32, types.float32, ir.FloatType())
_bits64 = _bitcast(types.float64, types.uint64, ir.IntType(64))
_float64 = _bitcast(types.uint64, types.float64, ir.DoubleType())


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def exp_below_zero(x: Any) -> Any:
    """exp(x) of a float32 x <= 0, to about 1 part in 10^7; exp(-87) = 2e-38 for anything below."""
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    shifted = x * np.float32(1.4426950408889634) + np.float32(12582912.0)
    k = shifted - np.float32(12582912.0)
    r = (x - k * np.float32(0.693359375)) - k * np.float32(-2.12194440e-4)
    p = np.float32(1.0 / 720.0)
    p = p * r + np.float32(1.0 / 120.0)
    p = p * r + np.float32(1.0 / 24.0)
    p = p * r + np.float32(1.0 / 6.0)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    return _float32(np.uint32(_bits32(p) + np.uint32(_bits32(shifted) << np.uint32(23))))


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def exp_roughly(x: Any) -> Any:
    """exp(x) of a float32 x <= 0, to 1 part in 5,000, in half of the time; never below exp(-87)."""
    x = np.float32(-87.0) if x < np.float32(-87.0) else x
    y = x * np.float32(1.4426950408889634)
    shifted = y + np.float32(12582912.0)
    r = y - (shifted - np.float32(12582912.0))
    # The cubic nearest to 2^r on [-1/2, 1/2].
    p = np.float32(0.05517166907905640)
    p = p * r + np.float32(0.24261112219905600)
    p = p * r + np.float32(0.69326098546062416)
    p = p * r + np.float32(0.99992807353939517)
    return _float32(np.uint32(_bits32(p) + np.uint32(_bits32(shifted) << np.uint32(23))))


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def tanh(x: Any) -> Any:
    """tanh of a float64, to about 1 part in 10^13. NaN for infinities, as for NaN."""
    # t = exp(-2 |x|); past 20 the result rounds to 1.
    size = abs(x)
    y = -2.0 * (size if size < 20.0 else 20.0)
    shifted = y * 1.4426950408889634 + 6755399441055744.0
    k = shifted - 6755399441055744.0
    r = (y - k * 0.6931471803691238) - k * 1.9082149292705877e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r + 1.0
    p = p * r + 1.0
    t = _float64(np.uint64(_bits64(p) + np.uint64(_bits64(shifted) << np.uint64(52))))
    result = (1.0 - t) / (1.0 + t)
    # 1 - t keeps no digits of a small x, of which a large soft-cap is a multiple.
    square = x * x
    series = size * (
        1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0 - square * (62.0 / 2835.0))))
    )
    result = series if size < SMALL else result
    return (result if x >= 0.0 else -result) + 0.0 * x
