"""build_decoder(): from an output layer and calibration states to a folder that open_decoder() serves.

Phases: answers (calibration states, exactly) - frame - codes - graph - shape - tune - write - verify - publish. Built in a
temporary folder beside the final one and published by one rename; cancelled, it leaves nothing behind.
Variants of the links are compared on states held out of the shaping; operating points are measured on others still.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoder.calibration import Calibration, calibrate, read_states
from decoder.entries import Entries
from decoder.errors import DecoderOptionsError
from decoder.operating_points import DecoderPoint, pick
from decoder.options import DecoderOptions
from decoder.output_layer import OutputLayer
from decoder.planner import BATCHES
from decoder.preview import LEAD_STEP, Preview
from decoder.report import DecoderReport, in_degree_summary
from decoder.screen import Screener
from decoder.shaping import in_degrees, link_to_weak, shape_links, weak_rows
from decoder.store import DECODER, DecoderParts, read_decoder, write_decoder
from decoder.threads import one_blas_thread, usable_cores
from decoder.transform import Frame, Projection, RowFrame, each_block, fit_frame, graph_rows
from decoder.tune import Truth, measure_curve
from decoder.walk import Walker
from index.disk import as_disk_full, require_room
from index.graph import GraphOptions, GraphRows, build_graph
from index.kernels.reach import connect_rows
from index.progress import Cancel, OnProgress, Steps
from index.publication import discard, publish, remove_leftovers, require_place, temporary_sibling

PHASES = ("answers", "frame", "codes", "graph", "shape", "tune", "write", "verify", "publish")
ENTRY_ROWS = 32
OWN_LINKS = 32
"""Degree of the graph before it is shaped."""
BUILD_BEAM = 200
CO_ANSWERS = 32
"""Best tokens of a state that become neighbours."""
ENOUGH_LINKS = 32
"""Rows with fewer links to them get more, where there is room."""
ALL_FOUND = 0.999
"""Recall above which a curve is not followed further."""
LEAD_SHARE = (4, 9)
MOST_LEAD = 512
"""Leading coordinates that the screen scans: that share of all, at most so many."""
SMALL = 64
"""Vocabularies up to this size need no graph: every mode but exact would only cost."""

Links = NDArray[np.int32]


def build_decoder(
    layer: OutputLayer,
    path: str | os.PathLike[str],
    *,
    calibration: Any = None,
    options: DecoderOptions | None = None,
    on_progress: OnProgress | None = None,
    cancel: Cancel | None = None,
    replace: bool = False,
) -> DecoderReport:
    """Build a decoder for the layer into the folder `path`.

    calibration: real hidden states float (n, d), as an array or the path of a file of vectors; without them the decoder is
    slower, and what it promises was measured on made-up states only. replace: a decoder that is there gives way once the
    new one is complete. Raises DecoderError's leaves for bad input, index.errors.BuildCancelledError and DiskFullError.
    """
    options = options or DecoderOptions()
    target = Path(path)
    place = require_place(target, replace=replace, kind=DECODER)
    states = None if calibration is None else read_states(calibration, layer.dim)
    remove_leftovers(place.parent)
    steps = Steps(on_progress, cancel, phases=PHASES)
    temporary = None
    try:
        temporary = temporary_sibling(place, kind=DECODER)
        require_room(temporary, _least_bytes(layer, options))
        report = _Build(layer, options, steps).run(states, temporary)
        steps.start("publish", 1)
        publish(temporary, place, replace=replace, kind=DECODER)
        steps.tell(1, 1)
    except BaseException as error:
        steps.abandon()
        if temporary is None:
            raise
        full = as_disk_full(error, temporary, total_bytes=_least_bytes(layer, options))
        discard(temporary)
        if full is not None:
            raise full from error
        raise
    report.peak_bytes = steps.finish()
    return report


def _least_bytes(layer: OutputLayer, options: DecoderOptions) -> int:
    """What a decoder's folder takes at least."""
    a_row = layer.dim * layer.weight.itemsize + (options.width or layer.dim) + 4 * (options.degree + options.room)
    return layer.vocab_size * a_row


