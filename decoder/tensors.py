"""Arrays that are not NumPy's own: torch tensors and bfloat16, both without importing torch or ml_dtypes.

is_tensor, as_numpy   a torch tensor, and its memory as a NumPy array (bfloat16: an array of that dtype's bits, see below)
bfloat16_bits         uint16 bits of an array whose dtype is called bfloat16 (ml_dtypes and alike)
widened               any float array as float32
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

BFLOAT16_BITS = np.dtype([("bfloat16", np.uint16)])
"""How an array of bfloat16 is marked where no package gives NumPy that type: one field of that name."""


_FLOAT32, _FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)


def is_tensor(value: object) -> bool:
    """Whether this is a torch tensor; False wherever torch was never imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_numpy(tensor: Any) -> NDArray[Any]:
    """A CPU tensor's memory as an array, not copied; bfloat16 comes as BFLOAT16_BITS. ValueError for other devices."""
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device}; move it to the CPU first: tensor.cpu()")
    if tensor.layout is not torch.strided:
        raise ValueError(f"a tensor of layout {tensor.layout}; make it dense first: tensor.to_dense()")
    if tensor.dtype is torch.bfloat16:
        bits: NDArray[Any] = tensor.view(torch.int16).numpy().view(np.uint16)
        return bits.view(BFLOAT16_BITS) if bits.flags.c_contiguous else np.ascontiguousarray(bits).view(BFLOAT16_BITS)
    array: NDArray[Any] = tensor.numpy()
    return array


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype hold bfloat16."""
    if dtype is _FLOAT32 or dtype is _FLOAT16:  # the usual ones: comparing structured dtypes takes microseconds
        return False
    return dtype == BFLOAT16_BITS or (dtype.name == "bfloat16" and dtype.itemsize == 2)


def bfloat16_bits(array: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of an array of bfloat16, not copied where it is C-contiguous."""
    return np.ascontiguousarray(array).view(np.uint16)


def bits_as_float32(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16 bits as float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def widened(array: NDArray[Any]) -> NDArray[np.float32] | None:
    """A float array as float32, not copied where it is that already; None for any other dtype.

    Values past float32 become infinities.
    """
    if array.dtype is _FLOAT32:
        return array
    if is_bfloat16(array.dtype):
        return bits_as_float32(bfloat16_bits(array).reshape(array.shape))
    if array.dtype.kind != "f":
        return None
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float32)
