"""docs/bench.md names options, entrants and columns that there are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from pages import page, section

from decoder import DecoderOptions
from service.bench.app import index_command
from service.bench.decoder.app import decoder_command
from service.bench.decoder.ours import DecoderOf
from service.bench.decoder.report import csv_row
from service.bench.decoder.results import Cell, EntrantResult, Quality, Results
from service.bench.decoder.run import PEERS, entrants
from service.bench.peers import PEERS as INDEX_PEERS

PAGE = page("docs/bench.md")


def options(command) -> set[str]:
    return {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters} | {"--help", "--json"}


def test_options_exist():
    for heading, command in (("Indexes", index_command), ("Decoders", decoder_command)):
        named = set(re.findall(r"`(--[a-z-]+)", section(PAGE, heading)))
        assert named and not named - options(command), heading
    for peer in INDEX_PEERS:
        assert peer in section(PAGE, "Indexes")


def test_every_entrant_is_in_the_table():
    rows = re.findall(r"^\| (.+?) \| .*\|$", section(PAGE, "Decoders").split("**Who takes part.**")[1], re.M)
    names = " / ".join(rows)
    for entrant in entrants(DecoderOf(DecoderOptions()), tuple(PEERS)):
        named = (
            entrant.name.removesuffix(" F.linear")
            .removesuffix(" mv")
            .replace("torch bfloat16", "torch float32, bfloat16")
        )
        assert named in names, entrant.name


def test_every_column_of_the_table_is_told_of():
    results = Results(head={}, machine={}, command="", k=10, target=(1.0, 1.0), threads=[1], batches=[1])
    entrant = EntrantResult(
        name="", kind="", build_seconds=0.0, memory_bytes=0, setting={}, reached=True,
        quality=Quality(precision_1=1.0, precision_k=1.0), points=[],
    )  # fmt: skip
    cell = Cell(threads=1, batch=1, us=1.0, us_range=(1.0, 1.0), speedup=1.0, speedup_range=(1.0, 1.0))
    told = section(PAGE, "Decoders")
    plain = {"entrant", "kind", "reaches_target", "threads", "batch"}
    for column in csv_row(results, entrant, cell).keys() - plain:
        assert f"`{column}`" in told or column.endswith(("_least", "_most")), column


def test_the_readme_of_the_data_is_where_the_page_says():
    assert "`tests/data/marian`" in PAGE and (Path(__file__).parents[1] / "data" / "marian" / "README.md").is_file()
