"""What filters cost: columns built, written, and asked, over payloads made here.

    python scripts/measure_filters.py [ROWS]

Prints microseconds a value and milliseconds a mask; the figures in docs/decisions/0010-filters.md are from it.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from index.columns import ColumnBuilder, ColumnsFile, ColumnsWriter, PayloadColumns
from service.filters import Filter, mask_of, parse_filter

WORDS = """red green blue old new fox dog night day road river stone light water cold warm""".split()  # noqa: SIM905


class Target:
    """Points whose payloads are the list's."""

    def __init__(self, raw: list[bytes], columns: PayloadColumns | None) -> None:
        self.n, self.columns, self._raw = len(raw), columns, raw

    def payloads(self, positions: np.ndarray) -> list[bytes]:
        """The JSON of each."""
        return [self._raw[at] for at in positions]


def payload(at: int, pick: random.Random) -> dict[str, Any]:
    """A document's, as people store them."""
    day = f"20{pick.randrange(10, 26)}-{pick.randrange(1, 13):02}-{pick.randrange(1, 29):02}"
    made = {
        "doc": f"document-{at:09}",
        "category": pick.choice(WORDS),
        "year": pick.randrange(1900, 2026),
        "price": pick.random() * 1000,
        "time": f"{day}T{pick.randrange(24):02}:{pick.randrange(60):02}:{pick.randrange(60):02}Z",
        "tags": pick.sample(WORDS, 2),
        "title": " ".join(pick.choices(WORDS, k=5)),
        "place": {"lat": pick.random() * 90, "lon": pick.random() * 180},
    }
    if pick.random() < 0.3:
        made["rare"] = pick.randrange(10)
    return made


ASKED = {
    "keyword equal": {"key": "category", "match": {"value": "fox"}},
    "keyword any of 3": {"key": "category", "match": {"any": ["fox", "dog", "none"]}},
    "keyword except": {"key": "category", "match": {"except": ["fox"]}},
    "unique string equal": {"key": "doc", "match": {"value": "document-000000017"}},
    "integer equal": {"key": "year", "match": {"value": 1999}},
    "integer range": {"key": "year", "range": {"gte": 1990, "lt": 2000}},
    "float range": {"key": "price", "range": {"gte": 10.0, "lt": 20.0}},
    "time range": {"key": "time", "range": {"gte": "2020-01-01", "lt": "2021-01-01"}},
    "list has": {"key": "tags", "match": {"value": "fox"}},
    "integer that 30 % have": {"key": "rare", "match": {"value": 3}},
    "is_empty": {"is_empty": {"key": "rare"}},
    "values_count": {"key": "tags", "values_count": {"gte": 2}},
    "text, two words": {"key": "title", "match": {"text": "red fox"}},
    "nothing has the key": {"key": "none", "match": {"value": 1}},
    "place, from the JSON": {"key": "place", "geo_radius": {"center": {"lat": 45, "lon": 90}, "radius": 500000}},
}


def milliseconds(tree: Filter, target: Target) -> float:
    """Of one mask: the median of five, or of what 3 s allow."""
    times: list[float] = []
    while len(times) < 5 and (not times or sum(times) < 3):
        begun = time.perf_counter()
        mask_of(tree, target)
        times.append(time.perf_counter() - begun)
    return 1000 * sorted(times)[len(times) // 2]


def parsed(condition: dict[str, Any]) -> Filter:
    """A filter that must hold one condition."""
    found = parse_filter(msgspec.Raw(msgspec.json.encode({"must": [condition]})), path="$.filter")
    assert found is not None
    return found


def main() -> None:
    """Measure and print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    pick = random.Random(0)
    raw = [msgspec.json.encode(payload(at, pick)) for at in range(rows)]
    builder, spent, scalars = ColumnBuilder(), 0.0, 0
    for start in range(0, rows, 1000):
        some = [msgspec.json.decode(each) for each in raw[start : start + 1000]]
        scalars += sum(len(each) + 3 for each in some)
        begun = time.perf_counter()
        builder.append(some)
        spent += time.perf_counter() - begun
    print(f"append: {1e6 * spent / scalars:.2f} us a scalar value, {1e6 * spent / rows:.2f} us a row, {rows:,} rows")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "payload").mkdir()
        for text_bytes in (10**9, 64_000_000):
            begun = time.perf_counter()
            with ColumnsWriter(folder, text_bytes=text_bytes) as writer:
                writer.append(raw)
            took = time.perf_counter() - begun
            size = (Path(folder) / "payload" / "columns.bin").stat().st_size
            print(
                f"file, {text_bytes // 10**6} MB of strings: {1e6 * took / rows:.2f} us a row, {size / rows:.1f} bytes a row"
            )
            target = Target(raw, ColumnsFile.open(folder))
            for name, condition in ASKED.items():
                tree = parsed(condition)
                begun = time.perf_counter()
                passed = mask_of(tree, target).sum()
                first = 1000 * (time.perf_counter() - begun)
                mapped = milliseconds(tree, target)
                grown = milliseconds(tree, Target(raw, builder.view()))
                print(f"{name:24} {passed:9,} rows  first {first:9.2f}  mapped {mapped:9.3f}  growing {grown:9.3f} ms")


if __name__ == "__main__":
    main()
