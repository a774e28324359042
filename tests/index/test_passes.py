"""The passes of a build: every row is seen once, skipped rows have no number, rows end up where they belong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from index import passes
from index.codes import Coder
from index.errors import BadRowsError, BuildCancelledError
from index.fullview import PageLayout, VectorFile, aligned_pages
from index.options import Metric
from index.progress import Steps
from index.sources import open_source


@pytest.fixture
def steps():
    made = Steps(None, None)
    yield made
    made.abandon()


def scan(rows, steps, *, metric=Metric.L2, skip=False):
    with ThreadPoolExecutor(2) as pool:
        return passes.scan_source(
            open_source(rows), metric=metric, skip_bad_rows=skip, payload_spool=None, pool=pool, steps=steps
        )


def test_ahead_keeps_the_order_and_a_bounded_number_running():
    running, most = [], []

    def work(item):
        running.append(item)
        most.append(len(running))
        running.remove(item)
        return item * 2

    with ThreadPoolExecutor(4) as pool:
        assert list(passes.ahead(pool, range(50), work, most=4)) == [2 * i for i in range(50)]
    assert max(most) <= 4


def test_a_scan_learns_mean_lengths_and_equal_rows(steps):
    rows = np.random.default_rng(0).normal(size=(1000, 20)).astype(np.float32)
    rows[500:510] = rows[3]
    found = scan(rows, steps)
    assert found.n == 1000 and len(np.unique(found.hashes)) == 990
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), atol=1e-6)
    assert found.longest == pytest.approx((rows.astype(np.float64) ** 2).sum(axis=1).max(), rel=1e-6)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(scan(rows, steps, metric=Metric.COSINE).mean, unit.mean(axis=0), atol=1e-6)


def test_bad_rows_are_all_counted_before_the_scan_fails(steps):
    rows = np.ones((3000, 4), np.float32)
    rows[::3, 1] = np.nan
    with pytest.raises(BadRowsError) as caught:
        scan(rows, steps)
    assert caught.value.count == 1000
    found = scan(rows, steps, skip=True)
    assert found.n == 2000 and found.skipped.tolist() == list(range(0, 3000, 3))
    assert np.isfinite(found.mean).all()


def test_rows_go_where_they_belong_through_any_number_of_buckets(steps, tmp_path, monkeypatch):
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(777, 30)).astype(np.float32)
    rows[[0, 100, 776], 3] = np.nan
    scanned = scan(rows, steps, skip=True)
    kept = np.delete(rows, scanned.skipped, axis=0)
    layout = PageLayout(len(kept), 30, np.dtype(np.float32))
    disk_rows = generator.permutation(len(kept))
    codes = np.arange(len(kept), dtype=np.uint64)
    for bucket_bytes in (10**9, 5000, 1):
        monkeypatch.setattr(passes, "BUCKET_BYTES", max(bucket_bytes, 120 * 20))
        passes.write_rows(open_source(rows), scanned, disk_rows, codes, layout, tmp_path, steps=steps)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors.bin", "vectors.sum"]
        with VectorFile.open(tmp_path, layout) as file:
            pages = aligned_pages(layout.n_pages)
            file.reader().sequential(1, layout.n_pages, pages)
            at = layout.vector_offset(np.arange(layout.n))
            place = layout.first_page(np.arange(layout.n)) - 1
            stored = np.stack([pages[p, a : a + 120].view(np.float32) for p, a in zip(place, at)])
        expected = np.empty_like(kept)
        expected[disk_rows] = kept
        np.testing.assert_array_equal(stored, expected)


def test_encoding_takes_the_distinct_rows_only(steps):
    rows = np.random.default_rng(2).normal(size=(300, 16)).astype(np.float32)
    nodes = np.array([1, 5, 250, 299], np.int64)
    coder = Coder(dim=16, metric=Metric.DOT, bits=4, mean=rows.mean(axis=0), seed=0)
    scanned = scan(rows, steps)
    longest = float((rows**2).sum(axis=1).max())
    with ThreadPoolExecutor(2) as pool:
        encoded = passes.encode_nodes(
            open_source(rows),
            scanned,
            nodes,
            coder,
            int8_codes=np.empty((4, 16), np.int8),
            pool=pool,
            steps=steps,
        )
    codes, scalars = coder.encode_block(coder.rotated(rows[nodes]))
    assert (encoded.codes == codes).all() and (encoded.scalars == scalars).all()
    np.testing.assert_allclose(
        encoded.int8_scalars[:, 2] ** 2 + (rows[nodes] ** 2).sum(axis=1), np.full(4, longest), rtol=1e-5
    )


def test_payloads_come_back_in_any_order(tmp_path):
    spool = passes.PayloadSpool(tmp_path / "spool")
    spool.append([{"a": 1}, None, {"b": "é"}])
    spool.append([])
    spool.append([{}, {"c": [1, None]}])
    assert list(spool.read(np.array([4, 1, 0, 3, 2]))) == [
        b'{"c":[1,null]}',
        None,
        b'{"a":1}',
        None,
        '{"b":"é"}'.encode(),
    ]
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_cancel_ends_a_pass(tmp_path):
    class Now:
        def is_set(self):
            return True

    steps = Steps(None, Now())
    with pytest.raises(BuildCancelledError):
        scan(np.ones((10, 3), np.float32), steps)
    steps.abandon()
