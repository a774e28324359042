"""What the command line prints of decoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fake_decoder import FakeHead, write_fake_decoder

from service.decoder_tables import print_inspection, print_report, print_tokens, shortfalls, tokens_of


def answer(tmp_path, **options):
    write_fake_decoder(tmp_path / "d", [[1.0], [0.0], [-1.0], [-2.0]])
    return FakeHead(tmp_path / "d").topk(np.array([[1.0], [np.nan]], np.float32), k=3, on_bad="mark", **options)


def test_tokens_are_json(tmp_path):
    good, bad = tokens_of(answer(tmp_path), words=["a", "b"], normalized=True)
    assert (good["state"], good["token_ids"], good["tokens"]) == (0, [0, 1, 2], ["a", "b", "<2>"])
    assert (good["mode"], good["exact"], good["rows_scored"], good["failed"]) == ("exact", True, 4, False)
    assert (bad["token_ids"], bad["failed"], bad["logprob_stderr"]) == ([], True, None)


def test_a_line_a_token(tmp_path, capsys):
    rows = tokens_of(answer(tmp_path, normalize="none"), words=None, normalized=False)
    assert "logprobs" not in rows[0]
    print_tokens(rows, "walk")
    out = capsys.readouterr().out
    assert "1.0000" in out and "NaN or infinity" in out and "2 states, mode walk, 4 rows scored a state" in out
    print_tokens(rows[:1], "walk")
    assert "1 state, mode walk" in capsys.readouterr().out


def point(mode="walk", width=64, recall=0.995, low=0.992):
    return {
        "mode": mode, "width": width, "recall": {"1": 1.0, "10": recall, "100": 0.98},
        "low": {"1": 0.99, "10": low, "100": 0.97},
        "rows_scored": 1234.5, "logprob_error": 0.0031, "interval": 1.0, "half_width": 0.01,
    }  # fmt: skip


POINTS = [point(width=32, recall=0.9, low=0.88), point(), point("screen", 512, 0.97, 0.96)]
PROMISE = {
    "recall": 0.99, "logprob_error": 0.004, "covers": "states like these",
    "points": {
        "walk": {"width": 64, "reached": True, "recall": {"10": 0.995}},
        "screen": {"width": 512, "reached": False, "recall": {"10": 0.97}},
    },
}  # fmt: skip
MEMORY = {"layer": 2_500_000, "lead_codes": 400_000}
SIZE = {"vocab_size": 1000, "dim": 8, "dtype": "bfloat16"}


def lines_of(capsys):
    """Lines of what was printed, with single spaces."""
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_the_report_of_a_build(capsys):
    report = SIZE | {
        "seconds": 1.25, "phases": {"answers": 0.26, "graph": 1.0}, "calibration_states": 1400, "links": "graph",
        "rows_scored_by_variant": {"graph": 12010.0}, "resident_bytes": MEMORY, "peak_bytes": 51_800_000, "promise": PROMISE,
        "curve": POINTS,
    }  # fmt: skip
    print_report(Path("out"), report)
    lines = lines_of(capsys)
    for line in (
        "out: 1,000 tokens of dimension 8 (bfloat16), built in 1.2 s",
        "calibration 1,400 states",
        "links kept graph (rows scored a state: graph 12,010)",
        "seconds answers 0.3, graph 1.0",
        "memory, layer 2.5 MB",
        "memory, lead codes 0.4 MB",
        "memory in all 2.9 MB",
        "promised recall@10 of 0.99",
        "promise, walk reached: 0.9950 (at least 0.9920) at width 64",
        "promise, screen not reached: 0.9700 (at least 0.9600) at width 512",
        "│ walk │ 64 │ 1.0000 │ 0.9950 │ 0.9800 │ 1,234 │ 0.0031 │ * │",
        "│ walk │ 32 │ 1.0000 │ 0.9000 │ 0.9800 │ 1,234 │ 0.0031 │ │",
    ):
        assert line in lines, lines
    print_report(Path("out"), report | {"calibration_states": 0, "promise": PROMISE | {"points": {}}, "curve": []})
    lines = lines_of(capsys)
    assert "calibration no states were given" in lines
    assert "promised recall@10 of 0.99: every answer is exact" in lines
    assert not any("operating points" in line for line in lines)


def test_an_inspection(capsys):
    timings = {
        "machine": "m", "walk": [[32, 1.0, 19.7], [64, 2.0, 33.3]], "screen": [], "exact": [[1, 81.4], [64, 21.0]],
    }  # fmt: skip
    stats = SIZE | {
        "scale": 1.0, "softcap": None, "width": 8, "lead": 64, "degree": 40, "resident_bytes": MEMORY,
        "disk_bytes": 3_000_000,
        "promise": PROMISE, "operating_points": POINTS, "timings": timings, "weights_hash": "abc", "seed": 7,
        "created_at": "today", "format_version": 1,
    }  # fmt: skip
    print_inspection(Path("d"), stats, {"calibration_states": 1400, "links": "graph"})
    lines = lines_of(capsys)
    for line in (
        "d: 1,000 tokens of dimension 8 (bfloat16)",
        "logits scale 1, no soft-cap",
        "calibration 1,400 states",
        "links 40 a token, graph",
        "disk 3.0 MB",
        "time of a state walk 20 to 33 μs, exact 81 μs alone, 21 μs among 64 (m)",
        "│ screen │ 512 │ 1.0000 │ 0.9700 │ 0.9800 │ 1,234 │ 0.0031 │ * │",
    ):
        assert line in lines, lines
    print_inspection(Path("d"), stats | {"softcap": 30.0}, {})
    lines = lines_of(capsys)
    assert "logits scale 1, soft-cap 30" in lines and "links 40 a token" in lines


def test_what_was_not_reached_is_said():
    missed, made_up = shortfalls(PROMISE, POINTS, calibration_states=0)
    assert (
        "recall of 0.99 that was promised was not reached by mode screen, measured 0.9700 (at least 0.9600)." in missed
    )
    assert "no calibration states" in made_up and "--calibration" in made_up
    assert shortfalls(PROMISE, POINTS, calibration_states=None) == [missed] and "More" not in missed
    few = PROMISE | {"points": {"walk": {"width": 64, "reached": False, "recall": {"10": 0.995}}}}
    assert "More calibration states" in shortfalls(few, POINTS, calibration_states=200)[0]
    assert shortfalls(PROMISE | {"points": {}}, [], calibration_states=0) == []
