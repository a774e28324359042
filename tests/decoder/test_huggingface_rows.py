"""Rows over all tokens from the best ones: what a model makes of them is what was meant."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")

from tiny_models import VOCAB, pair, states_of, tiny_model  # noqa: E402

from decoder import exact_logits, open_decoder  # noqa: E402
from decoder.gpu.connect import device_head, device_topk  # noqa: E402
from decoder.huggingface.rows import AfterHead, Best, full_rows  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


GOOD = torch.tensor([False])


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("bias", [False, True])
def test_what_the_model_does_afterwards_is_undone(softcap, bias):
    logits = torch.linspace(2.9, -2.5, 40)[None]
    after = AfterHead(scale=0.25, softcap=softcap, bias=torch.linspace(-2, 2, 40) if bias else None)
    log_z = logits.double().logsumexp(1)
    best = Best(torch.arange(9)[None], logits[:, :9], log_z, GOOD)
    row = after.applied(full_rows(best, after, vocab_size=40, rows=40))
    torch.testing.assert_close(row[:, :9], logits[:, :9], atol=2e-6, rtol=0)
    assert float(row[0, 9:].max() - row[0, 9:].min()) < 2e-6
    torch.testing.assert_close(row.double().logsumexp(1), log_z, atol=2e-6, rtol=0)


def test_other_tokens_never_pass_the_last_candidate():
    """An estimate of log Z too large, or too small, changes no order."""
    logits = torch.tensor([[1.0, 0.5], [1.0, 0.5]])
    best = Best(torch.tensor([[3, 1], [3, 1]]), logits, torch.tensor([9.0, -2.0]).double(), GOOD.repeat(2))
    rows = full_rows(best, AfterHead(), vocab_size=6, rows=8)
    assert rows[:, :6].isfinite().all()
    assert rows.argsort(dim=1, descending=True)[:, :2].tolist() == [[3, 1], [3, 1]]
    assert (rows[:, 6:] == -torch.inf).all()


def test_logits_at_the_cap_stay_there():
    best = Best(torch.tensor([[0, 2]]), torch.tensor([[30.0, 29.0]]), torch.tensor([30.5]).double(), GOOD)
    after = AfterHead(softcap=30.0)
    row = after.applied(full_rows(best, after, vocab_size=3, rows=3))
    torch.testing.assert_close(row[:, [0, 2]], torch.tensor([[30.0, 29.0]]), atol=1e-5, rtol=0)


def test_candidates_carry_the_bits_of_the_exact_path(decoder_folder):
    model, attached = pair(decoder_folder)
    states = states_of(model, 1, 6)
    best = Best.of(attached.decoder.topk(states, k=10, mode="walk"))
    exact = exact_logits(attached.decoder.layer, states)
    np.testing.assert_array_equal(best.logits.numpy(), np.take_along_axis(exact, best.token_ids.numpy(), 1))


def test_an_answer_on_a_device_stays_there(decoder_folder, monkeypatch):
    """The device's twin on the CPU: fields are tensors, and a state with NaN fails alone."""
    with open_decoder(decoder_folder("llama")) as decoder:
        states = torch.from_numpy(states_of(tiny_model("llama"), 1, 4)).clone()
        head = device_head(decoder.parts, "cpu", kernels="torch")
        whole = device_topk(head, states, k=10, mode="exact", normalize="estimate")
        states[2, 5] = torch.nan
        rows = full_rows(
            Best.of(device_topk(head, states, k=10, mode="exact", normalize="estimate")),
            AfterHead(), vocab_size=VOCAB, rows=VOCAB,
        )  # fmt: skip
    expected = full_rows(Best.of(whole), AfterHead(), vocab_size=VOCAB, rows=VOCAB)
    assert rows[2].isnan().all()
    torch.testing.assert_close(rows[[0, 1, 3]], expected[[0, 1, 3]], atol=1e-5, rtol=0)
