"""What the command line prints of decoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fake_decoder import FakeHead, write_fake_decoder

from service.decoder_tables import print_inspection, print_report, print_tokens, tokens_of


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


def test_figures_are_shown_by_their_names(capsys):
    report = {
        "vocab_size": 1000, "dim": 8, "seconds": 1.25, "recall": 0.99, "disk_bytes": 2_500_000, "exact": None,
        "measured": {"top_1": 0.99512, "curve": [[1, 2]]}, "modes": ["walk", "screen"], "warnings": ["no calibration"],
    }  # fmt: skip
    print_report(Path("out"), report)
    out = capsys.readouterr().out
    assert "out: 1,000 tokens of dimension 8, built in 1.2 s" in out
    assert "2.5 MB" in out and "measured top 1" in out and "0.9951" in out and "walk, screen" in out
    assert "warning: no calibration" in out and "1 entries, in --json" in out
    print_inspection(Path("d"), {"vocab_size": 1000})
    assert "1,000" in capsys.readouterr().out
