"""S71: weights that changed after the decoder was built. The next generate() answers for the new ones, or says "stale index".

Each change is made to a model whose decoder has just answered, and to a model without one, which says what is right.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")

from tiny_models import VOCAB, build_for, prompts, tiny_model  # noqa: E402

from decoder import OutputLayer, StaleDecoderError, build_decoder, open_decoder  # noqa: E402
from decoder.huggingface import attach, detach  # noqa: E402
from decoder.huggingface.weights import _digest  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ("llama", "llama tied", "gpt2", "marian")


def generate(model, **options):
    ids = prompts(2)
    torch.manual_seed(0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, **options)


def require_new_answers_or_stale(model, plain, **options):
    """What S71 asks. Returns whether it was refused."""
    expected = generate(plain, **options)
    try:
        found = generate(model, **options)
    except StaleDecoderError as error:
        return all(part in str(error) for part in ("stale index", error.expected, error.found))
    assert torch.equal(found, expected)
    return False


class Adapter(torch.nn.Module):
    """As adapters wrap a layer: the old one inside, a product of two thin matrices beside it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.down = torch.nn.Linear(base_layer.in_features, 2, bias=False)
        self.up = torch.nn.Linear(2, base_layer.out_features, bias=False)
        with torch.no_grad():
            self.up.weight.normal_(std=3.0)

    def forward(self, states):
        return self.base_layer(states) + self.up(self.down(states))


def head(model):
    return model.get_output_embeddings()


def other_weight(model, seed=9):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(head(model).weight.shape, generator=generator) * 0.6


def row_in_place(model):
    with torch.no_grad():
        head(model).weight[7] *= 3


def all_in_place(model):
    with torch.no_grad():
        head(model).weight.copy_(other_weight(model))


def data_in_place(model):
    head(model).weight.data[7:200] *= -3


def data_replaced(model):
    head(model).weight.data = other_weight(model)


def parameter_replaced(model):
    head(model).weight = torch.nn.Parameter(other_weight(model))


def memory_behind_torch(model):
    """As code in C would: no counter of torch moves."""
    head(model).weight.detach().numpy()[3:90] *= -1


def head_replaced(model):
    new = torch.nn.Linear(head(model).in_features, VOCAB, bias=False)
    with torch.no_grad():
        new.weight.copy_(other_weight(model))
    model.set_output_embeddings(new)


def resized(model):
    """The new tokens win at once."""
    torch.manual_seed(1)
    model.resize_token_embeddings(VOCAB + 3)
    with torch.no_grad():
        head(model).weight[VOCAB:] = 20 * other_weight(model)[5:8]


def shrunk(model):
    model.resize_token_embeddings(VOCAB - 3)
    model.config.pad_token_id = model.generation_config.pad_token_id = 0
    model.generation_config.decoder_start_token_id = 0


def adapter_loaded(model):
    torch.manual_seed(2)
    model.set_output_embeddings(Adapter(head(model)))


def adapter_merged(model):
    """As PEFT merges: weight.data += delta."""
    torch.manual_seed(2)
    delta = torch.randn(VOCAB, 2) @ torch.randn(2, head(model).in_features)
    head(model).weight.data += delta


def state_loaded(model):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, module in model.named_modules():
        if getattr(module, "weight", None) is head(model).weight:
            state[f"{name}.weight"] = other_weight(model)
    model.load_state_dict(state)


def state_assigned(model):
    state = {
        name: value.clone() * (-1 if value.shape == head(model).weight.shape else 1)
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)


def cast(model):
    model.to(torch.bfloat16)


def cast_layer(model):
    """Down and up again: float32 as before, but with other numbers."""
    head(model).to(torch.bfloat16).to(torch.float32)


def bias_added(model):
    head(model).bias = torch.nn.Parameter(torch.linspace(-20, 20, VOCAB))


def trained(model):
    optimiser = torch.optim.SGD([head(model).weight], lr=30.0)
    ids = prompts(2, 12)
    (model(input_ids=ids, labels=ids).loss).backward()
    optimiser.step()
    model.zero_grad()


