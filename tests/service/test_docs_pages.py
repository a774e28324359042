"""docs/http.md and docs/operations.md: the examples run, every route and every metric is there, nothing else is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live import wait_for
from starlette.testclient import TestClient

from service.app import create_app
from service.metrics import Metrics
from service.routes.later import LATER, OLDER
from service.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"
HTTP_PAGE = (DOCS / "http.md").read_text()
EXAMPLES = re.findall(r"^```http\n(\w+) (\S+)\n(.*?)\n?(\d{3})\n(.*?)^```", HTTP_PAGE, flags=re.MULTILINE | re.DOTALL)


def matches(expected, found, path="$"):
    """Every member of `expected` is in `found` with the same value; numbers within 1e-5."""
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert name in found, f"{path} has no {name}: {found}"
            matches(value, found[name], f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(expected) == len(found), f"{path}: {found}"
        for place, value in enumerate(expected):
            matches(value, found[place], f"{path}[{place}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5), path
    else:
        assert found == expected, path


def test_the_examples_run(tmp_path):
    (tmp_path / "data" / "import").mkdir(parents=True)
    vectors = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 2]], np.float32)
    table = pa.table(
        {
            "vector": list(vectors),
            "id": pa.array([1, 2, 3, 4], pa.uint64()),
            "title": ["one", "two", "three", "four"],
            "year": [2001, 2002, 2003, 2004],
        }
    )
    pq.write_table(table, tmp_path / "data" / "import" / "notes.parquet")
    layer = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]], np.float32)
    np.save(tmp_path / "data" / "import" / "layer.npy", layer)
    (tmp_path / "data" / "import" / "words.json").write_text('["red", "green", "blue", "orange"]')
    assert len(EXAMPLES) > 15
    job = None
    with TestClient(create_app(Settings(data_dir=tmp_path / "data"))) as client:
        for method, path, body, status, answer in EXAMPLES:
            content = json.loads(body) if body.strip() else None
            found = client.request(method, path.replace("{job}", str(job)), json=content)
            assert found.status_code == int(status), (method, path, found.text)
            matches(json.loads(answer), found.json(), f"{method} {path}")
            if path in {"/v1/admin/builds", "/v1/admin/decoders"}:
                job = found.json()["job"]
                wait_for(lambda: client.get(f"/v1/admin/builds/{job}").json()["state"] == "done", 240)  # noqa: B023


def test_every_route_is_on_the_page():
    for path, operations in create_app(Settings()).openapi()["paths"].items():
        for method in operations:
            assert f"`{method.upper()} {path}" in HTTP_PAGE, f"{method.upper()} {path}"


def test_the_tables_of_what_is_not_there_are_those_in_the_code():
    documented = re.findall(r"^\| `(\w+) (\S+)` \| (.+?) \|$", HTTP_PAGE, flags=re.MULTILINE)
    assert documented == [*LATER, *OLDER]


def test_every_metric_is_on_the_page():
    page = (DOCS / "operations.md").read_text()
    named = set(re.findall(r"`(fullview_\w+?)(?:\{[\w,]+\})?`", page))
    exposed = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in Metrics().registry.collect()
        if metric.name.startswith("fullview_")
    }
    assert named == exposed
