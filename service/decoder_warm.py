"""The first answers of a decoder that has just been opened, so that no user's request is the first.

warm_head()   one request of each kind: one state and several, each mode, normalised each way, constrained, sampled

What it costs is paid before the decoder serves: loading (or, once on a machine, compiling) the kernels, and the memory that
calls keep for the next ones. Invariant: the way is that of real requests, from their bytes to an answer's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from service.answers import encode
from service.decoder_answers import answer_head
from service.decoder_requests import parse_next, parse_raw_topk, parse_topk
from service.settings import Settings

if TYPE_CHECKING:
    from decoder.head import OpenDecoder

# From so many states on `auto` may choose another way than for one.
_SOME = 8


def warm_head(head: OpenDecoder, settings: Settings) -> None:
    """Raises what requests to a damaged decoder raise."""
    states = np.random.default_rng(0).standard_normal((_SOME, head.dim)).astype("<f4")
    one = {"hidden": states[0].tolist(), "k": 1}
    bodies: list[dict[str, Any]] = [
        one,
        *(one | {"mode": mode} for mode in ("walk", "screen", "exact")),
        *(one | {"normalize": how} for how in ("topk", "exact", "none")),
        one | {"logit_bias": {"0": 1.0}, "logprob_token_ids": [0]},
        {"hidden": states.tolist(), "k": min(10, settings.decoder_k_max)},
    ]
    for body in bodies:
        answer_head(head, parse_topk(encode(body), settings), raw=False)
    answer_head(head, parse_raw_topk(states[:1].tobytes(), {"k": "1"}, settings), raw=True)
    answer_head(head, parse_next(encode(one | {"seed": 0}), settings), raw=False)
