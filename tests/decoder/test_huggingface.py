"""generate() with a decoder attached, against the same model without: families, ways to choose tokens, dtypes, batches.

Tiny random models, each with a decoder of its own; mode="walk" unless said, so that nothing is exact by accident.
"""

from __future__ import annotations

import copy
import pickle
import threading
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")

from tiny_models import DIM, FAMILIES, VOCAB, build_for, prompts, states_of, tiny_model  # noqa: E402
from transformers.generation import logits_process  # noqa: E402

from decoder import DecoderOptionsError, OutputLayer, build_decoder, exact_logits, open_decoder  # noqa: E402
from decoder.errors import BadHiddenError, DecoderClosedError, DecoderError, UnknownDecoderError  # noqa: E402
from decoder.gpu.connect import device_head, device_topk  # noqa: E402
from decoder.huggingface import attach, detach  # noqa: E402
from decoder.huggingface import attached as attached_module  # noqa: E402
from decoder.huggingface.rows import AfterHead, Best, full_rows  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = {"max_new_tokens": 8, "return_dict_in_generate": True, "output_logits": True, "output_scores": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """name, dtype -> the folder of its decoder; each is built once."""
    root = tmp_path_factory.mktemp("decoders")

    @cache
    def built(name: str, dtype: str):
        return build_for(tiny_model(name, dtype), root / f"{name} {dtype}")

    return lambda name, dtype="float32": built(name, dtype)


def generate(model, ids, seed=0, **options):
    torch.manual_seed(seed)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **{**TOKENS, **options})


def pair(folder, name="llama", dtype="float32", **options):
    """The model as it is, and the same model with its decoder attached."""
    attached = attach(tiny_model(name, dtype), folder(name, dtype), **{"mode": "walk", **options})
    return tiny_model(name, dtype), attached


def require_rows_like(rows, plain, candidates):
    """Of steps float32 (n, V): candidates as the plain ones, one number for all others, log Z nearly the same."""
    best = plain.topk(candidates).indices
    torch.testing.assert_close(rows.gather(1, best), plain.gather(1, best), atol=2e-5, rtol=1e-5)
    others = rows.scatter(1, best, torch.nan)
    for row in others:
        left = row[~row.isnan()]
        assert float(left.max() - left.min()) < 1e-5
    assert rows.isfinite().all()
    assert (rows.logsumexp(1) - plain.logsumexp(1)).abs().max() < 0.05


# --- families and ways to choose --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_and_rows_are_the_plain_models(folder, name):
    model, attached = pair(folder, name)
    plain, found = generate(model, prompts(3)), generate(attached.model, prompts(3))
    assert torch.equal(plain.sequences, found.sequences)
    assert attached.last.by_decoder
    assert attached.steps == {"by_decoder": len(found.logits), "by_all_rows": 0}
    require_rows_like(torch.cat(found.logits), torch.cat(plain.logits), 10)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "marian"])
def test_rows_are_normalised_by_an_exact_log_z_in_exact_mode(folder, name):
    model, attached = pair(folder, name, mode="exact")
    plain, found = generate(model, prompts(2)), generate(attached.model, prompts(2))
    exact, rows = torch.cat(plain.logits), torch.cat(found.logits)
    torch.testing.assert_close(rows.logsumexp(1), exact.logsumexp(1), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5", "marian"])
def test_beams_are_the_plain_models(folder, name):
    model, attached = pair(folder, name)
    options = {"num_beams": 4, "num_return_sequences": 3}
    plain, found = generate(model, prompts(2), **options), generate(attached.model, prompts(2), **options)
    assert attached.last.by_decoder
    assert torch.equal(plain.sequences, found.sequences)
    torch.testing.assert_close(plain.sequences_scores, found.sequences_scores, atol=0.02, rtol=0)
    transition = attached.model.compute_transition_scores(found.sequences, found.scores, found.beam_indices)
    assert transition.isfinite().all()


@pytest.mark.parametrize("name", ["llama", "cohere", "marian"])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 20},
        {"top_k": 15, "temperature": 1.7},
        {"top_k": 30, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 12, "typical_p": 0.9, "min_new_tokens": 4},
        {"top_k": 12, "num_beams": 3},
    ],
    ids=str,
)
def test_sampling_among_the_top_k_draws_what_the_plain_model_draws(folder, name, options):
    model, attached = pair(folder, name)
    for seed in range(3):
        plain = generate(model, prompts(4), seed, do_sample=True, **options)
        found = generate(attached.model, prompts(4), seed, do_sample=True, **options)
        assert attached.last.by_decoder
        assert attached.last.candidates >= options["top_k"]
        assert torch.equal(plain.sequences, found.sequences)


