"""Which files a source's path means, and in which order.

A file is itself. A folder is its files of a known format; a pattern (`wiki/*.parquet`, `**` for subfolders) is the
files that it matches. Order is natural: shard-2 before shard-10. Hidden files and files whose suffix no reader knows
(README, manifest.json, _SUCCESS, checksums) lie beside vectors everywhere, so they are passed over; two known formats
in one folder are refused, because one of them is then hardly meant.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from index.errors import SourceError
from index.sources.registry import FORMATS, Format, format_of
from index.sources.sniff import looks_like

_PATTERNS = ", ".join(f"*{suffix}" for each in FORMATS for suffix in each.suffixes)


def locate(source: str | Path) -> tuple[list[Path], Format]:
    """The files of a source in natural order and their one format. At least one file."""
    path = Path(source)
    if path.is_file():
        return [path], _format_of_file(path)
    if path.is_dir():
        return _of_one_format([each for each in path.iterdir() if each.is_file()], f"folder {path}")
    if glob.has_magic(str(source)):
        matches = [Path(each) for each in glob.glob(str(source), recursive=True)]  # noqa: PTH207 (absolute patterns)
        return _of_one_format([each for each in matches if each.is_file()], f"pattern {source}")
    raise SourceError(f"{path}: there is no such file or folder.")


def natural_key(path: Path) -> list[tuple[int, int, str]]:
    """Sorts runs of digits by value: a2 before a10. Ties (a02, a2) by spelling."""
    pieces = re.split(r"([0-9]+)", str(path))
    key = [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces if piece]
    return [*key, (2, 0, str(path))]


def _format_of_file(path: Path) -> Format:
    found = format_of(path)
    if found is None:
        guess = looks_like(path)
        looks = f" It looks like {guess}: rename it." if guess else ""
        suffix = repr(path.suffix) if path.suffix else "missing"
        raise SourceError(f"{path}: the suffix is {suffix}, needed one of {_PATTERNS}.{looks}")
    return found


def _of_one_format(files: list[Path], place: str) -> tuple[list[Path], Format]:
    by_format: dict[str, list[Path]] = {}
    for path in files:
        found = format_of(path)
        if found is not None and not path.name.startswith("."):
            by_format.setdefault(found.name, []).append(path)
    if not by_format:
        raise SourceError(
            f"{place}: no file of vectors there; tried {_PATTERNS}. {len(files)} other files were passed over. "
            "Subfolders are searched only by a pattern such as 'folder/**/*.parquet'."
        )
    if len(by_format) > 1:
        kinds = "; ".join(f"{name} ({paths[0].name}, {len(paths)} in all)" for name, paths in sorted(by_format.items()))
        raise SourceError(f"{place}: holds more than one format: {kinds}. Choose one, for example with '*.npy'.")
    paths = sorted(next(iter(by_format.values())), key=natural_key)
    return paths, _format_of_file(paths[0])
