"""Verifying a folder before it is published: it is opened and searched, for large ones in a fresh process.

verify_here    open the folder in this process, search it with stored rows
verify_fresh   the same in a new process, which also tells how much memory the index really takes

A fresh process shows what a server will see: nothing of the build is in its memory, and what grows while the index is
opened and searched, after the library was warmed on a toy, is the index.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from index.errors import VectorIndexError
from index.folder import open_generation
from index.manifest import FORMAT_VERSION, Manifest
from index.options import BuildOptions, OpenOptions
from index.progress import anonymous_bytes
from index.search import OpenIndex

FRESH_ROWS = 100_000
"""From this many rows on a fresh process verifies: starting it takes two seconds."""
SEARCHED_ROWS = 64


class VerificationError(VectorIndexError):
    """What was built cannot be opened and searched."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """resident: bytes by part, as the open index counts them; grown_bytes: growth of anonymous memory of a fresh process
    that opened and searched the index, None where it was not measured."""

    resident: dict[str, int]
    grown_bytes: int | None


def manifest_of(fields: dict[str, Any]) -> Manifest:
    """The manifest that a build is about to write, without files."""
    return Manifest(**fields, format_version=FORMAT_VERSION, files={}, created_at="")


def verify_here(folder: Path, fields: dict[str, Any]) -> Verified:
    """Open the folder and search it. fields: what the manifest will say. Raises whatever opening or searching raises."""
    with OpenIndex(open_generation(folder, OpenOptions(), described=manifest_of(fields))) as index:
        _search_some(index)
        return Verified(index.generation.resident_bytes(), None)


def _search_some(index: OpenIndex) -> None:
    """Search stored rows from all over the file; zero vectors are no queries under cosine."""
    rows = np.linspace(0, index.n - 1, min(SEARCHED_ROWS, index.n)).astype(np.int64)
    vectors = index.vectors(rows).astype(np.float32)
    usable = vectors.any(axis=1)
    if usable.any():
        index.search(vectors[usable], k=10)


def verify_fresh(folder: Path, fields: dict[str, Any], *, check: Callable[[], None]) -> Verified:
    """`verify_here` in a new process. check: called five times a second, may raise to stop.

    Raises VerificationError with what that process said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "index.verify", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin is not None, "stdin is a pipe"
        process.stdin.write(msgspec.json.encode(fields))
        process.stdin.close()
        process.stdin = None
        while True:
            try:
                out, err = process.communicate(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                check()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        raise VerificationError(f"{folder} was built but cannot be searched: {err.decode(errors='replace')[-2000:]}")
    answer = json.loads(out.splitlines()[-1])
    return Verified(answer["resident"], answer["grown_bytes"])


def _main(folder: Path) -> None:
    from index.build import build  # here, since building verifies: the other way round at import

    fields = json.loads(sys.stdin.buffer.read())
    generator = np.random.default_rng(0)
    toy = generator.integers(0, 100, (400, fields["dim"])).astype(fields["dtype"])
    with tempfile.TemporaryDirectory() as scratch:
        options = BuildOptions(
            metric=fields["metric"],
            preview=fields["preview"],
            memory_budget=200.0,
            bits=fields["preview_parameters"]["bits"],
            threads=1,
        )
        build(toy, Path(scratch) / "toy", options=options)
    before = anonymous_bytes()
    with OpenIndex(open_generation(folder, OpenOptions(), described=manifest_of(fields))) as index:
        _search_some(index)
        grown = anonymous_bytes() - before
        print(json.dumps({"resident": index.generation.resident_bytes(), "grown_bytes": max(0, grown)}))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
