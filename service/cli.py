"""The command line: `fullview`. Each command is a few lines over the libraries; --json speaks to machines.

Exit codes: 0 done; 1 it failed, or something is damaged; 2 the command or a setting is wrong; 130 interrupted (Ctrl-C),
143 ended by SIGTERM.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.exceptions import TyperException

from decoder.errors import DecoderError, DecoderOptionsError
from index.errors import BuildCancelledError, CorruptIndexError, OptionsError, VectorIndexError
from index.option_checks import whole
from index.options import BuildOptions, OpenOptions, SearchOptions
from service.build_progress import BuildProgressBar
from service.data_lock import DataFolderInUseError
from service.flags import in_flags
from service.settings import SettingsError
from service.settings_cli import config_app, serve_command
from service.stopping import BuildStoppedError, stop_on_signals

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130

SUBCOMMANDS = {"demo": "service.demo", "bench": "service.bench", "decoder": "service.decoder_cli"}
"""Command -> module whose `app` (a typer.Typer) becomes that command, where the module exists. Loaded when named."""

_FLAGS_OF_THEIR_OWN = {"demo", "bench"}
"""Commands whose flags are not named as the libraries' options are."""

BUILD_DEFAULT: dict[str, Any] = {field.name: field.default for field in fields(BuildOptions)}

