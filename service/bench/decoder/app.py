"""`fullview bench decoder`: a decoder and other ways to the best tokens, measured in one run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from decoder import DecoderOptions
from service.bench.decoder.cores import quiet_threads
from service.bench.decoder.heads import open_head
from service.bench.decoder.report import print_results, write_files
from service.bench.decoder.run import PEERS, Plan, peers_named, run
from service.bench.display import Display
from service.bench.numbers import batches_of, cores, target_of, threads_of

WIDE = 200
"""Columns of the tables where stdout is no terminal."""


def decoder_command(
    *,
    head: Annotated[
        str,
        typer.Option(
            help="smollm2, marian (scripts/fetch_data.py), bundled, a folder of that form, or the file of a layer."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Folder that scripts/fetch_data.py wrote to.")] = Path("data"),
    calibration: Annotated[
        Path | None, typer.Option(help="File of hidden states that shape the decoder, for a layer's file.")
    ] = None,
    held_out: Annotated[Path | None, typer.Option(help="File of hidden states to measure with, the same.")] = None,
    stack: Annotated[
        int | None, typer.Option(help="Make a head of so many tokens of noisy copies, such as 262144.", min=1)
    ] = None,
    states: Annotated[int, typer.Option(help="Measure with at most so many held-out states.", min=20)] = 2000,
    precision: Annotated[str, typer.Option(help="P@1 and P@10 that settings must reach.")] = "0.99,0.98",
    recall: Annotated[float, typer.Option(help="What the decoder is built to promise.")] = DecoderOptions().recall,
    threads: Annotated[str, typer.Option(help="Numbers of threads; N is one for each core.")] = "1,N",
    batches: Annotated[str, typer.Option(help="States in a call, comma-separated.")] = "1,8,64",
    peers: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(PEERS)}; all, or none.")] = "all",
    seconds: Annotated[float, typer.Option(help="Time of each measurement, at least.", min=0.01)] = 0.5,
    repeat: Annotated[int, typer.Option(help="Turns of the race; medians count.", min=1)] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for results.csv, .json and .png.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder where what is built is kept for later runs.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build, tune and race a decoder against exact ways, an int8 scan, graphs and SVD-softmax; a table, a CSV, a picture."""
    quiet_threads()
    opened = open_head(
        head, data=data, calibration=calibration, states=held_out, most_states=states, stack=stack
    )  # fmt: skip
    out = out or Path(f"bench-{opened.name.replace(' ', '-').replace(',', '')}-{time.strftime('%Y%m%d-%H%M%S')}")
    plan = Plan(
        head=opened,
        options=DecoderOptions(recall=recall),
        target=target_of(precision),
        threads=threads_of(threads),
        batches=batches_of(batches),
        peers=peers_named(peers),
        seconds=seconds,
        turns=repeat,
        build_threads=cores(),
        work=out,
        keep=keep,
    )
    with Display() as display:
        results = run(plan, display)
        written = write_files(results, out)
        display.say("written: " + ", ".join(str(path) for path in written))
        if len(written) < 3:
            display.say("no picture: matplotlib is not installed. `pip install 'fullview[bench]'` brings it.")
    if as_json:
        sys.stdout.write(json.dumps(results.to_dict(), indent=2) + "\n")
    else:
        print_results(results, Console(highlight=False, width=None if sys.stdout.isatty() else WIDE))
