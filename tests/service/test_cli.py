"""The command line: output for people and machines, exit codes, progress only on a terminal."""

from __future__ import annotations

import inspect
import io
import json
import shutil

import numpy as np
import pytest
from rich.console import Console

from index import build, open_index
from index.errors import OptionsError
from index.options import BuildOptions
from index.progress import BuildProgress
from service import cli
from service.build_progress import BuildProgressBar
from service.query_files import read_queries
from service.settings import Settings
from service.settings_cli import with_setting_flags
from service.tables import hits_of, print_hits


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """a.npy: 300 rows of 8; index: built from it."""
    place = tmp_path_factory.mktemp("cli")
    np.save(place / "a.npy", np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32))
    assert cli.main(["build", str(place / "a.npy"), str(place / "index"), "--seed", "3", "--json"]) == 0
    return place


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_build_json(folder, capsys):
    code, out, err = run(capsys, "build", folder / "a.npy", folder / "again", "--json", "--metric", "l2", "--bits", "4")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["rows"], report["metric"], report["bits"]) == (300, "l2", 4)


def test_build_for_people(folder, capsys):
    code, out, err = run(capsys, "build", folder / "a.npy", folder / "index", "--replace")
    assert (code, err) == (0, "")
    assert "300 rows of dimension 8" in out
    assert "recall@10" in out


def test_build_errors(folder, capsys):
    code, out, err = run(capsys, "build", folder / "a.npy", folder / "index")
    assert (code, out) == (1, "")
    assert "index" in err
    code, out, _ = run(capsys, "build", folder / "none.npy", folder / "x", "--json")
    assert code == 1
    assert json.loads(out)["kind"] == "SourceError"
    code, _, err = run(capsys, "build", folder / "a.npy", folder / "x", "--metric", "manhattan")
    assert code == 2
    assert "manhattan" in err
    code, _, err = run(capsys, "build", folder / "a.npy", folder / "x", "--sed", "1")
    assert code == 2
    assert "--sed" in err
    assert not (folder / "x").exists()


def test_defaults_are_those_of_the_options(folder, capsys):
    for name, default in cli.BUILD_DEFAULT.items():
        assert getattr(BuildOptions(), name) == default
    _, out, _ = run(capsys, "build", "--help")
    for name in cli.BUILD_DEFAULT:
        assert f"--{name.replace('_', '-')}" in out


def test_query(folder, capsys):
    code, out, _ = run(capsys, "query", folder / "index", folder / "a.npy", "-k", 3, "--first", 2, "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["ids"][0] for line in lines] == [0, 1]
    assert [len(line["ids"]) for line in lines] == [3, 3]
    assert lines[0]["scores"][0] == 1.0
    assert lines[0]["pages_read"] > 0
    code, out, _ = run(capsys, "query", folder / "index", folder / "a.npy", "--exact", "--first", 1)
    assert code == 0
    assert "1.000000" in out
    assert "1 query, " in out


def test_inspect(folder, capsys):
    code, out, _ = run(capsys, "inspect", folder / "index", "--json")
    assert code == 0
    assert json.loads(out)["stats"]["rows"] == 300
    code, out, _ = run(capsys, "inspect", folder / "index")
    assert code == 0
    assert "io_mode" in out
    code, _, err = run(capsys, "inspect", folder / "none")
    assert code == 1
    assert "none" in err


def test_check(folder, capsys, tmp_path):
    code, out, _ = run(capsys, "check", folder / "index")
    assert code == 0
    assert "as it was written" in out
    shutil.copytree(folder / "index", tmp_path / "index")
    vectors = tmp_path / "index" / "vectors.bin"
    content = bytearray(vectors.read_bytes())
    content[4096 + 7] ^= 1
    vectors.write_bytes(content)
    code, out, _ = run(capsys, "check", tmp_path / "index", "--json")
    assert code == 1
    (problem,) = json.loads(out)["problems"]
    assert "vectors.bin at byte 4,096 (page 1)" in problem
    code, _, err = run(capsys, "check", tmp_path / "index")
    assert code == 1
    assert "page 1" in err


def test_config_show(capsys, monkeypatch):
    monkeypatch.setenv("FULLVIEW_API_KEY", "very-secret")
    code, out, _ = run(capsys, "config", "show", "--port", 7, "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert (rows["port"]["value"], rows["port"]["origin"]) == (7, "flag")
    assert (rows["api_key"]["value"], rows["api_key"]["origin"]) == ("********", "environment")
    code, out, _ = run(capsys, "config", "show")
    assert code == 0
    assert "very-secret" not in out
    monkeypatch.setenv("FULLVIEW_PRT", "1")
    code, _, err = run(capsys, "config", "show")
    assert code == 2
    assert "FULLVIEW_PRT" in err


def test_serve_refuses_other_machines_without_a_key(capsys, tmp_path):
    code, _, err = run(capsys, "serve", "--host", "0.0.0.0", "--data-dir", tmp_path / "data")
    assert code == 2
    assert "api_key" in err
    assert not (tmp_path / "data").exists()


def test_help_and_nothing(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("build", "query", "inspect", "check", "doctor", "serve", "config"):
        assert command in out


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals_only(terminal):
    file = io.StringIO()
    with BuildProgressBar(Console(file=file, force_terminal=terminal, width=100)) as bar:
        bar.show(BuildProgress("graph", 1, 2, 1.0, 1.0))
        bar.show(BuildProgress("graph", 2, 2, 1.0, 0.0))
        bar.show_bytes(1, 1)
    assert ("graph" in file.getvalue()) == terminal


def test_every_setting_is_a_flag():
    made = inspect.signature(with_setting_flags(lambda *, flags: None)).parameters
    assert made.keys() == Settings.model_fields.keys()


def test_queries_from_a_file(folder):
    assert read_queries(str(folder / "a.npy")).shape == (300, 8)
    first = read_queries(str(folder / "a.npy"), first=7)
    assert (first.shape, first.dtype) == ((7, 8), np.float32)
    with pytest.raises(OptionsError, match="first"):
        read_queries(str(folder / "a.npy"), first=0)


def test_hits_with_payload(tmp_path, capsys):
    vectors = np.eye(3, dtype=np.float32)
    build(vectors, tmp_path / "index", ids=[1, "b", 2**64 - 1], payload=[{"t": "x"}, None, {"t": "z"}])
    with open_index(tmp_path / "index") as index:
        rows = hits_of(index, index.search(vectors, k=1), with_payload=True)
    assert [row["ids"] for row in rows] == [[1], ["b"], [2**64 - 1]]
    assert [row["payloads"] for row in rows] == [[{"t": "x"}], [None], [{"t": "z"}]]
    print_hits(rows, with_payload=True)
    assert str(2**64 - 1) in capsys.readouterr().out
