"""A decoder on a device: hidden states in, the best tokens out, without leaving it.

GpuHead      topk() answers by scan, walk or exact; its arrays are plain torch tensors
choose_mode  the way that "auto" takes

    hidden -> project -> quantise -> scan -> select -> score -> order -> ids, logits, log-probabilities
                                  -> walk -> select, sample -> score -> order

A batch is padded to the next of BUCKETS, larger ones are answered in parts. On a CUDA device each (mode, bucket) is captured
once as a CUDA graph and replayed. On CPU tensors, or with kernels="torch", the twins of reference.py answer.
Not here: building codes and links (decoder/), constraints and sampling (decoder/), kernels (their own modules).
"""

# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import contextlib
import importlib
import threading
from typing import Any, Literal, NamedTuple, get_args

from decoder.errors import BadHiddenError, BadWeightsError, DecoderOptionsError
from index.errors import MissingExtraError

try:
    import torch
except ImportError as missing:
    raise MissingExtraError(package="torch", extra="gpu", purpose="decoding on a device") from missing

from decoder.gpu import exact as all_rows
from decoder.gpu.layout import CodedRows, eight_bits, four_bits
from decoder.gpu.results import Ordered, Queries, kept_of

BUCKETS = (1, 2, 4, 8, 16, 32, 64)
WALK_PAYS_FROM = 2.6e8
"""Weights (V * d) from which on a walk may beat reading all rows on an H200: below, tens of dependent launches cost more than
reading the layer in bfloat16. Arithmetic, not measured; bench.py measures it."""
WALK_SHARE = 0.25
"""The part of all rows that the walks of a batch may touch together before one scan for all of them is the smaller work."""
SAMPLES = 4_096
"""Rows whose codes stand for those that a walk did not see: reading that many at random is a microsecond of bandwidth."""
RERANK, STEPS, BEAM, PLACES = 128, 6, 128, 8_192
"""Defaults of GpuHead; places and samples are also the most. On SmolLM2 with 32 links a row, 6 steps of 128 rows scored 5,300
rows: P@1 1.000, P@10 0.993."""
LARGEST = 1_024
"""The most that rerank and beam may be."""

Mode = Literal["auto", "scan", "walk", "exact"]
Way = Literal["scan", "walk", "exact"]
Kernels = Literal["auto", "triton", "torch"]


class GpuAnswer(NamedTuple):
    """The best k of n states, on the device; entries as in decoder.answers.TopK."""

    token_ids: torch.Tensor
    """int32 [n, k]; -1 where the state failed."""
    logits: torch.Tensor
    """float32 [n, k], exact; -inf there."""
    logprobs: torch.Tensor
    """float32 [n, k]."""
    log_partition: torch.Tensor
    """float32 [n]."""
    logprob_stderr: torch.Tensor
    """float32 [n]; 0 where log Z is exact."""
    failed: torch.Tensor
    """bool [n]: states with infinities or NaN. They fail alone; nothing is raised, as that would wait for the device."""
    rows_scored: torch.Tensor
    """int32 [n]: rows whose codes were looked at to find candidates."""
    mode: Way


def choose_mode(*, vocab: int, dim: int, batch: int, places: int | None) -> Way:
    """scan, or walk where it pays. places: rows that a walk scores at most, None where there is no graph."""
    if places is None or vocab * dim < WALK_PAYS_FROM or batch * places > WALK_SHARE * vocab:
        return "scan"
    return "walk"


