"""Documents speak of what is there: programs in them parse, the names they import exist, and so do the make targets."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from guarded import PACKAGES, REPOSITORY, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md" and "tests" not in path.parts]


def programs(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_programs_parse_and_import_names_that_exist(page):
    for program in programs(page):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                module = importlib.import_module(node.module)
                missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                assert not missing, f"{page.name}: {node.module} has no {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_make_targets_that_are_named_exist(page):
    targets = re.findall(r"^\.PHONY: (.+)$", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE)[0].split()
    named = re.findall(r"(?:`|^)(?:make|scripts/dev\.sh) ([a-z][a-z-]*)", page.read_text(), flags=re.MULTILINE)
    assert not set(named) - set(targets)
