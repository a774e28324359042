"""The decoder's own ways: the mode that its planner takes, walk, screen and exact, with and without log Z.

DecoderOf    builds or takes up the decoder that all of them share
Ours         one mode with one kind of log-probabilities
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from decoder import DecoderOptions, OpenDecoder, build_decoder, open_decoder
from service.bench.decoder.entrant import Entrant, Floats, Found, Kind, Setting, Tell
from service.bench.decoder.heads import Head
from service.bench.decoder.kept import is_kept, keep

RECALLS = (0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999)


class DecoderOf:
    """The decoder of a head in folder/decoder: built once, or taken from an earlier run of the same head and options."""

    def __init__(self, options: DecoderOptions) -> None:
        self.options = options
        self._opened: OpenDecoder | None = None
        self.build_seconds = 0.0
        self.reused = False

    def open(self, head: Head, folder: Path, tell: Tell) -> OpenDecoder:
        """The open decoder."""
        if self._opened is not None:
            return self._opened
        place = folder / "decoder"
        self.reused = is_kept(place, head, repr(self.options))
        if not self.reused:
            build_decoder(
                head.layer,
                place,
                calibration=head.calibration,
                options=self.options,
                on_progress=lambda event: tell(event.phase, event.done, event.total),
                replace=place.exists(),
            )
            keep(place, head, repr(self.options))
        self._opened = open_decoder(place, layer=head.layer)
        self.build_seconds = float(self._opened.parts.report["seconds"])
        return self._opened

    def close(self) -> None:
        """Let go of it."""
        if self._opened is not None:
            self._opened.close()


class Ours(Entrant):
    """mode, normalize: as OpenDecoder.topk takes them. Knob: recall."""

    def __init__(self, name: str, shared: DecoderOf, *, mode: str, normalize: str) -> None:
        self.name, self.kind = name, Kind.EXACT if mode == "exact" else Kind.OURS
        self.batch_matters = mode == "auto"
        self._shared, self._mode, self._normalize = shared, mode, normalize

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """Open the decoder, which the first of its ways builds."""
        self._decoder = self._shared.open(head, folder, tell)
        self.build_seconds = self._shared.build_seconds
        resident = self._decoder.stats()["resident_bytes"]
        self.memory_bytes = sum(resident.values())
        if self._mode == "exact":
            self.build_seconds, self.memory_bytes = 0.0, resident["layer"]

    def settings(self) -> list[Setting]:
        """Recalls that are worth asking for: of a mode that was measured, one for each of its operating points."""
        if self._mode == "exact":
            return [{}]
        if self._mode == "auto":
            return [{"recall": recall} for recall in RECALLS]
        points = [point for point in self._decoder.parts.points if point.mode == self._mode]
        return [{"recall": recall} for recall in sorted({point.low_at(10) for point in points})]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """A whole call of topk()."""
        top = self._decoder.topk(
            states, k=k, mode=self._mode, normalize=self._normalize, recall=setting.get("recall"), threads=threads
        )
        told = self._normalize != "none"
        return Found(
            token_ids=top.token_ids,
            rows_scored=top.rows_scored.astype(np.float64),
            logprobs=top.logprobs[:, 0] if told else None,
            stderr=top.logprob_stderr if told and self._normalize == "estimate" else None,
            mode=top.mode,
        )


def ours(shared: DecoderOf) -> list[Entrant]:
    """All of them; the first one is what a user gets who asks for nothing."""
    return [
        Ours("fullview", shared, mode="auto", normalize="estimate"),
        Ours("fullview walk", shared, mode="walk", normalize="estimate"),
        Ours("fullview walk, topk", shared, mode="walk", normalize="topk"),
        Ours("fullview screen", shared, mode="screen", normalize="estimate"),
        Ours("fullview exact", shared, mode="exact", normalize="exact"),
    ]
