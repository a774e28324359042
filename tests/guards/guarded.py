"""What the guards look at: the modules of the project, parsed once, and the list of today's violators.

modules(*folders)   parsed Python files of these folders of the repository
ratchet(rule)       names that may break this rule today (tests/guards/ratchet.json)
require(...)        fails for a violator that is not listed, and for a listed name that violates no more
"""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("index", "decoder", "service")

# Its making of the data sets is kept as it was when they were made; pyproject.toml leaves it out of ruff for the same reason.
FOREIGN = {"scripts/fetch_data.py"}


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file: its path inside the repository, its text and its tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """The name to import it by."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def functions(self) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """(path:Class.function, node) of every function, nested ones too."""
        yield from _functions(self.tree, self.path + ":")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


@cache
def _parsed(path: Path) -> Module:
    text = path.read_text(encoding="utf-8")
    return Module(path.relative_to(REPOSITORY).as_posix(), text, ast.parse(text))


def modules(*folders: str) -> list[Module]:
    """Parsed Python files below these folders, in order of path."""
    paths = sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))
    found = [_parsed(path) for path in paths if "__pycache__" not in path.parts]
    return [module for module in found if module.path not in FOREIGN]


@cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git tracks; where this is no checkout, every file that is not hidden or made."""
    listed = subprocess.run(["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        paths = [REPOSITORY / name for name in listed.stdout.decode().split("\0") if name]
        return tuple(path for path in paths if path.is_file())
    made = {"__pycache__", "build", "dist"}
    return tuple(
        path
        for path in sorted(REPOSITORY.rglob("*"))
        if path.is_file()
        and not any(part in made or part.startswith(".") for part in path.relative_to(REPOSITORY).parts[:-1])
    )


def ratchet(rule: str) -> set[str]:
    """Names that may break the rule today."""
    return set(json.loads((REPOSITORY / "tests" / "guards" / "ratchet.json").read_text())[rule])


def require(rule: str, violators: dict[str, object]) -> None:
    """Fail unless the violators are the listed ones. violators: name -> what is wrong with it."""
    listed = ratchet(rule)
    new = {name: what for name, what in violators.items() if name not in listed}
    assert not new, f"{rule}: {new}. Mend these; the list in ratchet.json may only get shorter."
    mended = sorted(listed - violators.keys())
    assert not mended, f"{rule}: {mended} break this rule no more. Take them out of ratchet.json."
