"""Limits that are otherwise only written down: sizes, booleans, docstrings, `__all__`. Violators are listed by name."""

from __future__ import annotations

import ast
import importlib
import json
import re
import statistics

import pytest
from guarded import PACKAGES, REPOSITORY, Module, modules, require

FILE_LINES = 500
FUNCTION_LINES = 70
FILE_LINES_MEDIAN = 250
"""Above the 150 that is aimed at: the median may wander, but not far."""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def positional_booleans(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Parameters that may be given by position and are booleans by annotation or default."""
    arguments = function.args.posonlyargs + function.args.args
    defaults = [None] * (len(arguments) - len(function.args.defaults)) + list(function.args.defaults)
    found = []
    for argument, default in zip(arguments, defaults):
        annotated = argument.annotation is not None and re.search(r"\bbool\b", ast.unparse(argument.annotation))
        defaulted = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        if (annotated and "Callable" not in ast.unparse(argument.annotation)) or defaulted:
            found.append(argument.arg)
    return found


def test_no_file_is_longer_than_500_lines():
    lengths = {module.path: module.text.count("\n") for module in modules(*PACKAGES, "tests", "scripts")}
    require("file_lines", {path: length for path, length in lengths.items() if length > FILE_LINES})


def test_files_are_short_on_the_whole():
    lengths = [module.text.count("\n") for module in modules(*PACKAGES) if module.text.strip()]
    assert statistics.median(lengths) <= FILE_LINES_MEDIAN


def test_no_function_body_is_longer_than_70_lines():
    lengths = {
        name: body_lines(node) for module in modules(*PACKAGES, "tests", "scripts") for name, node in module.functions()
    }
    require("function_lines", {name: length for name, length in lengths.items() if length > FUNCTION_LINES})


def test_booleans_are_keyword_only():
    found = {
        name: positional_booleans(node)
        for module in modules(*PACKAGES, "scripts")
        for name, node in module.functions()
        # The other operand of an operator comes by position, and a setter's value has no keyword.
        if not name.rsplit(".", 1)[-1].startswith("__") and not is_setter(node)
    }
    require("positional_booleans", {name: arguments for name, arguments in found.items() if arguments})


def is_setter(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in function.decorator_list)


def test_every_module_opens_with_a_docstring():
    everything = modules(*PACKAGES, "tests", "scripts")
    missing = {module.path: "no docstring" for module in everything if not ast.get_docstring(module.tree)}
    require("module_docstrings", missing)


def test_tests_of_a_module_are_easy_to_find():
    """Some test file bears its name or its subpackage's (test_sources_formats.py), or imports it by its full name."""
    tests = modules("tests")
    stems = [module.path.rsplit("/", 1)[1].removesuffix(".py") + "_" for module in tests]
    text = "\n".join(module.text for module in tests)
    lost = {}
    for module in modules(*PACKAGES):
        parts = module.name.split(".")
        named = any(f"_{part}_" in stem for part in parts[1:] for stem in stems)
        parent = re.escape(".".join(parts[:-1]))
        imported = rf"{re.escape(module.name)}\b|from {parent} import [^\n]*\b{parts[-1]}\b"
        if not module.path.endswith("__init__.py") and not named and not re.search(imported, text):
            lost[module.path] = "no test file of that name, and none imports it"
    require("tests_hard_to_find", lost)


def modules_with_all() -> list[Module]:
    return [
        module
        for module in modules(*PACKAGES)
        if any(isinstance(t, ast.Name) and t.id == "__all__" for n in module.tree.body for t in targets_of(n))
    ]


def targets_of(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def public_names(module: Module) -> set[str]:
    """Public classes and functions that the module defines; for a package, also what it takes from this project."""
    names = {
        node.name
        for node in module.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    }
    if module.path.endswith("__init__.py"):
        for node in module.tree.body:
            if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] in PACKAGES):
                names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("module", modules_with_all(), ids=lambda module: module.name)
def test_all_is_what_is_there(module):
    loaded = importlib.import_module(module.name)
    assert len(set(loaded.__all__)) == len(loaded.__all__), "a name stands twice"
    assert not [name for name in loaded.__all__ if not hasattr(loaded, name)], "named but not there"
    assert not public_names(module) - set(loaded.__all__), "public but not named"


def test_the_list_of_violators_is_sorted_and_names_files_that_exist():
    listed = json.loads((REPOSITORY / "tests" / "guards" / "ratchet.json").read_text())
    for rule, names in listed.items():
        assert names == sorted(set(names)), rule
        for name in names:
            assert (REPOSITORY / name.split(":")[0]).is_file(), name
