"""What Numba lacks: a software prefetch, and half precision numbers read as float32.

Both compile to plain LLVM; neither needs an instruction that older processors lack.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at `address` (uintp); never faults."""
    signature = types.void(types.uintp)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        word = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte_pointer], ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        )
        builder.call(function, [builder.inttoptr(args[0], byte_pointer), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def float32_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 whose bit pattern is `bits` (uint32)."""
    signature = types.float32(types.uint32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return signature, codegen


def as_float32(value: Any) -> Any:
    """A stored component as float32; uint16 holds the bits of a float16."""
    raise AssertionError("compiled code only")


@overload(as_float32, inline="always")
def _as_float32(value: Any) -> Any:
    if value == types.uint16:
        # Exponent and mantissa move up by 13 bits, 2^112 corrects the exponent's bias; denormals come out right too.
        # Infinities and NaN do not: a build refuses them. No F16C needed, and the loop vectorises.
        def convert(value: Any) -> Any:
            magnitude = float32_of_bits(np.uint32(np.uint32(value & np.uint16(0x7FFF)) << np.uint32(13)))
            scaled = magnitude * np.float32(5.192296858534828e33)
            return -scaled if value & np.uint16(0x8000) else scaled

        return convert

    def widen(value: Any) -> Any:
        return np.float32(value)

    return widen


@njit(cache=True, nogil=True)
def halves_to_float32(halves: Any, out: Any) -> None:
    """out[i] = the float16 whose bits are halves[i]. halves uint16 (m,), out float32 (m,)."""
    for i in range(halves.shape[0]):
        out[i] = as_float32(halves[i])
