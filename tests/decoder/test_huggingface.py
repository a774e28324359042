"""generate() with a decoder attached, against the same model without: families, ways to choose tokens, dtypes, batches.

Tiny random models, each with a decoder of its own; mode="walk" unless said, so that nothing is exact by accident.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the models are torch's")
transformers = pytest.importorskip("transformers", reason="the models are transformers'")

from tiny_models import FAMILIES, TOKENS, VOCAB, generate, pair, prompts, states_of, tiny_model  # noqa: E402
from transformers.generation import logits_process  # noqa: E402

from decoder import OutputLayer, build_decoder, open_decoder  # noqa: E402
from decoder.huggingface import attach  # noqa: E402
from decoder.huggingface import attached as attached_module  # noqa: E402
from decoder.huggingface.rows import AfterHead, Best, full_rows  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


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
def test_greedy_text_and_rows_are_the_plain_models(decoder_folder, name):
    model, attached = pair(decoder_folder, name)
    plain, found = generate(model, prompts(3)), generate(attached.model, prompts(3))
    assert torch.equal(plain.sequences, found.sequences)
    assert attached.last.by_decoder
    assert attached.steps == {"by_decoder": len(found.logits), "by_all_rows": 0}
    require_rows_like(torch.cat(found.logits), torch.cat(plain.logits), 10)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "marian"])
def test_rows_are_normalised_by_an_exact_log_z_in_exact_mode(decoder_folder, name):
    model, attached = pair(decoder_folder, name, mode="exact")
    plain, found = generate(model, prompts(2)), generate(attached.model, prompts(2))
    exact, rows = torch.cat(plain.logits), torch.cat(found.logits)
    torch.testing.assert_close(rows.logsumexp(1), exact.logsumexp(1), atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", ["llama", "gemma2", "t5", "marian"])
def test_beams_are_the_plain_models(decoder_folder, name):
    model, attached = pair(decoder_folder, name)
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
def test_sampling_among_the_top_k_draws_what_the_plain_model_draws(decoder_folder, name, options):
    model, attached = pair(decoder_folder, name)
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


class Same(logits_process.LogitsProcessor):
    """Nothing changes, which nobody can know."""

    def __call__(self, input_ids, scores):
        return scores


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
    "a processor that is unknown": {"logits_processor": logits_process.LogitsProcessorList([Same()])},
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
def test_calls_for_which_candidates_are_not_enough_get_all_rows(decoder_folder, name, case):
    if name == "marian" and case in ("guidance_scale", "custom_generate", "prompt lookup"):
        pytest.skip("for causal models")
    model, attached = pair(decoder_folder, name)
    batch = 1 if case == "prompt lookup" else 2
    plain = generate(model, prompts(batch), **ALL_ROWS[case])
    found = generate(attached.model, prompts(batch), **ALL_ROWS[case])
    assert not attached.last.by_decoder
    assert attached.last.reason
    sequences = [answer if isinstance(answer, torch.Tensor) else answer.sequences for answer in (plain, found)]
    assert torch.equal(*sequences)
    if not isinstance(plain, torch.Tensor):
        assert torch.equal(torch.cat(plain.logits), torch.cat(found.logits))


def test_an_assistant_is_verified_with_all_rows(decoder_folder):
    model, attached = pair(decoder_folder)
    assistant = tiny_model("llama", num_hidden_layers=1)
    found = generate(attached.model, prompts(), assistant_model=assistant)
    assert "assisted_generation" in attached.last.reason
    assert torch.equal(found.sequences, generate(model, prompts()).sequences)


def test_banned_tokens_never_come_and_enough_candidates_are_left(decoder_folder):
    """S67: the fifteen best tokens of every step banned, though ten candidates were asked for."""
    model, attached = pair(decoder_folder)
    logits = torch.cat(generate(model, prompts()).logits)
    best = logits.topk(15).indices.flatten().unique().tolist()
    for options in ({"suppress_tokens": best[:60]}, {"bad_words_ids": [[token] for token in best[:60]] + [[5, 6]]}):
        plain, found = generate(model, prompts(3), **options), generate(attached.model, prompts(3), **options)
        assert attached.last.by_decoder
        assert attached.last.candidates >= 60
        assert torch.equal(plain.sequences, found.sequences)
        assert not set(found.sequences[:, 5:].flatten().tolist()) & set(best[:60])


def test_an_end_that_may_not_come_yet_does_not_come(decoder_folder):
    model, attached = pair(decoder_folder)
    first = int(generate(model, prompts()).sequences[0, 5])
    options = {"eos_token_id": [first, 4], "min_new_tokens": 6, "begin_suppress_tokens": [9], "pad_token_id": 0}
    plain, found = generate(model, prompts(), **options), generate(attached.model, prompts(), **options)
    assert attached.last.by_decoder
    assert torch.equal(plain.sequences, found.sequences)
    assert first not in found.sequences[0, 5:11]


# --- batches, dtypes, caches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["walk", "screen", "exact"])
def test_s64_a_row_does_not_depend_on_its_batch(decoder_folder, mode):
    states = torch.from_numpy(states_of(tiny_model("gemma2"), 10, 8))
    after = AfterHead(softcap=2.0, bias=torch.linspace(-1, 1, VOCAB))

    def rows(some):
        best = Best.of(decoder.topk(some, k=10, mode=mode))
        return full_rows(best, after, vocab_size=VOCAB, rows=VOCAB)

    with open_decoder(decoder_folder("gemma2")) as decoder:
        alone = rows(states[:1])
        for size in (2, 7, 32, 64):
            for at in (0, size // 2, size - 1):
                some = states[1 : size + 1].clone()
                some[at] = states[0]
                assert torch.equal(rows(some)[at : at + 1], alone)


def test_left_padded_prompts_of_several_lengths(decoder_folder):
    model, attached = pair(decoder_folder)
    ids, mask = prompts(4), torch.ones((4, 5), dtype=torch.long)
    for row in range(4):
        ids[row, :row], mask[row, :row] = 0, 0
    plain, found = (some.generate(ids, attention_mask=mask, max_new_tokens=8) for some in (model, attached.model))
    assert torch.equal(plain, found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "marian"])
def test_half_precision_models_get_exact_logits_of_their_own_states(decoder_folder, name, dtype):
    model, attached = pair(decoder_folder, name, dtype)
    plain, found = generate(model, prompts(2), max_new_tokens=1), generate(attached.model, prompts(2), max_new_tokens=1)
    rows, rounded = found.logits[0], plain.logits[0].float()
    step = torch.finfo(getattr(torch, dtype)).eps * 8 * float(rounded.abs().max())
    best = rows.topk(10).indices
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.gather(1, best), rounded.gather(1, best), atol=step, rtol=0)
    for options in ({}, {"num_beams": 2}, {"do_sample": True, "top_k": 5}, {"do_sample": True, "top_k": 0}):
        assert generate(attached.model, prompts(2), **options).sequences.shape == (2, 13 if name != "marian" else 9)


def test_a_static_cache_and_no_cache(decoder_folder):
    model, attached = pair(decoder_folder)
    for options in ({"cache_implementation": "static"}, {"use_cache": False}):
        plain, found = generate(model, prompts(2), **options), generate(attached.model, prompts(2), **options)
        assert torch.equal(plain.sequences, found.sequences)
        assert attached.last.by_decoder


def test_prompt_positions_get_no_rows(decoder_folder, monkeypatch):
    """Where a model passes on every position of a prompt, only the last one is answered."""
    answered = []

    def counted(best, after, **sizes):
        answered.append(len(best.logits))
        return full_rows(best, after, **sizes)

    monkeypatch.setattr(attached_module, "full_rows", counted)
    _, attached = pair(decoder_folder)
    generate(attached.model, prompts(2, 30), logits_to_keep=0, max_new_tokens=3)
    assert answered == [2, 2, 2]


def test_two_threads_one_of_them_constrained(decoder_folder):
    model, attached = pair(decoder_folder)
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
        generate(model, ids, max_new_tokens=32, logits_processor=logits_process.LogitsProcessorList([Same()]))
        watching.remove()
        best = [attached.decoder.topk(some, k=10, recall=0.999) for some in states]
    chosen = torch.cat(plain.logits).argmax(1).numpy()
    assert np.mean(np.concatenate([top.token_ids[:, 0] for top in best]) == chosen) >= 0.998
