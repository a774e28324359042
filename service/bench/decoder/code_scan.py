"""Every row's int8 code in order, the best few reranked exactly: what a decoder has to beat without a graph.

It is the decoder's own screen, told that all coordinates lead: the same vector instructions, the same rerank.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decoder.candidates import Effort
from decoder.preview import Preview
from decoder.scratch import Scratch
from decoder.screen import Screener
from decoder.threads import each_part
from decoder.transform import Projection
from service.bench.decoder.entrant import Entrant, Floats, Found, Kind, MissingEntrantError, Setting, Tell
from service.bench.decoder.heads import Head
from service.bench.decoder.ours import DecoderOf

RERANKED = (12, 16, 24, 32, 64, 128)
STEP = 16
"""A scan takes so many coordinates at a time."""


class CodeScan(Entrant):
    """Knob: rows reranked. States are shared among threads; one state keeps to one."""

    name, kind = "int8 scan", Kind.PEER

    def __init__(self, shared: DecoderOf) -> None:
        self._shared = shared

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """The decoder's codes, all coordinates of them."""
        parts = self._shared.open(head, folder, tell).parts
        self.build_seconds = sum(float(parts.report["phases"][phase]) for phase in ("frame", "codes"))
        codes, scalars = parts.preview.codes, parts.preview.scalars
        if parts.preview.width % STEP:
            raise MissingEntrantError(f"codes have {parts.preview.width} coordinates, no multiple of {STEP}")
        every = Preview.of(codes, scalars, codes, np.ascontiguousarray(scalars.T))
        self._screener = Screener(parts.layer, parts.frame, Projection.of(parts.frame), every, parts.seed)
        self._scratch: list[Scratch] = []
        self.memory_bytes = parts.resident_bytes["layer"] + codes.nbytes + scalars.nbytes

    def settings(self) -> list[Setting]:
        """Rows reranked."""
        return [{"rerank": rows} for rows in RERANKED if rows <= self._screener.layer.vocab_size]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """No log-probabilities."""
        effort = Effort(width=int(setting["rerank"]), rerank=int(setting["rerank"]))
        shares = max(1, min(threads, len(states)))
        self._scratch += [Scratch() for _ in range(shares - len(self._scratch))]
        cuts = [len(states) * part // shares for part in range(shares + 1)]

        def part(number: int) -> np.ndarray:
            some = np.ascontiguousarray(states[cuts[number] : cuts[number + 1]])
            return self._screener.answer(some, effort, self._scratch[number]).token_ids[:, :k]

        found = each_part(part, shares)
        scored = np.full(len(states), float(self._screener.layer.vocab_size))
        return Found(token_ids=np.concatenate(found), rows_scored=scored)
