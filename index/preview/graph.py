"""The graph preview: a beam walk over codes along links, from spread entry nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries
from index.disk import save_array
from index.kernels import walk
from index.options import PreviewKind
from index.preview import graph_allowed
from index.preview.allowed import AllowedNodes
from index.preview.allowed_scan import scan_codes
from index.preview.base import Candidates, Scratch
from index.resident import load_resident


@dataclass(frozen=True, slots=True)
class GraphPreview:
    """codes uint8 (n, stride), scalars float32 (n, 2), links int32 (n, degree) with -1 after a node's last, entries int32."""

    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]
    links: NDArray[np.int32]
    entries: NDArray[np.int32]
    bits: int
    kind: PreviewKind = PreviewKind.GRAPH

    @property
    def nodes(self) -> int:
        """Distinct vectors."""
        return len(self.codes)

    def candidates(self, queries: PreparedQueries, *, effort: int, width: int, scratch: Scratch) -> Candidates:
        """The beam of each walk. effort: the beam; it is at least `width` and at most all nodes."""
        m, beam = len(queries), min(max(effort, width), self.nodes)
        nodes, distances = np.empty((m, beam), np.int32), np.empty((m, beam), np.float32)
        counts, hops, scored = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
        table = scratch.visited_table(walk.visited_slots(beam, self.links.shape[1], len(self.entries)))
        scratch.mark = walk.walk_queries(
            self.codes,
            self.scalars,
            self.bits,
            self.links,
            queries.planes,
            queries.scales,
            queries.sums,
            self.entries,
            table,
            scratch.mark,
            nodes,
            distances,
            counts,
            hops,
            scored,
        )
        return Candidates(nodes, distances, counts, hops, scored)

    def allowed_candidates(
        self, queries: PreparedQueries, *, effort: int, width: int, allowed: AllowedNodes, scratch: Scratch
    ) -> Candidates:
        """Walked or scanned, whichever costs less: see graph_allowed.py."""
        return graph_allowed.allowed_candidates(
            self, queries, effort=effort, width=width, allowed=allowed, scratch=scratch
        )

    def allowed_scan(self, queries: PreparedQueries, *, keep: int, allowed: AllowedNodes) -> Candidates:
        """The `keep` nearest allowed nodes by their codes."""
        return scan_codes(self.codes, self.scalars, self.bits, queries, keep=keep, allowed=allowed)

    def error_scales(self) -> NDArray[np.float32]:
        """The scalars: column 1 is a row's scale."""
        return self.scalars

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part."""
        return {
            "codes": self.codes.nbytes,
            "scalars": self.scalars.nbytes,
            "links": self.links.nbytes,
            "entries": self.entries.nbytes,
        }

    def save(self, folder: Path) -> list[str]:
        """Write codes.npy, scalars.npy, links.npy, entries.npy."""
        parts: dict[str, NDArray[Any]] = {
            "codes": self.codes,
            "scalars": self.scalars,
            "links": self.links,
            "entries": self.entries,
        }
        for name, array in parts.items():
            save_array(folder / f"{name}.npy", array)
        return [f"{name}.npy" for name in parts]

    @classmethod
    def load(cls, folder: Path, *, bits: int, huge_pages: bool) -> GraphPreview:
        """The preview that `save` wrote."""
        codes, scalars, links, entries = (
            load_resident(folder / f"{name}.npy", huge_pages=huge_pages)
            for name in ("codes", "scalars", "links", "entries")
        )
        return cls(codes.view(np.uint8), scalars.view(np.float32), links.view(np.int32), entries.view(np.int32), bits)
