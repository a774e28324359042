"""Every row's int8 code in order, the best few reranked exactly: what a decoder has to beat without a graph.

The codes, the frame, the integer products and the exact logits are the decoder's own; all coordinates of all rows are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from decoder.kernels.frame import into_frame
from decoder.kernels.score import exact_logits
from decoder.kernels.select import best_first, keep_best
from decoder.threads import each_part
from decoder.transform import Projection
from index.kernels.vector_dots import four_code_dots
from service.bench.decoder.entrant import Entrant, Floats, Found, Kind, MissingEntrantError, Setting, Tell
from service.bench.decoder.heads import Head
from service.bench.decoder.ours import DecoderOf

RERANKED = (12, 16, 24, 32, 64, 128)
STEP = 16
"""A scan takes so many coordinates at a time."""
BLOCK = 1024


@njit(cache=True, nogil=True, fastmath={"contract", "arcp"})
def _distances(codes: Any, scalars: Any, plane: Any, scale: Any, total: Any, wide: Any, sums: Any, out: Any) -> None:
    """out[v] = -2 (estimated logit) of every row. codes uint8 (V, width): V a multiple of 4, width of 16."""
    width = codes.shape[1]
    for t in range(width):
        wide[t] = plane[t]
    twice, offset = np.float32(2.0) * scale, np.float32(127.5) * total
    at, to, query = codes.ctypes.data, sums.ctypes.data, wide.ctypes.data
    for first in range(0, codes.shape[0], BLOCK):
        last = min(first + BLOCK, codes.shape[0])
        for j in range(first, last, 4):
            four_code_dots(at + np.int64(j) * width, query, width, to + 4 * (j - first))
        for j in range(first, last):
            out[j] = scalars[0, j] - twice * scalars[1, j] * (np.float32(sums[j - first]) - offset)


@njit(cache=True, nogil=True)
def _scan_states(
    weight: Any, kind: Any, bias: Any, scale: Any, softcap: Any, mean: Any, projection: Any, projection_kind: Any,
    codes: Any, scalars: Any, rows: Any, states: Any, keep: Any, who: Any, logits: Any,
) -> None:  # fmt: skip
    """who int32, logits float32 (n, keep): the best of each state, sorted. rows: int32, all row numbers there are."""
    total_rows, width = rows.shape[0], codes.shape[1]
    moved, query = np.empty(mean.shape[0], np.float32), np.empty(width + 1, np.float32)
    plane, wide, sums = np.empty(width, np.int8), np.empty(width, np.int16), np.empty(BLOCK, np.int32)
    values, near = np.empty(codes.shape[0], np.float32), np.empty(keep, np.float32)
    for s in range(states.shape[0]):
        query_scale, query_sum, _ = into_frame(states[s], mean, projection, projection_kind, moved, query, plane)
        _distances(codes, scalars, plane, query_scale, query_sum, wide, sums, values)
        kept = keep_best(values, total_rows, rows, keep, who[s], near)
        exact_logits(weight, kind, bias, scale, softcap, states[s], who[s], 0, kept, logits[s])
        best_first(who[s], logits[s], kept, near)


class CodeScan(Entrant):
    """Knob: rows reranked. States are shared among threads; one state keeps to one."""

    name, kind = "int8 scan", Kind.PEER

    def __init__(self, shared: DecoderOf) -> None:
        self._shared = shared

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """The decoder's codes, all coordinates of them."""
        self._parts = parts = self._shared.open(head, folder, tell).parts
        self.build_seconds = sum(float(parts.report["phases"][phase]) for phase in ("frame", "codes"))
        codes, scalars = parts.preview.codes, parts.preview.scalars
        if parts.preview.width % STEP:
            raise MissingEntrantError(f"codes have {parts.preview.width} coordinates, no multiple of {STEP}")
        self._projection = Projection.of(parts.frame)
        whole = -(-len(codes) // 4) * 4  # four rows at a time; those past the end are never among the best
        self._codes, self._scalars = np.zeros((whole, codes.shape[1]), np.uint8), np.zeros((2, whole), np.float32)
        self._codes[: len(codes)], self._scalars[:, : len(codes)] = codes, scalars.T
        self._rows = np.arange(len(codes), dtype=np.int32)
        self.memory_bytes = parts.resident_bytes["layer"] + codes.nbytes + scalars.nbytes

    def settings(self) -> list[Setting]:
        """Rows reranked."""
        return [{"rerank": rows} for rows in RERANKED if rows <= len(self._rows)]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """No log-probabilities."""
        rerank, layer, frame = int(setting["rerank"]), self._parts.layer, self._parts.frame
        shares = max(1, min(threads, len(states)))
        cuts = [len(states) * part // shares for part in range(shares + 1)]

        def part(number: int) -> np.ndarray:
            some = np.ascontiguousarray(states[cuts[number] : cuts[number + 1]])
            who, logits = np.empty((len(some), rerank), np.int32), np.empty((len(some), rerank), np.float32)
            _scan_states(
                layer.bits.view(np.uint8), layer.kind, layer.bias, np.float32(layer.scale),
                np.float32(layer.softcap or 0.0), frame.mean, self._projection.rows, self._projection.kind, self._codes,
                self._scalars, self._rows, some, rerank, who, logits,
            )  # fmt: skip
            return who[:, :k]

        found = each_part(part, shares)
        return Found(token_ids=np.concatenate(found), rows_scored=np.full(len(states), float(len(self._rows))))