class Raises(logits_process.LogitsProcessor):
    """The least probable token becomes the most probable one."""

    def __call__(self, input_ids, scores):
        out = scores.clone()
        out[torch.arange(len(scores)), scores.argmin(1)] = 1e4
        return out


def every_third(batch, ids):
    return list(range(int(ids[-1]) % 3, VOCAB, 3))


def own_loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **inputs):
    """The second best token, twice."""
    for _ in range(2):
        logits = model(input_ids).logits[:, -1]
        input_ids = torch.cat([input_ids, logits.topk(200).indices[:, 150:151]], 1)
    return input_ids


ALL_ROWS = {
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": every_third},
    "beams, prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": every_third, "num_beams": 3},
    "a processor that raises": {"logits_processor": logits_process.LogitsProcessorList([Raises()])},
    "sequence_bias": {"sequence_bias": {(7,): 50.0, (9, 11): 60.0}},
    "repetition_penalty": {"repetition_penalty": 0.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
    "guidance_scale": {"guidance_scale": 1.5},
    "exponential_decay": {"exponential_decay_length_penalty": (1, 5.0)},
    "sampling without top_k": {"do_sample": True, "top_k": 0},
    "top_p without top_k": {"do_sample": True, "top_k": 0, "top_p": 0.8},
    "more top_k than a quarter": {"do_sample": True, "top_k": VOCAB // 2},
    "prompt lookup": {"prompt_lookup_num_tokens": 3},
    "custom_generate": {"custom_generate": own_loop},
}


@pytest.mark.parametrize("name", ["llama", "marian"])
@pytest.mark.parametrize("case", ALL_ROWS)
def test_calls_for_which_candidates_are_not_enough_get_all_rows(folder, name, case):
    if name == "marian" and case in ("guidance_scale", "custom_generate", "prompt lookup"):
        pytest.skip("for causal models")
    model, attached = pair(folder, name)
    batch = 1 if case == "prompt lookup" else 2
    plain = generate(model, prompts(batch), **ALL_ROWS[case])
    found = generate(attached.model, prompts(batch), **ALL_ROWS[case])
    assert not attached.last.by_decoder
    assert attached.last.reason
    sequences = [answer if isinstance(answer, torch.Tensor) else answer.sequences for answer in (plain, found)]
    assert torch.equal(*sequences)
    if not isinstance(plain, torch.Tensor):
        assert torch.equal(torch.cat(plain.logits), torch.cat(found.logits))


def test_an_assistant_is_verified_with_all_rows(folder):
    model, attached = pair(folder)
    assistant = tiny_model("llama", num_hidden_layers=1)
    found = generate(attached.model, prompts(), assistant_model=assistant)
    assert "assisted_generation" in attached.last.reason
    assert torch.equal(found.sequences, generate(model, prompts()).sequences)


def test_banned_tokens_never_come_and_enough_candidates_are_left(folder):
    """S67: the fifteen best tokens of every step banned, though ten candidates were asked for."""
    model, attached = pair(folder)
    logits = torch.cat(generate(model, prompts()).logits)
    best = logits.topk(15).indices.flatten().unique().tolist()
    for options in ({"suppress_tokens": best[:60]}, {"bad_words_ids": [[token] for token in best[:60]] + [[5, 6]]}):
        plain, found = generate(model, prompts(3), **options), generate(attached.model, prompts(3), **options)
        assert attached.last.by_decoder
        assert attached.last.candidates >= 60
        assert torch.equal(plain.sequences, found.sequences)
        assert not set(found.sequences[:, 5:].flatten().tolist()) & set(best[:60])


def test_an_end_that_may_not_come_yet_does_not_come(folder):
    model, attached = pair(folder)
    first = int(generate(model, prompts()).sequences[0, 5])
    options = {"eos_token_id": [first, 4], "min_new_tokens": 6, "begin_suppress_tokens": [9], "pad_token_id": 0}
    plain, found = generate(model, prompts(), **options), generate(attached.model, prompts(), **options)
    assert attached.last.by_decoder
    assert torch.equal(plain.sequences, found.sequences)
    assert first not in found.sequences[0, 5:11]


# --- batches, dtypes, caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["walk", "screen", "exact"])
def test_s64_a_row_does_not_depend_on_its_batch(folder, mode):
    states = torch.from_numpy(states_of(tiny_model("gemma2"), 10, 8))
    after = AfterHead(softcap=2.0, bias=torch.linspace(-1, 1, VOCAB))

    def rows(some):
        best = Best.of(decoder.topk(some, k=10, mode=mode))
        return full_rows(best, after, vocab_size=VOCAB, rows=VOCAB)

    with open_decoder(folder("gemma2")) as decoder:
        alone = rows(states[:1])
        for size in (2, 7, 32, 64):
            for at in (0, size // 2, size - 1):
                some = states[1 : size + 1].clone()
                some[at] = states[0]
                assert torch.equal(rows(some)[at : at + 1], alone)


def test_left_padded_prompts_of_several_lengths(folder):
    model, attached = pair(folder)
    ids, mask = prompts(4), torch.ones((4, 5), dtype=torch.long)
    for row in range(4):
        ids[row, :row], mask[row, :row] = 0, 0
    plain, found = (some.generate(ids, attention_mask=mask, max_new_tokens=8) for some in (model, attached.model))
    assert torch.equal(plain, found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "marian"])
def test_half_precision_models_get_exact_logits_of_their_own_states(folder, name, dtype):
    model, attached = pair(folder, name, dtype)
    plain, found = generate(model, prompts(2), max_new_tokens=1), generate(attached.model, prompts(2), max_new_tokens=1)
    rows, rounded = found.logits[0], plain.logits[0].float()
    step = torch.finfo(getattr(torch, dtype)).eps * 8 * float(rounded.abs().max())
    best = rows.topk(10).indices
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.gather(1, best), rounded.gather(1, best), atol=step, rtol=0)
    for options in ({}, {"num_beams": 2}, {"do_sample": True, "top_k": 5}, {"do_sample": True, "top_k": 0}):
        assert generate(attached.model, prompts(2), **options).sequences.shape == (2, 13 if name != "marian" else 9)


