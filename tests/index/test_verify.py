"""Verification: what cannot be opened or searched is never published."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from index import BuildOptions, build
from index.errors import BuildCancelledError, VectorIndexError
from index.verify import VerificationError, verify_fresh, verify_here


@pytest.fixture
def folder(tmp_path):
    """A finished folder, and what its manifest says."""
    rows = np.random.default_rng(0).normal(size=(700, 16)).astype(np.float32)
    build(rows, tmp_path / "out", options=BuildOptions(preview="graph"))
    fields = msgspec.json.decode((tmp_path / "out" / "manifest.json").read_bytes())["manifest"]
    for name in ("format_version", "files", "created_at"):
        del fields[name]
    return tmp_path / "out", fields


def test_here_and_in_a_fresh_process_the_parts_are_the_same(folder):
    here, fresh = verify_here(*folder), verify_fresh(*folder, check=lambda: None)
    assert here.resident == fresh.resident and here.grown_bytes is None
    assert 0 <= fresh.grown_bytes < 64e6


def test_damage_fails_both(folder):
    out, fields = folder
    (out / "links.npy").write_bytes((out / "links.npy").read_bytes()[:200])
    with pytest.raises((VectorIndexError, EOFError)):
        verify_here(out, fields)
    with pytest.raises(VerificationError, match="out was built but cannot be searched"):
        verify_fresh(out, fields, check=lambda: None)


def test_a_cancel_ends_the_fresh_process(folder):
    def cancel():
        raise BuildCancelledError("now")

    with pytest.raises(BuildCancelledError):
        verify_fresh(*folder, check=cancel)
