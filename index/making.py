"""What a build and a fold share: operating points measured, the folder verified, report and manifest written.

Making   a generation on its way: options, steps, report, and what the last phases need
The phases before differ: build.py streams a source, fold.py starts from another generation.
"""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from index import manifest
from index.codes import Coder
from index.disk import save_array
from index.fullview import PAGE_BYTES, PageLayout, VectorFile
from index.metric import KERNEL_METRIC
from index.operating_points import OperatingPoint, choose_point
from index.options import BuildOptions, Metric
from index.preview import Preview
from index.preview.ivf import IvfPreview
from index.progress import Steps
from index.report import BuildReport
from index.rerank import Places
from index.tune import BEAMS, TuneQueries, Tuner, true_rows, useful
from index.verify import FRESH_ROWS, verify_fresh, verify_here


class Making:
    """A generation that is being made in `folder`. What is made fills in layout, coder, error_scale, degree, points."""

    layout: PageLayout
    coder: Coder
    error_scale: float
    degree: int
    points: list[OperatingPoint]

    def __init__(self, folder: Path, options: BuildOptions, steps: Steps, *, dim: int, dtype: np.dtype[Any]) -> None:
        self.folder, self.options, self.steps = folder, options, steps
        self.metric = Metric(options.metric)
        self.threads = options.threads or os.cpu_count() or 1
        self.report = BuildReport(
            dim=dim,
            dtype=str(dtype),
            metric=options.metric,
            seed=options.seed,
            threads=self.threads,
            promised_recall=options.recall,
            may_differ="manifest.json and report.json hold times and dates; every other file is the same for the same seed",
        )

    def tune(
        self,
        preview: Preview,
        queries: NDArray[np.float32],
        held: NDArray[np.int32],
        places: Places,
        codes: NDArray[np.uint64] | None,
    ) -> None:
        """Measure operating points with queries of which none is in the preview."""
        with VectorFile.open(self.folder, self.layout) as file:
            self.steps.start("tune", self.layout.n_pages)
            answers, scores = true_rows(
                file,
                places,
                codes,
                queries,
                metric=KERNEL_METRIC[self.metric],
                left_out=places.groups.first_rows(held),
                threads=self.threads,
                check=self.steps.advance,
            )
        efforts = preview.efforts() if isinstance(preview, IvfPreview) else BEAMS
        tuner = Tuner(preview, self.coder, self.error_scale, places, efforts)
        measured = tuner.measure(TuneQueries(queries, answers, scores, held), check=self.steps.check)
        self.points = useful(measured)
        self.report.curve = [p.to_dict() for p in self.points]

    def stored(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Stored vectors of some rows, as queries; zero vectors are no queries under cosine."""
        layout = self.layout
        file = np.memmap(self.folder / "vectors.bin", np.uint8, "r")
        starts = layout.first_page(rows) * PAGE_BYTES + layout.vector_offset(rows)
        raw = np.stack([file[s : s + layout.vector_bytes] for s in starts])
        vectors = raw.view(layout.dtype).astype(np.float32)
        return vectors[vectors.any(axis=1)] if self.metric is Metric.COSINE else vectors

    def finish(self, preview: Preview, places: Places, begun: float) -> None:
        """Write what is left, search it, then write report and manifest."""
        self.steps.start("verify", 2)
        preview.save(self.folder)
        save_array(self.folder / "mean.npy", self.coder.mean)
        if len(places.groups.nodes):
            save_array(
                self.folder / "groups.npy", np.stack([places.groups.nodes.astype(np.int64), places.groups.extra])
            )
        report = self.report
        point = choose_point(self.points, k=10, recall=self.options.recall)
        report.measured_recall = {"recall": point.recall, "low": point.low, "high": point.high, "pages": point.pages}
        report.promise_kept = point.low >= self.options.recall
        if not report.promise_kept:
            report.warnings.append(
                f"recall {self.options.recall} at k = 10 was not reached: the best operating point gives {point.recall:.4f} "
                f"(interval {point.low:.4f} to {point.high:.4f}). A larger memory_budget buys more bits and links."
            )
        described = self._manifest_fields(preview)
        if self.layout.n >= FRESH_ROWS:
            verified = verify_fresh(self.folder, described, check=self.steps.check)
        else:
            verified = verify_here(self.folder, described)
        report.resident_bytes, report.grown_bytes = verified.resident, verified.grown_bytes
        self.steps.advance(2, 2)
        report.phases = self.steps.seconds
        report.peak_bytes = self.steps.finish()
        report.seconds = round(time.monotonic() - begun, 3)
        report.disk_bytes = sum(f.stat().st_size for f in self.folder.rglob("*") if f.is_file())
        (self.folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report.to_dict()), indent=1))
        manifest.write_manifest(self.folder, **described)

    def _manifest_fields(self, preview: Preview) -> dict[str, Any]:
        report = self.report
        return {
            "n": self.layout.n,
            "dim": self.layout.dim,
            "dtype": str(self.layout.dtype),
            "metric": self.metric.value,
            "preview": preview.kind.value,
            "preview_parameters": {
                "bits": preview.bits,
                "degree": self.degree,
                "lists": preview.lists if isinstance(preview, IvfPreview) else 0,
                "seed": self.options.seed,
                "error_scale": self.error_scale,
            },
            "operating_points": [p.to_dict() for p in self.points],
            "promise": {
                "recall": self.options.recall,
                "kept": report.promise_kept,
                "measured": report.measured_recall,
                "covers": report.promise_covers,
            },
            "extras": {
                "budget_bytes": report.budget_bytes,
                "choices": report.choices,
                "warnings": report.warnings,
                "options": dataclasses.asdict(dataclasses.replace(self.options, threads=None)),
            },
        }
