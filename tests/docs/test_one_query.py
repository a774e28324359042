"""docs/one-query.md names what is there, and a real query touches no more of our files than the page leads to expect."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from pages import REPOSITORY, page, thing_named, things_named_in
from starlette.testclient import TestClient

from index import BuildOptions, build, open_index
from service.app import create_app
from service.settings import Settings

PAGE = page("docs/one-query.md")
PATH = (
    ("service/routes/points.py", "query"),
    ("index/search.py", "OpenIndex.search"),
    ("index/kernels/walk.py", "walk_queries"),
)
"""The three files of the page, and the function to begin with in each."""

FILES_OF_A_SEARCH = 14
"""Python files of ours that a warmed search in the library runs code of, READERS apart. Compiled kernels are not seen."""
FILES_OF_A_REQUEST = 33
"""The same for a query over HTTP, from the gate to the answer."""
READERS = {f"index/fullview/{name}.py" for name in ("linux_aio", "threads", "buffered", "posix")}
"""Which of these reads the pages depends on the file system."""


class FileTrace:
    """Which of our Python files run code between begin() and end(), in every thread that was started under it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._recording = False

    def __enter__(self) -> FileTrace:
        self._before = sys.gettrace()
        threading.settrace(self._note)
        sys.settrace(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        threading.settrace(self._before)

    def files_of(self, work: Callable[[], object]) -> list[str]:
        """Paths inside the repository."""
        self._seen.clear()
        self._recording = True
        work()
        self._recording = False
        ours = [Path(name) for name in self._seen if name.startswith(f"{REPOSITORY}/")]
        inside = [path.relative_to(REPOSITORY).as_posix() for path in ours]
        return sorted(p for p in inside if p.split("/")[0] in ("index", "service", "decoder") and p not in READERS)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if self._recording:
            self._seen.add(frame.f_code.co_filename)


@pytest.fixture(scope="module")
def vectors():
    return np.random.default_rng(3).standard_normal((2000, 16)).astype(np.float32)


@pytest.mark.parametrize(("path", "name"), PATH)
def test_the_path_is_there_and_the_page_names_it(path, name):
    function = thing_named(path, name)
    code = getattr(function, "py_func", function)
    assert Path(inspect.getsourcefile(code)) == REPOSITORY / path
    assert f"](../{path})" in PAGE and f"`{name}`" in PAGE


def test_the_page_goes_through_its_files_in_order_and_quotes_no_code():
    headings = re.findall(r"^## \d\. .*\(\.\./([\w/]+\.py)\)", PAGE, re.M)
    assert headings == [path for path, _ in PATH]
    assert "```" not in PAGE


@pytest.mark.parametrize(("path", "name"), things_named_in(PAGE))
def test_names_in_the_page_exist(path, name):
    assert callable(thing_named(path, name))


def test_the_page_tells_how_many_files_a_query_touches():
    told = re.findall(r"code of (\d+) Python files of ours .* a request of (\d+):", PAGE)
    assert told == [(str(FILES_OF_A_SEARCH), str(FILES_OF_A_REQUEST))]


def test_a_search_touches_few_files(vectors, tmp_path):
    build(vectors, tmp_path / "index", options=BuildOptions(preview="graph", recall=0.9))
    with open_index(tmp_path / "index") as opened, FileTrace() as trace:
        opened.search(vectors[:1])
        files = trace.files_of(lambda: opened.search(vectors[:1]))
    assert {"index/search.py", "index/kernels/walk.py"} <= set(files)
    assert len(files) <= FILES_OF_A_SEARCH, "\n".join(files)


def test_a_request_touches_few_files(vectors, tmp_path):
    (tmp_path / "import").mkdir()
    np.save(tmp_path / "import" / "rows.npy", vectors)
    body = {"query": vectors[0].tolist(), "limit": 3}
    with FileTrace() as trace, TestClient(create_app(Settings(data_dir=tmp_path))) as client:
        job = client.post(
            "/v1/admin/builds",
            json={"collection": "rows", "source": {"path": "rows.npy"}, "preview": "graph", "recall": 0.9},
        ).json()
        events = client.get(f"/v1/admin/builds/{job['job']}/events").text
        assert events.count("event: done") == 1, events
        answers: list[object] = []
        client.post("/collections/rows/points/query", json=body)
        files = trace.files_of(lambda: answers.append(client.post("/collections/rows/points/query", json=body).json()))
    assert answers[0]["result"]["points"][0]["id"] == 0
    assert {path for path, _ in PATH} <= set(files)
    assert len(files) <= FILES_OF_A_REQUEST, "\n".join(files)
