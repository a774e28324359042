"""An open generation: its parts, what stats say, what contradicts itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from index import BuildOptions, OpenOptions, build, open_index
from index.errors import VectorIndexError
from index.folder import open_generation


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rows = np.random.default_rng(0).normal(size=(600, 700)).astype(np.float32)
    rows[10:14] = rows[3]
    out = tmp_path_factory.mktemp("folder") / "out"
    build(rows, out, options=BuildOptions(metric="dot", preview="graph"))
    return out


def test_parts_and_their_memory(folder):
    generation = open_generation(folder, OpenOptions())
    try:
        assert (generation.n, generation.dim, generation.dtype) == (600, 700, np.float32)
        assert generation.preview.nodes == 596 and generation.promised_recall == 0.95
        parts = generation.resident_bytes()
        assert parts["codes"] == generation.preview.codes.nbytes and parts["links"] > 0 and parts["groups"] > 0
        assert ("ids" in parts) == (not generation.layout.ids_in_pages)
        assert generation.payload is None
    finally:
        generation.close()


def test_stats_are_json_and_complete(folder):
    with open_index(folder) as index:
        stats = json.loads(json.dumps(index.stats()))
    assert stats["rows"] == 600 and stats["distinct_rows"] == 596 and stats["dim"] == 700
    assert stats["metric"] == "dot" and stats["order"] == "higher is better" and stats["dtype"] == "float32"
    assert stats["operating_points"] and stats["promise"]["covers"] and stats["format_version"] == 1
    assert stats["disk_bytes"] > 600 * 2800 and sum(stats["resident_bytes"].values()) > 0
    assert stats["io_mode"] in ("linux_aio", "threads", "buffered")


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("no")
    for place in (tmp_path / "nothing", tmp_path / "file", tmp_path):
        with pytest.raises(VectorIndexError, match="not an index"):
            open_generation(place, OpenOptions())
