"""fullview doctor: findings about the machine and a folder, with and without fio."""

from __future__ import annotations

import json

from service import cli


def run(capsys, *arguments):
    code = cli.main(["doctor", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_doctor(tmp_path, capsys):
    code, out, _ = run(capsys, tmp_path, "--size-mb", 16, "--seconds", 0.05, "--json")
    assert code == 0
    findings = json.loads(out)
    assert findings["io_mode"] in {"linux_aio", "threads", "buffered"}
    assert findings["cores"] >= 1
    assert findings["percent_of_yardstick"] > 0
    assert {way["way"] for way in findings["reads"][1:]} == {"linux_aio", "threads", "buffered"}
    assert list(tmp_path.iterdir()) == []
    code, _, err = run(capsys, tmp_path / "none")
    assert code == 1
    assert "none" in err


def test_doctor_without_fio(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    code, out, _ = run(capsys, tmp_path, "--size-mb", 16, "--seconds", 0.05)
    assert code == 0
    assert "plain threads" in out
    assert "% of the yardstick's" in out
