"""Small heads and stand-ins for entrants, for tests of the benchmark of decoders."""

from __future__ import annotations

import numpy as np
from decoder_layers import layer_and_states

from decoder import OutputLayer
from service.bench.decoder.entrant import Entrant, Found, Kind
from service.bench.decoder.heads import Head

VOCAB_SIZE, DIM = 1500, 32


def small_head(vocab_size=VOCAB_SIZE, states=60):
    """A head with a bias, 600 calibration states and some to measure with."""
    weight, bias, hidden = layer_and_states(rows=vocab_size, dim=DIM, states=600 + states)
    return Head(
        name="small",
        layer=OutputLayer(weight.astype(np.float16), bias),
        calibration=hidden[:600],
        states=hidden[600:],
    )


class Scripted(Entrant):
    """Says what it is told to, and remembers its calls: (states, setting, threads)."""

    def __init__(self, name, answers=None, *, kind=Kind.PEER, settings=({},), largest_batch=1 << 20):
        self.name, self.kind, self.largest_batch = name, kind, largest_batch
        self._answers, self._settings = answers, list(settings)
        self.calls = []

    def settings(self):
        return self._settings

    def answer(self, states, k, setting, threads):
        self.calls.append((len(states), setting, threads))
        if self._answers is None:
            return Found(token_ids=np.zeros((len(states), k), np.int32), mode="walk")
        return self._answers(states, k, setting)
