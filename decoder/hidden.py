"""Hidden states as the kernels want them: float32, C-contiguous, [n, d].

as_states    what a caller gave -> that, or BadHiddenError
bad_rows     which rows hold NaN or infinity
require_finite raises for them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.errors import BadHiddenError, named
from decoder.tensors import as_numpy, is_tensor, widened

States = NDArray[np.float32]
AT_ONCE = 1 << 16
"""So many numbers are looked at one by one sooner than NumPy is told to keep silent about overflow."""


def as_states(hidden: Any, dim: int) -> States:
    """Hidden states float (n, dim), or one of (dim,), as float32 (n, dim). NumPy arrays, lists, CPU tensors.

    A C-contiguous float32 array that may be written to is not copied (for read-only memory every kernel would be compiled
    once more). Values past float32 become infinities, which bad_rows() finds.
    """
    try:
        array = as_numpy(hidden) if is_tensor(hidden) else np.asarray(hidden)
    except (ValueError, TypeError) as error:
        raise BadHiddenError(f"hidden is no array of numbers ({error}), needed float32 [n, {dim}]") from error
    states = array.astype(np.float32) if array.dtype.kind in "iu" else widened(array)
    if states is None:
        raise BadHiddenError(
            f"hidden has dtype {array.dtype}, needed float16, float32, float64 or bfloat16 of shape [n, {dim}]"
        )
    if states.ndim == 1:
        states = states[None, :]
    if states.ndim != 2 or states.shape[1] != dim:
        raise BadHiddenError(
            f"hidden has shape {array.shape}, needed [n, {dim}] or [{dim}]: the output layer takes states of {dim} components"
        )
    flags = states.flags
    if flags.c_contiguous and flags.writeable and flags.aligned:
        return states
    return np.require(states, requirements=("C", "W", "A"))


def bad_rows(states: States) -> list[int]:
    """Rows that hold NaN or infinity."""
    if states.size <= AT_ONCE and np.isfinite(states).all():
        return []
    # A sum is finite unless a component is not, or the sum overflows: only then look closer.
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = np.flatnonzero(~np.isfinite(states.sum(axis=1)))
    return [int(row) for row in suspects if not np.isfinite(states[row]).all()]


def require_finite(states: States) -> None:
    """Raise BadHiddenError naming the rows that hold NaN or infinity."""
    rows = bad_rows(states)
    if rows:
        raise BadHiddenError(
            f"hidden row{'s' if len(rows) > 1 else ''} {named(rows)} of {len(states)}: NaN or infinity, needed finite "
            'float32. Look at the layer before, or ask with on_bad="mark" to answer the other rows.',
            rows=rows,
        )
