"""The demo from top to bottom: data, server; an index: build, questions, figures; a decoder: the same; how to go on."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from service.demo.data import POINTS, SAMPLE_QUERIES, BundledData, find_data
from service.demo.decoder_measure import measure_decoder
from service.demo.decoder_part import DECODER, ask_decoder, build_decoder
from service.demo.follow import follow_job
from service.demo.measure import measure
from service.demo.server import Server, start_server
from service.demo.show import Show

COLLECTION = "wordnet"
SHOWN = 3
QUESTIONS = (
    "penguins inhabit the polar regions",
    "the shape of the DNA molecule is a double helix",
    "board up windows before the hurricane",
    "a bass voice is lower than a baritone voice",
    "the waxing moon passes from new to full",
)
"""Of the bundled sentences, those that are shown with their answers."""
WIDE = 120
"""Columns where the output is no terminal."""

demo_app = typer.Typer(name="demo", add_completion=False)


@demo_app.callback(invoke_without_command=True)
def demo_command(
    *,
    data: Annotated[Path | None, typer.Option(help="Folder of the bundled data; default: the checkout's.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the server running, and say how to end it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """An index and a decoder from bundled data, a server, questions over HTTP with text in the answers, what it took."""
    begun = time.monotonic()
    console = Console(stderr=as_json, highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    show = Show(console)
    found = find_data(data)
    with _server(found, show, keep=keep) as server:
        report = _build(server, show)
        answers = _ask(server, found, show)
        show.heading(f"What it took, measured with all {len(found.texts)} bundled sentences")
        figures = measure(server, COLLECTION, found.vectors, report)
        show.figures(figures)
        decoder = _decoder(server, found, show)
        show.go_on()
        if keep:
            _say_how_to_end(server, show)
    seconds = round(time.monotonic() - begun, 1)
    show.say(f"\nThe demo took {seconds} s.")
    if as_json:
        result = figures.to_dict() | {"answers": answers, "seconds": seconds, "server_process": server.process.pid}
        result["decoder"] = decoder
        result |= {"url": server.url, "folder": str(server.folder)} if keep else {}
        sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def _server(found: BundledData, show: Show, *, keep: bool) -> Iterator[Server]:
    """A server with a folder of its own; both are gone afterwards, except after a whole demo with `keep`."""
    folder = Path(tempfile.mkdtemp(prefix="fullview-demo-"))
    server: Server | None = None
    kept = False
    try:
        with _signals_interrupt():
            show.heading("A server")
            server = start_server(folder, import_root=found.folder)
            show.say(f"  fullview serve: process {server.process.pid}, {server.url}, its files in {folder}")
            yield server
            kept = keep
    finally:
        if not kept:
            try:
                if server is not None:
                    code = server.end()
                    pid = server.process.pid
                    show.say(f"\nThe server (process {pid}) was ended, exit code {code}, its files removed.")
            finally:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that nothing stays behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _build(server: Server, show: Show) -> dict[str, Any]:
    """The collection, built by a job of the server; returns the build's report."""
    show.heading(f"A collection from {POINTS}: POST /v1/admin/builds")
    body = {
        "collection": COLLECTION,
        "source": {"path": POINTS, "vector": "vector", "id": "id", "payload": ["text", "pos"]},
        "queries": {"path": SAMPLE_QUERIES},
        "metric": "cosine",
        # So few rows would be given 8 bits: a fraction as budget never means less than 16 MB.
        "bits": 4,
    }
    job = server.ask("POST", "/v1/admin/builds", body)
    report = follow_job(server, job, show)
    show.say(
        f"  {report['rows']:,} points of dimension {report['dim']} ({report['dtype']}) in {report['seconds']:.1f} s: "
        f"{report['preview']} over {report['bits']}-bit codes in memory, full vectors on disk"
    )
    return report


def _ask(server: Server, found: BundledData, show: Show) -> list[dict[str, Any]]:
    """A few questions with the text of their answers."""
    show.heading(f"Questions: POST /collections/{COLLECTION}/points/query (cosine, text from the payload)")
    answers = []
    for question in QUESTIONS:
        vector = found.vectors[found.texts.index(question)]
        body = {"query": vector.tolist(), "limit": SHOWN, "with_payload": ["text"]}
        points = server.ask("POST", f"/collections/{COLLECTION}/points/query", body)["result"]["points"]
        hits = [{"id": p["id"], "score": p["score"], "text": p["payload"]["text"]} for p in points]
        show.answers(question, hits)
        answers.append({"question": question, "hits": hits})
    return answers


def _decoder(server: Server, found: BundledData, show: Show) -> dict[str, Any]:
    """The decoder part; returns what --json tells of it."""
    report = build_decoder(server, found, show)
    answers = ask_decoder(server, found, show)
    show.heading(f"What it took, measured with {len(found.head.heldout):,} hidden states of other sentences")
    figures = measure_decoder(server, DECODER, found.head, report)
    show.decoder_figures(figures)
    return figures.to_dict() | {"answers": answers}


def _say_how_to_end(server: Server, show: Show) -> None:
    show.heading(f"The server goes on at {server.url}")
    show.say(f"  end it:  kill {server.process.pid} && rm -r {server.folder}")
