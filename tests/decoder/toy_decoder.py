"""One decoder that was really built, shared by all tests that only ask it: 2,500 tokens, states in clusters.

toy()          the layer, states it was built with, states of the same kind that it never saw, its folder
toy_states()   such states
"""

from __future__ import annotations

import atexit
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from layer_oracle import random_layer

from decoder import DecoderOptions, DecoderReport, OutputLayer, build_decoder

V, DIM = 2500, 32
OPTIONS = DecoderOptions(threads=1, clusters=32, degree=32, room=4)


@dataclass(frozen=True)
class Toy:
    layer: OutputLayer
    calibration: np.ndarray
    held_out: np.ndarray
    folder: Path
    report: DecoderReport


def toy_layer() -> OutputLayer:
    """Logits of a model's kind: the best token has a third of the probability, in the mean."""
    layer = random_layer(V, DIM, seed=11)
    layer.weight[:] = (layer.weight * np.float16(0.6)).astype(np.float16)
    return layer


def toy_states(n: int, seed: int) -> np.ndarray:
    centres = np.random.default_rng(12).normal(size=(60, DIM)) * np.geomspace(1.6, 0.4, DIM)
    generator = np.random.default_rng(seed)
    noise = generator.normal(size=(n, DIM)) * 0.7
    return (centres[generator.integers(0, 60, n)] + noise + 0.3).astype(np.float32)


@cache
def toy() -> Toy:
    folder = tempfile.TemporaryDirectory(prefix="toy-decoder-")
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "toy.decoder"
    layer, calibration = toy_layer(), toy_states(1500, 13)
    report = build_decoder(layer, path, calibration=calibration, options=OPTIONS)
    return Toy(layer, calibration, toy_states(1000, 14), path, report)
