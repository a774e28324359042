"""Finder: one call's states to candidates, in the mode that was chosen, on as many threads as were asked for.

find          walk, screen or exact -> Candidates
exact_rows    exact logits of given tokens of one state
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from decoder.candidates import Candidates, Effort
from decoder.errors import BadHiddenError, named
from decoder.exact import exact_topk
from decoder.kernels.score import finish_logits, score_rows
from decoder.operating_points import MIDDLE, TAIL, DecoderPoint, effort_of
from decoder.planner import Choice
from decoder.scratch import Scratch
from decoder.screen import Screener
from decoder.store import DecoderParts
from decoder.threads import each_part
from decoder.transform import Projection
from decoder.walk import Walker

Floats = NDArray[np.float32]
TIMED_AT = 10


class Finder:
    """Everything that finds candidates. Threads: any number; each call borrows a Scratch."""

    def __init__(self, parts: DecoderParts) -> None:
        self.layer = parts.layer
        projection = Projection.of(parts.frame)
        self._walker = Walker(
            parts.layer, parts.frame, projection, parts.preview, parts.links, parts.entries, parts.seed
        )
        self._screener = Screener(parts.layer, parts.frame, projection, parts.preview, parts.seed)
        self._whole_codes = parts.preview.width >= parts.layer.dim
        self._scratch: SimpleQueue[Scratch] = SimpleQueue()

    def find(
        self,
        states: Floats,
        choice: Choice,
        *,
        k: int,
        log_z: bool,
        entries: bool = False,
        warm: NDArray[np.int32] | None = None,
        threads: int = 1,
    ) -> Candidates:
        """At least k exact candidates of each state float32 (n, d), where there are so many.

        log_z: with an estimate of it. entries: sampled rows stand for all tokens that are not exact candidates.
        """
        if choice.point is None:
            return self._exact(states, k, threads)
        effort = effort_of(
            choice.point, k, vocab_size=self.layer.vocab_size, whole_codes=self._whole_codes, log_z=log_z or entries
        )
        if entries:
            effort = replace(effort, middle=max(effort.middle, MIDDLE), tail=TAIL)
        if threads > 1 and len(states) > 1:
            found = self._shared(states, choice.mode, effort, warm, min(threads, len(states)), entries=entries)
        else:
            found = self._run(choice.mode, effort, states, warm, entries=entries)
        _require_finite(found)
        return found

    def exact_rows(self, state: Floats, ids: NDArray[np.int32]) -> Floats:
        """Exact logits float32 (m,) of tokens int32 (m,) of one state float32 (d,)."""
        out = np.empty(len(ids), np.float32)
        layer = self.layer
        score_rows(layer.bits, layer.kind, layer.bias, state, ids, 0, len(ids), out)
        finish_logits(out, np.float32(layer.scale), np.float32(layer.softcap or 0.0), out)
        return out

    def timed(self, mode: str, width: int, states: Floats, *, log_z: bool) -> None:
        """What measure_timings() runs."""
        if mode == "exact":
            exact_topk(self.layer, states, min(TIMED_AT, self.layer.vocab_size))
            return
        point = DecoderPoint(
            mode=mode, width=width, recall={}, low={}, rows_scored=0.0, logprob_error=0.0, interval=1.0, half_width=0.0
        )
        self.find(states, Choice(mode, point, reached=True), k=TIMED_AT, log_z=log_z)

    def _run(
        self, mode: str, effort: Effort, states: Floats, warm: NDArray[np.int32] | None, *, entries: bool
    ) -> Candidates:
        try:
            scratch = self._scratch.get_nowait()
        except Empty:
            scratch = Scratch()
        try:
            if mode == "screen":
                return self._screener.answer(states, effort, scratch, whole=entries)
            return self._walker.answer(states, effort, scratch, warm=warm)
        finally:
            self._scratch.put(scratch)

    def _shared(
        self,
        states: Floats,
        mode: str,
        effort: Effort,
        warm: NDArray[np.int32] | None,
        threads: int,
        *,
        entries: bool,
    ) -> Candidates:
        found = Candidates.empty(len(states), effort)
        cuts = [len(states) * t // threads for t in range(threads + 1)]

        def part(t: int) -> None:
            rows = slice(cuts[t], cuts[t + 1])
            some = np.ascontiguousarray(states[rows])
            found.put(rows, self._run(mode, effort, some, None if warm is None else warm[rows], entries=entries))

        each_part(part, threads)
        return found

    def _exact(self, states: Floats, k: int, threads: int) -> Candidates:
        answer = exact_topk(self.layer, states, k, threads=threads)
        n, width = answer.token_ids.shape
        full = partial(np.full, n, dtype=np.int64)
        return Candidates(
            token_ids=answer.token_ids,
            logits=answer.logits,
            weights=np.ones((n, width)),
            exact=full(width),
            counts=full(width),
            log_z=answer.log_partition,
            error=np.zeros(n),
            scored=full(self.layer.vocab_size),
        )


def _require_finite(found: Candidates) -> None:
    """Raise BadHiddenError for states whose components are finite, but whose coordinates or logits are not."""
    if found.exact.all() and np.isfinite(found.logits[:, 0]).all():
        return
    rows = np.flatnonzero((found.exact == 0) | ~np.isfinite(found.logits[:, 0])).tolist()
    raise BadHiddenError(
        f"hidden row{'s' if len(rows) > 1 else ''} {named(rows)} of {len(found)}: they or their logits overflow float32, "
        "needed finite ones. The states are too large for these weights.",
        rows=rows,
    )
