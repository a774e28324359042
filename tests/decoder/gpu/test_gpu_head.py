"""GpuHead from hidden states to tokens: by the twins, and by the kernels (in the interpreter where there is no device)."""

from __future__ import annotations

import contextlib
import importlib

import pytest
from gpu_layers import DEVICE, implementation, layer_of, states_of, torch

from decoder.errors import BadHiddenError, BadWeightsError, DecoderOptionsError

head_module = importlib.import_module("decoder.gpu.head")

VOCAB, DIM = 400, 48


def ring(vocab: int = VOCAB, degree: int = 8):
    """A graph that reaches everything: each row links to the next ones, and to some far away."""
    steps = torch.tensor([1, 2, 3, 5, 50, 97, 150, 211][:degree])
    return ((torch.arange(vocab)[:, None] + steps) % vocab).to(torch.int32)


def head_of(*, kernels: str = "torch", twice: int = 0, **options):
    if kernels == "triton":
        implementation("triton")
    layer = layer_of(VOCAB, DIM, twice=twice)
    given = {
        "weight": layer.weight,
        "bias": layer.bias,
        "codes": layer.codes,
        "code_scales": layer.scales,
        "code_bias": layer.bias,
        "links": ring(),
        "entries": torch.arange(0, VOCAB, 10),
        "rerank": 32,
        "beam": 32,
        "steps": 5,
        "places": 512,
        "samples": 64,
        "kernels": kernels,
    }
    return head_module.GpuHead(**(given | options)), layer


def truth(layer, states, k, *, scale=1.0, softcap=None):
    logits = (states.double() @ layer.weight.double().T + layer.bias.double()) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    best = torch.sort(logits, dim=1, descending=True, stable=True)
    return best.indices[:, :k], best.values[:, :k], torch.logsumexp(logits, 1)


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize(("mode", "bits"), [("scan", 4), ("scan", 8), ("walk", 4)])
def test_the_best_tokens_with_exact_logits_and_an_honest_log_z(mode, bits, kernels):
    head, layer = head_of(kernels=kernels, bits=bits)
    states = states_of(2, DIM)
    ids, _, log_partition = truth(layer, states, 10)
    every_logit = states.double() @ layer.weight.double().T + layer.bias.double()
    found = head.topk(states, 10, mode=mode)
    assert found.mode == mode and not found.failed.any()
    missed = 20 - int((found.token_ids[:, :, None] == ids[:, None, :]).sum())
    assert missed <= (2 if mode == "walk" else 0)
    assert torch.allclose(found.logits.double(), every_logit.gather(1, found.token_ids.long()), rtol=1e-5, atol=1e-4)
    assert (found.logits[:, 1:] <= found.logits[:, :-1]).all()
    error = (found.log_partition.double() - log_partition).abs()
    # A walk's error bar cannot know of a likely row that neither the walk nor the sample met.
    assert (error <= 4.0 * found.logprob_stderr + (0.01 if mode == "walk" else 1e-5)).all()
    assert torch.equal(found.logprobs, found.logits - found.log_partition[:, None])
    assert ((found.rows_scored > 100) & (found.rows_scored <= VOCAB)).all()


def test_exact_is_exact_for_any_k():
    head, layer = head_of(scale=0.5, softcap=6.0)
    states = states_of(70, DIM)
    ids, logits, log_partition = truth(layer, states, VOCAB, scale=0.5, softcap=6.0)
    found = head.topk(states, VOCAB + 5, mode="exact")
    assert found.token_ids.shape == (70, VOCAB)
    assert torch.allclose(found.logits.double(), logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.token_ids[:, :20].long(), ids[:, :20])
    assert torch.allclose(found.log_partition.double(), log_partition, rtol=1e-6, atol=1e-5)
    assert (found.logprob_stderr == 0).all()


@pytest.mark.parametrize("mode", ["scan", "walk", "exact"])
def test_logits_are_the_same_in_every_mode_and_batch(mode):
    head, _ = head_of()
    states = states_of(67, DIM)
    together = head.topk(states, 5, mode=mode)
    assert len(together.token_ids) == 67
    for n in (0, 66):
        alone = head.topk(states[n], 5, mode=mode)
        assert torch.equal(alone.token_ids[0], together.token_ids[n])
        exact = head.topk(states[n], 5, mode="exact")
        assert torch.equal(alone.logits, exact.logits)


