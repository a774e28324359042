"""An open decoder on a device: its arrays moved there once, its answers as TopK with tensors of the device for fields.

device_head    the parts of a decoder -> GpuHead
device_topk    a GpuHead's answer under the names of decoder.answers
"""

# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.answers import TopK
from decoder.errors import DecoderOptionsError
from decoder.gpu.head import GpuHead, Kernels
from decoder.option_checks import one_of
from decoder.store import DecoderParts
from index.errors import MissingExtraError

try:
    import torch
except ImportError as missing:
    raise MissingExtraError(package="torch", extra="gpu", purpose="decoding on a device") from missing

ENTRIES = 1_024
"""Rows that a walk on a device begins with, at most."""
WAYS = {"auto": "auto", "walk": "walk", "screen": "scan", "exact": "exact"}
"""What a mode of a decoder is called on a device."""


def device_head(parts: DecoderParts, device: Any, *, kernels: Kernels = "auto") -> GpuHead:
    """The decoder's layer, codes and graph on a device."""
    layer, preview = parts.layer, parts.preview
    if layer.dtype == "bfloat16":
        weight = torch.from_numpy(layer.bits.view("int16")).view(torch.bfloat16)
    else:
        weight = torch.from_numpy(layer.weight)
    scalars = torch.from_numpy(preview.scalars)
    return GpuHead(
        weight=weight,
        codes=torch.from_numpy(preview.codes),
        code_scales=scalars[:, 1],
        code_bias=scalars[:, 0] * -0.5,
        bias=torch.from_numpy(layer.bias),
        scale=layer.scale,
        softcap=layer.softcap,
        vocab_size=layer.vocab_size,
        matrix=torch.from_numpy(parts.frame.projection),
        mean=torch.from_numpy(parts.frame.mean),
        centre=torch.from_numpy(parts.frame.centre),
        links=torch.from_numpy(parts.links),
        entries=torch.from_numpy(_entries(parts.entries.table)),
        seed=parts.seed,
        device=device,
        kernels=kernels,
    )


def _entries(table: NDArray[np.int32]) -> NDArray[np.int32]:
    """Entry rows of all clusters, each once, every cluster's first before any second: a device begins at all of them."""
    flat = table.T.ravel()
    _, first = np.unique(flat, return_index=True)
    entries: NDArray[np.int32] = flat[np.sort(first)][:ENTRIES]
    return entries


def device_topk(head: GpuHead, hidden: Any, *, k: int, mode: str, normalize: str) -> TopK:
    """The k best tokens of hidden states [n, d] on the device; every field but mode and exact is a tensor there."""
    one_of("mode", mode, WAYS)
    if normalize not in ("estimate", "exact"):
        raise DecoderOptionsError(
            f'normalize is {normalize!r}; on a device log-probabilities are relative to log Z: "estimate", or "exact", '
            "which reads all rows. Move the states to the CPU for others."
        )
    way: Any = "exact" if normalize == "exact" else WAYS[mode]
    found: Any = head.topk(hidden, k, mode=way)
    names = {way: name for name, way in WAYS.items()}
    return TopK(
        token_ids=found.token_ids,
        logits=found.logits,
        logprobs=found.logprobs,
        logprob_stderr=found.logprob_stderr,
        counts=(found.token_ids >= 0).sum(dim=1).int(),
        rows_scored=found.rows_scored,
        mode=names[found.mode],
        exact=found.mode == "exact",
        failed=found.failed,
    )
