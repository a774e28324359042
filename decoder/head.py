"""open_decoder(): a decoder that answers hidden states with their best tokens, from any number of threads.

OpenDecoder.topk          the k best tokens, exact logits, log-probabilities with honest errors
OpenDecoder.sample        one drawn token of each state
OpenDecoder.logprobs_of   exact log-probabilities of given tokens

topk() is the whole path: states checked, a mode planned, candidates found, constraints applied, log Z. Every logit is exact
and comes from one fixed-order sum, so within one mode an answer does not depend on its batch.
Not here: how candidates are found (walk.py, screen.py, exact.py), what constraints do to them (constrained.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from decoder import option_checks as checks
from decoder.answers import Sampled, TopK
from decoder.constrained import answer_constrained, plans_of
from decoder.constraints import Constraints, Plan
from decoder.drawing import draw_all
from decoder.errors import BadHiddenError, DecoderClosedError, DecoderOptionsError
from decoder.exact import exact_logprobs, token_ids_of
from decoder.finder import Finder
from decoder.hidden import as_states, bad_rows, require_finite
from decoder.output_layer import OutputLayer
from decoder.planner import Choice, Planner, load_timings, measure_timings, save_timings
from decoder.results import Answer, normalised, requested, spread_rows
from decoder.sampling import SamplingOptions
from decoder.store import DecoderParts, read_decoder, require_same_weights
from decoder.tensors import is_tensor
from index.manifest import Manifest

if TYPE_CHECKING:
    from decoder.gpu.head import GpuHead

CHOICES_KEPT = 4096
"""Plans that are remembered: the same kind of call comes again and again, and planning takes as long as part of a walk."""
NORMALIZE = ("estimate", "topk", "exact", "none")
ConstraintsOf = Constraints | Sequence[Constraints | None] | None


def open_decoder(path: str | os.PathLike[str], *, layer: OutputLayer | None = None) -> OpenDecoder:
    """Open the decoder in a folder. layer: its memory is used in place of the folder's copy of the weights.

    Raises UnknownDecoderError, CorruptDecoderError, and StaleDecoderError where the layer is not the one it was built for.
    """
    folder = Path(path)
    parts, manifest = read_decoder(folder, layer=layer)
    return OpenDecoder(parts, manifest, folder)


class OpenDecoder:
    """An open decoder. Threads: topk() and sample() from any number at once; close() after the last call."""

    def __init__(self, parts: DecoderParts, manifest: Manifest, folder: Path) -> None:
        self._parts, self._manifest, self._folder = parts, manifest, folder
        self._finder = Finder(parts)
        made = f"{manifest.created_at} {parts.weights_hash}"
        timings = load_timings(folder, parts.points, made)
        if timings is None:
            timings = measure_timings(self._finder.timed, parts.points, parts.samples, made)
            save_timings(folder, timings)
        self._planner = Planner(parts.points, timings, float(parts.promise["logprob_error"]))
        self._choices: dict[tuple[str, int, int, float, bool], Choice] = {}
        self._closed = False
        self._devices: dict[Any, GpuHead] = {}
        self._devices_lock = threading.Lock()

    @property
    def layer(self) -> OutputLayer:
        """The output layer that gives the exact logits."""
        return self._parts.layer

    @property
    def vocab_size(self) -> int:
        """Real tokens."""
        return self._parts.layer.vocab_size

    @property
    def dim(self) -> int:
        """Components of a hidden state."""
        return self._parts.layer.dim

    @property
    def parts(self) -> DecoderParts:
        """What the decoder consists of; read only."""
        return self._parts

    def topk(
        self,
        hidden: Any,
        *,
        k: int = 10,
        normalize: str = "estimate",
        mode: str = "auto",
        recall: float | None = None,
        constraints: ConstraintsOf = None,
        score_ids: Any = None,
        on_bad: str = "fail",
        logprobs: str = "raw",
        warm: Any = None,
        threads: int = 1,
    ) -> TopK:
        """The k best tokens of each hidden state float (n, d), or of one (d,); at most all of them.

        normalize: what log-probabilities are relative to: "estimate" (log Z with its standard error), "exact", "topk" (the
        k found only: the paper's, which overstates every one), "none" (no log-probabilities: NaN).
        mode: "auto" takes the cheapest that reaches `recall` (default: the one it was built for); the answer names it.
        score_ids: int (m,), tokens whose logits and log-probabilities are wanted besides. on_bad: states with NaN or
        infinity, or whose logits overflow, fail the call ("fail") or alone ("mark").
        logprobs: "raw", before constraints, or "processed".
        warm: int32 (n, any), tokens where walks begin besides, such as the last step's answer; -1 for none.
        A tensor on a CUDA device is answered there (docs/gpu.md): the fields of what comes back are tensors on it.
        """
        wanted = min(checks.whole("k", k, low=1), self.vocab_size)
        threads = checks.whole("threads", threads, low=1)
        checks.one_of("normalize", normalize, NORMALIZE)
        if is_tensor(hidden) and hidden.device.type != "cpu":
            refused = {"constraints": constraints, "score_ids": score_ids, "warm": warm}
            return self._on_device(hidden, wanted, mode, normalize, refused)
        checks.one_of("logprobs", logprobs, ("raw", "processed"))
        states, good, failed = self._states(hidden, on_bad)
        ids = None if score_ids is None else token_ids_of(score_ids, self.vocab_size)
        plans = plans_of(constraints, len(failed), self.vocab_size, good)
        choice = self._choose(mode, len(states), wanted, recall, log_z=normalize in ("estimate", "exact"))
        starts = None if warm is None else _starts(warm, len(failed), self.vocab_size)[good]
        processed = logprobs == "processed"
        try:
            answer = self._answer(
                states, plans, choice, k=wanted, normalize=normalize, processed=processed, warm=starts, threads=threads
            )
        except BadHiddenError as error:
            fewer = _without_overflowing(states, good, failed, error, on_bad)
            return self.topk(
                fewer, k=k, normalize=normalize, mode=mode, recall=recall, constraints=constraints, score_ids=score_ids,
                on_bad=on_bad, logprobs=logprobs, warm=warm, threads=threads,
            )  # fmt: skip
        extra = None if ids is None else requested(self._finder, states, ids, answer, plans, processed=processed)
        return spread_rows(answer, choice.mode, failed, good, extra)

    def sample(
        self,
        hidden: Any,
        *,
        sampling: SamplingOptions | None = None,
        constraints: ConstraintsOf = None,
        k: int = 10,
        mode: str = "auto",
        recall: float | None = None,
        on_bad: str = "fail",
        logprobs: str = "raw",
        step: int = 0,
        threads: int = 1,
    ) -> Sampled:
        """One token of each hidden state float (n, d), drawn as `sampling` says; its tail is a weighted sample of all others.

        step: the position in a text: the same seed, step and row draw the same token. k: candidates that come with it.
        logprobs: "processed", after constraints, temperature and cuts: exact, and so as slow as all tokens are.
        Other arguments as for topk().
        """
        options = sampling or SamplingOptions()
        wanted = min(checks.whole("k", k, low=1), self.vocab_size)
        threads, step = checks.whole("threads", threads, low=1), checks.whole("step", step, low=0)
        checks.one_of("logprobs", logprobs, ("raw", "processed"))
        states, good, failed = self._states(hidden, on_bad)
        plans = plans_of(constraints, len(failed), self.vocab_size, good)
        needed = max(wanted, min(options.top_k, self.vocab_size), 1)
        choice = self._choose(mode, len(states), needed, recall, log_z=True)
        try:
            drawn = draw_all(
                self._finder, states, plans, choice, options, k=wanted, needed=needed, rows=good, step=step,
                processed=logprobs == "processed", interval=_interval(choice), threads=threads,
            )  # fmt: skip
        except BadHiddenError as error:
            fewer = _without_overflowing(states, good, failed, error, on_bad)
            return self.sample(
                fewer, sampling=sampling, constraints=constraints, k=k, mode=mode, recall=recall, on_bad=on_bad,
                logprobs=logprobs, step=step, threads=threads,
            )  # fmt: skip
        return drawn.spread(choice.mode, failed, good)

    def logprobs_of(
        self, hidden: Any, token_ids: Any, *, threads: int = 1
    ) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Exact log-probability float32 (n,) and rank int32 (n,), 1 for the best, of token_ids[i] under state i."""
        self._require_open()
        return exact_logprobs(self.layer, hidden, token_ids, threads=checks.whole("threads", threads, low=1))

    def check_weights(self) -> None:
        """Raise StaleDecoderError where the layer's weights are no longer those that the decoder was built for.

        Reads all of them: a few milliseconds for each 50 MB. Matters where their memory is someone else's.
        """
        require_same_weights(self.layer, self._parts.weights_hash)

    def stats(self) -> dict[str, Any]:
        """What this decoder is: sizes, memory by part, operating points, the promise, times of this machine."""
        parts, manifest = self._parts, self._manifest
        return {
            "vocab_size": self.vocab_size,
            "dim": self.dim,
            "dtype": parts.layer.dtype,
            "scale": parts.layer.scale,
            "softcap": parts.layer.softcap,
            "width": parts.preview.width,
            "lead": parts.preview.lead,
            "degree": int(parts.links.shape[1]),
            "seed": parts.seed,
            "weights_hash": parts.weights_hash,
            "resident_bytes": parts.resident_bytes,
            "disk_bytes": sum(entry.size for entry in manifest.files.values()),
            "promise": parts.promise,
            "operating_points": [point.to_dict() for point in parts.points],
            "timings": self._planner.timings.to_dict(),
            "batch": "Within one mode ids and logits are the same bits whatever else is in the batch.",
            "format_version": manifest.format_version,
            "created_at": manifest.created_at,
        }

    def close(self) -> None:
        """Let go of the arrays."""
        self._closed = True
        self._devices.clear()

    def __enter__(self) -> OpenDecoder:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- inside -------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise DecoderClosedError(f"the decoder {self._folder} was closed. Open it again.")

    def _answer(
        self,
        states: NDArray[np.float32],
        plans: Sequence[Plan] | None,
        choice: Choice,
        *,
        k: int,
        normalize: str,
        processed: bool,
        warm: NDArray[np.int32] | None,
        threads: int,
    ) -> Answer:
        """What topk() answers for good states."""
        finder, interval = self._finder, _interval(choice)
        if plans is not None:
            return answer_constrained(
                finder, states, plans, choice, k=k, normalize=normalize, processed=processed, interval=interval
            )
        found = finder.find(states, choice, k=k, log_z=normalize == "estimate", warm=warm, threads=threads)
        answer, exact_mode = Answer.of(found, k), choice.point is None
        return normalised(finder, states, answer, normalize, found, exact_mode=exact_mode, interval=interval)

    def _on_device(self, hidden: Any, k: int, mode: str, normalize: str, refused: dict[str, object]) -> TopK:
        from decoder.gpu.connect import device_head, device_topk

        self._require_open()
        asked = [name for name, value in refused.items() if value is not None]
        if asked:
            raise DecoderOptionsError(
                f"{', '.join(asked)}: not on {hidden.device}, which answers the best tokens of plain states. "
                "Move the states to the CPU: hidden.cpu()"
            )
        with self._devices_lock:
            if hidden.device not in self._devices:
                self._devices[hidden.device] = device_head(self._parts, hidden.device)
        return device_topk(self._devices[hidden.device], hidden, k=k, mode=mode, normalize=normalize)

    def _states(self, hidden: Any, on_bad: str) -> tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.bool_]]:
        """(the good states, which rows they are, which rows of all failed)."""
        self._require_open()
        checks.one_of("on_bad", on_bad, ("fail", "mark"))
        states = as_states(hidden, self.dim)
        failed = np.zeros(len(states), np.bool_)
        if on_bad == "fail":
            require_finite(states)
        else:
            failed[bad_rows(states)] = True
        good = np.flatnonzero(~failed)
        return (states if len(good) == len(states) else np.ascontiguousarray(states[good])), good, failed

    def _choose(self, mode: str, batch: int, k: int, recall: float | None, *, log_z: bool) -> Choice:
        asked = float(self._parts.promise["recall"]) if recall is None else recall
        asked = checks.number("recall", asked, low=0.0, high=1.0, above=True)
        key = (mode, batch, k, asked, log_z)
        choice = self._choices.get(key) if isinstance(mode, str) else None
        if choice is None:
            choice = self._planner.choose(
                mode=mode, batch=batch, k=k, recall=asked, log_z=log_z, vocab_size=self.vocab_size
            )
            if len(self._choices) < CHOICES_KEPT:
                self._choices[key] = choice
        return choice


