"""The decoder part in figures: each way to answer against exact answers, log-probabilities, time, memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder import OpenDecoder, TopK, open_decoder
from service.demo.decoder_data import HeadData
from service.demo.server import Server

K = 10
WARM_UP = 20
COVERING = 1.96
ROUNDING = 3e-6
"""Of float32 log-probabilities, where nothing is estimated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayFigures:
    """mode: walk or screen. best_found: share of states whose best token is the exact one; recall: of the K best.

    rows_scored: mean; us_p50: median of single states in the library. logprob_error: mean absolute error of the best
    token's log-probability, nats; covered: share of states whose 95 % error bar holds the truth; half_width: its mean.
    """

    mode: str
    best_found: float
    recall: float
    rows_scored: float
    us_p50: float
    logprob_error: float
    covered: float
    half_width: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFigures:
    """All of it. Bytes, seconds, microseconds (medians of single states). chosen: the mode that the server took."""

    vocab_size: int
    dim: int
    states: int
    k: int
    promised_recall: float
    ways: list[WayFigures]
    chosen: str
    us_p50_exact: float
    us_p50_numpy: float
    us_p50_http: float
    resident_bytes: dict[str, int]
    build_seconds: float
    build_phases: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def measure_decoder(server: Server, name: str, head: HeadData, report: dict[str, Any]) -> DecoderFigures:
    """Ask every held-out state in the ways that are compared. report: of the build's job."""
    states = head.heldout.astype(np.float32)
    bodies = [{"hidden": state.tolist(), "k": K} for state in states]
    path = f"/v1/decoders/{name}/topk"
    us_p50_http = _median_us(lambda i: server.ask("POST", path, bodies[i]), len(bodies))
    chosen = server.ask("POST", path, bodies[0])["mode"]
    with open_decoder(_folder(server)) as decoder:
        truth = decoder.topk(states, k=K, mode="exact")
        ways = [_way(decoder, mode, states, truth) for mode in ("walk", "screen")]
        exact_us = _median_us(lambda i: decoder.topk(states[i], k=K, mode="exact"), len(states))
        stats = decoder.stats()
    weight = head.weight.astype(np.float32)
    return DecoderFigures(
        vocab_size=len(weight),
        dim=int(weight.shape[1]),
        states=len(states),
        k=K,
        promised_recall=stats["promise"]["recall"],
        ways=ways,
        chosen=chosen,
        us_p50_exact=exact_us,
        us_p50_numpy=_median_us(lambda i: numpy_topk(weight, head.bias, states[i], K), len(states)),
        us_p50_http=us_p50_http,
        resident_bytes=stats["resident_bytes"],
        build_seconds=report["seconds"],
        build_phases=report["phases"],
    )


def numpy_topk(weight: NDArray[np.float32], bias: NDArray[np.float32], state: NDArray[np.float32], k: int) -> Any:
    """(token ids, logits) of the k best tokens, as one would write it without us."""
    logits = weight @ state + bias
    best = np.argpartition(logits, -k)[-k:]
    best = best[np.argsort(-logits[best])]
    return best, logits[best]


def _way(decoder: OpenDecoder, mode: str, states: NDArray[np.float32], truth: TopK) -> WayFigures:
    found = decoder.topk(states, k=K, mode=mode)
    there = (found.token_ids[:, :, None] == truth.token_ids[:, None, :]).any(axis=1)
    same = found.token_ids[:, 0] == truth.token_ids[:, 0]
    errors = np.abs(found.logprobs[:, 0] - truth.logprobs[:, 0])[same]
    half = COVERING * found.logprob_stderr
    return WayFigures(
        mode=mode,
        best_found=float(same.mean()),
        recall=float(there.mean()),
        rows_scored=float(found.rows_scored.mean()),
        us_p50=_median_us(lambda i: decoder.topk(states[i], k=K, mode=mode), len(states)),
        logprob_error=float(errors.mean()),
        covered=float((errors <= half[same] + ROUNDING).mean()),
        half_width=float(half.mean()),
    )


def _median_us(one: Callable[[int], Any], count: int) -> float:
    for i in range(min(WARM_UP, count)):
        one(i)
    spent = np.empty(count)
    for i in range(count):
        begun = time.perf_counter()
        one(i)
        spent[i] = time.perf_counter() - begun
    return float(np.median(spent)) * 1e6


def _folder(server: Server) -> Path:
    """The folder of the one decoder that the server serves."""
    (manifest,) = (server.folder / "data" / "decoders").rglob("manifest.json")
    return manifest.parent
