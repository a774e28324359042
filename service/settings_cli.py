"""`fullview serve` and `fullview config show`. Every field of Settings is a flag, made from that table."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table

from service.settings import Settings, load_settings, origins

config_app = typer.Typer(help="Settings: what they are and where they come from.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Settings file; default: fullview.toml where it is.")
]


def with_setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one flag more for each field of Settings; `flags` gets those that were given."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    made = [_flag_of(name) for name in Settings.model_fields]

    def run(**given: Any) -> None:
        command(flags={name: given.pop(name) for name in Settings.model_fields}, **given)

    run.__signature__ = inspect.Signature([*own, *made])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *made)}
    run.__doc__ = command.__doc__
    return run


def _serve(*, flags: dict[str, Any], config: _ConfigFile = None, as_json: _Json = False) -> None:
    """Serve collections over HTTP until SIGTERM, which drains."""
    loaded = load_settings(flags, config_file=config)
    from service.serve import serve

    def announce(url: str) -> None:
        folder = loaded.values.data_dir
        text = json.dumps({"url": url, "data_dir": str(folder)}) if as_json else f"fullview serves {url} from {folder}"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    raise typer.Exit(serve(loaded.values, announce=announce))


def _show(*, flags: dict[str, Any], config: _ConfigFile = None, as_json: _Json = False) -> None:
    """All settings: value, and whether it came from a flag, the environment, the file, or is the default."""
    rows = origins(load_settings(flags, config_file=config))
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table("setting", "value", "from", "meaning")
    for row in rows:
        table.add_row(row["name"], "" if row["value"] is None else str(row["value"]), row["origin"], row["help"])
    Console().print(table)


def _flag_of(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)] or [field.annotation]
    kind = str if kinds[0] is SecretStr else kinds[0]
    flag = name.replace("_", "-")
    option = typer.Option(
        f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
        help=field.description,
        show_default=str(field.default) if field.default is not None else False,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


serve_command = with_setting_flags(_serve)
config_app.command("show")(with_setting_flags(_show))


@config_app.callback()
def _config() -> None:
    """Keeps `show` a command of its own."""
