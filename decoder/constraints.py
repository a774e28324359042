"""What a caller may ask of one state's tokens: a bias on some, only some allowed, some banned.

Constraints   as a caller gives them
plan()        the same, checked against a vocabulary: sorted arrays
Plan.apply()  candidates with exact logits -> those that may answer, biased

A bias is added to the finished logit, after scale and soft-cap. A ban wins over a permission. A token with a positive bias
may rise from anywhere, so it has to be scored exactly whether or not it was a candidate: Plan.to_score names these. What
is not a candidate and has a negative bias stays out. Log-probabilities called raw ignore all of this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.errors import ConstraintError

TokenIds = NDArray[np.int32]
Logits = NDArray[np.float32]

_NO_IDS: TokenIds = np.empty(0, np.int32)
_NO_LOGITS: Logits = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Of one state. Checked when plan() sees the vocabulary."""

    logit_bias: Mapping[int, float] | None = None
    """Token id -> finite number added to its logit; minus infinity bans it."""
    allowed: Sequence[int] | NDArray[Any] | None = None
    """Only these tokens may answer; None: all."""
    banned: Sequence[int] | NDArray[Any] | None = None
    """These tokens may not answer, allowed or not."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Constraints of one state, checked. All ids ascend, each stands once.

    bias_ids int32, bias_values float32 (b,): of tokens that may answer; allowed: int32, banned ones taken out, or None for
    all but the banned; banned: int32. free: how many tokens may answer.
    """

    bias_ids: TokenIds
    bias_values: Logits
    allowed: TokenIds | None
    banned: TokenIds
    free: int

    @property
    def empty(self) -> bool:
        """Whether nothing is asked."""
        return self.allowed is None and not len(self.banned) and not len(self.bias_ids)

    @property
    def to_score(self) -> TokenIds:
        """Tokens that need exact logits whether or not they are candidates: positive biases."""
        return self.bias_ids[self.bias_values > 0]

    def may_answer(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these token ids (any shape) may answer; -1 may not."""
        if self.allowed is not None:
            return _among(ids, self.allowed)
        return (ids >= 0) & ~_among(ids, self.banned)

    def bias_of(self, ids: NDArray[Any]) -> Logits:
        """What is added to the logits of these tokens, float32 of the ids' shape."""
        if not len(self.bias_ids):
            return np.zeros(ids.shape, np.float32)
        at = np.minimum(np.searchsorted(self.bias_ids, ids), len(self.bias_ids) - 1)
        return np.where(self.bias_ids[at] == ids, self.bias_values[at], np.float32(0.0))

    def apply(self, ids: TokenIds, logits: Logits) -> tuple[TokenIds, Logits]:
        """Of distinct candidates int32 (m,) with exact logits float32 (m,): those that may answer, biased, best first.

        Equal logits stand by ascending id; entries with id -1 are dropped.
        """
        stay = self.may_answer(ids)
        kept, biased = ids[stay], logits[stay] + self.bias_of(ids[stay])
        order = best_first(kept, biased)
        return kept[order], biased[order]

    def extra(self, vocab_size: int) -> Logits:
        """What is added to every token's logit, float32 (vocab_size,): minus infinity where it may not answer."""
        added = np.zeros(vocab_size, np.float32)
        if self.allowed is not None:
            added[:] = -np.inf
            added[self.allowed] = 0.0
        added[self.banned] = -np.inf
        added[self.bias_ids] += self.bias_values
        return added


def best_first(ids: NDArray[Any], logits: Logits) -> NDArray[np.intp]:
    """The order of larger logits first, of equals lower ids."""
    order: NDArray[np.intp] = np.lexsort((ids, -logits))
    return order


def plan(constraints: Constraints | None, vocab_size: int, row: int = 0) -> Plan:
    """Check the constraints of batch row `row`. ConstraintError for ids outside the vocabulary, or where no token is left."""
    given = Constraints() if constraints is None else constraints
    if not isinstance(given, Constraints):
        raise ConstraintError(f"row {row}: constraints are {type(given).__name__}, needed Constraints or None", row=row)
    bias_ids, bias_values = _bias(given.logit_bias, vocab_size, row)
    hopeless = bias_ids[bias_values == -np.inf]
    banned = np.union1d(_ids("banned", given.banned, vocab_size, row), hopeless).astype(np.int32)
    allowed = None
    if given.allowed is not None:
        allowed = np.setdiff1d(_ids("allowed", given.allowed, vocab_size, row), banned, assume_unique=True)
    free = vocab_size - len(banned) if allowed is None else len(allowed)
    if free == 0:
        raise ConstraintError(_nothing_left(given, row), row=row)
    made = Plan(bias_ids, bias_values, allowed, banned, free)
    useful = made.may_answer(bias_ids) & (bias_values != 0.0)
    return Plan(bias_ids[useful], bias_values[useful], allowed, banned, free)


def _nothing_left(given: Constraints, row: int) -> str:
    if given.allowed is not None and len(given.allowed) == 0:
        why = "allowed is empty. Leave it out to allow every token"
    elif given.allowed is not None:
        why = f"each of the {len(given.allowed)} allowed ids is banned too. Take one out of banned"
    else:
        why = "every token is banned. Take one out of banned"
    return f"row {row}: no token allowed: {why}."


def _among(ids: NDArray[Any], ascending: TokenIds) -> NDArray[np.bool_]:
    """Which of the ids are in a sorted array."""
    if not len(ascending):
        return np.zeros(ids.shape, np.bool_)
    at = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: NDArray[np.bool_] = ascending[at] == ids
    return found


def _ids(name: str, given: Any, vocab_size: int, row: int) -> TokenIds:
    """Token ids, ascending and distinct."""
    if given is None:
        return _NO_IDS
    array = _whole(list(given) if isinstance(given, set | frozenset) else given)
    if array is None:
        raise ConstraintError(
            f"row {row}: {name} is {_shown(given)}, needed a list of token ids (whole numbers)", row=row
        )
    wrong = array[(array < 0) | (array >= vocab_size)]
    if len(wrong):
        raise ConstraintError(
            f"row {row}: token id {wrong[0]} in {name} is outside the vocabulary of {vocab_size} tokens, "
            f"needed 0 to {vocab_size - 1}",
            row=row,
        )
    return np.unique(array).astype(np.int32)


def _whole(given: Any) -> NDArray[Any] | None:
    """A list of whole numbers as an array; None for anything else, booleans and mixed lists included."""
    if isinstance(given, str | bytes | Mapping):
        return None
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError):
        return None
    if array.ndim == 1 and array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and not _all_whole(array)):
        return None
    if not isinstance(given, np.ndarray) and any(isinstance(each, bool | np.bool_) for each in given):
        return None
    return array


