"""The project's words: the glossary is complete, and no name in the code uses a synonym that it rules out."""

from __future__ import annotations

import ast
import re

from guarded import REPOSITORY, Module, modules, require

WORDS = (
    "collection point row generation delta preview code estimate candidate fullview page rerank beam hop list probe "
    "oracle walk screen exact"
).split()
PHRASES = ("operating point", "output layer", "hidden state", "calibration states")


def glossary() -> list[tuple[str, str, list[str]]]:
    """(word, meaning, names that are not used for it)."""
    rows = []
    for line in (REPOSITORY / "docs" / "glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] != "word":
            rows.append((cells[0], cells[1], [name.strip() for name in cells[2].split(",") if name.strip()]))
    return rows


def defined_names(module: Module) -> set[str]:
    """Classes, functions, parameters, fields and module constants that the module defines."""
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def words_of(name: str) -> str:
    """`NProbeLimit` and `nprobe_limit` as `_n_probe_limit_` and `_nprobe_limit_`."""
    return "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") + "_"


def test_the_glossary_has_every_word():
    words = {word for cell, _, _ in glossary() for word in cell.split(", ")}
    assert not [word for word in (*WORDS, *PHRASES) if word not in words]
    assert all(meaning for _, meaning, _ in glossary())


def test_no_synonym_names_anything():
    """Of the engines: the service also speaks the words of the interfaces that it is compatible with."""
    ruled_out = [synonym for _, _, synonyms in glossary() for synonym in synonyms]
    assert ruled_out
    found = {}
    for module in modules("index", "decoder"):
        for name in sorted(defined_names(module)):
            hits = [synonym for synonym in ruled_out if f"_{synonym}_" in words_of(name)]
            if hits:
                found[f"{module.path}:{name}"] = hits
    require("synonyms", found)
