"""Before an index serves it has been searched as queries search it."""

from __future__ import annotations

import numpy as np
import pytest
from fake_index import FakeIndex, write_fake
from real_index import put_index

from service.engine import Engine
from service.settings import Settings
from service.warm import warm


class Watched(FakeIndex):
    def __init__(self, path):
        super().__init__(path)
        self.searches, self.allowed = [], []

    def search(self, queries, k=10, options=None, *, allowed=None):
        if allowed is None:
            self.searches.append((len(queries), k))
        else:
            self.allowed.append(allowed.count)
        return super().search(queries, k, options, allowed=allowed)


def test_an_index_is_searched_in_each_way_before_it_serves(settings, tmp_path):
    write_fake(tmp_path / "index", np.eye(30, 3, dtype=np.float32) + 1)
    settings.data_dir.mkdir(parents=True)
    engine = Engine(settings, lambda path, options: Watched(path))
    engine.start()
    try:
        index = engine.open(tmp_path / "index")
        assert not index.closed
        # One as JSON; many and one by id as JSON; one raw; many raw.
        assert [count for count, _ in index.searches] == [1, 21, 1, 1, 20]
        assert all(k in (10, 11) for _, k in index.searches)
        # Among nearly all rows, half, few and none, by the preview and exactly.
        assert index.allowed == [30, 30, 15, 15, 1, 1, 0, 0]
        index.close()
    finally:
        engine.close()


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("ids", [[7], ["a"]])
def test_the_smallest_indexes(engine, metric, ids):
    index = put_index(engine, "small", [[0.0, 0.0]], metric=metric, ids=ids)
    warm(index, Settings(query_limit_max=1))


def test_ids_of_both_kinds(engine):
    assert put_index(engine, "mixed", np.eye(3, dtype=np.float32), ids=[1, 2, "three"]).n == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
def test_every_dtype(engine, dtype):
    vectors = np.random.default_rng(0).integers(0, 100, (50, 4)).astype(dtype)
    assert put_index(engine, "some", vectors, metric="l2").n == 50
