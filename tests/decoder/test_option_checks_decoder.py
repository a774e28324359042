"""Checks of single options of the decoder: what passes, and the sentence where it does not."""

from __future__ import annotations

import numpy as np
import pytest

from decoder import option_checks as checks
from decoder.errors import DecoderOptionsError


def test_numbers_of_numpy_become_pythons():
    assert type(checks.whole("k", np.int32(3), low=1)) is int and checks.whole("k", 10**30, low=1) == 10**30
    assert type(checks.number("p", np.float32(0.5), low=0.0)) is float
    assert type(checks.number("p", 1, low=0.0, high=1.0)) is float


@pytest.mark.parametrize("value", ["walk", "screen"])
def test_one_of_several(value):
    assert checks.one_of("mode", value, ["walk", "screen"]) == value


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: checks.one_of("mode", "fast", ["walk", "screen"]), "mode is 'fast', needed one of walk, screen"),
        (lambda: checks.one_of("mode", 3, ["walk"]), "mode is 3"),
        (lambda: checks.whole("k", 0, low=1), "k is 0, needed a whole number of at least 1"),
        (lambda: checks.whole("k", 9, low=1, high=8), "k is 9, needed a whole number from 1 to 8"),
        (lambda: checks.whole("k", True, low=0), "k is True"),
        (lambda: checks.whole("k", 2.0, low=0), "k is 2.0"),
        (lambda: checks.number("p", 0.0, low=0.0, above=True), "p is 0.0, needed a finite number above 0"),
        (
            lambda: checks.number("p", 2, low=0.0, high=1.0),
            "p is 2.0, needed a finite number of at least 0 and at most 1",
        ),
        (lambda: checks.number("p", float("inf"), low=0.0), "p is inf"),
        (lambda: checks.number("p", None, low=0.0), "p is None"),
    ],
)
def test_what_is_refused(call, said):
    with pytest.raises(DecoderOptionsError, match=said):
        call()
