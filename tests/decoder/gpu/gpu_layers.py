"""Small layers with codes, and both implementations of the kernels, for tests of decoder/gpu/. Skips without torch."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="the decoder on a device needs torch (extra gpu)")
triton = pytest.importorskip("triton", reason="the decoder on a device needs triton (extra gpu)")

layout = importlib.import_module("decoder.gpu.layout")
reference = importlib.import_module("decoder.gpu.reference")
results = importlib.import_module("decoder.gpu.results")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = type(triton.language.sum).__name__ == "InterpretedFunction"


def implementation(name: str) -> Any:
    """The twins or the kernels, as one namespace."""
    if name == "triton":
        if DEVICE.type == "cpu" and not INTERPRETED:
            pytest.skip("triton was imported before TRITON_INTERPRET=1 could be set: run these tests alone, or set it")
        return importlib.import_module("decoder.gpu.kernels")
    return reference


both = pytest.mark.parametrize("run", ["torch", "triton"], indirect=True)
"""Runs a test over the twins and over the kernels; the argument `run` is a namespace of functions."""


class Layer(NamedTuple):
    """A layer and its codes in the frame of the hidden states themselves."""

    weight: Any
    bias: Any
    codes: Any
    scales: Any


def layer_of(vocab: int, dim: int, *, seed: int = 0, twice: int = 0) -> Layer:
    """Normal rows of various lengths; the last `twice` rows repeat the first ones: ties."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocab, dim, generator=generator) * (0.5 + torch.rand(vocab, 1, generator=generator))
    bias = torch.randn(vocab, generator=generator)
    if twice:
        weight[-twice:], bias[-twice:] = weight[:twice], bias[:twice]
    scales = weight.abs().amax(1) / 127.5
    codes = (weight / scales[:, None] + 127.5).round().clamp(0, 255).to(torch.uint8)
    return Layer(*(part.to(DEVICE) for part in (weight, bias, codes, scales)))


def states_of(n: int, dim: int, *, seed: int = 1) -> Any:
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def coded(layer: Layer, bits: int) -> tuple[Any, Any]:
    """(rows, matrix): the rows as a scan reads them, and what takes hidden states to their frame."""
    if bits == 8:
        rows = layout.eight_bits(layer.codes, layer.scales, layer.bias)
        matrix = torch.eye(layer.weight.shape[1], device=DEVICE)
    else:
        rows = layout.four_bits(layer.codes, layer.scales, layer.bias, seed=0)
        matrix = rows.rotation
    return rows, torch.nn.functional.pad(matrix, (0, 0, 0, rows.width - len(matrix)))


def queries_of(layer: Layer, rows: Any, matrix: Any, states: Any) -> Any:
    """The states' queries, by the twins."""
    nothing = torch.zeros(states.shape[1], device=DEVICE)
    rotated = reference.project(states, nothing, matrix)
    return reference.quantise(rotated, states, nothing, nothing, rows.mean, bits=rows.bits, vocab=rows.vocab)


def estimates_of(rows: Any, queries: Any) -> Any:
    """Every row's estimate in float64 from what the codes and queries stand for, [n, V], by id."""
    values = layout.unpacked(rows.codes, rows.bits).double()
    half = rows.width // 2
    if rows.bits == 8:
        values += 0.5
    else:
        values[:, :half] -= 7.5
        values[:, half:] += 0.5
    values = values * rows.scales.double()[:, None] + rows.mean.double()
    query = queries.codes.double() * queries.scales.double()[:, None]
    # The mean's part is taken from the query before it was rounded: that is what offsets are for.
    at = layout.position(torch.arange(rows.vocab, device=DEVICE), rows.vocab)
    exact_part = queries.offsets.double() - query @ rows.mean.double()
    return query @ values[at].T + rows.bias.double()[at] + exact_part[:, None]
