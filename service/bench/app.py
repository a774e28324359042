"""`fullview bench index`: fullview and its peers on one set of vectors, measured in one run. Decoders: decoder/app.py."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from index.errors import OptionsError
from index.options import BuildOptions
from service.bench.datasets import open_dataset
from service.bench.decoder.app import decoder_command
from service.bench.display import Display
from service.bench.environments import cache_folder
from service.bench.measure import Effort
from service.bench.numbers import cores, recalls_of, threads_of
from service.bench.peers import PEERS, peers_named
from service.bench.report import print_results, write_files
from service.bench.run import Plan, run

WIDE = 190
"""Columns of the tables where stdout is no terminal."""

bench_app = typer.Typer(
    name="bench", help="Measure fullview and others on your data.", no_args_is_help=True, add_completion=False
)


@bench_app.callback()
def bench() -> None:
    """Measure fullview and others on your data."""


@bench_app.command("index")
def index_command(
    *,
    dataset: Annotated[
        str,
        typer.Option(
            help="wordnet (bundled), wordnet_minilm, sift, glove; a folder with base.* and queries.*; "
            "an ann-benchmarks HDF5 file."
        ),
    ],
    memory_budget: Annotated[str, typer.Option(help="MB (10^6 bytes), or a fraction of the vectors as float32.")] = str(
        BuildOptions().memory_budget
    ),
    recall: Annotated[str, typer.Option(help="Recalls to compare at, comma-separated.")] = "0.95,0.975",
    threads: Annotated[str, typer.Option(help="Numbers of threads; N is one for each core.")] = "1,N",
    peers: Annotated[str, typer.Option(help=f"Comma-separated: {', '.join(PEERS)}; or none.")] = "diskann,hnswlib",
    variants: Annotated[str, typer.Option(help="first or all: how many ways each peer is built.")] = "first",
    metric: Annotated[str | None, typer.Option(help="cosine, dot or l2, where the set does not say.")] = None,
    queries_for_build: Annotated[
        str | None, typer.Option(help='Give the build the first so many queries, or "sample": the sample queries.')
    ] = None,
    queries: Annotated[int | None, typer.Option(help="Measure with at most so many queries.", min=10)] = None,
    repeat: Annotated[int, typer.Option(help="Turns of each comparison; medians count.", min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Time of each measurement, at least.", min=0.01)] = 0.5,
    out: Annotated[Path | None, typer.Option(help="Folder for results.csv, .json and .png.")] = None,
    work: Annotated[Path | None, typer.Option(help="Folder for working files, on the SSD to measure; --out.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder where peers' indexes are kept for later runs.")] = None,
    data: Annotated[Path, typer.Option(help="Folder that scripts/fetch_data.py wrote to.")] = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Build, sweep and compare; write a table, a CSV file and a picture."""
    if variants not in ("first", "all"):
        raise OptionsError(f"variants is {variants!r}, needed first or all")
    opened = open_dataset(dataset, data=data, metric=metric, queries_for_build=queries_for_build, most_queries=queries)
    out = out or Path(f"bench-{opened.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    plan = Plan(
        dataset=opened,
        budget=memory_budget,
        effort=Effort(threads=threads_of(threads), seconds=seconds, repeat=repeat),
        recalls=recalls_of(recall),
        peers=tuple(peers_named(peers)),
        all_variants=variants == "all",
        build_threads=cores(),
        cache=cache_folder(),
        work=work or out,
        keep=keep,
        pythons={},
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


bench_app.command("decoder")(decoder_command)