class GpuHead:
    """An output layer with its coded rows and graph on one device.

    Threads: topk() from any number; one answers at a time (a lock), as captured graphs share their buffers. Answers are
    copies and the caller's. Work is queued on the caller's current stream; topk() does not wait for the device.
    """

    def __init__(
        self,
        *,
        weight: torch.Tensor,
        codes: torch.Tensor,
        code_scales: torch.Tensor,
        code_bias: torch.Tensor,
        bias: torch.Tensor | None = None,
        scale: float = 1.0,
        softcap: float | None = None,
        vocab_size: int | None = None,
        matrix: torch.Tensor | None = None,
        mean: torch.Tensor | None = None,
        centre: torch.Tensor | None = None,
        links: torch.Tensor | None = None,
        entries: torch.Tensor | None = None,
        bits: Literal[4, 8] = 4,
        rerank: int = RERANK,
        steps: int = STEPS,
        beam: int = BEAM,
        places: int = PLACES,
        samples: int = SAMPLES,
        seed: int = 0,
        device: torch.device | str | None = None,
        kernels: Kernels = "auto",
        graphs: bool = True,
    ) -> None:
        """The layer, its codes and its graph; everything is moved to `device` (the weight's, if none is named).

        weight: [>= V, d], float16, bfloat16 or float32; bias: [V]; vocab_size: V. Raw logits are weight . h + bias, then
        scaled (scale > 0) and soft-capped.
        codes: uint8 [V, w]; the estimate of a raw logit is code_scales_v * <code_v - 127.5, q> + code_bias_v +
        centre . (h - mean) with q = matrix (h - mean); matrix: [w, d], the identity if None; mean, centre: [d], zero if None.
        links: int32 [V, degree], -1 past a row's own, and entries: int32 [m]: the graph; without it there is no walk. Of
        more entries than a quarter of `places`, that many are taken, evenly spread.

        bits: 4 recodes the rows in half the bytes, 8 keeps them. rerank: candidates that are scored exactly, a power of two:
        the largest k of scan and walk. steps, beam, places: a walk expands `beam` (a power of two) rows in each of `steps`
        steps and scores at most `places` rows; `samples` (a power of two) rows stand for those that it does not see.
        kernels: "triton", "torch" (the twins), or "auto": Triton on CUDA devices. graphs: capture CUDA graphs there.
        """
        _require_options(
            scale=scale,
            softcap=softcap,
            bits=bits,
            rerank=rerank,
            steps=steps,
            beam=beam,
            places=places,
            samples=samples,
            kernels=kernels,
        )
        self.vocab_size = int(vocab_size if vocab_size is not None else weight.shape[0])
        self.dim = int(weight.shape[1])
        _require_shapes(
            self.vocab_size, weight, bias, codes, code_scales, code_bias, matrix, mean, centre, links, entries
        )
        self._weight = weight.detach().to(device if device is not None else weight.device).contiguous()
        self.device = self._weight.device
        self.scale, self.softcap = float(scale), None if softcap is None else float(softcap)
        self.rerank, self.steps, self.beam, self.places, self.samples = rerank, steps, beam, places, samples
        self._kernels = _kernels(kernels, self.device)
        self._bias = torch.zeros(self.vocab_size) if bias is None else bias.detach().float()
        self._bias = self._bias.to(self.device).contiguous()
        self._rows, self._matrix = self._coded(codes, code_scales, code_bias, matrix, bits, seed)
        self._mean, self._centre = (
            (torch.zeros(self.dim) if part is None else part.detach().float()).to(self.device).contiguous()
            for part in (mean, centre)
        )
        self._kept = kept_of(self.vocab_size, rerank)
        self._links = None if links is None else links.to(self.device, torch.int32).contiguous()
        self._entries = (
            None if entries is None else _spread(entries, places // 4).to(self.device, torch.int32).contiguous()
        )
        permutation = torch.randperm(self.vocab_size, generator=torch.Generator().manual_seed(seed))
        self._permutation = permutation.to(self.device, torch.int32)
        self._no_samples = torch.empty((BUCKETS[-1], 0), device=self.device)
        self._all_rows = torch.full((BUCKETS[-1],), self.vocab_size, dtype=torch.int32, device=self.device)
        self._lock = threading.Lock()
        self._captured: dict[tuple[Way, int], Any] = {} if graphs and self.device.type == "cuda" else _NOT_CAPTURED
        self._pool: Any = None
        self._free: Any = None

    def _coded(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor,
        matrix: torch.Tensor | None,
        bits: int,
        seed: int,
    ) -> tuple[CodedRows, torch.Tensor]:
        """The rows as they are scanned, and the matrix that takes hidden states to them."""
        codes, scales, bias = (part.detach().to(self.device) for part in (codes, scales, bias))
        rows = eight_bits(codes, scales, bias) if bits == 8 else four_bits(codes, scales, bias, seed=seed)
        given = torch.eye(self.dim) if matrix is None else matrix.detach().float()
        given = given.to(self.device)
        turned = given if rows.rotation is None else rows.rotation @ given
        turned = torch.nn.functional.pad(turned, (0, 0, 0, rows.width - len(turned)))
        # Read whole at each call: in bfloat16 that is half the bytes, and queries are rounded to 7 bits anyway.
        return rows._replace(rotation=None), turned.to(torch.bfloat16 if self.device.type == "cuda" else torch.float32)

    def nbytes(self) -> dict[str, int]:
        """Bytes on the device by part; captured graphs' buffers not counted."""
        parts = {
            "weight": [self._weight, self._bias],
            "codes": [self._rows.codes, self._rows.scales, self._rows.bias],
            "matrix": [self._matrix, self._mean, self._centre, self._rows.mean],
            "graph": [part for part in (self._links, self._entries, self._permutation) if part is not None],
        }
        return {name: sum(t.numel() * t.element_size() for t in tensors) for name, tensors in parts.items()}

    def topk(self, hidden: torch.Tensor, k: int = 10, *, mode: Mode = "auto") -> GpuAnswer:
        """The best k tokens of hidden states [n, d] or [d] on this device; k is clipped to the vocabulary.

        scan and walk answer at most `rerank` tokens; "auto" takes exact beyond.
        """
        hidden = self._require_hidden(hidden)
        k = self._require_k(k)
        way = self._way(mode, k, len(hidden))
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()
        # Buffers that are kept must not be tensors of the caller's inference mode: they could not be written outside it.
        with torch.inference_mode(mode=False), torch.no_grad(), on_device:
            return self._topk(hidden, k, way)

    def _topk(self, hidden: torch.Tensor, k: int, way: Way) -> GpuAnswer:
        if way == "exact":
            return self._exact(hidden, k)
        parts = [self._bucket(part, way).flat for part in torch.split(hidden, BUCKETS[-1])]
        found = Ordered(parts[0] if len(parts) == 1 else torch.cat(parts))
        columns = (found.ids[:, :k], found.logits[:, :k], found.logprobs[:, :k])
        return GpuAnswer(*columns, found.log_partition, found.stderr, found.failed, found.rows_scored, way)

    def _bucket(self, hidden: torch.Tensor, way: Way) -> Ordered:
        """Up to 64 states, padded to their bucket; by a captured graph where there are any."""
        n = len(hidden)
        bucket = next(size for size in BUCKETS if size >= n)
        with self._lock:
            if self._captured is not _NOT_CAPTURED:
                return self._replay(hidden, way, bucket)
            padded = torch.zeros((bucket, self.dim), device=self.device)
            padded[:n] = hidden
            return Ordered(self._answer(padded, way).flat[:n])

    def _answer(self, hidden: torch.Tensor, way: Way) -> Ordered:
        """Device work alone: no shape depends on the states, nothing waits. hidden: float32 [bucket, d]."""
        run, rows = self._kernels, self._rows
        rotated = run.project(hidden, self._mean, self._matrix)
        queries: Queries = run.quantise(
            *(rotated, hidden, self._mean, self._centre, rows.mean), bits=rows.bits, vocab=self.vocab_size
        )
        finish = {"scale": self.scale, "softcap": self.softcap}
        n = len(hidden)
        sampled = self._no_samples[:n]
        if way == "scan":
            scanned = run.scan(rows, queries, kept=self._kept, **finish)
            selected = run.select(scanned.estimates.view(n, -1), scanned.ids.view(n, -1), keep=self.rerank)
            rest = scanned.rest
            rows_scored = self._all_rows[:n]
        else:
            effort = {"steps": self.steps, "beam": self.beam, "places": self.places}
            pool = run.walk(rows, queries, self._links, self._entries, **effort, **finish)
            selected = run.select(pool.estimates, pool.ids, keep=self.rerank)
            rest = self._no_samples[:n]
            sampled = run.sample(rows, queries, self._permutation, pool.seen, size=self.samples, **finish)
            rows_scored = pool.filled
        logits = run.score(self._weight, self._bias, hidden, selected.ids, **finish)
        answered: Ordered = run.order(
            *(logits, selected.estimates, selected.ids, rest, selected.rest, sampled, queries.failed, rows_scored),
            vocab=self.vocab_size,
        )
        return answered

    def _replay(self, hidden: torch.Tensor, way: Way, bucket: int) -> Ordered:
        """Through the captured graph of this way and bucket, made at its first use."""
        stream = torch.cuda.current_stream()
        if self._free is not None:
            # The graphs' buffers may still be read by the copies of an earlier call, on another stream.
            stream.wait_event(self._free)
        if (way, bucket) not in self._captured:
            self._captured[way, bucket] = self._capture(way, bucket)
        graph, states, answered = self._captured[way, bucket]
        states[: len(hidden)].copy_(hidden)
        graph.replay()
        copy = Ordered(answered.flat[: len(hidden)].clone())
        self._free = stream.record_event()
        return copy

    def _capture(self, way: Way, bucket: int) -> tuple[Any, torch.Tensor, Ordered]:
        states = torch.zeros((bucket, self.dim), device=self.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Compiles and loads the kernels, which may not happen during a capture.
            self._answer(states, way)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            answered = self._answer(states, way)
        self._pool = graph.pool()
        return graph, states, answered

    def _exact(self, hidden: torch.Tensor, k: int) -> GpuAnswer:
        good = hidden.isfinite().all(1)
        states = torch.where(good[:, None], hidden.float(), 0.0)
        found, partitions = [], []
        for part in torch.split(states, BUCKETS[-1]):
            ids, log_partition = all_rows.exact(
                self._weight, self._bias, part, k=k, scale=self.scale, softcap=self.softcap
            )
            logits = self._kernels.score(self._weight, self._bias, part, ids, scale=self.scale, softcap=self.softcap)
            found.append(all_rows.best(logits, ids, k=k))
            partitions.append(log_partition)
        ids, logits = (torch.cat(column) for column in zip(*found))
        ids = torch.where(good[:, None], ids, -1)
        logits = torch.where(good[:, None], logits, -torch.inf)
        log_partition = torch.where(good, torch.cat(partitions), 0.0)
        rows_scored = torch.full((len(hidden),), self.vocab_size, dtype=torch.int32, device=self.device)
        logprobs = logits - log_partition[:, None]
        return GpuAnswer(
            ids, logits, logprobs, log_partition, torch.zeros_like(log_partition), ~good, rows_scored, "exact"
        )

    def _way(self, mode: Mode, k: int, batch: int) -> Way:
        if mode not in get_args(Mode):
            raise DecoderOptionsError(f"mode is {mode!r}, needed one of {', '.join(get_args(Mode))}.")
        if mode == "walk" and self._links is None:
            raise DecoderOptionsError(
                "mode is 'walk', but this head has no graph. Give links and entries, or use 'scan'."
            )
        if mode in ("scan", "walk") and k > self.rerank:
            raise DecoderOptionsError(
                f"k is {k}, but {mode} reranks {self.rerank} rows here. Use mode='exact', or a head with a larger rerank."
            )
        if mode != "auto":
            return mode
        if k > self.rerank:
            return "exact"
        bucket = next((size for size in BUCKETS if size >= batch), BUCKETS[-1])
        places = None if self._links is None else self.places
        return choose_mode(vocab=self.vocab_size, dim=self.dim, batch=bucket, places=places)

    def _require_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.ndim == 1:
            hidden = hidden[None, :]
        if hidden.ndim != 2 or hidden.shape[1] != self.dim or not hidden.is_floating_point():
            raise BadHiddenError(
                f"hidden is {hidden.dtype} of shape {tuple(hidden.shape)}, "
                f"needed floats of shape (n, {self.dim}) or ({self.dim},)."
            )
        if hidden.device != self.device:
            raise BadHiddenError(f"hidden is on {hidden.device}, the head on {self.device}. Move one to the other.")
        return hidden.detach()

    def _require_k(self, k: int) -> int:
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise DecoderOptionsError(f"k is {k!r}, needed a whole number of at least 1.")
        return min(k, self.vocab_size)


_NOT_CAPTURED: dict[tuple[Way, int], Any] = {}
"""Stands for the captured graphs of a head that captures none."""


def _spread(entries: torch.Tensor, most: int) -> torch.Tensor:
    """At most this many of the entries, evenly spread."""
    return (
        entries if len(entries) <= most else entries[torch.arange(most, device=entries.device) * len(entries) // most]
    )


def _kernels(kernels: Kernels, device: torch.device) -> Any:
    """The modules whose functions answer: one namespace, Triton's or the twins'."""
    if kernels == "torch" or (kernels == "auto" and device.type != "cuda"):
        return importlib.import_module("decoder.gpu.reference")
    try:
        importlib.import_module("triton")
    except ImportError as missing:
        raise MissingExtraError(package="triton", extra="gpu", purpose="decoding on a device") from missing
    return importlib.import_module("decoder.gpu.kernels")


def _require_options(
    *,
    scale: float,
    softcap: float | None,
    bits: int,
    rerank: int,
    steps: int,
    beam: int,
    places: int,
    samples: int,
    kernels: str,
) -> None:
    powers = {"rerank": (rerank, LARGEST), "beam": (beam, LARGEST), "samples": (samples, SAMPLES)}
    for name, (value, most) in powers.items():
        if value < 16 or value & (value - 1) or value > most:
            raise DecoderOptionsError(f"{name} is {value}, needed a power of two from 16 to {most}.")
    if bits not in (4, 8):
        raise DecoderOptionsError(f"bits is {bits}, needed 4 or 8.")
    if not scale > 0.0 or (softcap is not None and not softcap > 0.0):
        raise DecoderOptionsError(
            f"scale is {scale} and softcap {softcap}, needed numbers above 0 (softcap may be None)."
        )
    if steps < 1:
        raise DecoderOptionsError(f"steps is {steps}, needed at least 1.")
    if not rerank <= places <= PLACES:
        raise DecoderOptionsError(f"places is {places}, needed {rerank} (rerank) to {PLACES}.")
    if kernels not in get_args(Kernels):
        raise DecoderOptionsError(f"kernels is {kernels!r}, needed one of {', '.join(get_args(Kernels))}.")


def _require_shapes(
    vocab: int,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    codes: torch.Tensor,
    code_scales: torch.Tensor,
    code_bias: torch.Tensor,
    matrix: torch.Tensor | None,
    mean: torch.Tensor | None,
    centre: torch.Tensor | None,
    links: torch.Tensor | None,
    entries: torch.Tensor | None,
) -> None:
    dim, width = weight.shape[1], codes.shape[1]
    if weight.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise BadWeightsError(f"weight is {weight.dtype}, needed float16, bfloat16 or float32.")
    if not 1 <= vocab <= len(weight):
        raise BadWeightsError(f"vocab_size is {vocab}, the weight has {len(weight)} rows. Needed 1 to {len(weight)}.")
    wanted: dict[str, tuple[torch.Tensor | None, tuple[int | None, ...]]] = {
        "bias": (bias, (vocab,)),
        "codes": (codes, (vocab, None)),
        "code_scales": (code_scales, (vocab,)),
        "code_bias": (code_bias, (vocab,)),
        "matrix": (matrix, (width, dim)),
        "mean": (mean, (dim,)),
        "centre": (centre, (dim,)),
        "links": (links, (vocab, None)),
        "entries": (entries, (None,)),
    }
    for name, (tensor, shape) in wanted.items():
        if tensor is None:
            continue
        fits = tensor.ndim == len(shape) and all(s is None or s == t for s, t in zip(shape, tensor.shape))
        if not fits:
            needed = ", ".join("any" if size is None else str(size) for size in shape)
            raise BadWeightsError(
                f"{name} has shape {tuple(tensor.shape)}, needed ({needed}) for {vocab} rows of {dim}."
            )
    if codes.dtype != torch.uint8:
        raise BadWeightsError(f"codes are {codes.dtype}, needed uint8 (value: code - 127.5).")
    if matrix is None and width != dim:
        raise BadWeightsError(
            f"codes have width {width}, hidden states {dim}. Give the matrix of shape ({width}, {dim})."
        )
    if (links is None) != (entries is None):
        raise BadWeightsError("links and entries come together: a walk needs both. Give both, or neither.")