@dataclass(slots=True)
class _Build:
    layer: OutputLayer
    options: DecoderOptions
    steps: Steps

    def run(self, states: NDArray[np.float32] | None, folder: Path) -> DecoderReport:
        """All phases up to the last look at the folder."""
        begun = time.monotonic()
        options, layer, steps = self.options, self.layer, self.steps
        if options.width is not None and options.width > layer.dim:
            raise DecoderOptionsError(
                f"width is {options.width}, but states have {layer.dim} coordinates, needed at most that or None"
            )
        threads = options.threads or usable_cores()
        steps.start("answers", 1)
        known = calibrate(layer, states, seed=options.seed, threads=threads, on_progress=steps.advance)
        shaping, answers = known.shapes
        frame, row_frame = self._frame(shaping if known.real else None, answers, threads)
        preview, rows = self._codes(frame, row_frame, threads)
        links, spread_rows = self._graph(rows, threads)
        del rows
        steps.start("shape", 1)
        entries = self._entries(known, frame, spread_rows, preview)
        variants = self._variants(known, links, np.unique(entries.table))
        walker = partial(Walker, layer, frame, Projection.of(frame), preview)
        steps.start("tune", 1)
        name, links, compared = self._best(known, variants, walker, entries, threads)
        points = self._points(known, walker(links, entries, options.seed), frame, preview, threads)
        report = self._report(known, links, name, compared, points, threads)
        parts = DecoderParts(
            layer=layer, frame=frame, preview=preview, links=links, entries=entries, points=tuple(points),
            promise=report.promise, report={}, seed=options.seed, weights_hash=layer.weights_hash(),
            samples=known.measures.states[-max(BATCHES) :],
        )  # fmt: skip
        steps.start("write", 1)
        report.resident_bytes = parts.resident_bytes
        report.phases, report.peak_bytes = dict(steps.seconds), steps.peak_so_far
        report.seconds = round(time.monotonic() - begun, 3)
        write_decoder(folder, replaced(parts, report=report.to_dict()))
        steps.start("verify", 1)
        read_decoder(folder)
        return report

    def _frame(self, states: NDArray[np.float32] | None, answers: Links, threads: int) -> tuple[Frame, RowFrame]:
        options, layer, steps = self.options, self.layer, self.steps
        steps.start("frame", layer.vocab_size)
        frequency = None if states is None else np.bincount(answers.ravel(), minlength=layer.vocab_size)
        return fit_frame(
            layer,
            states,
            frequency=None if frequency is None else frequency.astype(np.float64),
            width=options.width,
            lead=self._lead,
            seed=options.seed,
            threads=threads,
            on_block=steps.advance,
        )

    @property
    def _lead(self) -> int:
        lead = self.options.lead or min(max(self.layer.dim * LEAD_SHARE[0] // LEAD_SHARE[1], LEAD_STEP), MOST_LEAD)
        widest = self.options.width or self.layer.dim
        return -(-min(lead, widest) // LEAD_STEP) * LEAD_STEP

    def _codes(self, frame: Frame, row_frame: RowFrame, threads: int) -> tuple[Preview, GraphRows]:
        """The preview, and the rows for the graph: two passes over the weight, as the second needs the longest row."""
        layer, steps = self.layer, self.steps
        steps.start("codes", 2 * layer.vocab_size)
        preview = Preview.empty(layer.vocab_size, width=frame.width, lead=self._lead)
        biases, squares = np.empty(layer.vocab_size, np.float32), np.empty(layer.vocab_size, np.float32)

        def fill(start: int, weight: NDArray[np.float32]) -> None:
            rows = slice(start, start + len(weight))
            coordinates = row_frame.coordinates(weight)
            biases[rows] = row_frame.biases(weight, layer.bias[rows])
            squares[rows] = np.einsum("ij,ij->i", coordinates, coordinates)
            preview.fill(start, coordinates, biases[rows])

        with one_blas_thread():
            for end, _ in each_block(layer, fill, threads):
                steps.advance(end, 2 * layer.vocab_size)
            middle = float(np.median(biases))
            longest = float((squares + np.square(biases - np.float32(middle))).max())

            def for_graph(start: int, weight: NDArray[np.float32]) -> GraphRows:
                own = biases[start : start + len(weight)]
                return graph_rows(row_frame.coordinates(weight), own, longest=longest, middle=middle)

            codes, scalars = [], []
            for end, some in each_block(layer, for_graph, threads):
                codes.append(some.codes)
                scalars.append(some.scalars)
                steps.advance(layer.vocab_size + end, 2 * layer.vocab_size)
        return preview, GraphRows(np.concatenate(codes), np.concatenate(scalars))

    def _graph(self, rows: GraphRows, threads: int) -> tuple[Links, NDArray[np.int32]]:
        self.steps.start("graph", len(rows))
        options = GraphOptions(
            degree=min(OWN_LINKS, self.options.degree), beam=BUILD_BEAM, seed=self.options.seed, alpha=1.0
        )
        return build_graph(rows, options=options, threads=threads, on_progress=self.steps.advance)

    def _entries(self, known: Calibration, frame: Frame, spread: NDArray[np.int32], preview: Preview) -> Entries:
        vocab_size = self.layer.vocab_size
        if not known.real:
            likely = np.argsort(preview.scalars[:, 0], kind="stable").astype(np.int32)
            return Entries.of_rows(likely, spread, leading=frame.width, rows=ENTRY_ROWS)
        states, answers = known.shapes
        with one_blas_thread():
            return Entries.of_calibration(
                frame.states(states)[0],
                answers,
                vocab_size,
                clusters=self.options.clusters,
                rows=ENTRY_ROWS,
                seed=self.options.seed,
                check=self.steps.check,
            )

    def _variants(self, known: Calibration, links: Links, starts: NDArray[np.int32]) -> dict[str, Links]:
        """Links to choose from: those of the graph, and those shaped by calibration states. starts: where walks begin."""
        options = self.options
        plain = np.full((len(links), links.shape[1] + options.room), -1, np.int32)
        plain[:, : links.shape[1]] = links
        variants = {"graph": plain}
        if known.real:
            _, answers = known.shapes
            variants["graph + calibration links"] = shape_links(
                links, answers[:, :CO_ANSWERS], degree=options.degree, share=options.degree // 2, room=options.room
            )
        for shaped in variants.values():
            weak = weak_rows(shaped, below=ENOUGH_LINKS)
            link_to_weak(shaped, weak, links[weak], enough=ENOUGH_LINKS)
            connect_rows(shaped, starts, np.arange(len(links), dtype=np.int32))
            self.steps.check()
        return variants

    def _best(
        self, known: Calibration, variants: dict[str, Links], walker: Any, entries: Entries, threads: int
    ) -> tuple[str, Links, dict[str, float]]:
        """The variant that scores the fewest rows for the recall asked for; its name, and what each scored."""
        scored: dict[str, float] = {}
        for name, links in variants.items():
            made = walker(links, entries, self.options.seed)
            points = list(
                self._curve(
                    made.answer,
                    "walk",
                    known.chooses,
                    made.preview,
                    threads,
                    # The mean, not its lower bound: that of a few hundred states may never reach what is asked.
                    lambda point: point.recall["10"] >= self.options.recall,
                )
            )
            reached = min(1.0, points[-1].recall["10"] / self.options.recall)
            scored[name] = round(points[-1].rows_scored / max(reached, 1e-3), 1)
        best = min(scored, key=lambda name: scored[name])
        return best, variants[best], scored

    def _points(
        self, known: Calibration, walker: Walker, frame: Frame, preview: Preview, threads: int
    ) -> list[DecoderPoint]:
        if self.layer.vocab_size <= SMALL:
            return []
        screener = Screener(self.layer, frame, walker.projection, preview, self.options.seed)
        points: list[DecoderPoint] = []
        for mode, answer in (("walk", walker.answer), ("screen", screener.answer)):
            for point in self._curve(answer, mode, known.measures, preview, threads, self._is_last):
                points.append(point)
                self.steps.advance(len(points), len(points) + 1)
        return points

    def _is_last(self, point: DecoderPoint) -> bool:
        """Wider ones gain nothing that anybody asks for: of a walk's log Z few better things are to be expected."""
        precise = point.logprob_error <= self.options.logprob_error / 3 or point.mode == "walk"
        return precise and min(point.recall["1"], point.recall["10"]) >= ALL_FOUND

    def _curve(
        self,
        answer: Any,
        mode: str,
        truth: Truth,
        preview: Preview,
        threads: int,
        enough: Callable[[DecoderPoint], bool],
    ) -> Iterator[DecoderPoint]:
        return measure_curve(
            answer,
            mode,
            truth,
            enough=enough,
            vocab_size=self.layer.vocab_size,
            whole_codes=preview.width >= self.layer.dim,
            threads=threads,
            check=self.steps.check,
        )

    def _report(
        self,
        known: Calibration,
        links: Links,
        name: str,
        compared: dict[str, float],
        points: list[DecoderPoint],
        threads: int,
    ) -> DecoderReport:
        options = self.options
        covers = (
            f"states like the {len(known.states):,} calibration states; measured on {len(known.measures):,} of them "
            "that shaped nothing"
            if known.real
            else "nothing but made-up states: no calibration states were given. Real ones would make walks shorter and "
            "the promise hold for them"
        )
        promise: dict[str, Any] = {"recall": options.recall, "logprob_error": options.logprob_error, "covers": covers}
        kept = {}
        for mode in ("walk", "screen"):
            if any(point.mode == mode for point in points):
                point, reached = pick(points, mode, k=10, recall=options.recall, logprob_error=None)
                kept[mode] = {"width": point.width, "reached": reached, "recall": point.recall}
        promise["points"] = kept
        return DecoderReport(
            vocab_size=self.layer.vocab_size,
            dim=self.layer.dim,
            dtype=self.layer.dtype,
            threads=threads,
            seed=options.seed,
            calibration_states=len(known.states) if known.real else 0,
            links=name,
            rows_scored_by_variant=compared,
            in_degree=in_degree_summary(in_degrees(links)),
            promise=promise,
            curve=[point.to_dict() for point in points],
        )
