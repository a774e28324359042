"""What earlier runs built and left in the folder of --keep: taken up again where it is of the same head and options.

is_kept    whether a folder or file is what would be built now
keep       remember what it was built from; note: figures that come with it
note_of    those figures
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from service.bench.decoder.heads import Head


def is_kept(place: Path, head: Head, options: str) -> bool:
    """Whether `place` is there and was built for this head with these options."""
    known = _read(place)
    return place.exists() and known is not None and known["wanted"] == _wanted(head, options)


def keep(place: Path, head: Head, options: str, **note: float) -> None:
    """Say beside `place` what it was built from."""
    _beside(place).write_text(json.dumps({"wanted": _wanted(head, options), "note": note}), encoding="utf-8")


def note_of(place: Path) -> dict[str, float]:
    """What keep() was told besides."""
    known = _read(place)
    return {} if known is None else dict(known["note"])


def _wanted(head: Head, options: str) -> dict[str, str]:
    states = "" if head.calibration is None else xxhash.xxh3_128_hexdigest(head.calibration.data)
    return {"weights": head.layer.weights_hash(), "calibration": states, "options": options}


def _beside(place: Path) -> Path:
    return place.with_name(place.name + ".built.json")


def _read(place: Path) -> dict[str, Any] | None:
    try:
        known: dict[str, Any] = json.loads(_beside(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known