@pytest.mark.parametrize("mode", ["scan", "walk", "exact"])
def test_ties_stand_by_id(mode):
    # Row v + 200 is row v: equal logits.
    head, _ = head_of(twice=200)
    found = head.topk(states_of(4, DIM), 8, mode=mode)
    assert torch.equal(found.token_ids[:, 0::2] + 200, found.token_ids[:, 1::2])


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("mode", ["scan", "walk", "exact"])
def test_a_state_with_nan_fails_alone(mode, kernels):
    head, _ = head_of(kernels=kernels, steps=1)
    states = states_of(2, DIM)
    wanted = head.topk(states[1], 4, mode=mode)
    states[0, 7] = torch.nan
    found = head.topk(states, 4, mode=mode)
    assert found.failed.tolist() == [True, False]
    assert (found.token_ids[0] == -1).all() and (found.logits[0] == -torch.inf).all()
    assert torch.equal(found.token_ids[1:], wanted.token_ids) and torch.equal(found.logits[1:], wanted.logits)


@pytest.mark.parametrize("mode", ["scan", "walk"])
def test_a_frame_of_fewer_coordinates_proposes_and_logits_stay_exact(mode):
    layer = layer_of(VOCAB, DIM)
    decay = 0.8 ** torch.arange(DIM, device=DEVICE)
    weight, states = layer.weight * decay, states_of(5, DIM)
    centre = weight.mean(0)
    lead = (weight - centre)[:, :32]
    scales = lead.abs().amax(1) / 127.5
    codes = (lead / scales[:, None] + 127.5).round().clamp(0, 255).to(torch.uint8)
    mean = torch.full((DIM,), 0.25)
    head, _ = head_of(
        weight=weight,
        codes=codes,
        code_scales=scales,
        code_bias=layer.bias + weight @ mean.to(DEVICE),
        matrix=torch.eye(DIM)[:32],
        mean=mean,
        centre=centre,
        softcap=25.0,
    )
    ids, logits, _ = truth(layer._replace(weight=weight), states, 5, softcap=25.0)
    found = head.topk(states, 5, mode=mode)
    assert torch.equal(found.token_ids.long(), ids)
    assert torch.allclose(found.logits.double(), logits, rtol=1e-5, atol=1e-5)


def test_rows_past_the_vocabulary_never_answer():
    layer = layer_of(VOCAB, DIM)
    weight = torch.cat([layer.weight, 100.0 * layer.weight[:30]])
    head, _ = head_of(weight=weight, vocab_size=VOCAB)
    for mode in ("scan", "walk", "exact"):
        assert (head.topk(states_of(3, DIM), 5, mode=mode).token_ids < VOCAB).all()


def test_half_precision_weights_and_states():
    head, layer = head_of(weight=layer_of(VOCAB, DIM).weight.to(torch.bfloat16))
    states = states_of(3, DIM).to(torch.bfloat16)
    ids, _, _ = truth(layer._replace(weight=layer.weight.to(torch.bfloat16)), states.float(), 5)
    assert torch.equal(head.topk(states, 5, mode="scan").token_ids.long(), ids)


@pytest.mark.parametrize(
    ("vocab", "dim", "batch", "places", "way"),
    [
        (49_152, 576, 1, 8_192, "scan"),
        (128_256, 4_096, 1, 8_192, "walk"),
        (128_256, 4_096, 1, None, "scan"),
        (128_256, 4_096, 8, 8_192, "scan"),
        (256_000, 4_096, 4, 8_192, "walk"),
    ],
)
def test_auto_walks_where_a_walk_is_the_smaller_work(vocab, dim, batch, places, way):
    assert head_module.choose_mode(vocab=vocab, dim=dim, batch=batch, places=places) == way


def test_auto_is_exact_where_k_is_more_than_it_reranks():
    head, _ = head_of()
    assert head.topk(states_of(1, DIM), 33).mode == "exact" and head.topk(states_of(1, DIM), 32).mode == "scan"


@pytest.mark.parametrize("mode", ["scan", "walk", "exact"])
def test_states_of_an_inference_mode_and_states_with_gradients_are_answered(mode):
    head, _ = head_of()
    wanted = head.topk(states_of(2, DIM), 4, mode=mode)
    with torch.inference_mode():
        inside = head.topk(states_of(2, DIM), 4, mode=mode)
    outside = head.topk(states_of(2, DIM).requires_grad_(), 4, mode=mode)
    for found in (inside, outside):
        assert torch.equal(found.token_ids, wanted.token_ids) and not found.logits.requires_grad
        assert not found.logits.is_inference()


@pytest.mark.parametrize("mode", ["scan", "walk", "exact"])
def test_no_states_give_empty_answers(mode):
    head, _ = head_of()
    found = head.topk(states_of(0, DIM), 4, mode=mode)
    assert found.token_ids.shape == (0, 4) and found.log_partition.shape == found.failed.shape == (0,)


