"""The plain truth in float64, and layers to hold against it: what the decoder's tests compare with."""

from __future__ import annotations

import numpy as np

from decoder.output_layer import OutputLayer

DTYPES = ("float32", "float16", "bfloat16")


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """float32 values as bfloat16, rounded to nearest even: uint16."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """A weight as OutputLayer keeps it in this dtype."""
    return bfloat16_bits(values) if dtype == "bfloat16" else np.asarray(values).astype(dtype)


def random_layer(
    rows: int, dim: int, dtype: str = "float16", *, seed: int = 0, bias: bool = True, **options
) -> OutputLayer:
    generator = np.random.default_rng(seed)
    weight = generator.normal(size=(rows, dim)).astype(np.float32)
    offsets = generator.normal(size=rows).astype(np.float32) if bias else None
    return OutputLayer(stored(weight, dtype), offsets, dtype=dtype, **options)


def random_states(n: int, dim: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


def logits64(layer: OutputLayer, hidden: np.ndarray) -> np.ndarray:
    """Logits of all real tokens, float64 (n, V)."""
    weight = layer.rows(np.arange(layer.vocab_size)).astype(np.float64)
    logits = (np.atleast_2d(hidden).astype(np.float64) @ weight.T + layer.bias.astype(np.float64)) * layer.scale
    return logits if layer.softcap is None else layer.softcap * np.tanh(logits / layer.softcap)


def log_sum(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=-1, keepdims=True)
    return (top + np.log(np.exp(logits - top).sum(axis=-1, keepdims=True)))[..., 0]


def logprobs64(layer: OutputLayer, hidden: np.ndarray) -> np.ndarray:
    logits = logits64(layer, hidden)
    return logits - log_sum(logits)[..., None]


def require_best(layer: OutputLayer, hidden: np.ndarray, token_ids: np.ndarray, logits: np.ndarray, k: int) -> None:
    """token_ids (n, k) are the k best by the truth, but for tokens that float32 cannot tell apart; logits are theirs."""
    true = logits64(layer, hidden)
    assert token_ids.shape == logits.shape == (len(true), k)
    close = 1e-5 * max(1.0, float(np.abs(true).max()))
    for line, ids, found in zip(true, token_ids, logits):
        assert len(set(ids.tolist())) == k
        np.testing.assert_allclose(found, line[ids], atol=close)
        assert line[ids].min() >= np.sort(line)[-k] - close
        assert all(found[j] > found[j + 1] or (found[j] == found[j + 1] and ids[j] < ids[j + 1]) for j in range(k - 1))
