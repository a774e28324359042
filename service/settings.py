"""Settings of the service: one table of names, defaults and help, read from flags, environment, file and defaults.

load_settings()   flags > FULLVIEW_* > fullview.toml > defaults; an unknown name anywhere is an error
origins()         where each value came from, secrets masked (what `fullview config show` prints)

Invariant: a default stands in Settings and nowhere else; docs/operations.md is tested against it.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

ENVIRONMENT_PREFIX = "FULLVIEW_"
CONFIG_FILE = "fullview.toml"

# Read by other parts of the program than Settings, so they are no mistakes.
_OTHER_VARIABLES = {"FULLVIEW_CONFIG"}

REMOVED: dict[str, str] = {}
"""Names of settings that no longer exist, with what to do."""


class SettingsError(Exception):
    """A setting that does not exist, does not parse, or does not go with another one."""


class Settings(BaseSettings):
    """Everything that may be set for `fullview serve`. Every field is a flag, a variable and a key of fullview.toml."""

    # pydantic's own sources are switched off below: load_settings() merges, so that an origin is known for each value.
    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    host: str = Field("127.0.0.1", description="Address to listen on. Any other than loopback needs api_key.")
    port: int = Field(6333, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    data_dir: Path = Field(
        Path("fullview-data"), description="Folder of collections, decoders, jobs, uploads and the catalogue."
    )
    import_root: Path | None = Field(
        None, description="The only folder that builds may read. Default: `import` inside data_dir."
    )
    api_key: SecretStr | None = Field(
        None, min_length=1, description="Key that every request must carry, but those of health routes."
    )
    metrics_open: bool = Field(default=False, description="Answer /metrics without the key.")
    threads: int | None = Field(None, ge=1, description="Threads that search. Default: one for each core.")
    io_mode: str = Field(
        "auto",
        pattern="^(auto|linux_aio|threads|buffered)$",
        description="How pages are read: linux_aio, threads, buffered, or auto: the first of these that works.",
    )
    body_limit_mb: float = Field(
        32.0, gt=0, description="Largest body of a request, in MB (10^6 bytes); more gets 413."
    )
    upload_limit_mb: float = Field(100_000.0, gt=0, description="Largest upload, in MB; more gets 413.")
    query_batch_max: int = Field(1024, ge=1, description="Queries or hidden states in one request; more get 413.")
    query_limit_max: int = Field(100_000, ge=1, description="Largest offset + limit of a request; more gets 422.")
    decoder_k_max: int = Field(10_000, ge=1, description="Largest k of a request to a decoder; more gets 422.")
    logprobs_max: int = Field(
        20, ge=0, description="Most candidates that completions name for a token (logprobs, top_logprobs)."
    )
    completion_tokens_max: int = Field(
        4096,
        ge=1,
        description="Most tokens that a completion may ask for; a chat that asks for none gets up to so many.",
    )
    completions_parallel: int = Field(
        8, ge=1, description="Completions under way at once, each with the memory of its context; others wait."
    )
    preload_models: bool = Field(
        default=True,
        description="Load the models that completions run in the background; else the first completion loads them.",
    )
    delta_memory_mb: float = Field(
        512.0,
        gt=0,
        description="Most memory, in MB, of points that are not in their collection's generation yet; 503 then.",
    )
    compact_rows: int = Field(
        20_000,
        ge=1,
        description="A collection is compacted when so many of its points changed since its generation, ...",
    )
    compact_share: float = Field(
        0.1, gt=0, le=1, description="... and that share of them: the larger of the two counts."
    )
    compact_auto: bool = Field(default=True, description="Compact without being asked to.")
    query_timeout_s: float = Field(30.0, gt=0, description="Seconds after which a request is given up with 408.")
    completion_timeout_s: float = Field(600.0, gt=0, description="The same for completions and chats.")
    builds_parallel: int = Field(1, ge=1, description="Builds that run at once; others are queued.")
    drain_s: float = Field(60.0, ge=0, description="Seconds that running requests get to finish after SIGTERM.")
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="debug, info, warning or error; logs go to stderr."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: the environment is merged by load_settings()."""
        return (init_settings,)

    @property
    def import_folder(self) -> Path:
        """The folder that builds may read."""
        return self.import_root if self.import_root is not None else self.data_dir / "import"

    @property
    def search_threads(self) -> int:
        """Threads of the search pool."""
        return self.threads if self.threads is not None else len(os.sched_getaffinity(0))

    @property
    def delta_bytes(self) -> int:
        """Most memory of a delta."""
        return int(self.delta_memory_mb * 1e6)

    @property
    def body_limit_bytes(self) -> int:
        """Largest body of an ordinary request."""
        return int(self.body_limit_mb * 1e6)

    @property
    def upload_limit_bytes(self) -> int:
        """Largest body of an upload."""
        return int(self.upload_limit_mb * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """Settings, and for each name where its value came from: flag, environment, file or default."""

    values: Settings
    origin: dict[str, str]


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> LoadedSettings:
    """Merge flags, environment, file and defaults, in this order of strength.

    flags: name -> value, None where a flag was not given. config_file: None takes fullview.toml of the working folder
    if it is there. Raises SettingsError naming what is unknown or wrong, and where it was set.
    """
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    origin = dict.fromkeys(Settings.model_fields, "default")
    file = _file_of(config_file, environment)
    for source, found in (
        (str(file), _from_file(file)),
        ("environment", _from_environment(environment)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        _require_known(found, source)
        values |= found
        origin |= dict.fromkeys(found, source)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError(_sentence(error, origin)) from None
    _require_key_off_loopback(settings)
    return LoadedSettings(values=settings, origin=origin)


def origins(loaded: LoadedSettings) -> list[dict[str, Any]]:
    """One dict a setting: name, value (secrets masked), origin, help."""
    rows = []
    for name, field in Settings.model_fields.items():
        value = getattr(loaded.values, name)
        if isinstance(value, SecretStr):
            value = "********"
        elif isinstance(value, Path):
            value = str(value)
        rows.append({"name": name, "value": value, "origin": loaded.origin[name], "help": field.description})
    return rows


def is_loopback(host: str) -> bool:
    """True where nothing but this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _file_of(config_file: Path | None, environment: Mapping[str, str]) -> Path | None:
    named = config_file or (Path(environment["FULLVIEW_CONFIG"]) if environment.get("FULLVIEW_CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise SettingsError(f"The settings file {named} is not there. Name a file that exists, or leave it out.")
        return named
    return Path(CONFIG_FILE) if Path(CONFIG_FILE).is_file() else None


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} is no valid TOML: {error}. Mend that line.") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _OTHER_VARIABLES
    }


def _require_known(found: Mapping[str, Any], source: str) -> None:
    for name in found:
        if name in REMOVED:
            raise SettingsError(REMOVED[name])
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=1)
            hint = f"Did you mean {near[0]}?" if near else "`fullview config show` lists all settings."
            shown = f"{ENVIRONMENT_PREFIX}{name.upper()}" if source == "environment" else name
            raise SettingsError(f"Unknown setting {shown} (from {source}). {hint}")


def _sentence(error: ValidationError, origin: Mapping[str, str]) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    came = "" if name == "api_key" else f" is {first.get('input')!r}"
    return f"Setting {name} (from {origin.get(name, 'flag')}){came}: {first['msg']}. {_help_of(name)}".strip()


def _help_of(name: str) -> str:
    field = Settings.model_fields.get(name)
    return field.description or "" if field is not None else ""


def _require_key_off_loopback(settings: Settings) -> None:
    if settings.api_key is None and not is_loopback(settings.host):
        raise SettingsError(
            f"host is {settings.host}, which other machines can reach, and no api_key is set. "
            "Set FULLVIEW_API_KEY, or listen on 127.0.0.1."
        )
