"""Exact answers as people get them today: a matrix product over all rows, then the k largest. No softmax is timed.

NumpyExact    float32: one product, argpartition
TorchExact    float32 or bfloat16: F.linear, or mv for single states; topk
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from service.bench.decoder.entrant import (
    ANY_BATCH,
    Entrant,
    Floats,
    Found,
    Kind,
    MissingEntrantError,
    Setting,
    Tell,
    best_of,
)
from service.bench.decoder.heads import Head


class NumpyExact(Entrant):
    """As one would write it."""

    name, kind = "numpy float32", Kind.EXACT

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """The weight as float32."""
        begun = time.perf_counter()
        self._weight, self._bias = head.float32, head.layer.bias
        self._by_column = self._weight.T
        self.build_seconds = time.perf_counter() - begun
        self.memory_bytes = self._weight.nbytes + self._bias.nbytes

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """A matrix times a vector for one state, a product of matrices for more."""
        if len(states) == 1:
            logits = (self._weight @ states[0] + self._bias)[None]
        else:
            logits = states @ self._by_column
            logits += self._bias
        return Found(token_ids=best_of(logits, k))


class TorchExact(Entrant):
    """dtype: float32 or bfloat16. single: mv, which takes one state only; else F.linear."""

    kind = Kind.EXACT

    def __init__(self, dtype: str, *, single: bool) -> None:
        self.name = f"torch {dtype} {'mv' if single else 'F.linear'}"
        self.largest_batch = 1 if single else ANY_BATCH
        self._dtype, self._single = dtype, single

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """The weight as a tensor of the dtype."""
        try:
            import torch
        except ImportError:
            raise MissingEntrantError("torch is not installed; the extra hf brings it") from None
        self._torch: Any = torch
        self._linear: Any = torch.nn.functional.linear
        begun = time.perf_counter()
        self._kind = getattr(torch, self._dtype)
        self._weight = torch.from_numpy(head.float32).to(self._kind)
        self._bias = torch.from_numpy(np.array(head.layer.bias)).to(self._kind)
        self.build_seconds = time.perf_counter() - begun
        self.memory_bytes = self._weight.nbytes + self._bias.nbytes

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """From float32 in numpy to ids in numpy."""
        with self._torch.inference_mode():
            hidden = self._torch.from_numpy(states).to(self._kind)
            if self._single:
                logits = (self._torch.mv(self._weight, hidden[0]) + self._bias)[None]
            else:
                logits = self._linear(hidden, self._weight, self._bias)
            ids = self._torch.topk(logits, k).indices
        return Found(token_ids=ids.numpy().astype(np.int32))
