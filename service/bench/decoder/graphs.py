"""Graph libraries on the paper's transform: rows [w; b; sqrt(U^2 - |w|^2 - b^2)], states [h; 1; 0], float32, in the original
space: the nearest row is the token with the largest logit. No log-probabilities.

HnswlibGraph    knob ef        FaissGraph    knob efSearch (extra cpu or bench)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from service.bench.decoder.entrant import Entrant, Floats, Found, Kind, MissingEntrantError, Setting, Tell
from service.bench.decoder.heads import Head
from service.bench.decoder.kept import is_kept, keep, note_of

SWEEP = (10, 20, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920)
M, EF_CONSTRUCTION = 16, 200
OPTIONS = f"M {M}, ef_construction {EF_CONSTRUCTION}"
BLOCK = 4096


def paper_rows(head: Head) -> Floats:
    """float32 (V, d + 2): all of one length U."""
    weight, bias = head.float32, head.layer.bias
    rows = np.empty((len(weight), weight.shape[1] + 2), np.float32)
    rows[:, :-2], rows[:, -2] = weight, bias
    squares = np.einsum("ij,ij->i", rows[:, :-1], rows[:, :-1], dtype=np.float64)
    rows[:, -1] = np.sqrt(squares.max() - squares)
    return rows


def paper_states(states: Floats) -> Floats:
    """float32 (n, d + 2)."""
    n, dim = states.shape
    moved = np.zeros((n, dim + 2), np.float32)
    moved[:, :dim], moved[:, dim] = states, 1.0
    return moved


class _Graph(Entrant):
    """What both libraries share: building in blocks, a file that is kept."""

    kind = Kind.PEER
    file: str
    knob: str

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """Build, or take the file of an earlier run."""
        self._vocab_size = head.layer.vocab_size
        place = folder / self.file
        if is_kept(place, head, OPTIONS):
            self._load(place, head)
            self.build_seconds = note_of(place)["seconds"]
        else:
            begun = time.perf_counter()
            rows = paper_rows(head)
            self._begin(rows)
            for start in range(0, len(rows), BLOCK):
                self._add(rows[start : start + BLOCK], start)
                tell("build", min(start + BLOCK, len(rows)), len(rows))
            self.build_seconds = time.perf_counter() - begun
            self._save(place)
            keep(place, head, OPTIONS, seconds=self.build_seconds)
        self.memory_bytes = place.stat().st_size

    def settings(self) -> list[Setting]:
        """Widths of the search."""
        return [{self.knob: width} for width in SWEEP if width <= self._vocab_size]

    def answer(self, states: Floats, k: int, setting: Setting, threads: int) -> Found:
        """The library's own batch search."""
        return Found(token_ids=self._search(paper_states(states), k, int(setting[self.knob]), threads).astype(np.int32))

    def _begin(self, rows: Floats) -> None:
        raise NotImplementedError

    def _add(self, some: Floats, start: int) -> None:
        raise NotImplementedError

    def _save(self, place: Path) -> None:
        raise NotImplementedError

    def _load(self, place: Path, head: Head) -> None:
        raise NotImplementedError

    def _search(self, queries: Floats, k: int, width: int, threads: int) -> np.ndarray:
        raise NotImplementedError


class HnswlibGraph(_Graph):
    """hnswlib, squared distances."""

    name, file, knob = "hnswlib", "hnswlib.bin", "ef"

    def _begin(self, rows: Floats) -> None:
        self._index = self._made(rows.shape[1])
        self._index.init_index(max_elements=len(rows), M=M, ef_construction=EF_CONSTRUCTION, random_seed=1)

    def _made(self, dim: int) -> Any:
        import hnswlib

        return hnswlib.Index(space="l2", dim=dim)

    def _add(self, some: Floats, start: int) -> None:
        self._index.add_items(some, np.arange(start, start + len(some)))

    def _save(self, place: Path) -> None:
        self._index.save_index(str(place))

    def _load(self, place: Path, head: Head) -> None:
        self._index = self._made(head.layer.dim + 2)
        self._index.load_index(str(place), max_elements=head.layer.vocab_size)

    def _search(self, queries: Floats, k: int, width: int, threads: int) -> np.ndarray:
        self._index.set_ef(width)
        labels, _ = self._index.knn_query(queries, k=k, num_threads=threads)
        found: np.ndarray = labels
        return found


class FaissGraph(_Graph):
    """IndexHNSWFlat, squared distances."""

    name, file, knob = "faiss HNSW", "faiss.index", "efSearch"

    def prepare(self, head: Head, folder: Path, tell: Tell) -> None:
        """As the other; faiss may be missing."""
        try:
            import faiss
        except ImportError:
            raise MissingEntrantError("faiss is not installed; the extra cpu brings it") from None
        self._faiss: Any = faiss
        super().prepare(head, folder, tell)

    def _begin(self, rows: Floats) -> None:
        self._index = self._faiss.IndexHNSWFlat(rows.shape[1], M)
        self._index.hnsw.efConstruction = EF_CONSTRUCTION

    def _add(self, some: Floats, start: int) -> None:
        self._index.add(np.ascontiguousarray(some))

    def _save(self, place: Path) -> None:
        self._faiss.write_index(self._index, str(place))

    def _load(self, place: Path, head: Head) -> None:
        self._index = self._faiss.read_index(str(place))

    def _search(self, queries: Floats, k: int, width: int, threads: int) -> np.ndarray:
        self._index.hnsw.efSearch = width
        _, labels = self._index.search(queries, k)
        found: np.ndarray = labels
        return found
