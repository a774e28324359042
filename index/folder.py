"""A generation's folder, open: every part of it in memory or ready to be read.

Generation        the parts that a search needs
open_generation   folder -> Generation; refuses what contradicts itself
describe          parts -> the manifest's fields
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from index.budget import SCRATCH_BYTES, SEARCHES
from index.check import verify_contents
from index.codes import Coder
from index.columns import COLUMNS_NAME, ColumnBuilder, ColumnsFile, PayloadColumns
from index.errors import UnknownIndexError
from index.fullview import PageLayout, VectorFile
from index.ids import IDS_FOLDER, IdTable
from index.manifest import Manifest, read_manifest
from index.metric import metric_of
from index.operating_points import OperatingPoint
from index.options import Metric, OpenOptions, PreviewKind
from index.payload import DATA_NAME, PAYLOAD_FOLDER, PayloadFile
from index.preview import Groups, Preview
from index.preview.flat import FlatPreview
from index.preview.graph import GraphPreview
from index.preview.ivf import IvfPreview, code_bits
from index.rerank import Places
from index.resident import load_resident

_ROWS_AT_ONCE = 1024


@dataclass(slots=True)
class Generation:
    """One immutable index. Threads: everything here may be read from any."""

    path: Path
    manifest: Manifest
    metric: Metric
    layout: PageLayout
    coder: Coder
    preview: Preview
    places: Places
    error_scale: float
    points: list[OperatingPoint]
    vectors: VectorFile
    ids: IdTable
    resident_codes: NDArray[np.uint64] | None
    payload: PayloadFile | None
    columns_file: ColumnsFile | None = None
    _made: list[PayloadColumns] = field(default_factory=list)
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def columns(self) -> PayloadColumns | None:
        """Columns of the payloads; None where there are no payloads.

        An index that was built before there was a file of them has them made on first use, in memory.
        """
        if self.columns_file is not None or self.payload is None:
            return self.columns_file
        with self._making:
            if not self._made:
                self._made.append(columns_of(self.payload))
            return self._made[0]

    @property
    def n(self) -> int:
        """Rows."""
        return self.layout.n

    @property
    def dim(self) -> int:
        """Components of a vector."""
        return self.layout.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of stored vectors."""
        return self.layout.dtype

    @property
    def promised_recall(self) -> float:
        """The recall that searches aim at unless they say otherwise."""
        return float(self.manifest.promise["recall"])

    def resident_bytes(self) -> dict[str, int]:
        """Memory by part, scratch of searches not counted."""
        parts = dict(self.preview.resident_bytes())
        parts["checksums"] = self.vectors.resident_bytes()
        parts["coder"] = self.coder.resident_bytes
        parts["groups"] = self.places.groups.resident_bytes
        if self.resident_codes is not None:
            parts["ids"] = self.resident_codes.nbytes
        return parts

    def stats(self) -> dict[str, Any]:
        """What `inspect` and the collection's info show. The scratch estimate is of two searches at a time."""
        manifest = self.manifest
        return {
            "rows": self.n,
            "distinct_rows": self.preview.nodes,
            "dim": self.dim,
            "dtype": str(self.dtype),
            "metric": self.metric.value,
            "order": "higher is better" if self.metric.larger_is_better else "lower is better",
            "preview": self.preview.kind.value,
            "bits": self.preview.bits,
            "degree": manifest.preview_parameters.get("degree", 0),
            "lists": manifest.preview_parameters.get("lists", 0),
            "resident_bytes": self.resident_bytes(),
            "scratch_estimate_bytes": SCRATCH_BYTES * SEARCHES,
            "budget_bytes": manifest.extras.get("budget_bytes"),
            "disk_bytes": sum(entry.size for entry in manifest.files.values()),
            "operating_points": [p.to_dict() for p in self.points],
            "promise": manifest.promise,
            "io_mode": self.vectors.mode.value,
            "io_reason": self.vectors.reason,
            "format_version": manifest.format_version,
            "created_at": manifest.created_at,
        }

    def close(self) -> None:
        """Close all files; waits for reads in flight."""
        self.vectors.close()
        self.ids.close()
        if self.payload is not None:
            self.payload.close()


