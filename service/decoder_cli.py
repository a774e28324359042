"""`fullview decoder`: build a decoder from an output layer, ask it, look at it. --json speaks to machines.

Exit codes are those of service/cli.py.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from decoder.errors import DecoderOptionsError
from decoder.options import DecoderOptions
from index.errors import BuildCancelledError
from service.build_progress import BuildProgressBar
from service.flags import in_flags
from service.stopping import BuildStoppedError, stop_on_signals

BUILD_DEFAULT: dict[str, Any] = {field.name: field.default for field in fields(DecoderOptions)}

app = typer.Typer(
    name="decoder",
    help="Next tokens of a language model without the full softmax.",
    no_args_is_help=True,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DecoderFolder = Annotated[Path, typer.Argument(help="Folder of a decoder.")]


@app.callback()
def decoder() -> None:
    """Next tokens of a language model without the full softmax."""


@app.command("build")
def build_command(
    layer: Annotated[str, typer.Argument(help="Output layer: .npy, .safetensors, .gguf, or a model's folder.")],
    out: Annotated[Path, typer.Argument(help="Folder that the decoder becomes.")],
    *,
    tensor: Annotated[str | None, typer.Option(help="Which tensor is the weight.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="What the 16-bit integers of a .npy file hold: bfloat16 or float16.")
    ] = None,
    bias: Annotated[Path | None, typer.Option(help="File of the bias; default: the layer's own.")] = None,
    scale: Annotated[float | None, typer.Option(help="Factor of logits; default: the model's, else 1.")] = None,
    softcap: Annotated[float | None, typer.Option(help="Soft-cap of logits; default: the model's, else none.")] = None,
    vocab_size: Annotated[
        int | None, typer.Option(help="Rows that are tokens; default: the model's, else all.")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="File of real hidden states, which shape the decoder.")
    ] = None,
    recall: Annotated[float, typer.Option(help="Recall of the best tokens to promise.")] = BUILD_DEFAULT["recall"],
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = BUILD_DEFAULT["seed"],
    threads: Annotated[int | None, typer.Option(help="Threads; default: one for each core.")] = BUILD_DEFAULT[
        "threads"
    ],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a decoder that is at OUT.")] = False,
    as_json: Json = False,
) -> None:
    """Build a decoder from an output layer. Ctrl-C and SIGTERM cancel it and leave nothing behind."""
    from decoder import OutputLayer, build_decoder
    from service.decoder_tables import print_report, shortfalls

    options = DecoderOptions(recall=recall, seed=seed, threads=threads)
    with stop_on_signals() as stop, BuildProgressBar() as progress:
        try:
            report = build_decoder(
                OutputLayer.load(
                    layer,
                    tensor=tensor,
                    dtype=dtype,
                    bias=bias,
                    scale=scale,
                    softcap=softcap,
                    vocab_size=vocab_size,
                ),
                out,
                calibration=calibration,
                options=options,
                on_progress=progress.show,
                cancel=stop,
                replace=replace,
            ).to_dict()
        except BuildCancelledError as error:
            raise BuildStoppedError(str(error), stop.exit_code) from None
    if as_json:
        _print_json(report)
    else:
        print_report(out, report)
    for sentence in shortfalls(report["promise"], report["curve"], calibration_states=report["calibration_states"]):
        _warn(sentence)


@app.command("topk")
def topk_command(
    folder: DecoderFolder,
    hidden: Annotated[str, typer.Argument(help="File of hidden states.")],
    *,
    k: Annotated[int, typer.Option("-k", help="Tokens a state.")] = 10,
    first: Annotated[int | None, typer.Option(help="Only the first so many states.")] = None,
    normalize: Annotated[str, typer.Option(help="estimate, topk, exact or none.")] = "estimate",
    mode: Annotated[str, typer.Option(help="auto, walk, screen or exact.")] = "auto",
    recall: Annotated[float | None, typer.Option(help="Another recall than was promised.")] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="ID:NUMBER, added to that token's logit; may be given often.")
    ] = None,
    allowed: Annotated[list[int] | None, typer.Option(help="Only this token; may be given often.")] = None,
    banned: Annotated[list[int] | None, typer.Option(help="Not this token; may be given often.")] = None,
    logprobs: Annotated[str, typer.Option(help="raw, or processed: after constraints.")] = "raw",
    on_bad: Annotated[str, typer.Option(help="What a state with NaN does: fail or mark.")] = "fail",
    threads: Annotated[int, typer.Option(help="Threads.")] = 1,
    words: Annotated[
        Path | None, typer.Option(help="Words of the tokens: a list of strings, a tokenizer.json, a model's folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The best tokens of the hidden states in a file; --json prints one object a state."""
    from decoder import open_decoder
    from decoder.constraints import Constraints
    from service.decoder_tables import print_tokens, tokens_of
    from service.decoder_words import lack_of, words_of
    from service.query_files import read_queries

    biases = None if logit_bias is None else dict(map(_bias_of, logit_bias))
    with open_decoder(folder) as head:
        known = None if words is None else words_of(words, tokens=head.vocab_size)
        found = head.topk(
            read_queries(hidden, first=first),
            k=k,
            normalize=normalize,
            mode=mode,
            recall=recall,
            constraints=Constraints(logit_bias=biases, allowed=allowed, banned=banned),
            logprobs=logprobs,
            on_bad=on_bad,
            threads=threads,
        )
    rows = tokens_of(found, words=known, normalized=normalize != "none")
    if as_json:
        for row in rows:
            _print_json(row, indent=None)
    else:
        print_tokens(rows, found.mode)
    lack = None if words is None or known is None else lack_of(words.name, known, head.vocab_size)
    if lack is not None:
        _warn(lack)


@app.command("inspect")
def inspect_command(folder: DecoderFolder, *, as_json: Json = False) -> None:
    """What a decoder is: layer, recall promised and measured, bytes, how it answers."""
    from decoder import open_decoder
    from service.decoder_tables import print_inspection, shortfalls

    with open_decoder(folder) as head:
        stats, report = head.stats(), head.parts.report
    if as_json:
        _print_json(stats)
    else:
        print_inspection(folder, stats, report)
    known = report.get("calibration_states")
    for sentence in shortfalls(stats["promise"], stats["operating_points"], calibration_states=known):
        _warn(sentence)


def _bias_of(text: str) -> tuple[int, float]:
    token_id, colon, bias = text.partition(":")
    try:
        if colon:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise DecoderOptionsError(f"logit_bias is {text!r}, needed a token id, a colon and a number, such as 17:-100")


def _warn(sentence: str) -> None:
    from service.cli import complain  # which loads this module

    complain(f"fullview: {in_flags(sentence)}", style="yellow")


def _print_json(value: Any, *, indent: int | None = 2) -> None:
    from service.cli import print_json  # which loads this module

    print_json(value, indent=indent)