app = typer.Typer(
    name="fullview",
    help="Nearest stored vectors from a compressed preview in memory and exact full vectors on an SSD.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
IndexFolder = Annotated[Path, typer.Argument(help="Folder of an index.")]
AllPoints = Annotated[
    bool, typer.Option("--points", help="Print all operating points, not only those near the promise.")
]


def _print_version(asked: Any) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        try:
            sys.stdout.write(f"fullview {version('fullview')}\n")
        except PackageNotFoundError:
            sys.stdout.write("fullview, run from a folder and not installed: no version\n")
        raise typer.Exit


@app.callback()
def _fullview(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options that stand before a command."""


@app.command("build")
def build_command(
    source: Annotated[str, typer.Argument(help="File of vectors, folder of shards, or a pattern.")],
    out: Annotated[Path, typer.Argument(help="Folder that the index becomes.")],
    *,
    metric: Annotated[str, typer.Option(help="cosine, dot or l2.")] = BUILD_DEFAULT["metric"],
    memory_budget: Annotated[
        str, typer.Option(help="MB (10^6 bytes), or a fraction of the vectors as float32.")
    ] = BUILD_DEFAULT["memory_budget"],
    preview: Annotated[str, typer.Option(help="auto, graph, ivf or flat.")] = BUILD_DEFAULT["preview"],
    bits: Annotated[str, typer.Option(help="Bits a dimension of a code: 1, 2, 4, 8, pq or auto.")] = BUILD_DEFAULT[
        "bits"
    ],
    recall: Annotated[float, typer.Option(help="Recall@10 to promise.")] = BUILD_DEFAULT["recall"],
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = BUILD_DEFAULT["seed"],
    on_bad_rows: Annotated[str, typer.Option(help="fail or skip.")] = BUILD_DEFAULT["on_bad_rows"],
    threads: Annotated[int | None, typer.Option(help="Threads; default: one for each core.")] = BUILD_DEFAULT[
        "threads"
    ],
    vector: Annotated[str | None, typer.Option(help="Column of the vectors.")] = None,
    ids: Annotated[str | None, typer.Option(help="Column of the ids; default: 0, 1, 2...")] = None,
    payload: Annotated[
        list[str] | None, typer.Option(help="Column to keep as payload; may be given often; * for all.")
    ] = None,
    queries: Annotated[Path | None, typer.Option(help="File of sample queries that the promise shall cover.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an index that is at OUT.")] = False,
    points: AllPoints = False,
    as_json: Json = False,
) -> None:
    """Build an index from a file of vectors. Ctrl-C and SIGTERM cancel it and leave nothing behind."""
    from index import build

    options = BuildOptions(
        metric=metric,
        memory_budget=memory_budget,
        preview=preview,
        bits=int(bits) if bits.isdecimal() else bits,
        recall=recall,
        seed=seed,
        on_bad_rows=on_bad_rows,
        threads=threads,
    )
    with stop_on_signals() as stop, BuildProgressBar() as progress:
        try:
            report = build(
                source,
                out,
                options=options,
                vector=vector,
                ids=ids,
                payload="*" if payload == ["*"] else payload,
                queries=queries,
                on_progress=progress.show,
                cancel=stop,
                replace=replace,
            )
        except BuildCancelledError as error:
            raise BuildStoppedError(str(error), stop.exit_code) from None
    if as_json:
        print_json(report.to_dict())
    else:
        from service.tables import print_report

        print_report(out, report.to_dict(), all_points=points)


@app.command("query")
def query_command(
    index: IndexFolder,
    queries: Annotated[str, typer.Argument(help="File of query vectors.")],
    *,
    k: Annotated[int, typer.Option("-k", help="Hits a query.")] = 10,
    first: Annotated[int | None, typer.Option(help="Only the first so many queries.")] = None,
    vector: Annotated[str | None, typer.Option(help="Column of the queries.")] = None,
    recall: Annotated[float | None, typer.Option(help="Use the cheapest operating point that reaches it.")] = None,
    beam: Annotated[int | None, typer.Option(help="Rows that the graph walk keeps.")] = None,
    probes: Annotated[int | None, typer.Option(help="IVF lists visited.")] = None,
    rerank: Annotated[int | None, typer.Option(help="Read exactly so many candidates.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Score every stored vector.")] = False,
    with_payload: Annotated[bool, typer.Option("--payload", help="Show payloads.")] = False,
    io_mode: Annotated[str, typer.Option(help="auto, linux_aio, threads or buffered.")] = "auto",
    as_json: Json = False,
) -> None:
    """Search an index with the vectors of a file; --json prints one object a query."""
    from index import open_index
    from service.query_files import read_queries
    from service.tables import hits_of, print_hits, shortfall

    whole("k", k, low=1, high=2**31 - 1)
    options = SearchOptions(recall=recall, beam=beam, probes=probes, rerank=rerank, exact=exact)
    opening = OpenOptions(io_mode=io_mode)
    with open_index(index, options=opening) as opened:
        if with_payload and opened.payload is None:
            raise OptionsError(
                f"--payload was given, but {index} was built without payloads. Leave it out, or build the index again "
                "with --payload COLUMN."
            )
        vectors = read_queries(queries, vector=vector, first=first)
        hits = opened.search(vectors, k=k, options=options)
        rows = hits_of(opened, hits, with_payload=with_payload)
        warning = shortfall(opened, hits, k=k, recall=recall)
    if as_json:
        for row in rows:
            print_json(row, indent=None)
    else:
        print_hits(rows, with_payload=with_payload)
    if warning:
        complain(f"fullview: {warning}", style="yellow")


@app.command("inspect")
def inspect_command(index: IndexFolder, *, points: AllPoints = False, as_json: Json = False) -> None:
    """What an index is: rows, preview, memory, operating points, recall promised and measured."""
    from index import open_index
    from service.tables import print_inspection

    with open_index(index) as opened:
        stats = opened.stats()
    report_file = index / "report.json"
    report = json.loads(report_file.read_text(encoding="utf-8")) if report_file.is_file() else {}
    if as_json:
        print_json({"stats": stats, "report": report})
    else:
        print_inspection(index, stats, report, all_points=points)


@app.command("check")
def check_command(index: IndexFolder, *, as_json: Json = False) -> None:
    """Read every byte of an index; list every damaged page and file. Exit code 1 where there are any."""
    from index.check import check_folder

    with BuildProgressBar() as progress:
        found = check_folder(index, progress.show_bytes)
    problems = [problem.what if isinstance(problem, CorruptIndexError) else str(problem) for problem in found]
    if as_json:
        print_json({"index": str(index), "problems": problems})
    elif problems:
        for problem in problems:
            complain(problem)
        complain(f"fullview: {index} is damaged. Restore the folder from a copy or build it again.", style="red")
    else:
        Console(highlight=False, soft_wrap=True).print(
            f"{index}: every page and file is as it was written.", markup=False
        )
    if problems:
        raise typer.Exit(EXIT_FAILED)


@app.command("doctor")
def doctor_command(
    folder: Annotated[Path, typer.Argument(help="Folder on the device that indexes shall lie on.")] = Path(),
    *,
    size_mb: Annotated[int, typer.Option(help="Size of the file to read from, in MB.")] = 512,
    seconds: Annotated[float, typer.Option(help="Time of each measurement.")] = 2.0,
    as_json: Json = False,
) -> None:
    """What this machine is, how pages can be read here, and how many of them a second."""
    from service.doctor import examine
    from service.tables import print_examination

    findings = examine(folder, size_mb=size_mb, seconds=seconds)
    if as_json:
        print_json(findings)
    else:
        print_examination(findings)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """JSON on stdout; numpy scalars and arrays, paths and dataclasses included."""
    sys.stdout.write(json.dumps(value, indent=indent, default=_plain, ensure_ascii=False, allow_nan=False) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """The entry point: errors become one sentence and an exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    as_json, own_flags = "--json" in given, not _FLAGS_OF_THEIR_OWN & set(given[:1])
    try:
        _add_subcommands(given)
        code = app(given, standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except BuildStoppedError as error:
        return _failed(error, error.exit_code, as_json=as_json, own_flags=own_flags)
    except (SettingsError, OptionsError, DecoderOptionsError) as error:
        return _failed(error, EXIT_USAGE, as_json=as_json, own_flags=own_flags)
    except (VectorIndexError, DecoderError, DataFolderInUseError, OSError) as error:
        return _failed(error, EXIT_FAILED, as_json=as_json, own_flags=own_flags)
    except TyperException as error:
        return _failed(error, EXIT_USAGE, as_json=as_json)
    if code == EXIT_INTERRUPTED:  # typer makes this code of an interrupt, without a word
        return _failed(KeyboardInterrupt("interrupted"), code, as_json=as_json)
    return code if isinstance(code, int) else 0


def _add_subcommands(given: list[str]) -> None:
    """Load the modules of commands that were named; all of them where help is asked for."""
    for name, module in SUBCOMMANDS.items():
        if (not given or given[0] in {name, "--help"}) and importlib.util.find_spec(module) is not None:
            app.add_typer(importlib.import_module(module).app, name=name)


def _failed(error: BaseException, code: int, *, as_json: bool, own_flags: bool = False) -> int:
    """Say it. own_flags: the command's flags are named as the library's options are."""
    format_message = getattr(error, "format_message", None)
    sentence = format_message() if format_message is not None else str(error)
    if isinstance(error, VectorIndexError | DecoderError) and own_flags:
        sentence = in_flags(sentence)
    if as_json:
        print_json({"error": sentence, "kind": type(error).__name__})
    else:
        complain(f"fullview: {sentence}", style="red")
    return code


def complain(sentence: str, *, style: str | None = None) -> None:
    """A line on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(sentence, markup=False, style=style)


def _plain(value: Any) -> Any:
    """What json does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


app.command("serve")(serve_command)
app.add_typer(config_app, name="config")

if __name__ == "__main__":
    sys.exit(main())