CHANGES = [
    row_in_place, all_in_place, data_in_place, data_replaced, parameter_replaced, memory_behind_torch, head_replaced,
    resized, shrunk, adapter_loaded, adapter_merged, state_loaded, state_assigned, cast, cast_layer, bias_added, trained,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_s71_never_old_answers(decoder_folder, name, change):
    model, plain = tiny_model(name), tiny_model(name)
    before = generate(plain)
    attach(model, decoder_folder(name), mode="walk")
    assert torch.equal(generate(model), before)
    change(model), change(plain)
    assert require_new_answers_or_stale(model, plain)
    # Where every row is computed anyway, the answer is the new weights'.
    assert not require_new_answers_or_stale(model, plain, repetition_penalty=1.3)
    assert require_new_answers_or_stale(model, plain, num_beams=2)
    detach(model)
    assert not require_new_answers_or_stale(model, plain)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_s71_with_an_open_decoder_that_has_its_own_weights(decoder_folder, change):
    model, plain = tiny_model("llama"), tiny_model("llama")
    with open_decoder(decoder_folder("llama")) as decoder, attach(model, decoder, mode="walk"):
        generate(model)
        change(model), change(plain)
        assert require_new_answers_or_stale(model, plain)


def test_s71_the_bias_of_the_model_itself(decoder_folder):
    model, plain = tiny_model("marian"), tiny_model("marian")
    attach(model, decoder_folder("marian"))
    generate(model)
    for some in (model, plain):
        some.final_logits_bias[0, 5:50] += 30
    assert require_new_answers_or_stale(model, plain)
    for some in (model, plain):
        some.final_logits_bias[0, 5:50] -= 30
    some.final_logits_bias.data[:] = some.final_logits_bias.data * 2


def test_s71_a_soft_cap_that_is_configured_later(decoder_folder, tmp_path):
    model = tiny_model("gemma2")
    attach(model, build_for(model, tmp_path / "gemma2"))
    generate(model)
    model.config.final_logit_softcapping = 1.0
    with pytest.raises(StaleDecoderError, match="stale index") as caught:
        generate(model)
    assert "(soft-cap: " in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_s71_changes_that_change_nothing_go_on(decoder_folder, name):
    """The same numbers again: loaded, assigned, edited forth and back."""
    model = tiny_model(name)
    attached = attach(model, decoder_folder(name), mode="walk")
    expected = generate(model)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(state)
    assert torch.equal(generate(model), expected)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    assert torch.equal(generate(model), expected)
    with torch.no_grad():
        head(model).weight[7] *= 4
        head(model).weight[7] /= 4
    assert torch.equal(generate(model), expected)
    assert attached.steps["by_all_rows"] == 0


def test_s71_in_the_middle_of_a_generation(decoder_folder):
    """An edit that torch counts shows at the very next step."""
    model = tiny_model("llama")
    attached = attach(model, decoder_folder("llama"))
    steps = []

    class Edits(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **named):
            steps.append(len(input_ids))
            if len(steps) == 3:
                row_in_place(model)
            return torch.zeros(len(input_ids), dtype=torch.bool)

    with pytest.raises(StaleDecoderError):
        generate(model, stopping_criteria=transformers.StoppingCriteriaList([Edits()]))
    assert len(steps) == 3
    assert attached.steps["by_decoder"] == 4


def test_s71_another_models_weights_are_refused_naming_both(decoder_folder, tmp_path):
    other = tiny_model("llama")
    all_in_place(other)
    built = OutputLayer(tiny_model("llama").lm_head.weight).weights_hash()
    found = OutputLayer(other.lm_head.weight).weights_hash()
    with open_decoder(decoder_folder("llama")) as decoder:
        for given in (decoder_folder("llama"), decoder):
            with pytest.raises(StaleDecoderError, match="stale index") as caught:
                attach(other, given)
            assert built in str(caught.value)
            assert found in str(caught.value)
    assert "generate" not in other.__dict__
    for model, note in (
        (tiny_model("llama", vocab_size=VOCAB - 20), None),
        (tiny_model("llama", "bfloat16"), "dtype: float32 in the decoder, bfloat16 in the model"),
        (tiny_model("gpt2"), None),
    ):
        with pytest.raises(StaleDecoderError) as caught:
            attach(model, decoder_folder("llama"))
        assert note is None or note in str(caught.value)
        assert not getattr(caught.value, "__notes__", ())


def test_s71_weights_made_in_inference_mode(tmp_path):
    """Torch counts no edits of these; the reading of weights finds them."""
    with torch.inference_mode():
        model, plain = tiny_model("llama"), tiny_model("llama")
    build_decoder(OutputLayer(model.lm_head.weight), tmp_path / "decoder")
    attach(model, tmp_path / "decoder")
    generate(model)
    with torch.inference_mode():
        row_in_place(model), row_in_place(plain)
    assert require_new_answers_or_stale(model, plain)


def test_what_a_device_compares_shows_every_bit():
    """The checksum that stands for a reading where weights are on a device."""
    generator = np.random.default_rng(0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        weight = torch.from_numpy(generator.normal(size=(5000, 24)).astype(np.float32)).to(dtype)
        before = _digest([weight])
        assert _digest([weight.clone()]) == before
        swapped = weight.clone()
        swapped[[3, 4999]] = weight[[4999, 3]]
        turned = weight.clone()
        turned[77, [2, 5]] = weight[77, [5, 2]]
        flipped = weight.clone()
        flipped.view(torch.int16 if dtype != torch.float32 else torch.int32)[4123, 23] ^= 1
        assert len({before[0], *(_digest([some])[0] for some in (swapped, turned, flipped))}) == 4
