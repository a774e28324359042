"""SVD-softmax (Shim et al., 2017): a preview of every logit from the leading singular directions, the best N in full.

Knobs: width, the directions of the preview; rerank, the N. Numpy, float32, no softmax.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from service.bench.decoder.entrant import Entrant, Floats, Found, Kind, Setting, Tell, best_of
from service.bench.decoder.heads import Head

SHARES = (8, 4, 2)
"""The dimension divided by these: widths."""
RERANKED = (50, 100, 200, 400, 800, 1600, 3200, 6400)


class SvdSoftmax(Entrant):
    """W = U S V': previews are rows of U S times V' h."""

    name, kind = "SVD-softmax", Kind.PEER

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """The singular vectors, and the leading columns of U S for each width."""
        begun = time.perf_counter()
        self._weight, self._bias = head.float32, head.layer.bias
        gram = self._weight.T @ self._weight
        _, directions = np.linalg.eigh(gram.astype(np.float64))
        self._directions = np.ascontiguousarray(directions[:, ::-1].T, np.float32)
        turned = self._weight @ self._directions.T
        dim = self._weight.shape[1]
        self._leading = {w: np.ascontiguousarray(turned[:, :w]) for w in sorted({max(1, dim // s) for s in SHARES})}
        self.build_seconds = time.perf_counter() - begun
        # One width is what a user would keep: the widest is counted.
        widest = max(self._leading.values(), key=lambda part: part.nbytes)
        self.memory_bytes = self._weight.nbytes + self._bias.nbytes + self._directions.nbytes + widest.nbytes

    def settings(self) -> list[Setting]:
        """Every width with every N."""
        most = len(self._weight)
        return [{"width": width, "rerank": rows} for width in self._leading for rows in RERANKED if rows <= most]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """Preview of all states at once; the best rows of each state on their own."""
        width, rows = int(setting["width"]), int(setting["rerank"])
        leading = self._leading[width]
        turned = states @ self._directions[:width].T
        previews = (leading @ turned[0])[None] if len(states) == 1 else turned @ leading.T
        previews += self._bias
        total = previews.shape[1]
        some = np.argpartition(previews, total - rows, axis=1)[:, total - rows :] if rows < total else None
        ids = np.empty((len(states), k), np.int32)
        for number, state in enumerate(states):
            chosen = np.arange(total) if some is None else some[number]
            logits = self._weight[chosen] @ state + self._bias[chosen]
            ids[number] = chosen[best_of(logits[None], k)[0]]
        return Found(token_ids=ids, rows_scored=np.full(len(states), float(total)))
