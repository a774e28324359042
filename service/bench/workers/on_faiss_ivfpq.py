"""faiss IVF lists of PQ codes, refined; see on_faiss.py."""

from __future__ import annotations

from service.bench.workers.on_faiss import FaissIvfpq
from service.bench.workers.searcher import Searcher


def searcher() -> Searcher:
    """What this module measures."""
    return FaissIvfpq()