def open_generation(folder: Path, options: OpenOptions, *, described: Manifest | None = None) -> Generation:
    """Open a folder. described: its manifest where it is not written yet (a build verifies before it writes it).

    Every file is compared with the manifest before anything in it is believed; vectors and payloads are verified as they
    are read. Raises UnknownIndexError, CorruptIndexError, UnsupportedFormatError, ReadFailedError, OptionsError.
    """
    manifest = described or read_manifest(folder)
    if manifest.preview not in list(PreviewKind):
        raise UnknownIndexError(f"{folder} is not an index but a {manifest.preview}. Open it as what it is.")
    if described is None:
        verify_contents(folder, manifest)
    metric = metric_of(manifest.metric)
    layout = PageLayout(manifest.n, manifest.dim, np.dtype(manifest.dtype))
    parameters = manifest.preview_parameters
    huge = options.huge_pages
    coder = Coder(
        dim=layout.dim,
        metric=metric,
        bits=code_bits(parameters["bits"]),
        mean=np.load(folder / "mean.npy"),
        seed=parameters["seed"],
    )
    preview: Preview
    if PreviewKind(manifest.preview) is PreviewKind.GRAPH:
        preview = GraphPreview.load(folder, bits=coder.bits, huge_pages=huge)
    elif PreviewKind(manifest.preview) is PreviewKind.IVF:
        dot = metric is Metric.DOT
        preview = IvfPreview.load(folder, bits=parameters["bits"], dot=dot, huge_pages=huge)
    else:
        preview = FlatPreview.load(folder, bits=coder.bits, huge_pages=huge)
    vectors = VectorFile.open(folder, layout, options.io_mode)
    codes = None
    if not layout.ids_in_pages:
        codes = load_resident(folder / IDS_FOLDER / "codes.npy", huge_pages=huge).view(np.uint64)
    return Generation(
        path=folder,
        manifest=manifest,
        metric=metric,
        layout=layout,
        coder=coder,
        preview=preview,
        places=Places(layout, _groups(folder, manifest)),
        error_scale=float(parameters["error_scale"]),
        points=[OperatingPoint.from_dict(p) for p in manifest.operating_points],
        vectors=vectors,
        ids=IdTable.open(folder),
        resident_codes=codes,
        payload=PayloadFile.open(folder) if _has(folder, manifest, f"{PAYLOAD_FOLDER}/{DATA_NAME}") else None,
        columns_file=ColumnsFile.open(folder) if _has(folder, manifest, f"{PAYLOAD_FOLDER}/{COLUMNS_NAME}") else None,
    )


def columns_of(payload: PayloadFile) -> PayloadColumns:
    """Columns of payloads that have no file of them, in memory."""
    builder = ColumnBuilder()
    for start in range(0, payload.n, _ROWS_AT_ONCE):
        raw = payload.get(np.arange(start, min(start + _ROWS_AT_ONCE, payload.n)))
        builder.append([None if each is None else msgspec.json.decode(each) for each in raw])
    return builder.view()


def _has(folder: Path, manifest: Manifest, name: str) -> bool:
    """Whether a file is part of the index. A file that the manifest does not list is none, wherever it lies."""
    return name in manifest.files if manifest.files else (folder / name).exists()


def _groups(folder: Path, manifest: Manifest) -> Groups:
    path = folder / "groups.npy"
    if not _has(folder, manifest, path.name):
        return Groups(np.zeros(0, np.int32), np.zeros(0, np.int64))
    nodes, extra = np.load(path)
    return Groups(nodes.astype(np.int32), extra.astype(np.int64))
