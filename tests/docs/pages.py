"""What the tests of documents share: pages, the blocks in them, and names that they mention as `path.py::name`."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def page(name: str) -> str:
    """A document's text; name: its path inside the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of a language ("" for none)."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [content for found, content in fences if found == language]


def section(text: str, heading: str) -> str:
    """What stands below `## heading`, up to the next one."""
    return re.split(rf"^## {re.escape(heading)}$", text, flags=re.M)[1].split("\n## ", 1)[0]


def thing_named(path: str, name: str) -> object:
    """`index/search.py`, `OpenIndex.search` -> that function. Raises AttributeError where it is not there."""
    found: object = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
    return found


def things_named_in(text: str) -> list[tuple[str, str]]:
    """(path, name) of every `path.py::name`."""
    return re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
