"""The output layer of a language model: hidden state h -> logits, softcap * tanh((W h + b) * scale / softcap).

OutputLayer        weight, bias, scale, soft-cap and the number of real tokens; checked once, then immutable
OutputLayer.load   the same from a file or a model's folder (decoder/readers/)

The weight stays in the dtype in which it was given and is never copied where it is C-contiguous, so it may lie in a
model's own memory or in a mapped file. Rows at and beyond vocab_size are padding: they may hold anything and never answer.
Not here: logits of hidden states (exact.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from decoder.errors import BadWeightsError, DecoderOptionsError, named
from decoder.kernels import score
from decoder.kernels.dots import BFLOAT16, FLOAT16, FLOAT32
from decoder.option_checks import number, whole
from decoder.readers import read_bias, read_layer
from decoder.tensors import as_numpy, bfloat16_bits, bits_as_float32, is_bfloat16, is_tensor, widened

BLOCK_BYTES = 1 << 22
KINDS = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16}

_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""Scale and soft-cap are float32 numbers: past these they would be 0 or infinity."""

Weight = NDArray[Any]


class OutputLayer:
    """Weight [V, d], bias [V], scale and soft-cap of an output layer.

    Threads: any number at once. The arrays given are not copied where that can be helped: who changes them in place
    changes the layer, which weights_hash() shows.
    """

    __slots__ = ("bias", "bits", "dim", "dtype", "kind", "scale", "softcap", "vocab_size", "weight")

    weight: Weight
    """[rows, d], C-contiguous: float32, float16, or uint16 that holds bfloat16; rows >= vocab_size."""
    bits: Weight
    """The weight as kernels take it: float32, or uint16 that holds float16 or bfloat16."""
    kind: int
    """Which of them: FLOAT32, FLOAT16 or BFLOAT16 of decoder.kernels.dots."""
    dtype: str
    bias: NDArray[np.float32]
    scale: float
    softcap: float | None
    vocab_size: int
    dim: int

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        vocab_size: int | None = None,
        dtype: str | None = None,
    ) -> None:
        """weight: float array or CPU tensor (V, d); uint16 needs dtype="bfloat16" (or "float16"). bias: (V,) or None.

        Raises BadWeightsError for shapes, dtypes, NaN and infinity; DecoderOptionsError for the rest.
        """
        array, name = _stored(weight, dtype)
        rows, dim = array.shape
        real = rows if vocab_size is None else whole("vocab_size", vocab_size, low=1)
        if real > rows:
            raise DecoderOptionsError(
                f"vocab_size is {real}, but the weight has {rows} rows, needed at most that. "
                "Is it the weight of another model?"
            )
        self._keep("weight", array)
        self._keep("bits", array.view(np.uint16) if name == "float16" else array)
        self._keep("kind", KINDS[name])
        self._keep("dtype", name)
        self._keep("dim", dim)
        self._keep("vocab_size", real)
        self._keep("scale", number("scale", scale, low=_LEAST, high=_MOST))
        self._keep("softcap", None if softcap is None else number("softcap", softcap, low=_LEAST, high=_MOST))
        self._keep("bias", _stored_bias(bias, rows, real))
        self._require_finite()

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: an OutputLayer is immutable; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted: an OutputLayer is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        said = (self.weight, self.bias, self.scale, self.softcap, self.vocab_size, self.dtype)
        return _made_again, said

    def __repr__(self) -> str:
        rows = len(self.weight)
        padding = f", {rows - self.vocab_size} padding rows" if rows > self.vocab_size else ""
        return f"OutputLayer({self.vocab_size} x {self.dim}, {self.dtype}{padding})"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        tensor: str | None = None,
        bias: Any = None,
        scale: float | None = None,
        softcap: float | None = None,
        vocab_size: int | None = None,
        dtype: str | None = None,
    ) -> OutputLayer:
        """The output layer in a file or a model's folder: .npy, .safetensors, .gguf, or a transformers folder.

        tensor: which one of several is the weight (safetensors); bias: an array, or the path of a .npy file; dtype: what
        the uint16 of a .npy file are. What is given here wins over what the file says.
        """
        where = Path(path)
        parts = read_layer(where, tensor=tensor)
        if isinstance(bias, str | Path):
            bias = read_bias(Path(bias))
        try:
            return cls(
                parts.weight,
                parts.bias if bias is None else bias,
                scale=parts.scale if scale is None else scale,
                softcap=parts.softcap if softcap is None else softcap,
                vocab_size=parts.vocab_size if vocab_size is None else vocab_size,
                dtype=dtype,
            )
        except BadWeightsError as error:
            raise BadWeightsError(f"{where}: {error}", token_ids=error.token_ids) from error

    def rows(self, ids: Any) -> NDArray[np.float32]:
        """The weight's rows of these token ids, float32 (m, d), a copy."""
        chosen = self.bits[np.asarray(ids)]
        if self.kind == BFLOAT16:
            return bits_as_float32(chosen)
        return np.asarray(chosen.view(self.weight.dtype), dtype=np.float32)

    def finish(self, raw: Any) -> NDArray[np.float32]:
        """Logits of raw = W h + b, any shape: scale, then soft-cap, each once. The bits are those of every other path."""
        out = np.array(raw, np.float32, order="C")
        score.finish_in_place(out.reshape(-1), np.float32(self.scale), np.float32(self.softcap or 0.0))
        return out

    def weights_hash(self) -> str:
        """xxh3-128 of all that decides the logits, hexadecimal. Read anew at each call: an edit in place shows.

        Padding rows decide nothing, and do not count: a decoder's folder does not keep them.
        """
        real = self.weight[: self.vocab_size]
        said = f"{real.shape} {self.dtype} {self.scale!r} {self.softcap!r} {self.vocab_size}"
        digest = xxhash.xxh3_128(said.encode())
        flat = real.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), BLOCK_BYTES):
            digest.update(flat[at : at + BLOCK_BYTES].data)
        digest.update(self.bias.data)
        return str(digest.hexdigest())

    def _require_finite(self) -> None:
        """Raise BadWeightsError that names tokens whose weight or bias holds NaN or infinity. Padding may hold them."""
        exponent = {FLOAT32: 0x7F800000, FLOAT16: 0x7C00, BFLOAT16: 0x7F80}[self.kind]
        words: NDArray[Any] = self.bits.view(np.uint32 if self.kind == FLOAT32 else np.uint16)[: self.vocab_size]
        unsigned = words.dtype.type((1 << (8 * words.itemsize - 1)) - 1)
        block = max(1, BLOCK_BYTES // max(1, self.dim * words.itemsize))
        bad = []
        for at in range(0, self.vocab_size, block):
            largest = (words[at : at + block] & unsigned).max(axis=1, initial=0)
            bad += (at + np.flatnonzero(largest >= exponent)).tolist()
        if bad:
            raise _not_finite("weight", bad)
        wrong = np.flatnonzero(~np.isfinite(self.bias)).tolist()
        if wrong:
            raise _not_finite("bias", wrong)


def _made_again(
    weight: Weight, bias: NDArray[np.float32], scale: float, softcap: float | None, vocab_size: int, dtype: str
) -> OutputLayer:
    """A layer from its pickled parts."""
    return OutputLayer(weight, bias, scale=scale, softcap=softcap, vocab_size=vocab_size, dtype=dtype)


def _not_finite(what: str, token_ids: list[int]) -> BadWeightsError:
    plural = "s" if len(token_ids) > 1 else ""
    return BadWeightsError(
        f"the {what} of token id{plural} {named(token_ids)} holds NaN or infinity, needed finite numbers. "
        "Was the model saved after its training diverged, or in a dtype that its values do not fit?",
        token_ids=token_ids,
    )


def _stored(weight: Any, dtype: str | None) -> tuple[Weight, str]:
    """The weight as it is kept, C-contiguous [rows, d], and what its dtype is called."""
    if dtype is not None and dtype not in KINDS:
        raise BadWeightsError(f"dtype is {dtype!r}, needed one of {', '.join(KINDS)}")
    try:
        array = as_numpy(weight) if is_tensor(weight) else np.asarray(weight)
    except (ValueError, TypeError) as error:
        raise BadWeightsError(f"weight: {error}") from error
    if array.ndim != 2 or 0 in array.shape:
        raise BadWeightsError(f"weight has shape {array.shape}, needed [V, d]: one row for each token")
    if is_bfloat16(array.dtype):
        array, name = bfloat16_bits(array).reshape(array.shape), "bfloat16"
    elif array.dtype == np.uint16 and dtype in ("bfloat16", "float16"):
        array, name = (
            (array, "bfloat16") if dtype == "bfloat16" else (np.ascontiguousarray(array).view(np.float16), "float16")
        )
    elif array.dtype == np.uint16:
        raise BadWeightsError(
            'weight has dtype uint16, which may hold bfloat16 or float16: say dtype="bfloat16" (or "float16")'
        )
    elif array.dtype.kind == "f":
        name = "float16" if array.dtype.itemsize == 2 else "float32"
        array = _as_dtype(array, np.dtype(name))
    else:
        raise BadWeightsError(
            f"weight has dtype {array.dtype}, needed float16, float32, float64 or bfloat16. Quantised weights have to be "
            "dequantised first; GGUF files are when they are loaded."
        )
    if dtype is not None and dtype != name:
        raise BadWeightsError(f"weight holds {name}, but dtype={dtype!r} was said. Leave dtype out for float arrays.")
    return np.ascontiguousarray(array), name


def _as_dtype(array: Weight, dtype: np.dtype[Any]) -> Weight:
    """In native byte order; float64 that float32 does not hold becomes infinite and is refused as such."""
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=dtype)


def _stored_bias(bias: Any, rows: int, vocab_size: int) -> NDArray[np.float32]:
    """The bias of the real tokens, float32 (vocab_size,)."""
    if bias is None:
        return np.zeros(vocab_size, np.float32)
    try:
        array = as_numpy(bias) if is_tensor(bias) else np.asarray(bias)
    except (ValueError, TypeError) as error:
        raise BadWeightsError(f"bias: {error}") from error
    # Marian and BART keep theirs as [1, V].
    shape = array.shape
    if array.ndim == 2 and shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or len(array) not in (rows, vocab_size):
        wanted = f"[{rows}]" if rows == vocab_size else f"[{rows}] or [{vocab_size}]"
        raise BadWeightsError(f"bias has shape {shape}, needed {wanted}: one number for each token")
    values = array.astype(np.float32) if array.dtype.kind in "iu" else widened(array)
    if values is None:
        raise BadWeightsError(f"bias has dtype {array.dtype}, needed float16, float32, float64 or bfloat16")
    return np.ascontiguousarray(values[:vocab_size])
