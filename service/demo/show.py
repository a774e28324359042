"""What people see of the demo: steps, answers, figures, how to go on."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from service.build_progress import BuildProgressBar
from service.demo.decoder_measure import DecoderFigures, WayFigures
from service.demo.measure import Figures

GO_ON = """\
Your own vectors (npy, npz, fvecs, bvecs, fbin, HDF5, Parquet, Arrow; a file or a folder of them), three commands:
  {fullview} build VECTORS.npy MY.index --metric cosine
  {fullview} inspect MY.index
  {fullview} query MY.index QUERIES.npy
Your own output layer (npy, safetensors, GGUF, a model's folder) and hidden states, two commands:
  {fullview} decoder build MODEL MY.decoder --calibration STATES.npy
  {fullview} decoder topk MY.decoder STATES.npy
Over HTTP:    {fullview} serve --import-root FOLDER_OF_VECTORS_AND_MODELS
From Python:  from index import build, open_index; from decoder import OutputLayer, build_decoder, open_decoder
Read next:    README.md (one program in full), then docs/one-query.md (how a query is answered)"""


class Show:
    """The demo's console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str = "") -> None:
        """A line, or several."""
        self.console.print(text, markup=False, soft_wrap=True)

    def heading(self, text: str) -> None:
        """A line that opens a part."""
        self.console.print(f"\n{text}", markup=False, style="bold", soft_wrap=True)

    @contextmanager
    def build(self) -> Iterator[PhaseLines]:
        """Progress of a build: bars on a terminal, else a line a phase."""
        with BuildProgressBar(self.console) as bars:
            yield PhaseLines(self, bars)

    def answers(self, question: str, points: list[dict[str, Any]]) -> None:
        """One question and what was found, a line each."""
        self.say(f"\n  {question}")
        room = self.console.width - len("    0.000  ")
        for point in points:
            text = point["text"] if len(point["text"]) <= room else point["text"][: room - 3] + "..."
            self.say(f"    {point['score']:.3f}  {text}")

    def tokens(self, sentence: str, so_far: str, tokens: list[dict[str, Any]]) -> None:
        """An unfinished translation and its likeliest next words, a line each."""
        self.say(f"\n  {sentence}\n    {so_far} ...")
        for token in tokens:
            error = f"± {token['error']:.5f}" if token["error"] >= 5e-6 else "± 0.00001 at most"
            self.say(f"      {token['probability']:.5f} {error}  {token['text']}")

    def figures(self, figures: Figures) -> None:
        """What was measured of the index, a paragraph each."""
        self._paragraphs(_sentences(figures))

    def decoder_figures(self, figures: DecoderFigures) -> None:
        """What was measured of the decoder, a paragraph each."""
        self._paragraphs(_decoder_sentences(figures))

    def _paragraphs(self, sentences: dict[str, str]) -> None:
        for name, text in sentences.items():
            lead = f"  {name:<12}"
            width = max(60, self.console.width)
            self.say(textwrap.fill(text, width, initial_indent=lead, subsequent_indent=" " * len(lead)))

    def go_on(self) -> None:
        """How to use it on one's own data."""
        self.heading("How to go on")
        self.say(GO_ON.format(fullview=_program()))


class PhaseLines:
    """One build's progress. show() takes a job as the server tells it."""

    def __init__(self, show: Show, bars: BuildProgressBar) -> None:
        self._show, self._bars = show, bars
        self._phase: str | None = None
        self._begun = time.monotonic()

    def show(self, job: dict[str, Any]) -> None:
        """A job with phase, done and total."""
        if job["phase"] is None:
            return
        if self._show.console.is_terminal:
            self._bars.show(SimpleNamespace(phase=job["phase"], done=job["done"], total=job["total"]))
        elif job["phase"] != self._phase:
            self._show.say(f"  {time.monotonic() - self._begun:5.1f} s  {job['phase']}")
        self._phase = job["phase"]


def _sentences(figures: Figures) -> dict[str, str]:
    """What each figure is and how it was measured."""
    raw, total = figures.raw_float32_bytes, figures.resident_bytes_total
    overhead = (figures.latency_us_p50_http - figures.latency_us_p50_library) / 1e3
    reason = f" ({figures.io_reason})" if figures.io_reason else ""
    return {
        f"recall@{figures.k}": f"{figures.recall:.4f} (95 % interval {figures.recall_low:.4f} to "
        f"{figures.recall_high:.4f}) against exact search of everything; promised {figures.promised_recall:g}",
        "memory": f"{_mb(total)}, {total / raw:.0%} of what {figures.rows:,} vectors of {figures.dim} dimensions take as "
        f"float32 ({_mb(raw)}): {_parts(figures.resident_bytes)}",
        "disk reads": f"{figures.pages_per_query:.1f} pages a query, {figures.bytes_per_query / 1e3:.1f} kB, read by "
        f"{figures.io_mode}{reason}",
        "scored": f"{figures.rows_scored_per_query:,.0f} codes a query, "
        f"{figures.rows_scored_per_query / figures.rows:.1%} of the rows",
        "latency": f"half of the queries within {figures.latency_us_p50_http / 1e3:.2f} ms over HTTP with a JSON body, "
        f"within {figures.latency_us_p50_library / 1e3:.2f} ms in the library; HTTP adds {overhead:.2f} ms",
        "build": f"{figures.build_seconds:.1f} s, peak memory {_mb(figures.build_peak_bytes)}; the first one in an "
        "environment also compiles the kernels",
    }


def _decoder_sentences(figures: DecoderFigures) -> dict[str, str]:
    """What each figure is and how it was measured."""
    resident = figures.resident_bytes
    added = sum(resident.values()) - resident["layer"]
    named = {way.mode: way for way in figures.ways}
    chosen = named.get(figures.chosen)
    said = {mode: _way_sentence(way, figures) for mode, way in named.items()}
    said["exact"] = (
        f"{figures.us_p50_exact / 1e3:.2f} ms: all {figures.vocab_size:,} rows of the layer itself; "
        f"numpy's matrix product and argpartition {figures.us_p50_numpy / 1e3:.2f} ms"
    )
    said["served"] = (
        f"by {figures.chosen}, the cheapest here that keeps the recall of {figures.promised_recall:g} that was promised; "
        f"half of the requests within {figures.us_p50_http / 1e3:.2f} ms over HTTP with a JSON body"
    )
    if chosen is not None:
        said["log-probs"] = (
            f"of {chosen.mode}: off by {chosen.logprob_error:.4f} nats on average, without a look at every row; the error "
            f"bar (± {chosen.half_width:.4f} on average) holds the truth for {chosen.covered:.1%} of the states"
        )
    said["memory"] = f"{_mb(added)} beside the layer's own {_mb(resident['layer'])}: " + _parts(
        {name: size for name, size in resident.items() if name != "layer"}
    )
    said["build"] = (
        f"{figures.build_seconds:.1f} s, most of them to measure what each width of a walk and a screen gives"
    )
    return said


def _way_sentence(way: WayFigures, figures: DecoderFigures) -> str:
    return (
        f"{way.us_p50 / 1e3:.2f} ms a state: the best token is right for {way.best_found:.1%} of {figures.states:,} states, "
        f"recall@{figures.k} {way.recall:.4f}; {way.rows_scored:,.0f} of {figures.vocab_size:,} compressed rows scored"
    )


def _parts(resident: dict[str, int]) -> str:
    """Parts of at least 0.1 MB by name, the rest together."""
    large = {name: size for name, size in resident.items() if size >= 100_000}
    rest = sum(resident.values()) - sum(large.values())
    return ", ".join([f"{name} {_mb(size)}" for name, size in large.items()] + [f"the rest {_mb(rest)}"])


def _program() -> str:
    """How this program is called from where the user is."""
    if shutil.which("fullview") is not None:
        return "fullview"
    path = Path(sys.executable).with_name("fullview")
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _mb(size: float) -> str:
    return f"{size / 1e6:.1f} MB"
