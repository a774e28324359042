"""The plain evaluation against Qdrant's local mode, and its own rules where it departs from that on purpose.

Left out of the comparison, because answers differ by decision: integers equal to floats (42 is 42.0), integers and bounds
that a float does not hold, words that differ when they are case-folded but not when they are lowered.
"""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from filter_cases import IDS, Cases, parsed
from hypothesis import given, settings
from hypothesis import strategies as st
from qdrant_client.http import models
from qdrant_client.local.payload_filters import calculate_payload_mask
from qdrant_client.local.siphash import point_id_slice

from service.filters import matches
from service.filters.slices import slice_of

COMPARED = 40


def floats_that_are_integers(value):
    if isinstance(value, dict):
        return any(map(floats_that_are_integers, value.values()))
    if isinstance(value, list):
        return any(map(floats_that_are_integers, value))
    return isinstance(value, float) and value.is_integer()


def by_local_mode(asked, rows, vectors):
    """What the official client's in-memory collection answers."""
    tree = models.Filter.model_validate(asked)
    return calculate_payload_mask(rows, tree, IDS, {"": ~vectors}).tolist()


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_agrees_with_local_mode(seed):
    cases = Cases(Random(seed), plain=True)
    rows = []
    while len(rows) < len(IDS):
        row = cases.payload()
        if not floats_that_are_integers(row):
            rows.append(row)
    vectors = np.array([cases.random.random() < 0.5 for _ in rows])
    for _ in range(COMPARED):
        asked = cases.filter()
        tree = parsed(asked)
        if tree is None:
            continue
        found = [
            matches(tree, row, id=id, has_vector=bool(has)) for row, id, has in zip(rows, IDS, vectors, strict=True)
        ]
        assert found == by_local_mode(asked, rows, vectors), asked


def found(payload, condition):
    return matches(parsed({"must": [condition]}), payload, id=1, has_vector=True)


@pytest.mark.parametrize(
    ("text", "form", "asked", "expected"),
    [
        ("Große Straße", "text", "GROSSE", True),
        ("ΣΑΣ", "text", "σας", True),
        ("red fox", "text", "fox red", True),
        ("red fox", "text", "fo", False),
        ("red fox", "text", "", False),
        ("red fox", "text", "--", False),
        ("red fox", "text_any", "blue FOX", True),
        ("red fox", "text_any", "", False),
        ("the red fox", "phrase", "Red Fox", True),
        ("the red fox", "phrase", "fox red", False),
        ("the red fox", "phrase", "", False),
        ("Red", "prefix", "red", False),
        ("Red", "prefix", "", True),
        ("Red", "substring", "e", True),
        (5, "prefix", "", False),
    ],
)
def test_texts(text, form, asked, expected):
    assert found({"t": text}, {"key": "t", "match": {form: asked}}) is expected
    assert found({"t": [1, text]}, {"key": "t", "match": {form: asked}}) is expected


@pytest.mark.parametrize("id", [0, 1, 2**64 - 1, "550e8400-e29b-41d4-a716-446655440000"])
def test_slices_are_qdrants(id):
    assert [slice_of(id, total) for total in (1, 2, 7, 10**9)] == [point_id_slice(id, n) for n in (1, 2, 7, 10**9)]


def test_a_string_that_is_no_uuid_has_a_slice_too():
    assert {slice_of(f"name-{i}", 3) for i in range(50)} == {0, 1, 2}


def test_nested_conditions_are_about_one_element():
    payload = {"diet": [{"food": "meat", "likes": False}, {"food": "leaves", "likes": True}]}
    inner = [{"key": "food", "match": {"value": "meat"}}, {"key": "likes", "match": {"value": True}}]
    assert not found(payload, {"nested": {"key": "diet", "filter": {"must": inner}}})
    assert found(payload, {"must": [{**each, "key": "diet[]." + each["key"]} for each in inner]})
    assert not found(payload, {"nested": {"key": "diet[]", "filter": {"must": [{"has_id": [1]}]}}})
