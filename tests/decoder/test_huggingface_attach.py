"""attach() and detach(): what an attached model does outside of generate(), and what is refused."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")

from tiny_models import DIM, VOCAB, generate, pair, prompts, tiny_model  # noqa: E402

from decoder import DecoderOptions, DecoderOptionsError, OutputLayer, build_decoder, open_decoder  # noqa: E402
from decoder.errors import BadHiddenError, DecoderClosedError, DecoderError, StaleDecoderError, UnknownDecoderError  # noqa: E402
from decoder.huggingface import attach, detach  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


# --- outside of generate() --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "marian"])
def test_a_forward_pass_is_the_plain_models(decoder_folder, name):
    model, attached = pair(decoder_folder, name)
    ids = prompts(2, 12)
    answers = [some(input_ids=ids, labels=ids) for some in (model, attached.model)]
    assert torch.equal(answers[0].logits, answers[1].logits)
    assert torch.equal(answers[0].loss, answers[1].loss)
    answers[1].loss.backward()
    assert attached.model.get_output_embeddings().weight.grad.abs().sum() > 0
    assert attached.steps == {"by_decoder": 0, "by_all_rows": 0}


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
def test_logprobs_of_a_text(decoder_folder, name):
    model, attached = pair(decoder_folder, name)
    ids, mask = prompts(3, 20), torch.ones((3, 20), dtype=torch.long)
    ids[1, :4], mask[1, :4] = 0, 0
    with torch.no_grad():
        table = model(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    wanted = table.gather(2, ids[:, 1:, None])[..., 0]
    found = attached.logprobs(ids, mask)
    assert found[1, :3].isnan().all()
    torch.testing.assert_close(found[mask[:, 1:] > 0], wanted[mask[:, 1:] > 0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_logprobs_of_labels(decoder_folder, name):
    model, attached = pair(decoder_folder, name)
    ids, labels = prompts(2, 7), prompts(2, 9)
    labels[0, 6:] = -100
    with torch.no_grad():
        table = model(ids, labels=labels).logits.log_softmax(-1)
    wanted = table.gather(2, labels.clamp(min=0)[..., None])[..., 0]
    found = attached.logprobs(ids, labels=labels)
    assert found[0, 6:].isnan().all()
    torch.testing.assert_close(found[labels >= 0], wanted[labels >= 0], atol=1e-4, rtol=0)
    with pytest.raises(DecoderOptionsError, match="needs labels"):
        attached.logprobs(ids)


def test_a_model_loaded_in_another_dtype_gets_a_decoder_of_what_it_holds(tmp_path):
    """As docs/huggingface.md says."""
    options = DecoderOptions(threads=1, clusters=8, degree=16)
    tiny_model("llama", "bfloat16").save_pretrained(tmp_path / "model")
    build_decoder(OutputLayer.load(tmp_path / "model"), tmp_path / "of_files", options=options)
    for dtype, differs in (("auto", False), (torch.float32, True)):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype).eval()
        if differs:
            with pytest.raises(StaleDecoderError, match="dtype: bfloat16 in the decoder, float32 in the model"):
                attach(model, tmp_path / "of_files")
            layer = OutputLayer(model.get_output_embeddings().weight.detach())
            build_decoder(layer, tmp_path / "of_memory", options=options)
        attached = attach(model, tmp_path / ("of_memory" if differs else "of_files"))
        generate(model, prompts())
        assert attached.steps["by_decoder"] > 0
        detach(model)


def test_logprobs_make_no_table(decoder_folder, monkeypatch):
    _, attached = pair(decoder_folder)
    plain = torch.nn.Linear.forward

    def narrow(self, given):
        out = plain(self, given)
        assert out.shape[-1] < VOCAB
        return out

    monkeypatch.setattr(torch.nn.Linear, "forward", narrow)
    assert attached.logprobs(prompts(2, 40)).shape == (2, 39)
    with pytest.raises(DecoderOptionsError, match="takes no labels"):
        attached.logprobs(prompts(), labels=prompts())


# --- attaching and detaching ------------------------------------------------------------------------------------


def test_a_path_is_opened_over_the_models_own_memory_and_closed(decoder_folder):
    model = tiny_model("llama tied", "bfloat16")
    attached = attach(model, str(decoder_folder("llama tied", "bfloat16")))
    assert attached.decoder.layer.weight.ctypes.data == model.get_input_embeddings().weight.data_ptr()
    detach(model)
    with pytest.raises(DecoderClosedError):
        attached.decoder.topk(np.ones(DIM, np.float32))
    assert not {"generate", "_get_logits_processor", "forward"} & (
        model.__dict__.keys() | model.lm_head.__dict__.keys()
    )
    with pytest.raises(DecoderOptionsError, match="attach one first"):
        detach(model)
    with pytest.raises(DecoderOptionsError, match="detached"):
        attached.logprobs(prompts())
    attached.detach()


def test_an_open_decoder_stays_open(decoder_folder):
    model = tiny_model("llama")
    with open_decoder(decoder_folder("llama")) as decoder:
        with attach(model, decoder, k=3) as attached:
            generate(model, prompts())
            assert attached.last.candidates == 3
        decoder.topk(np.ones(DIM, np.float32))
        with attach(model, decoder), pytest.raises(DecoderOptionsError, match="attached already"):
            attach(model, decoder)
    assert "forward" not in model.lm_head.__dict__


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2.5}, {"mode": "scan"}, {"recall": 1.5}])
def test_options_that_make_no_sense(decoder_folder, options):
    with pytest.raises(DecoderOptionsError):
        attach(tiny_model("llama"), decoder_folder("llama"), **options)


def test_models_that_cannot_be_answered(decoder_folder, tmp_path):
    decoder = decoder_folder("llama")
    with pytest.raises(UnknownDecoderError):
        attach(tiny_model("llama"), tmp_path / "none")
    with pytest.raises(DecoderOptionsError, match="training mode"):
        attach(tiny_model("llama").train(), decoder)
    with pytest.raises(DecoderOptionsError, match="compiled"):
        attach(torch.compile(tiny_model("llama"), backend="eager"), decoder)
    with pytest.raises(DecoderOptionsError, match="no transformers model"):
        attach(torch.nn.Linear(2, 2).eval(), decoder)
    with pytest.raises(DecoderOptionsError, match="no transformers model"):
        attach(tiny_model("llama").model, decoder)
    headless = tiny_model("llama")
    headless.get_output_embeddings = lambda: None
    with pytest.raises(DecoderOptionsError, match="not there"):
        attach(headless, decoder)
    wrapped = tiny_model("llama")
    wrapped.lm_head = torch.nn.Sequential(wrapped.lm_head)
    with pytest.raises(DecoderOptionsError, match="a Sequential"):
        attach(wrapped, decoder)
    replaced = tiny_model("llama")
    replaced.lm_head.forward = replaced.lm_head.forward
    with pytest.raises(DecoderOptionsError, match="forward was replaced"):
        attach(replaced, decoder)


def test_a_model_that_does_something_else_to_its_logits_is_refused(decoder_folder):
    """S60: what no configuration says would be left out of every answer."""

    class Doubled(transformers.LlamaForCausalLM):
        def forward(self, *given, **named):
            answer = super().forward(*given, **named)
            answer.logits = answer.logits * 2
            return answer

    model = tiny_model("llama")
    model.__class__ = Doubled
    with pytest.raises(DecoderOptionsError, match="not what its configuration says"):
        attach(model, decoder_folder("llama"))


def test_training_or_compiling_an_attached_model(decoder_folder):
    _, attached = pair(decoder_folder)
    model = attached.model
    with pytest.raises(DecoderOptionsError, match="training mode"):
        generate(model.train(), prompts())
    model.eval().compile(backend="eager")
    with pytest.raises(DecoderOptionsError, match="compiled"):
        generate(model, prompts())
    with pytest.raises(Exception, match="being compiled"):
        torch.compile(model.lm_head, backend="eager", fullgraph=True)(torch.ones(1, DIM))


def test_something_else_on_the_output_layer_gets_all_rows(decoder_folder):
    """A hook may raise any token, so it sees what it would see without a decoder."""
    model, attached = pair(decoder_folder)
    hooks = [some.lm_head.register_forward_hook(lambda module, given, out: -out) for some in (model, attached.model)]
    plain, found = generate(model, prompts()), generate(attached.model, prompts())
    assert torch.equal(plain.sequences, found.sequences)
    assert "output layer" in attached.last.reason
    for hook in hooks:
        hook.remove()


def test_copies_and_pickles_are_refused_and_saving_is_not(decoder_folder, tmp_path):
    model, attached = pair(decoder_folder)
    for work in (copy.deepcopy, pickle.dumps):
        with pytest.raises(DecoderError, match="detach"):
            work(attached.model)
    attached.model.save_pretrained(tmp_path)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(saved.lm_head.weight, model.lm_head.weight)


def test_a_state_with_nan_is_named(decoder_folder):
    _, attached = pair(decoder_folder)
    with torch.no_grad():
        attached.model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(BadHiddenError, match="row"):
        generate(attached.model, prompts())
