"""Where an index may be put, and what is said of a place that holds none."""

from __future__ import annotations

import numpy as np
import pytest

from index import build, open_index
from index.errors import IndexExistsError, UnknownIndexError, UnsupportedFormatError
from index.manifest import MANIFEST_NAME, read_manifest
from index.publication import require_place

ROWS = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)


def test_what_is_no_index_says_what_it_is(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"rows")
    for place, what in (("a.npy", "but a file"), (".", "but a folder without"), ("no", "nothing is there")):
        with pytest.raises(UnknownIndexError, match=rf"is not an index.*{what}.*`fullview build SOURCE "):
            read_manifest(tmp_path / place)


@pytest.mark.parametrize("replace", [False, True])
def test_only_an_index_is_replaced(tmp_path, replace):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.npy").write_bytes(b"rows")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place in (tmp_path / "shards", tmp_path / "shards" / "a.npy", tmp_path / "dangling"):
        with pytest.raises(IndexExistsError, match="replaces only an index: choose another OUT"):
            build(ROWS, place, replace=replace)
    require_place(tmp_path / "free", replace=replace)
    assert (tmp_path / "shards" / "a.npy").read_bytes() == b"rows"


def test_a_damaged_index_may_be_replaced_but_not_one_of_another_format(tmp_path):
    place = tmp_path / "index"
    build(ROWS, place)
    with pytest.raises(IndexExistsError, match="replace=True"):
        build(ROWS, place)
    (place / "vectors.sum").unlink()
    build(ROWS, place, replace=True)
    (place / MANIFEST_NAME).write_bytes(b"{")
    build(ROWS, place, replace=True)
    with open_index(place) as index:
        assert index.n == 50
    (place / MANIFEST_NAME).write_bytes(b'{"format_version": 9}')
    with pytest.raises(UnsupportedFormatError):
        build(ROWS, place, replace=True)
