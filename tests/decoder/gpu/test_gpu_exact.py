"""All rows in float32, in blocks: against float64, with ties and blocks of odd sizes."""

from __future__ import annotations

import importlib

import pytest
from gpu_layers import DEVICE, layer_of, states_of, torch

exact = importlib.import_module("decoder.gpu.exact")


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize(("vocab", "k"), [(500, 10), (500, 500), (40, 3)])
def test_candidates_hold_the_best_and_log_z_is_that_of_all_rows(monkeypatch, vocab, k, softcap):
    monkeypatch.setattr(exact, "BLOCK", 130)
    layer, states = layer_of(vocab, 20), states_of(3, 20)
    finish = {"scale": 0.8, "softcap": softcap}
    ids, log_partition = exact.exact(layer.weight, layer.bias, states, k=k, **finish)
    assert ids.shape == (3, min(k + exact.SLACK, vocab))
    logits = (states.double() @ layer.weight.double().T + layer.bias.double()) * 0.8
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    for q in range(3):
        assert set(logits[q].topk(k).indices.tolist()) <= set(ids[q].tolist())
    assert torch.allclose(log_partition.double(), torch.logsumexp(logits, 1), rtol=1e-6, atol=1e-5)


def test_best_sorts_by_logit_and_then_id():
    logits = torch.tensor([[1.0, 3.0, 3.0, -1.0, 1.0]], device=DEVICE)
    ids = torch.tensor([[9, 8, 2, 1, 4]], dtype=torch.int32, device=DEVICE)
    best_ids, best_logits = exact.best(logits, ids, k=4)
    assert best_ids.tolist() == [[2, 8, 4, 9]] and best_logits.tolist() == [[3.0, 3.0, 1.0, 1.0]]
