"""Stands in for the process of a build, of a collection or a decoder; the source's file name says how it behaves."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fake_decoder import write_fake_decoder
from fake_index import write_fake

from index.errors import BuildCancelledError, DiskFullError
from service.jobs.worker import main
from service.served_decoder import HEAD_FOLDER


def behave(source: str, out: str, given: dict[str, Any]) -> None:
    behaviour = Path(source).stem
    event = SimpleNamespace(phase="scan", done=1, total=2, rate=1.0, eta_s=1.0)
    given["on_progress"](event)
    print("noise on stdout, which is not the pipe to the server")
    Path(out).parent.joinpath("rubbish").write_bytes(bytes(1000))
    while behaviour == "deaf":
        time.sleep(0.01)
    while behaviour == "obedient":
        if given["cancel"].is_set():
            raise BuildCancelledError("cancelled")
        time.sleep(0.01)
    if behaviour == "full":
        raise DiskFullError(path=Path(out), needed_bytes=1000, free_bytes=10)
    if behaviour == "surprise":
        raise ZeroDivisionError("nobody foresaw this")
    if behaviour == "exits":
        sys.exit(7)


def build(source: str, out: str, **given: Any) -> Any:
    behave(source, out, given)
    vectors = np.load(source)
    write_fake(Path(out), vectors, metric=given["options"].metric)
    report = {"rows": len(vectors), "warnings": ["a warning"], "skipped_rows": [("a", np.int64(1))]}
    report["measured_recall"] = {"recall": 0.97}
    return SimpleNamespace(dim=vectors.shape[1], metric=given["options"].metric, to_dict=lambda: report)


def build_decoder(spec: Any, **given: Any) -> Any:
    behave(spec.weight, spec.out, given)
    weight = np.load(spec.weight)
    write_fake_decoder(Path(spec.out) / HEAD_FOLDER, weight, None if spec.bias is None else np.load(spec.bias))
    report = {"vocab_size": len(weight), "warnings": ["a warning"], "options": spec.options, "words": spec.words}
    report["promise"] = {"points": {"walk": {"recall": {"10": np.float32(0.5)}}}}
    return SimpleNamespace(dim=weight.shape[1], to_dict=lambda: report)


if __name__ == "__main__":
    sys.exit(main(build, build_decoder))
