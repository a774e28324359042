"""Answers of a decoder: runs in a thread of the CPU pool, over one lease, and makes the body there.

answer()   one request, as JSON, or as an octet-stream: a header line, then arrays

Invariant: no JSON number is NaN or infinite. Impossible entries (a logit of -infinity) are left out of lists, null where
their place counts, and log-probabilities below -9999 are written -9999.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from service.answers import encode
from service.decoder_requests import DecoderQuery, NextOptions, TopKOptions
from service.decoder_words import word
from service.errors import BodyTooLargeError, MalformedError
from service.hidden_states import require_batch

if TYPE_CHECKING:
    from decoder.answers import Sampled, TopK
    from decoder.head import OpenDecoder
    from service.decoders import DecoderLease

ENTRIES_MAX = 1 << 21
"""k times states of one request."""
LOGPROB_MIN = -9999.0
# From so many states on a second thread takes its share: below, its way there and back costs more than it saves.
_STATES_A_THREAD = 32

Words = Sequence[str] | None


@dataclass(frozen=True, slots=True)
class DecoderAnswer:
    """A body, and what the metrics count."""

    body: bytes
    mode: str
    states: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Found:
    """sampled: None for the top tokens alone."""

    top: TopK
    sampled: Sampled | None
    seconds: float

    def said(self) -> dict[str, Any]:
        """What an answer says of itself, in both forms."""
        return {
            "exact": bool(self.top.exact),
            "mode": self.top.mode,
            "rows_scored": int(self.top.rows_scored.sum()),
            "failed": np.flatnonzero(self.top.failed).tolist(),
            "time_us": round(self.seconds * 1e6),
        }


def answer(lease: DecoderLease, query: DecoderQuery, *, raw: bool, threads: int) -> DecoderAnswer:
    """Ask a decoder; the body as JSON or as an octet-stream. Raises ServiceError, DecoderError."""
    words = _words(lease) if query.with_tokens else None
    return answer_head(lease.head, query, raw=raw, threads=threads, words=words)


def answer_head(
    head: OpenDecoder, query: DecoderQuery, *, raw: bool, threads: int = 1, words: Words = None
) -> DecoderAnswer:
    """The same of a decoder that nobody has a lease of yet."""
    found = _ask(head, query, threads=threads)
    write: Callable[[_Found, DecoderQuery, Words], bytes] = _raw_body if raw else _json_body
    return DecoderAnswer(write(found, query, words), found.top.mode, len(found.top.counts), found.seconds)


def _words(lease: DecoderLease) -> Sequence[str]:
    words = lease.words
    if words is None:
        raise MalformedError(
            f"with_tokens: the words of decoder {lease.record.name!r} are not known. Build it from a model's folder or a "
            'GGUF file, or with a list of strings named as "words" or lying beside its weight as words.json.'
        )
    return words


def _ask(head: OpenDecoder, query: DecoderQuery, *, threads: int) -> _Found:
    states = query.hidden(head.dim)
    require_batch(len(states), query.batch_max)
    options = query.options
    k = min(options.k, head.vocab_size)
    if k * len(states) > ENTRIES_MAX:
        raise BodyTooLargeError(
            f"k is {k:,} and {len(states):,} hidden states came: {k * len(states):,} entries, the limit is {ENTRIES_MAX:,}. "
            "Ask for less, or send a smaller batch."
        )
    common: dict[str, Any] = {
        "k": k,
        "mode": options.mode,
        "recall": options.recall,
        "constraints": _constraints(head, query),
        "on_bad": options.on_bad,
        "logprobs": options.logprobs_mode,
        "threads": max(1, min(threads, len(states) // _STATES_A_THREAD)),
    }
    begun = time.perf_counter()
    if isinstance(options, TopKOptions):
        top = head.topk(states, normalize=options.normalize, score_ids=query.limits.scored, **common)
        return _Found(top, None, time.perf_counter() - begun)
    sampled = head.sample(states, sampling=_sampling(options), **common)
    return _Found(sampled.candidates, sampled, time.perf_counter() - begun)


def _constraints(head: OpenDecoder, query: DecoderQuery) -> Any:
    limits = query.limits
    for member, ids in (
        ("logit_bias", limits.logit_bias),
        ("allowed_token_ids", limits.allowed),
        ("banned_token_ids", limits.banned),
        ("logprob_token_ids", limits.scored),
    ):
        _require_ids(member, ids or (), head.vocab_size)
    if limits.logit_bias is None and limits.allowed is None and limits.banned is None:
        return None
    from decoder.constraints import Constraints

    return Constraints(logit_bias=limits.logit_bias, allowed=limits.allowed, banned=limits.banned)


def _require_ids(member: str, ids: Any, vocab_size: int) -> None:
    """Here, and not only in the decoder: an id of any size came, and the sentence names the member."""
    if len(ids) and not 0 <= min(ids) <= max(ids) < vocab_size:
        wrong = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise MalformedError(
            f"{member} names the token id {wrong}; this decoder's vocabulary has {vocab_size}: ids 0 to {vocab_size - 1}."
        )


def _sampling(options: NextOptions) -> Any:
    from decoder.sampling import SamplingOptions

    return SamplingOptions(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=options.seed,
    )


# --- JSON --------------------------------------------------------------------


def _json_body(found: _Found, query: DecoderQuery, words: Words) -> bytes:
    options = query.options
    normalized = not isinstance(options, TopKOptions) or options.normalize != "none"
    top = _lists(found.top, words, normalized=normalized)
    if found.sampled is None:
        return encode(top | _requested(found.top, normalized=normalized) | found.said())
    return encode(_sampled(found.sampled, words) | {"candidates": top} | found.said())


def _lists(top: TopK, words: Words, *, normalized: bool) -> dict[str, Any]:
    """Rows as long as they have entries that are possible."""
    places = np.arange(top.logits.shape[1]) < top.counts[:, None]
    _require_numbers(top.logits[places])
    kept = places & (top.logits > -math.inf)
    if normalized:
        _require_numbers(top.logprobs[places])
        kept &= top.logprobs > -math.inf
    lengths = kept.sum(axis=1).tolist()
    ids = _ragged(top.token_ids[kept], lengths)
    lists: dict[str, Any] = {"token_ids": ids, "logits": _ragged(top.logits[kept], lengths)}
    lists["logprobs"] = _ragged(np.maximum(top.logprobs[kept], LOGPROB_MIN), lengths) if normalized else None
    lists["logprob_stderr"] = _numbers(top.logprob_stderr) if normalized else None
    if words is not None:
        lists["tokens"] = [[word(words, token_id) for token_id in row] for row in ids]
    return lists


def _ragged(flat: np.ndarray, lengths: Sequence[int]) -> list[list[Any]]:
    values, rows, at = flat.tolist(), [], 0
    for length in lengths:
        rows.append(values[at : at + length])
        at += length
    return rows


def _requested(top: TopK, *, normalized: bool) -> dict[str, Any]:
    """The ids that were asked for besides, in the order in which they were."""
    if top.requested_logits is None:
        return {}
    asked: dict[str, Any] = {"requested_logits": [_numbers(row) for row in top.requested_logits]}
    if normalized and top.requested_logprobs is not None:
        asked["requested_logprobs"] = [_numbers(row, low=LOGPROB_MIN) for row in top.requested_logprobs]
    return asked


def _sampled(sampled: Sampled, words: Words) -> dict[str, Any]:
    ids = [token_id if token_id >= 0 else None for token_id in sampled.token_ids.tolist()]
    members: dict[str, Any] = {
        "token_ids": ids,
        "logprobs": _numbers(sampled.logprobs, low=LOGPROB_MIN),
        "logprob_stderr": _numbers(sampled.logprob_stderr),
    }
    if words is not None:
        members["tokens"] = [None if token_id is None else word(words, token_id) for token_id in ids]
    return members


def _numbers(values: np.ndarray, *, low: float = -math.inf) -> list[float | None]:
    """null where there is no number: of a state that failed, or of an id that is impossible."""
    return [max(value, low) if math.isfinite(value) else None for value in values.tolist()]


def _require_numbers(values: np.ndarray) -> None:
    if np.isnan(values).any() or (values == math.inf).any():
        raise RuntimeError("the decoder returned a logit or log-probability that is no number")


# --- octet-stream ------------------------------------------------------------


def _raw_body(found: _Found, query: DecoderQuery, _: Words) -> bytes:
    top = found.top
    arrays: dict[str, np.ndarray] = {}
    if found.sampled is not None:
        sampled = found.sampled
        arrays |= {
            "sampled_token_ids": sampled.token_ids,
            "sampled_logprobs": sampled.logprobs,
            "sampled_logprob_stderr": sampled.logprob_stderr,
        }
    arrays |= {
        "token_ids": top.token_ids,
        "logits": top.logits,
        "logprobs": top.logprobs,
        "logprob_stderr": top.logprob_stderr,
        "counts": top.counts,
    }
    if top.requested_logits is not None and top.requested_logprobs is not None:
        arrays |= {"requested_logits": top.requested_logits, "requested_logprobs": top.requested_logprobs}
    if isinstance(query.options, TopKOptions) and query.options.normalize == "none":
        arrays = {name: array for name, array in arrays.items() if "logprob" not in name}
    return _encode_arrays(arrays, {"shape": list(top.token_ids.shape)} | found.said())


def _encode_arrays(arrays: Mapping[str, np.ndarray], said: Mapping[str, Any]) -> bytes:
    """The header line, then the arrays in the order in which it names them."""
    stored = {
        name: array.astype("<i4" if array.dtype.kind == "i" else "<f4", copy=False) for name, array in arrays.items()
    }
    header = encode(
        {
            **said,
            "dtypes": {name: array.dtype.str for name, array in stored.items()},
            "shapes": {name: list(array.shape) for name, array in stored.items()},
        }
    )
    # Blanks before the newline align the arrays to 8 bytes, so that clients read them in place.
    header += b" " * (-(len(header) + 1) % 8) + b"\n"
    return b"".join([header, *(array.tobytes() for array in stored.values())])
