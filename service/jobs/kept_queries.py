"""Sample queries that a collection was built with, kept beside its generation: a compaction measures its recall with them.

keep_queries()   in the process of a build
take_queries()   when what was built serves
queries_of()     where a collection's lie

Without them the promise of a compacted collection would cover queries like its rows only.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

QUERIES_NAME = "queries.npy"
_KEPT = 4000


def keep_queries(source: str, path: Path) -> None:
    """Write the first queries of a file as float32."""
    # Imported here: the server takes queries without reading any.
    from index.sources import open_source

    kept, count = [], 0
    for block in open_source(source).blocks():
        kept.append(block.vectors[: _KEPT - count].astype(np.float32))
        count += len(kept[-1])
        if count >= _KEPT:
            break
    np.save(path, np.concatenate(kept))


def take_queries(built: Path, home: Path) -> None:
    """Those that came with what was built take the place of the collection's; a build without any leaves it without."""
    came = built.with_name(QUERIES_NAME)
    if came.exists():
        came.replace(home / QUERIES_NAME)
    else:
        (home / QUERIES_NAME).unlink(missing_ok=True)


def queries_of(home: Path) -> str | None:
    """The file, or None."""
    path = home / QUERIES_NAME
    return str(path) if path.exists() else None