def test_what_cannot_be_answered_is_refused():
    head, _ = head_of(links=None, entries=None)
    for states in (states_of(2, DIM + 1), torch.zeros((2, DIM), dtype=torch.int64, device=DEVICE)):
        with pytest.raises(BadHiddenError, match=rf"needed floats of shape \(n, {DIM}\)"):
            head.topk(states)
    with pytest.raises(DecoderOptionsError, match="no graph"):
        head.topk(states_of(1, DIM), mode="walk")
    with pytest.raises(DecoderOptionsError, match="reranks 32"):
        head.topk(states_of(1, DIM), 33, mode="scan")
    for k in (0, 1.5, True):
        with pytest.raises(DecoderOptionsError, match="whole number"):
            head.topk(states_of(1, DIM), k)
    with pytest.raises(DecoderOptionsError, match="'screen'"):
        head.topk(states_of(1, DIM), mode="screen")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rerank": 100}, DecoderOptionsError, "power of two"),
        ({"beam": 8}, DecoderOptionsError, "power of two"),
        ({"bits": 2}, DecoderOptionsError, "4 or 8"),
        ({"scale": 0.0}, DecoderOptionsError, "above 0"),
        ({"steps": 0}, DecoderOptionsError, "at least 1"),
        ({"places": 16}, DecoderOptionsError, "places is 16"),
        ({"kernels": "cuda"}, DecoderOptionsError, "kernels is 'cuda'"),
        ({"vocab_size": 401}, BadWeightsError, "401"),
        ({"links": None}, BadWeightsError, "come together"),
        ({"mean": torch.zeros(3)}, BadWeightsError, "mean has shape"),
        ({"codes": torch.zeros(VOCAB, DIM)}, BadWeightsError, "uint8"),
        ({"codes": torch.zeros(VOCAB, 16, dtype=torch.uint8)}, BadWeightsError, "Give the matrix"),
    ],
)
def test_options_and_shapes_that_make_no_sense_are_refused(options, error, match):
    with pytest.raises(error, match=match):
        head_of(**options)


def test_bytes_are_counted_and_four_bits_are_half():
    four, eight = (head_of(bits=bits)[0].nbytes() for bits in (4, 8))
    assert four["weight"] == eight["weight"] == VOCAB * DIM * 4 + VOCAB * 4
    # Widths are padded: 48 to 128 for 4 bits, to 64 for 8.
    assert four["codes"] == 512 * (64 + 8) and eight["codes"] == 512 * (64 + 8)


class FakeCuda:
    """Stands for streams, events and graphs where there is no device: a replay does the captured work again, in place."""

    def __init__(self, head, monkeypatch):
        self.calls: list[str] = []
        self._capturing = None
        self._answer = head._answer
        monkeypatch.setattr(head, "_captured", {})
        monkeypatch.setattr(head, "_answer", self.answer)
        for name in ("Stream", "current_stream", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, lambda: self)
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    def __getattr__(self, name):
        def note(*_):
            self.calls.append(name)
            return self

        return note

    def answer(self, states, way):
        answered = self._answer(states, way)
        if self._capturing is not None:
            self._capturing.work = lambda: answered.flat.copy_(self._answer(states, way).flat)
        return answered

    @contextlib.contextmanager
    def graph(self, graph, pool, capture_error_mode):
        self.calls.append(f"capture into {pool}")
        self._capturing = captured = Captured()
        self.made = captured
        yield
        self._capturing = None

    def replay(self):
        self.calls.append("replay")
        self.made.work()


class Captured:
    work = None


def test_a_replay_copies_states_in_and_the_answer_out(monkeypatch):
    head, _ = head_of(kernels="torch")
    states = [states_of(3, DIM, seed=seed) for seed in (1, 2)]
    wanted = [head.topk(part, 5, mode="scan") for part in states]
    cuda = FakeCuda(head, monkeypatch)
    found = [head.topk(part, 5, mode="scan") for part in states]
    for ours, theirs in zip(found, wanted):
        assert torch.equal(ours.token_ids, theirs.token_ids) and torch.equal(ours.logits, theirs.logits)
    # The second call waits for the first one's copy, and captures nothing.
    assert cuda.calls.count("capture into None") == 1 and cuda.calls.count("replay") == 2
    second = cuda.calls[cuda.calls.index("record_event") + 1 :]
    assert second == ["wait_event", "replay", "record_event"]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="captured graphs need a CUDA device")
@pytest.mark.parametrize("mode", ["scan", "walk"])
def test_captured_graphs_answer_as_without(mode):
    plain, _ = head_of(kernels="auto", graphs=False)
    captured, _ = head_of(kernels="auto")
    for n in (1, 3, 64, 5):
        states = states_of(n, DIM, seed=n)
        wanted, found = plain.topk(states, 5, mode=mode), captured.topk(states, 5, mode=mode)
        assert torch.equal(found.token_ids, wanted.token_ids) and torch.equal(found.logits, wanted.logits)
