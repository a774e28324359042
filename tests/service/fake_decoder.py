"""A decoder in memory for tests of the service: the oracle behind the interface of decoder.OpenDecoder, with hooks.

FakeHead stands for decoder.OpenDecoder, open_fake_decoder for the opener. Only hooks are its reason: slow, damaged, blocked,
answering what a test wants. What real decoders can show is tested with real ones.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from decoder.answers import Sampled, TopK
from decoder.constraints import plan
from decoder.errors import BadHiddenError, CorruptDecoderError, DecoderClosedError, DecoderOptionsError
from decoder.exact import exact_logits, exact_topk
from decoder.hidden import as_states, bad_rows
from decoder.output_layer import OutputLayer
from decoder.sampling import draw, entries_of, generator_of
from service.catalogue import DecoderRecord
from service.decoders import new_folder_name
from service.served_decoder import HEAD_FOLDER, WORDS_FILE


class FakeHead:
    """blocked: an event that every answer waits for."""

    def __init__(self, path: Path) -> None:
        weight, bias = path / "weight.npy", path / "bias.npy"
        if not weight.exists():
            raise CorruptDecoderError(path=weight, expected="a file", found="nothing")
        self.layer = OutputLayer(np.load(weight), np.load(bias))
        self.vocab_size, self.dim = self.layer.vocab_size, self.layer.dim
        self.path = path
        self.blocked: threading.Event | None = None
        self.damage: Exception | None = None
        self.calls: list[dict[str, Any]] = []
        self.closed = False

    def topk(self, hidden, *, k=10, normalize="estimate", mode="auto", recall=None, constraints=None, score_ids=None,
             on_bad="fail", logprobs="raw", threads=1) -> TopK:  # fmt: skip
        self._begin(locals())
        if recall is not None and not 0 < recall < 1:
            raise DecoderOptionsError(f"recall is {recall}, needed above 0 and below 1")
        states = as_states(hidden, self.dim)
        bad = bad_rows(states)
        if bad and on_bad == "fail":
            raise BadHiddenError(f"hidden rows {bad}: NaN or infinity, needed finite float32.", rows=bad)
        failed = np.zeros(len(states), bool)
        failed[bad] = True
        states = np.where(failed[:, None], np.float32(0), states)
        plans = [plan(constraints, self.vocab_size, row) for row in range(len(states))]
        answers = [exact_topk(self.layer, s[None], k, plan=p) for s, p in zip(states, plans)]
        ids = np.concatenate([a.token_ids for a in answers])
        logits = np.concatenate([a.logits for a in answers])
        counts = np.array([min(k, p.free) for p in plans], np.int32)
        counts[failed] = 0
        past = np.arange(ids.shape[1]) >= counts[:, None]
        ids, logits = np.where(past, -1, ids).astype(np.int32), np.where(past, -np.inf, logits).astype(np.float32)
        everything = exact_logits(self.layer, states)
        allowed = everything + np.stack([p.extra(self.vocab_size) for p in plans])
        table = _log_softmax(allowed if logprobs == "processed" else everything)
        if normalize == "none":
            table[:] = np.nan
        found = np.where(past, -np.inf, np.take_along_axis(table, np.maximum(ids, 0), axis=1)).astype(np.float32)
        extra = {}
        if score_ids is not None:
            extra = {"requested_logits": everything[:, score_ids], "requested_logprobs": table[:, score_ids]}
        n = len(states)
        return TopK(
            ids, logits, found, np.zeros(n, np.float32), counts, np.full(n, self.vocab_size, np.int64),
            "exact" if mode in ("auto", "exact") else mode, True, failed, **extra,
        )  # fmt: skip

    def sample(self, hidden, *, sampling, constraints=None, k=10, mode="auto", recall=None, logprobs="raw", on_bad="fail",
               step=0, threads=1) -> Sampled:  # fmt: skip
        top = self.topk(
            hidden, k=k, mode=mode, recall=recall, constraints=constraints, on_bad=on_bad, logprobs=logprobs
        )
        everything = self.topk(hidden, k=self.vocab_size, constraints=constraints, on_bad=on_bad, logprobs=logprobs)
        drawn = []
        for row in range(len(top)):
            count = everything.counts[row]
            if not count:
                drawn.append((-1, -np.inf))
                continue
            entries = entries_of(everything.token_ids[row, :count], everything.logits[row, :count])
            place = draw(entries, sampling, generator_of(sampling.seed, step, row)).place
            drawn.append((int(everything.token_ids[row, place]), float(everything.logprobs[row, place])))
        ids, found = zip(*drawn)
        return Sampled(np.array(ids, np.int32), np.array(found, np.float32), top.logprob_stderr, top)

    def stats(self) -> dict[str, Any]:
        return {"vocab_size": self.vocab_size, "dim": self.dim, "weights_hash": self.layer.weights_hash()}

    def close(self) -> None:
        self.closed = True

    def _begin(self, given: dict[str, Any]) -> None:
        if self.closed:
            raise DecoderClosedError("used after close()")
        self.calls.append({name: value for name, value in given.items() if name != "self"})
        if self.blocked is not None:
            self.blocked.wait(20)
        if self.damage is not None:
            raise self.damage


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    top = logits.max(axis=1, keepdims=True)
    return (logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))).astype(np.float32)


def open_fake_decoder(path: Path) -> Any:
    return FakeHead(path)


def write_fake_decoder(folder: Path, weight: Any, bias: Any = None) -> None:
    """A folder that open_fake_decoder() opens."""
    weight = np.asarray(weight, np.float32)
    folder.mkdir(parents=True)
    np.save(folder / "weight.npy", weight)
    np.save(folder / "bias.npy", np.zeros(len(weight), np.float32) if bias is None else np.asarray(bias, np.float32))


def put_fake_decoder(
    decoders: Any,
    name: str,
    weight: Any,
    bias: Any = None,
    *,
    words: str | None = None,
    serve: str | None = None,
) -> FakeHead:
    """Publish a fake decoder as a build would; words: JSON. Returns the open FakeHead."""
    record = DecoderRecord(
        name=name, folder=new_folder_name(), number=1, device="cpu", serve=serve, created_at=time.time()
    )
    write_fake_decoder(decoders.root / record.folder / HEAD_FOLDER, weight, bias)
    if words is not None:
        (decoders.root / record.folder / WORDS_FILE).write_text(words)
    opened = decoders.open(record)
    opened.head.calls.clear()
    decoders.publish(record, opened, may_replace=True)
    return opened.head


def replaced(record: DecoderRecord, **changes: Any) -> DecoderRecord:
    return dataclasses.replace(record, **changes)
