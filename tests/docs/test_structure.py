"""docs/structure.md names what is there: files, folders, functions, phases, packages and their layers."""

from __future__ import annotations

import re
import tomllib

import pytest
from pages import REPOSITORY, page, section, thing_named, things_named_in

from index.progress import PHASES

PAGE = page("docs/structure.md")


def table(text: str) -> list[list[str]]:
    """Cells of the rows of a section's table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_files_and_folders_that_are_named_exist():
    named = re.findall(r"`((?:index|decoder|service|tests)/[\w/]*(?:\.py)?)(?:::[\w.]+)?`", PAGE)
    assert len(named) > 40
    assert not [path for path in named if not (REPOSITORY / path).exists()]


@pytest.mark.parametrize(("path", "name"), things_named_in(PAGE))
def test_functions_that_are_named_exist(path, name):
    assert callable(thing_named(path, name))


@pytest.mark.parametrize("package", ["index", "service"])
def test_every_subpackage_has_its_row(package):
    folders = {path.parent.name for path in (REPOSITORY / package).glob("*/__init__.py")}
    missing = {name for name in folders if f"`{package}/{name}/`" not in section(PAGE, package)}
    assert not missing


def test_phases_are_those_of_a_build_in_order():
    named = [row[0].split(",")[0] for row in table(section(PAGE, "How a build flows"))]
    assert tuple(named) == PHASES


def test_layers_are_those_that_are_checked():
    contracts = tomllib.loads(page("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert [row[0].strip("`") for row in table(section(PAGE, "Layers"))] == layers
