"""Answers under constraints, against a plain model in float64: bans, biases, permissions, raw and processed (S66, S67)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_oracle import log_sum, logits64, random_layer
from toy_decoder import OPTIONS, V, toy, toy_states

from decoder import Constraints, DecoderOptions, OpenDecoder, OutputLayer, build_decoder, open_decoder
from decoder.constrained import FEW_ALLOWED, FEW_BANNED, FEW_BOOSTED
from decoder.errors import ConstraintError
from decoder.planner import MODES


@pytest.fixture(scope="module")
def head() -> OpenDecoder:
    with open_decoder(toy().folder) as opened:
        yield opened


class Model:
    """What constraints mean, written down plainly."""

    def __init__(self, layer, state: np.ndarray, constraints: Constraints) -> None:
        self.raw = logits64(layer, state)[0]
        self.biased = self.raw.copy()
        for token, bias in (constraints.logit_bias or {}).items():
            self.biased[token] += np.float32(bias)
        if constraints.allowed is not None:
            banned = np.setdiff1d(np.arange(len(self.raw)), list(constraints.allowed))
            self.biased[banned] = -np.inf
        if constraints.banned is not None:
            self.biased[list(constraints.banned)] = -np.inf

    def best(self, k: int) -> np.ndarray:
        order = np.argsort(-self.biased, kind="stable")
        return order[self.biased[order] > -np.inf][:k]

    @property
    def raw_logprobs(self) -> np.ndarray:
        return self.raw - log_sum(self.raw[None, :])

    @property
    def processed_logprobs(self) -> np.ndarray:
        return self.biased - log_sum(self.biased[None, :])


def require_model(head: OpenDecoder, state: np.ndarray, constraints: Constraints, *, k: int = 10, mode: str = "walk"):
    """The answer is the model's, but for tokens that float32 cannot tell apart and for what log Z is estimated to be."""
    model = Model(head.layer, state, constraints)
    best = model.best(k)
    for logprobs, true in (("raw", model.raw_logprobs), ("processed", model.processed_logprobs)):
        top = head.topk(state, k=k, mode=mode, constraints=constraints, logprobs=logprobs, recall=1.0)
        count = int(top.counts[0])
        assert count == len(best)
        ids, logits = top.token_ids[0, :count], top.logits[0, :count]
        # A walk may miss one in a thousand.
        missed = np.count_nonzero(~np.isclose(model.biased[ids], model.biased[best], atol=1e-4))
        assert len(set(best.tolist()) - set(ids.tolist())) <= (mode == "walk") or missed == 0
        np.testing.assert_allclose(logits, model.biased[ids], atol=1e-4, rtol=1e-6)
        assert (np.diff(logits) <= 0).all() and len(set(ids.tolist())) == count
        error = np.abs(top.logprobs[0, :count] - true[ids])
        assert (error <= 6 * top.logprob_stderr[0] + 1e-4).all()
        assert (top.token_ids[0, count:] == -1).all() and (top.logprobs[0, count:] == -np.inf).all()


def some_constraints(tokens: st.SearchStrategy[int]) -> st.SearchStrategy[Constraints]:
    biases = st.floats(-30, 30, allow_nan=False, width=32)
    return st.builds(
        Constraints,
        logit_bias=st.none() | st.dictionaries(tokens, biases, max_size=30),
        allowed=st.none() | st.sets(tokens, min_size=1, max_size=40),
        banned=st.none() | st.sets(tokens, max_size=30),
    )


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(
    row=st.integers(0, 999),
    constraints=some_constraints(st.integers(0, V - 1)),
    best_banned=st.integers(0, 12),
    mode=st.sampled_from([*MODES, "auto"]),
    k=st.sampled_from([1, 3, 10, 40]),
)
def test_random_constraints_against_a_plain_model(row, constraints, best_banned, mode, k):
    state = toy().held_out[row : row + 1]
    with open_decoder(toy().folder, layer=toy().layer) as head:
        best = np.argsort(-logits64(head.layer, state)[0])[:best_banned].tolist()
        constraints = Constraints(
            logit_bias=constraints.logit_bias,
            allowed=constraints.allowed,
            banned={*(constraints.banned or ()), *best} if best else constraints.banned,
        )
        if not len(Model(head.layer, state, constraints).best(1)):
            with pytest.raises(ConstraintError, match="no token allowed"):
                head.topk(state, k=k, mode=mode, constraints=constraints)
            return
        require_model(head, state, constraints, k=k, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [FEW_BANNED - 1, FEW_BANNED, FEW_BANNED + 1, 2000, V - 1])
