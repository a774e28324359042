"""The flat preview: all codes are scored. For collections so small that a walk would not score fewer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.codes import PreparedQueries
from index.disk import save_array
from index.kernels import scan
from index.options import PreviewKind
from index.preview.allowed import AllowedNodes
from index.preview.allowed_scan import scan_codes
from index.preview.base import Candidates, Scratch
from index.resident import load_resident


@dataclass(frozen=True, slots=True)
class FlatPreview:
    """codes uint8 (n, stride), scalars float32 (n, 2)."""

    codes: NDArray[np.uint8]
    scalars: NDArray[np.float32]
    bits: int
    kind: PreviewKind = PreviewKind.FLAT

    @property
    def nodes(self) -> int:
        """Distinct vectors."""
        return len(self.codes)

    def candidates(self, queries: PreparedQueries, *, effort: int, width: int, scratch: Scratch) -> Candidates:
        """The max(effort, width) nearest nodes by their codes; every code is scored whatever the effort."""
        m, keep = len(queries), min(max(effort, width), self.nodes)
        nodes, distances = np.empty((m, keep), np.int32), np.empty((m, keep), np.float32)
        if keep:
            scan.scan_queries(
                self.codes, self.scalars, self.bits, queries.planes, queries.scales, queries.sums, nodes, distances
            )
        full = np.full(m, keep, np.int64)
        return Candidates(nodes, distances, full, np.zeros(m, np.int64), np.full(m, self.nodes, np.int64))

    def allowed_candidates(
        self, queries: PreparedQueries, *, effort: int, width: int, allowed: AllowedNodes, scratch: Scratch
    ) -> Candidates:
        """The nearest allowed nodes by their codes; the codes of all of them are scored."""
        return self.allowed_scan(queries, keep=max(effort, width), allowed=allowed)

    def allowed_scan(self, queries: PreparedQueries, *, keep: int, allowed: AllowedNodes) -> Candidates:
        """The `keep` nearest allowed nodes by their codes."""
        return scan_codes(self.codes, self.scalars, self.bits, queries, keep=keep, allowed=allowed)

    def error_scales(self) -> NDArray[np.float32]:
        """The scalars: column 1 is a row's scale."""
        return self.scalars

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part."""
        return {"codes": self.codes.nbytes, "scalars": self.scalars.nbytes}

    def save(self, folder: Path) -> list[str]:
        """Write codes.npy and scalars.npy."""
        save_array(folder / "codes.npy", self.codes)
        save_array(folder / "scalars.npy", self.scalars)
        return ["codes.npy", "scalars.npy"]

    @classmethod
    def load(cls, folder: Path, *, bits: int, huge_pages: bool) -> FlatPreview:
        """The preview that `save` wrote."""
        codes = load_resident(folder / "codes.npy", huge_pages=huge_pages)
        scalars = load_resident(folder / "scalars.npy", huge_pages=huge_pages)
        return cls(codes.view(np.uint8), scalars.view(np.float32), bits)
