"""faiss HNSW; see on_faiss.py."""

from __future__ import annotations

from service.bench.workers.on_faiss import FaissHnsw
from service.bench.workers.searcher import Searcher


def searcher() -> Searcher:
    """What this module measures."""
    return FaissHnsw()
