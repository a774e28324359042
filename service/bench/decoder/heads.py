"""The output layers that a benchmark can be run on, with real hidden states.

open_head    smollm2, marian (scripts/fetch_data.py), bundled, a folder of that form, or the file of a layer -> Head
stacked      a head with more tokens: noisy copies of its rows, cut to size
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder import OutputLayer
from index.errors import OptionsError
from index.sources import open_source
from service.demo.decoder_data import CALIBRATION, read_head

FETCHED = ("smollm2", "marian")
BUNDLED = Path(__file__).parents[3] / "tests" / "data" / "marian"
NOISE = 0.3
"""Of a copy's rows, in standard deviations of each column."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Head:
    """layer: what is decoded. calibration float32 (c, d) or None, for builds; states float32 (n, d), measured with."""

    name: str
    layer: OutputLayer
    calibration: Floats | None
    states: Floats

    @cached_property
    def float32(self) -> Floats:
        """The weight of all real tokens, float32 (V, d); one array for everybody who needs it."""
        return self.layer.rows(np.arange(self.layer.vocab_size))


def open_head(
    given: str, *, data: Path, calibration: Path | None, states: Path | None, most_states: int, stack: int | None
) -> Head:
    """Find and open a head. data: the folder that scripts/fetch_data.py wrote to.

    calibration, states: files of hidden states, for a layer that comes without. most_states: how many held-out states are
    measured with at most, spread over all. stack: tokens of a head made of copies. Raises OptionsError, SourceError and
    what OutputLayer.load raises.
    """
    place = Path(given)
    if (place / "heldout_hidden.npy").is_file():
        found = _from_folder(place, place.resolve().name)
    elif place.exists():
        found = _from_layer(place, calibration, states)
    elif given == "bundled":
        found = _bundled()
    elif given in FETCHED:
        if not (data / given / "heldout_hidden.npy").is_file():
            raise OptionsError(
                f"the head {given} is not in {data}. Make it with `python scripts/fetch_data.py {data} {given}`, or say "
                "where it is with --data."
            )
        found = _from_folder(data / given, given)
    else:
        raise OptionsError(
            f"head is {given!r}: no such file or folder. Needed {', '.join(FETCHED)}, bundled, a folder that "
            "scripts/fetch_data.py made, or the file of an output layer."
        )
    if stack is not None:
        found = stacked(found, stack)
    chosen = np.linspace(0, len(found.states) - 1, min(most_states, len(found.states))).astype(np.int64)
    return replace(found, states=np.ascontiguousarray(found.states[chosen]))


def stacked(head: Head, tokens: int) -> Head:
    """A head of so many tokens: copies of the weight one below the other, copy i > 0 with normal noise of its own seed."""
    layer = head.layer
    if tokens < layer.vocab_size:
        raise OptionsError(f"stack is {tokens}, but {head.name} has {layer.vocab_size} tokens already, needed more")
    weight = head.float32
    spread = weight.std(axis=0)
    parts, biases = [weight], [layer.bias]
    for copy in range(1, -(-tokens // len(weight))):
        noise = np.random.default_rng(copy).normal(size=weight.shape).astype(np.float32)
        parts.append(weight + noise * np.float32(NOISE) * spread)
        biases.append(layer.bias)
    made = np.concatenate(parts)[:tokens]
    if layer.dtype != "float32":
        made = made.astype(np.float16)
    bias = np.concatenate(biases)[:tokens]
    return replace(
        head,
        name=f"{head.name} stacked to {tokens:,}",
        layer=OutputLayer(made, bias, scale=layer.scale, softcap=layer.softcap),
    )


def _from_folder(folder: Path, name: str) -> Head:
    bias = np.load(folder / "bias.npy") if (folder / "bias.npy").is_file() else None
    return Head(
        name=name,
        layer=OutputLayer(np.load(folder / "head.npy"), bias),
        calibration=_floats(np.load(folder / "calib_hidden.npy")),
        states=_floats(np.load(folder / "heldout_hidden.npy")),
    )


def _from_layer(place: Path, calibration: Path | None, states: Path | None) -> Head:
    if states is None:
        raise OptionsError(
            f"{place} is an output layer without hidden states. Name a file of real ones with --held-out, and others to "
            "shape the decoder with --calibration."
        )
    layer = OutputLayer.load(place)
    return Head(
        name=place.resolve().stem,
        layer=layer,
        calibration=None if calibration is None else _states_in(calibration, layer.dim),
        states=_states_in(states, layer.dim),
    )


def _bundled() -> Head:
    if not (BUNDLED / CALIBRATION).is_file():
        raise OptionsError(f"the bundled head is not in {BUNDLED}: it comes with the source checkout only.")
    found = read_head(BUNDLED)
    return Head(
        name="bundled",
        layer=OutputLayer(found.weight, found.bias),
        calibration=_floats(np.load(BUNDLED / CALIBRATION)),
        states=_floats(found.heldout),
    )


def _states_in(path: Path, dim: int) -> Floats:
    found = _floats(np.concatenate([np.asarray(block.vectors) for block in open_source(path).blocks()]))
    if found.shape[1] != dim:
        raise OptionsError(f"{path} holds states of {found.shape[1]} coordinates, but rows of the layer have {dim}.")
    return found


def _floats(values: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(values, np.float32)
