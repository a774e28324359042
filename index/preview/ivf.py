"""The ivf preview: rows in many small lists; a query looks at the codes of its nearest lists only.

The paper's (Zhang and He, "Zoom", 2018). A code holds what is left of a row without its list's centroid, which is shorter
than the row, so fewer bits say as much. Codes lie in list order: a list is one stream of memory. Codes are those of
codes.py, or a product quantiser's. Built by preview/ivf_build.py, which alone needs faiss.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries
from index.disk import save_array
from index.kernels import lists as kernels
from index.kernels.allowed import scan_allowed_lists, scan_allowed_pq
from index.options import PreviewKind
from index.preview.allowed import AllowedNodes
from index.preview.allowed_scan import AllowedFound, horizons_of
from index.preview.base import Candidates, Scratch
from index.preview.route import LISTS_FOLDER, Route
from index.resident import load_resident

KEPT = 300
"""Candidates kept beside those asked for, so that the stop rule, not the heap, decides how many are read."""
FEW_LISTS = 64
PROBES_SPARE = 1.3
"""Among allowed nodes more lists are asked for than hold enough of them on average."""
PROBES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def code_bits(bits: int | str) -> int:
    """Bits of the coder that prepares queries. A product quantiser takes them as floats, so any will do: the smallest."""
    return 1 if isinstance(bits, str) else bits


@dataclass(frozen=True, slots=True)
class IvfPreview:
    """codes uint8 (n, stride), scalars float32 (n, 2): additive part and scale; offsets int32 (lists + 1,): where each
    list's rows begin; codebooks float32 (parts, width / parts, 256) of a product quantiser, else None."""

    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]
    bits: int | str
    offsets: NDArray[np.int32]
    route: Route
    codebooks: NDArray[np.float32] | None = None
    kind: PreviewKind = PreviewKind.IVF

    @property
    def nodes(self) -> int:
        """Distinct vectors."""
        return len(self.codes)

    @property
    def lists(self) -> int:
        """How many lists there are."""
        return len(self.route)

    def efforts(self) -> tuple[int, ...]:
        """Numbers of probes worth measuring: up to half of the lists, or all where they are few."""
        if self.lists <= FEW_LISTS:
            return (*(p for p in PROBES if p < self.lists), self.lists)
        return tuple(p for p in PROBES if p <= max(FEW_LISTS, self.lists // 2))

    def candidates(self, queries: PreparedQueries, *, effort: int, width: int, scratch: Scratch) -> Candidates:
        """The nearest nodes of the `effort` nearest lists, KEPT more than asked for."""
        m, probes = len(queries), min(effort, self.lists)
        keep = min(max(4 * width, width + KEPT), self.nodes)
        nodes, distances = np.empty((m, keep), np.int32), np.empty((m, keep), np.float32)
        counts, scored = np.empty(m, np.int64), np.empty(m, np.int64)
        quantised = queries.planes.reshape(m, -1)
        lists, bases = self.route.nearest(queries, quantised, probes)
        if self.codebooks is not None:
            table = np.empty((len(self.codebooks), 256), np.float32)
            kernels.scan_lists_pq(
                self.codes,
                self.scalars,
                self.codebooks,
                self.offsets,
                lists,
                bases,
                queries.rotated,
                table,
                nodes,
                distances,
                counts,
                scored,
            )
        else:
            kernels.scan_lists(
                self.codes,
                self.scalars,
                self.bits,
                self.offsets,
                lists,
                bases,
                queries.planes,
                queries.scales,
                queries.sums,
                nodes,
                distances,
                counts,
                scored,
            )
        return Candidates(nodes, distances, counts, np.full(m, probes, np.int64), scored)

    def allowed_candidates(
        self, queries: PreparedQueries, *, effort: int, width: int, allowed: AllowedNodes, scratch: Scratch
    ) -> Candidates:
        """The nearest allowed nodes of the nearest lists: as many are scored as `effort` lists hold of all nodes, so more
        lists are visited as fewer nodes are allowed."""
        keep = min(max(4 * width, width + KEPT), allowed.count)
        wanted = max(-(-min(effort, self.lists) * self.nodes // self.lists), keep)
        usual = int(PROBES_SPARE * wanted / max(1, allowed.count) * self.lists) + 1
        if usual >= self.lists:
            return self.allowed_scan(queries, keep=keep, allowed=allowed)
        found = AllowedFound(len(queries), keep)
        some = self._scan_allowed(queries, usual, wanted, keep, allowed)
        good = some.scored >= wanted
        found.put(np.arange(len(queries)), some, good)
        left = np.flatnonzero(~good)
        if len(left):
            # Of queries in whose lists few are allowed all lists are looked at.
            found.put(
                left, self.allowed_scan(queries.only(left), keep=keep, allowed=allowed), np.ones(len(left), np.bool_)
            )
        return found.candidates()

    def allowed_scan(self, queries: PreparedQueries, *, keep: int, allowed: AllowedNodes) -> Candidates:
        """The `keep` nearest allowed nodes by their codes, of all lists."""
        keep = min(keep, allowed.count)
        found = self._scan_allowed(queries, self.lists, allowed.count, keep, allowed)
        return found._replace(horizons=horizons_of(found, complete=keep == allowed.count))

    def _scan_allowed(
        self, queries: PreparedQueries, probes: int, wanted: int, keep: int, allowed: AllowedNodes
    ) -> Candidates:
        """Allowed nodes of the `probes` nearest lists, until `wanted` were scored."""
        m = len(queries)
        nodes, distances = np.empty((m, keep), np.int32), np.empty((m, keep), np.float32)
        counts, hops, scored = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
        lists, bases = self.route.nearest(queries, queries.planes.reshape(m, -1), probes)
        starts = allowed.list_starts(self.offsets)
        where = (allowed.listed, starts, lists, bases, wanted)
        out = (nodes, distances, counts, hops, scored)
        if self.codebooks is not None:
            table = np.empty((len(self.codebooks), 256), np.float32)
            scan_allowed_pq(self.codes, self.scalars, self.codebooks, *where, queries.rotated, table, *out)
        else:
            prepared = (queries.planes, queries.scales, queries.sums)
            scan_allowed_lists(self.codes, self.scalars, self.bits, *where, *prepared, *out)
        return Candidates(*out)

    def error_scales(self) -> NDArray[np.float32]:
        """The scalars: column 1 is a row's scale (product quantiser: the length of what its code leaves out)."""
        return self.scalars

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part."""
        parts = {"codes": self.codes.nbytes, "scalars": self.scalars.nbytes, "lists": self.offsets.nbytes}
        if self.codebooks is not None:
            parts["codebooks"] = self.codebooks.nbytes
        return parts | self.route.resident_bytes()

    def save(self, folder: Path) -> list[str]:
        """Write codes.npy, scalars.npy, and the folder lists/."""
        (folder / LISTS_FOLDER).mkdir(exist_ok=True)
        parts: dict[str, NDArray[Any]] = {
            "codes.npy": self.codes,
            "scalars.npy": self.scalars,
            f"{LISTS_FOLDER}/offsets.npy": self.offsets,
        }
        if self.codebooks is not None:
            parts[f"{LISTS_FOLDER}/codebooks.npy"] = self.codebooks
        for name, array in parts.items():
            save_array(folder / name, array)
        return [*parts, *self.route.save(folder)]

    @classmethod
    def load(cls, folder: Path, *, bits: int | str, dot: bool, huge_pages: bool) -> IvfPreview:
        """The preview that `save` wrote."""
        codes = load_resident(folder / "codes.npy", huge_pages=huge_pages).view(np.uint8)
        scalars = load_resident(folder / "scalars.npy", huge_pages=huge_pages).view(np.float32)
        books = np.load(folder / LISTS_FOLDER / "codebooks.npy") if isinstance(bits, str) else None
        offsets = np.load(folder / LISTS_FOLDER / "offsets.npy")
        return cls(codes, scalars, bits, offsets, Route.load(folder, dot=dot), books)