def _all_whole(array: NDArray[Any]) -> bool:
    """Whole numbers past 64 bits come as objects: they are numbers outside any vocabulary, and named so."""
    return array.dtype == object and all(isinstance(each, int) and not isinstance(each, bool) for each in array)


def _is_bias(value: Any) -> bool:
    """A finite real number, or minus infinity."""
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, Real):  # a time counts as an integer
        return False
    try:
        return math.isfinite(value) or float(value) == -math.inf
    except OverflowError:  # a whole number past every float
        return False


def _bias(given: Any, vocab_size: int, row: int) -> tuple[TokenIds, Logits]:
    """logit_bias as ids ascending and their values."""
    if given is None:
        return _NO_IDS, _NO_LOGITS
    if not isinstance(given, Mapping):
        raise ConstraintError(f"row {row}: logit_bias is {_shown(given)}, needed token id -> number", row=row)
    ids = _ids("logit_bias", list(given), vocab_size, row)
    values = np.empty(len(ids), np.float32)
    places = {int(token): at for at, token in enumerate(ids)}
    for token, value in given.items():
        if not _is_bias(value):
            raise ConstraintError(
                f"row {row}: logit_bias of token id {token} is {value!r}, needed a finite number "
                "(or minus infinity, which bans)",
                row=row,
            )
        number = float(value)
        values[places[int(token)]] = min(max(number, -3e38), 3e38) if math.isfinite(number) else number
    return ids, values


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