def test_any_number_of_bans(head, mode, count):
    for row in range(3):
        state = toy().held_out[row : row + 1]
        best = np.argsort(-logits64(head.layer, state)[0])
        require_model(head, state, Constraints(banned=best[:count].tolist()), mode=mode)
        require_model(head, state, Constraints(banned=best[::-1][:count].tolist()), mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 5, 2000, V])
def test_any_number_of_permissions(head, mode, count):
    allowed = np.random.default_rng(count).permutation(V)[:count].tolist()
    assert FEW_ALLOWED > V or count <= FEW_ALLOWED
    for row in range(3):
        require_model(head, toy().held_out[row : row + 1], Constraints(allowed=allowed), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_many_permissions_are_found_like_any_others(mode, monkeypatch, head):
    monkeypatch.setattr("decoder.constrained.FEW_ALLOWED", 100)
    allowed = np.random.default_rng(0).permutation(V)[:1500].tolist()
    require_model(head, toy().held_out[:1], Constraints(allowed=allowed, banned=allowed[:7]), mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 50, FEW_BOOSTED, FEW_BOOSTED + 1])
def test_boosted_tokens_are_found_wherever_they_stood(head, mode, count):
    for row in range(3):
        state = toy().held_out[row : row + 1]
        worst = np.argsort(logits64(head.layer, state)[0])[:count]
        require_model(head, state, Constraints(logit_bias={int(token): 100.0 for token in worst}), mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_after_a_ban_of_nearly_everything_that_is_probable_log_z_is_that_of_the_rest(head, mode):
    """What is left after the best tokens are banned is a small part of all: its error bar is as much wider."""
    covered = []
    for row in range(60):
        state = toy().held_out[row : row + 1]
        model = Model(head.layer, state, Constraints(banned=np.argsort(-logits64(head.layer, state)[0])[:3].tolist()))
        asked = Constraints(banned=np.argsort(-model.raw)[:3].tolist())
        top = head.topk(state, mode=mode, constraints=asked, logprobs="processed")
        error = abs(top.logprobs[0, 0] - model.processed_logprobs[top.token_ids[0, 0]])
        covered.append(error <= 1.96 * top.logprob_stderr[0] + 1e-4)
    assert np.mean(covered) >= 0.85


@pytest.mark.parametrize("mode", MODES)
def test_after_a_ban_of_the_token_that_has_all_probability_log_z_is_exact(tmp_path, mode):
    """What is left is less than the rounding of what was taken off."""
    bias = np.zeros(600, np.float32)
    bias[7] = 300.0
    layer = OutputLayer(toy().layer.weight[:600], bias)
    build_decoder(layer, tmp_path / "d", calibration=toy().calibration[:400], options=OPTIONS)
    state = toy().held_out[:1]
    with open_decoder(tmp_path / "d") as one:
        top = one.topk(state, k=3, mode=mode, constraints=Constraints(banned=[7]), logprobs="processed")
    model = Model(layer, state, Constraints(banned=[7]))
    assert not top.logprob_stderr.any()
    np.testing.assert_allclose(top.logprobs[0], model.processed_logprobs[top.token_ids[0]], atol=1e-4)


@pytest.mark.parametrize("normalize", ["topk", "exact", "none"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(allowed=[5, 900, 31]),
        Constraints(banned=[3], logit_bias={8: 4.0}),
        Constraints(logit_bias={9: -2.0}),
    ],
)
def test_other_ways_to_normalise(head, mode, normalize, constraints):
    state = toy().held_out[:1]
    model = Model(head.layer, state, constraints)
    for logprobs, true, logits in (
        ("raw", model.raw_logprobs, model.raw),
        ("processed", model.processed_logprobs, model.biased),
    ):
        top = head.topk(state, mode=mode, normalize=normalize, constraints=constraints, logprobs=logprobs)
        count = int(top.counts[0])
        ids = top.token_ids[0, :count]
        assert ids.tolist() == model.best(10).tolist()
        if normalize == "none":
            assert np.isnan(top.logprobs[0, :count]).all()
        elif normalize == "exact":
            np.testing.assert_allclose(top.logprobs[0, :count], true[ids], atol=1e-4)
        else:
            np.testing.assert_allclose(top.logprobs[0, :count], logits[ids] - log_sum(logits[ids][None, :]), atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_each_row_has_its_own(head, mode):
    states = toy().held_out[:4]
    each = [None, Constraints(allowed=[7]), Constraints(logit_bias={11: 90.0}), Constraints()]
    top = head.topk(states, mode=mode, constraints=each, score_ids=[7, 11], logprobs="processed")
    assert top.counts.tolist() == [10, 1, 10, 10] and top.token_ids[1, 0] == 7 and top.token_ids[2, 0] == 11
    assert top.logprobs[1, 0] == 0.0 and top.requested_logits[1, 1] == -np.inf
    assert top.requested_logits[2, 1] == pytest.approx(logits64(head.layer, states[2:3])[0, 11] + 90, abs=1e-4)
    with pytest.raises(ConstraintError, match="constraints has 2 entries, needed one for each of the 4 states"):
        head.topk(states, mode=mode, constraints=[None, None])
    with pytest.raises(ConstraintError, match=r"row 3: no token allowed") as caught:
        head.topk(states, mode=mode, constraints=[None, None, None, Constraints(allowed=[])])
    assert caught.value.row == 3


@pytest.mark.parametrize("mode", MODES)
def test_s66_one_allowed_token(head, mode):
    states = toy().held_out[:5]
    only = Constraints(allowed=[5])
    free = head.topk(states, k=3, mode=mode, score_ids=[5])
    top = head.topk(states, k=3, mode=mode, constraints=only)
    assert top.counts.tolist() == [1] * 5 and (top.token_ids[:, 0] == 5).all() and (top.token_ids[:, 1:] == -1).all()
    np.testing.assert_array_equal(top.logprobs[:, 0], free.requested_logprobs[:, 0])
    assert (head.topk(states, k=3, mode=mode, constraints=only, logprobs="processed").logprobs[:, 0] == 0.0).all()


@pytest.mark.parametrize("mode", MODES)
def test_s67_a_bias_on_every_token(head, mode):
    biases = np.where(np.random.default_rng(1).random(V) < 0.5, -0.5, 0.5)
    asked = Constraints(logit_bias=dict(enumerate(biases.tolist())))
    for row in range(3):
        require_model(head, toy().held_out[row : row + 1], asked, k=20, mode=mode)


@pytest.mark.parametrize(
    "V", [pytest.param(4000, id="small"), pytest.param(50_000, marks=pytest.mark.long, id="large")]
)
def test_s67_four_fifths_banned_and_the_least_probable_boosted(tmp_path, V):
    layer, options = random_layer(V, 16), DecoderOptions(threads=1, degree=16, room=2)
    build_decoder(layer, tmp_path / "d", calibration=toy_states(400, 3)[:, :16], options=options)
    states = toy_states(3, 4)[:, :16]
    with open_decoder(tmp_path / "d") as head:
        banned = np.random.default_rng(2).permutation(V)[: V * 4 // 5].tolist()
        for mode in ("walk", "screen"):
            for row in range(3):
                state = states[row : row + 1]
                require_model(head, state, Constraints(banned=banned), mode=mode)
                lowest = int(np.argmin(logits64(layer, state)[0]))
                boosted = head.topk(state, mode=mode, constraints=Constraints(logit_bias={lowest: 100.0}))
                assert boosted.token_ids[0, 0] == lowest