def test_a_static_cache_and_no_cache(folder):
    model, attached = pair(folder)
    for options in ({"cache_implementation": "static"}, {"use_cache": False}):
        plain, found = generate(model, prompts(2), **options), generate(attached.model, prompts(2), **options)
        assert torch.equal(plain.sequences, found.sequences)
        assert attached.last.by_decoder


def test_prompt_positions_get_no_rows(folder, monkeypatch):
    """Where a model passes on every position of a prompt, only the last one is answered."""
    answered = []

    def counted(best, after, **sizes):
        answered.append(len(best.logits))
        return full_rows(best, after, **sizes)

    monkeypatch.setattr(attached_module, "full_rows", counted)
    _, attached = pair(folder)
    generate(attached.model, prompts(2, 30), logits_to_keep=0, max_new_tokens=3)
    assert answered == [2, 2, 2]


def test_two_threads_one_of_them_constrained(folder):
    model, attached = pair(folder)
    free, held = generate(model, prompts()), generate(model, prompts(), prefix_allowed_tokens_fn=every_third)
    wrong = []

    def ask(expected, **options):
        for _ in range(5):
            found = attached.model.generate(prompts(), attention_mask=torch.ones_like(prompts()), **TOKENS, **options)
            if not torch.equal(found.sequences, expected.sequences):
                wrong.append(options)

    threads = [
        threading.Thread(target=ask, args=(free,)),
        threading.Thread(target=ask, args=(held,), kwargs={"prefix_allowed_tokens_fn": every_third}),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_s58_padding_is_never_chosen(tmp_path):
    """Rows past the tokens win by far in the model; they do not answer, by decoder or by all rows."""
    model = tiny_model("llama")
    real = VOCAB - 7
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight[real:] = 50 * head.weight[:7]
    layer = OutputLayer(head.weight, vocab_size=real)
    build_decoder(layer, tmp_path / "padded", calibration=states_of(model))
    with attach(model, tmp_path / "padded", mode="walk"):
        for options in (
            {},
            {"num_beams": 3},
            {"do_sample": True, "top_k": 0},
            {"prefix_allowed_tokens_fn": every_third},
        ):
            found = generate(model, prompts(4), **options)
            assert int(found.sequences[:, 5:].max()) < real
            assert (torch.cat(found.logits)[:, real:] == -torch.inf).all()


# --- outside of generate() --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "marian"])
def test_a_forward_pass_is_the_plain_models(folder, name):
    model, attached = pair(folder, name)
    ids = prompts(2, 12)
    answers = [some(input_ids=ids, labels=ids) for some in (model, attached.model)]
    assert torch.equal(answers[0].logits, answers[1].logits)
    assert torch.equal(answers[0].loss, answers[1].loss)
    answers[1].loss.backward()
    assert attached.model.get_output_embeddings().weight.grad.abs().sum() > 0
    assert attached.steps == {"by_decoder": 0, "by_all_rows": 0}


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
def test_logprobs_of_a_text(folder, name):
    model, attached = pair(folder, name)
    ids, mask = prompts(3, 20), torch.ones((3, 20), dtype=torch.long)
    ids[1, :4], mask[1, :4] = 0, 0
    with torch.no_grad():
        table = model(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
    wanted = table.gather(2, ids[:, 1:, None])[..., 0]
    found = attached.logprobs(ids, mask)
    assert found[1, :3].isnan().all()
    torch.testing.assert_close(found[mask[:, 1:] > 0], wanted[mask[:, 1:] > 0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_logprobs_of_labels(folder, name):
    model, attached = pair(folder, name)
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


def test_logprobs_make_no_table(folder, monkeypatch):
    _, attached = pair(folder)
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


def test_a_path_is_opened_over_the_models_own_memory_and_closed(folder):
    model = tiny_model("llama tied", "bfloat16")
    attached = attach(model, str(folder("llama tied", "bfloat16")))
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


def test_an_open_decoder_stays_open(folder):
    model = tiny_model("llama")
    with open_decoder(folder("llama")) as decoder:
        with attach(model, decoder, k=3) as attached:
            generate(model, prompts())
            assert attached.last.candidates == 3
        decoder.topk(np.ones(DIM, np.float32))
        with attach(model, decoder), pytest.raises(DecoderOptionsError, match="attached already"):
            attach(model, decoder)
    assert "forward" not in model.lm_head.__dict__


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2.5}, {"mode": "scan"}, {"recall": 1.5}])
def test_options_that_make_no_sense(folder, options):
    with pytest.raises(DecoderOptionsError):
        attach(tiny_model("llama"), folder("llama"), **options)


def test_models_that_cannot_be_answered(folder, tmp_path):
    decoder = folder("llama")
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


def test_a_model_that_does_something_else_to_its_logits_is_refused(folder):
    """S60: what no configuration says would be left out of every answer."""

    class Doubled(transformers.LlamaForCausalLM):
        def forward(self, *given, **named):
            answer = super().forward(*given, **named)
            answer.logits = answer.logits * 2
            return answer

    model = tiny_model("llama")
    model.__class__ = Doubled
    with pytest.raises(DecoderOptionsError, match="not what its configuration says"):
        attach(model, folder("llama"))


def test_training_or_compiling_an_attached_model(folder):
    _, attached = pair(folder)
    model = attached.model
    with pytest.raises(DecoderOptionsError, match="training mode"):
        generate(model.train(), prompts())
    model.eval().compile(backend="eager")
    with pytest.raises(DecoderOptionsError, match="compiled"):
        generate(model, prompts())
    with pytest.raises(Exception, match="being compiled"):
        torch.compile(model.lm_head, backend="eager", fullgraph=True)(torch.ones(1, DIM))


def test_something_else_on_the_output_layer_gets_all_rows(folder):
    """A hook may raise any token, so it sees what it would see without a decoder."""
    model, attached = pair(folder)
    hooks = [some.lm_head.register_forward_hook(lambda module, given, out: -out) for some in (model, attached.model)]
    plain, found = generate(model, prompts()), generate(attached.model, prompts())
    assert torch.equal(plain.sequences, found.sequences)
    assert "output layer" in attached.last.reason
    for hook in hooks:
        hook.remove()


def test_copies_and_pickles_are_refused_and_saving_is_not(folder, tmp_path):
    model, attached = pair(folder)
    for work in (copy.deepcopy, pickle.dumps):
        with pytest.raises(DecoderError, match="detach"):
            work(attached.model)
    attached.model.save_pretrained(tmp_path)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(saved.lm_head.weight, model.lm_head.weight)


def test_a_state_with_nan_is_named(folder):
    _, attached = pair(folder)
    with torch.no_grad():
        attached.model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(BadHiddenError, match="row"):
        generate(attached.model, prompts())


# --- rows -------------------------------------------------------------------------------------------------------

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


def test_candidates_carry_the_bits_of_the_exact_path(folder):
    model, attached = pair(folder)
    states = states_of(model, 1, 6)
    best = Best.of(attached.decoder.topk(states, k=10, mode="walk"))
    exact = exact_logits(attached.decoder.layer, states)
    np.testing.assert_array_equal(best.logits.numpy(), np.take_along_axis(exact, best.token_ids.numpy(), 1))


def test_an_answer_on_a_device_stays_there(folder, monkeypatch):
    """The device's twin on the CPU: fields are tensors, and a state with NaN fails alone."""
    with open_decoder(folder("llama")) as decoder:
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


@pytest.mark.long
def test_the_next_token_is_the_same_along_the_models_own_text(tmp_path):
    model = tiny_model("llama", vocab_size=8000)
    calibration = states_of(model, 200, 50)
    layer = OutputLayer(model.lm_head.weight)
    build_decoder(layer, tmp_path / "large", calibration=calibration)
    ids = prompts(50, 8)
    plain = generate(model, ids, max_new_tokens=32)
    with attach(model, tmp_path / "large", recall=0.999) as attached:
        states: list = []
        watching = model.lm_head.register_forward_pre_hook(lambda module, given: states.append(given[0][:, -1]))
        keep = logits_process.LogitsProcessorList([logits_process.LogitsProcessor()])
        keep[0].__class__ = type(
            "Same", (logits_process.LogitsProcessor,), {"__call__": lambda self, ids, scores: scores}
        )
        generate(model, ids, max_new_tokens=32, logits_processor=keep)
        watching.remove()
        best = [attached.decoder.topk(some, k=10, recall=0.999, mode="walk").token_ids[:, 0] for some in states]
    chosen = torch.cat(plain.logits).argmax(1).numpy()
    assert np.mean(np.concatenate(best) == chosen) >= 0.998
