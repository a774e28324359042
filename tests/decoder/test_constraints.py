"""Constraints: what a plan says, what applying it does, what is refused and in which words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from decoder.constraints import Constraints, best_first, plan
from decoder.errors import ConstraintError

V = 20
ids_of = some.lists(some.integers(0, V - 1), max_size=V)
biases = some.dictionaries(some.integers(0, V - 1), some.floats(-50, 50, width=32), max_size=V)


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=V).astype(np.float32).round(1)


@given(bias=some.none() | biases, allowed=some.none() | ids_of, banned=some.none() | ids_of, seed=some.integers(0, 50))
def test_applying_equals_the_plain_way(bias, allowed, banned, seed):
    constraints = Constraints(logit_bias=bias, allowed=allowed, banned=banned)
    free = set(range(V)) if allowed is None else set(allowed)
    free -= set(banned or [])
    if not free:
        with pytest.raises(ConstraintError, match="no token allowed"):
            plan(constraints, V)
        return
    made = plan(constraints, V)
    assert made.free == len(free)
    logits = logits_of(seed)
    moved = {token: np.float32(logits[token]) + np.float32((bias or {}).get(token, 0.0)) for token in free}
    expected = sorted(free, key=lambda token: (-moved[token], token))

    ids = np.random.default_rng(seed).permutation(V).astype(np.int32)
    found, biased = made.apply(ids, logits[ids])
    assert found.tolist() == expected and found.dtype == np.int32 and biased.dtype == np.float32
    assert biased.tolist() == [moved[token] for token in expected]
    # The same by what is added to all tokens.
    whole = logits + made.extra(V)
    assert np.flatnonzero(whole > -np.inf).tolist() == sorted(free)
    np.testing.assert_array_equal(whole[found], biased)
    assert set(made.to_score.tolist()) == {
        token for token, value in (bias or {}).items() if value > 0 and token in free
    }


def test_nothing_asked():
    for constraints in (None, Constraints(), Constraints(banned=[], logit_bias={}), Constraints(logit_bias={3: 0.0})):
        made = plan(constraints, V)
        assert made.empty and made.free == V
        ids, logits = made.apply(np.array([4, 2, -1], np.int32), np.array([1, 1, -np.inf], np.float32))
        assert ids.tolist() == [2, 4] and logits.tolist() == [1, 1]


def test_a_ban_wins_and_ids_stand_once():
    made = plan(Constraints(allowed=[5, 3, 3, 9], banned=np.array([9, 9, 2]), logit_bias={9: 4.0, 1: 2.0, 5: -1.0}), V)
    assert made.allowed.tolist() == [3, 5] and made.banned.tolist() == [2, 9]
    assert made.bias_ids.tolist() == [5] and made.to_score.tolist() == [] and not made.empty


def test_minus_infinity_bans():
    made = plan(Constraints(logit_bias={4: float("-inf"), 5: 1.0}), V)
    assert made.banned.tolist() == [4] and made.bias_ids.tolist() == [5] and made.free == V - 1
    with pytest.raises(ConstraintError, match="every token is banned"):
        plan(Constraints(logit_bias=dict.fromkeys(range(V), -np.inf)), V)


def test_huge_biases_stay_finite():
    made = plan(Constraints(logit_bias={0: 1e300, 1: -1e300}), V)
    assert np.isfinite(made.bias_values).all() and made.bias_of(np.array([0, 1, 2])).tolist()[2] == 0.0


@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, np.array, lambda ids: np.array(ids, np.uint8), range])
def test_ids_in_many_forms(kind):
    given = range(3) if kind is range else kind([0, 1, 2])
    assert plan(Constraints(allowed=given), V).allowed.tolist() == [0, 1, 2]


def test_many_bans_are_quick_to_look_up():
    made = plan(Constraints(banned=np.arange(40_000)), 50_000)
    ids = np.arange(39_990, 40_010, dtype=np.int32)
    assert made.may_answer(ids).tolist() == [False] * 10 + [True] * 10 and made.free == 10_000


@pytest.mark.parametrize(
    "constraints, said",
    [
        (Constraints(allowed=[]), "row 3: no token allowed: allowed is empty"),
        (Constraints(allowed=np.array([])), "row 3: no token allowed: allowed is empty"),
        (Constraints(allowed=[5], banned=[5]), "row 3: no token allowed: each of the 1 allowed ids is banned too"),
        (Constraints(banned=range(V)), "row 3: no token allowed: every token is banned"),
        (Constraints(allowed=[4, 20]), "row 3: token id 20 in allowed is outside the vocabulary of 20 tokens"),
        (Constraints(banned=[-1]), "row 3: token id -1 in banned"),
        (Constraints(logit_bias={2**70: 1.0}), f"row 3: token id {2**70} in logit_bias"),
        (Constraints(banned=[2**64 - 1]), f"token id {2**64 - 1} in banned"),
        (Constraints(allowed="12"), "allowed is '12', needed a list of token ids"),
        (Constraints(allowed=5), "allowed is 5"),
        (Constraints(allowed=[1.0]), r"allowed is \[1.0\]"),
        (Constraints(allowed=[True, False]), r"allowed is \[True, False\]"),
        (Constraints(allowed=[1, None]), "allowed is"),
        (Constraints(allowed=[[1], [2, 3]]), "allowed is"),
        (Constraints(allowed={1: 2}), "allowed is"),
        (Constraints(logit_bias=[1, 2]), r"logit_bias is \[1, 2\], needed token id -> number"),
        (Constraints(logit_bias={"17": 1.0}), "logit_bias is"),
        (Constraints(logit_bias={17: "x"}), "logit_bias of token id 17 is 'x'"),
        (Constraints(logit_bias={17: 10**400}), "logit_bias of token id 17 is 1000"),
        (Constraints(logit_bias={17: 1j}), "logit_bias of token id 17 is 1j"),
        (Constraints(logit_bias={17: b"1"}), "logit_bias of token id 17 is b'1'"),
        (Constraints(logit_bias={17: np.True_}), "logit_bias of token id 17 is np.True_"),
        (Constraints(logit_bias={17: np.timedelta64(3)}), "logit_bias of token id 17 is np.timedelta64"),
        (Constraints(logit_bias={17: True}), "logit_bias of token id 17 is True"),
        (Constraints(logit_bias={17: None}), "logit_bias of token id 17 is None"),
        (Constraints(logit_bias={17: float("nan")}), "logit_bias of token id 17 is nan"),
        (Constraints(logit_bias={17: float("inf")}), "logit_bias of token id 17 is inf"),
        (Constraints(logit_bias={17: [1.0]}), r"logit_bias of token id 17 is \[1.0\]"),
        ({"allowed": [1]}, "constraints are dict"),
    ],
)
def test_what_is_refused(constraints, said):
    with pytest.raises(ConstraintError, match=said) as caught:
        plan(constraints, V, row=3)
    assert caught.value.row == 3 and isinstance(caught.value, ValueError)


def test_long_lists_are_not_quoted_in_full():
    with pytest.raises(ConstraintError) as caught:
        plan(Constraints(allowed=[0.5] * 10_000), V)
    assert len(str(caught.value)) < 200


def test_order():
    ids = np.array([7, 3, 9, 1], np.int32)
    assert ids[best_first(ids, np.array([0, 2, 0, -1], np.float32))].tolist() == [3, 7, 9, 1]
