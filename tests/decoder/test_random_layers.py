"""Random small layers, built and asked in every mode, against the exact answer: nothing that a seed happens to hide."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_oracle import log_sum, logits64, random_layer, require_best

from decoder import DecoderOptions, OutputLayer, build_decoder, exact_topk, open_decoder
from decoder.planner import MODES


@st.composite
def layers(draw: st.DrawFn) -> OutputLayer:
    """Any dtype, size, soft-cap, bias; now and then equal rows, rows of zeros, a few rows far longer than the others."""
    V, dim = draw(st.integers(1, 260)), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(["float16", "bfloat16", "float32"]))
    layer = random_layer(
        V,
        dim,
        dtype,
        seed=draw(st.integers(0, 99)),
        bias=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 0.125])),
        softcap=draw(st.sampled_from([None, 5.0])),
        vocab_size=draw(st.integers(max(1, V - 3), V)),
    )
    kind = draw(st.sampled_from(["plain", "plain", "equal", "zeros", "long"]))
    if kind == "equal":
        layer.weight[: V // 2] = layer.weight[0]
    elif kind == "zeros":
        layer.weight[::3] = 0
    elif kind == "long" and dtype != "bfloat16":
        layer.weight[:: max(1, V // 5)] *= 30
    return layer


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    layer=layers(),
    calibrated=st.booleans(),
    width=st.sampled_from([None, None, 16, 24]),
    seed=st.integers(0, 3),
    n=st.integers(1, 6),
)
def test_every_mode_of_a_random_layer(layer, calibrated, width, seed, n):
    generator = np.random.default_rng(seed)
    mix = generator.normal(size=(layer.dim, layer.dim)) * np.geomspace(2.0, 0.1, layer.dim)
    states = (generator.normal(size=(250 + n, layer.dim)) @ mix.T).astype(np.float32)
    known, asked = states[n:] if calibrated else None, states[:n]
    width = None if width is None or width > layer.dim else width
    options = DecoderOptions(threads=1, degree=12, room=2, clusters=3, width=width, seed=seed)
    V = layer.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        report = build_decoder(layer, Path(folder) / "d", calibration=known, options=options)
        with open_decoder(Path(folder) / "d", layer=layer) as head:
            exact = exact_topk(layer, asked, min(10, V))
            for mode in (*MODES, "auto"):
                whole = head.topk(asked, k=V, mode=mode)
                require_best(layer, asked, whole.token_ids, whole.logits, V)
                np.testing.assert_allclose(np.exp(whole.logprobs.astype(np.float64)).sum(axis=1), 1.0, atol=1e-4)
                top = head.topk(asked, k=10, mode=mode, recall=1.0)
                assert (top.counts == min(10, V)).all()
                true = np.take_along_axis(logits64(layer, asked), top.token_ids.astype(np.int64), axis=1)
                np.testing.assert_allclose(top.logits, true, rtol=1e-5, atol=1e-4)
                error = np.abs(top.logprobs[:, 0] - (true[:, 0] - log_sum(logits64(layer, asked))))
                assert np.isfinite(error).all() and (top.logprob_stderr >= 0).all()
                if width is None:
                    # The least of the tokens found is as good as the least of the best, but for a miss or two.
                    found = np.count_nonzero(top.logits >= exact.logits[:, -1:] - 1e-4, axis=1)
                    assert found.mean() >= 0.9 * min(10, V), (mode, report.curve)
                    assert np.median(error) < 0.02
