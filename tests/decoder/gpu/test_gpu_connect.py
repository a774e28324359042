"""An open decoder's arrays on a device: here CPU tensors and the twins, which take the same arrays."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from gpu_layers import torch

from decoder import DecoderOptions, DecoderOptionsError, OutputLayer, build_decoder, exact_topk, open_decoder

connect = importlib.import_module("decoder.gpu.connect")


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory):
    generator = np.random.default_rng(4)
    weight = generator.normal(size=(700, 32)).astype(np.float16)
    layer = OutputLayer(weight, generator.normal(size=700).astype(np.float32), scale=0.8, softcap=20.0)
    states = generator.normal(size=(600, 32)).astype(np.float32)
    folder = tmp_path_factory.mktemp("decoders") / "small.decoder"
    build_decoder(layer, folder, calibration=states, options=DecoderOptions(threads=1))
    with open_decoder(folder) as opened:
        yield opened


def states_of(count: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=(count, 32)).astype(np.float32)


@pytest.mark.parametrize("mode", ["auto", "screen", "walk", "exact"])
def test_a_device_answers_like_the_layer(head, mode):
    on_device = connect.device_head(head.parts, "cpu", kernels="torch")
    hidden = states_of(9)
    found = connect.device_topk(on_device, torch.from_numpy(hidden), k=5, mode=mode, normalize="estimate")
    exact = exact_topk(head.layer, hidden, 5)
    assert found.mode == (mode if mode != "auto" else "screen") and found.exact is (mode == "exact")
    np.testing.assert_array_equal(found.token_ids.numpy(), exact.token_ids)
    np.testing.assert_allclose(found.logits.numpy(), exact.logits, rtol=2e-3, atol=2e-3)
    assert found.counts.tolist() == [5] * 9 and not found.failed.any()


def test_what_a_device_does_not_do_is_refused(head):
    on_device = connect.device_head(head.parts, "cpu", kernels="torch")
    with pytest.raises(DecoderOptionsError, match="on a device log-probabilities are relative to log Z"):
        connect.device_topk(on_device, torch.zeros(1, 32), k=1, mode="auto", normalize="topk")


class TensorElsewhere(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    @property
    def device(self):  # type: ignore[override]
        return torch.device("cuda", 0)


def test_topk_of_a_tensor_on_a_device_goes_there(head, monkeypatch):
    made = connect.device_head(head.parts, "cpu", kernels="torch")
    monkeypatch.setattr(connect, "device_head", lambda parts, device: made)
    hidden = states_of(2)
    elsewhere = torch.from_numpy(hidden).as_subclass(TensorElsewhere)
    monkeypatch.setattr(made, "_require_hidden", lambda tensor: tensor.as_subclass(torch.Tensor))
    found = head.topk(elsewhere, k=3)
    np.testing.assert_array_equal(found.token_ids.numpy(), exact_topk(head.layer, hidden, 3).token_ids)
    with pytest.raises(DecoderOptionsError, match="score_ids: not on cuda:0"):
        head.topk(elsewhere, k=3, score_ids=[1])
