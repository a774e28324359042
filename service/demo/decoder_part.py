"""The decoder part of the demo: an output layer with real words, built by a job of the server and asked over HTTP.

build_decoder   uploads weight and bias, follows the job; returns the build's report
ask_decoder     what comes next in a few translations, with probabilities and error bars
"""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.demo.data import MARIAN, BundledData
from service.demo.decoder_data import CALIBRATION, WORDS
from service.demo.follow import follow_job
from service.demo.server import Server
from service.demo.show import Show

DECODER = "translate"
SHOWN_TOKENS = 3
SHOWN_SENTENCES = 6
COVERING = 1.96
"""Standard errors on both sides that hold the truth in 95 of 100 cases."""


def build_decoder(server: Server, found: BundledData, show: Show) -> dict[str, Any]:
    """The decoder, built by a job of the server; returns the build's report."""
    head = found.head
    vocab_size, dim = head.weight.shape
    show.heading(f"A decoder from the output layer of a translation model, {MARIAN}: POST /v1/admin/decoders")
    body = {
        "name": DECODER,
        "weight": {"upload": _uploaded(server, "weight.npy", head.weight)},
        "bias": {"upload": _uploaded(server, "bias.npy", head.bias)},
        "calibration": {"path": f"{MARIAN}/{CALIBRATION}"},
        "words": {"path": f"{MARIAN}/{WORDS}"},
    }
    report = follow_job(server, server.ask("POST", "/v1/admin/decoders", body), show)
    show.say(
        f"  {vocab_size:,} tokens of {dim} coordinates ({report['dtype']}, with a bias), shaped by "
        f"{report['calibration_states']:,} real hidden states, in {report['seconds']:.1f} s"
    )
    return report


def ask_decoder(server: Server, found: BundledData, show: Show) -> list[dict[str, Any]]:
    """The likeliest next words of a few unfinished translations."""
    head = found.head
    show.heading(
        f"Next words: POST /v1/decoders/{DECODER}/topk (hidden states in; words, probabilities and their 95 % error bars out)"
    )
    some = head.shown[:SHOWN_SENTENCES]
    states = np.stack([sentence.states[sentence.step] for sentence in some]).astype(np.float32)
    body = {"hidden": states.tolist(), "k": SHOWN_TOKENS, "with_tokens": True}
    said = server.ask("POST", f"/v1/decoders/{DECODER}/topk", body)
    answers = []
    for place, sentence in enumerate(some):
        spread = COVERING * said["logprob_stderr"][place]
        tokens = [
            {"token_id": token_id, "text": head.text_of([token_id]), "probability": p, "error": p * spread}
            for token_id, p in zip(said["token_ids"][place], map(math.exp, said["logprobs"][place]))
        ]
        so_far = head.text_of(sentence.token_ids[: sentence.step])
        show.tokens(sentence.text, so_far, tokens)
        answers.append({"sentence": sentence.text, "so_far": so_far, "tokens": tokens})
    return answers


def _uploaded(server: Server, name: str, array: NDArray[Any]) -> str:
    """The id of an upload that holds the array."""
    file = io.BytesIO()
    np.save(file, array)
    made: str = json.loads(server.ask_raw(f"/v1/admin/uploads?name={name}", file.getvalue()))["upload"]
    return made