def _starts(warm: Any, n: int, vocab_size: int) -> NDArray[np.int32]:
    """Tokens where walks begin besides, int32 (n, any). Checked, for a walk reads where they point."""
    given = np.atleast_2d(np.asarray(warm))
    if given.ndim != 2 or len(given) != n or given.dtype.kind not in "iu":
        raise DecoderOptionsError(
            f"warm has shape {np.shape(warm)} and dtype {given.dtype}, needed token ids [{n}, any], -1 for none"
        )
    wrong = given[(given < -1) | (given >= vocab_size)]
    if len(wrong):
        raise DecoderOptionsError(
            f"token id {wrong[0]} in warm is not in the vocabulary of {vocab_size} tokens, needed 0 to {vocab_size - 1}, "
            "or -1 for none"
        )
    return np.ascontiguousarray(given, np.int32)


def _without_overflowing(
    states: NDArray[np.float32],
    good: NDArray[np.intp],
    failed: NDArray[np.bool_],
    error: BadHiddenError,
    on_bad: str,
) -> NDArray[np.float32]:
    """All states again, NaN where one failed or overflows; the error itself where that fails the whole call."""
    if on_bad == "fail" or not error.rows:
        raise error
    again = np.full((len(failed), states.shape[1]), np.nan, np.float32)
    again[good] = states
    again[good[error.rows]] = np.nan
    return again


def _interval(choice: Choice) -> float:
    return 1.0 if choice.point is None else choice.point.interval
