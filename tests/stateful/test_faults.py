"""Each step of a write, a compaction, a snapshot, a restore and a deletion fails once, or is the last one: nothing is lost.

What was acknowledged is there, what was refused left nothing, the server goes on working, and a restart finds the same.
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faults import Faults, install
from points_model import Model, check_all, check_query

sys.path.append(str(Path(__file__).parents[1] / "service"))
from live import LiveServer, live_server
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings

DIM = 8
QUERY = np.linspace(-1, 1, DIM).astype(np.float32)


def ready(client, timeout_s=60):
    until = time.monotonic() + timeout_s
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)


def poster(client, name="c"):
    def post(route, body):
        answer = client.post(f"/collections/{name}{route}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    return post


def write(client, model, points, name="c"):
    """Points in; the model has them if they were acknowledged."""
    body = [{"id": i, "vector": vector.tolist(), "payload": payload} for i, vector, payload in points]
    answer = client.put(f"/collections/{name}/points", json={"points": body})
    if answer.status_code == 200:
        model.points |= {i: (vector, payload) for i, vector, payload in points}
    return answer.status_code


def rows(count, seed):
    return np.round(np.random.default_rng(seed).standard_normal((count, DIM)), 3).astype(np.float32)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A data folder: 500 rows in a generation, others written, changed and deleted since. And what it holds."""
    data = tmp_path_factory.mktemp("prepared") / "data"
    model = Model(DIM)
    with live_server(data) as server:
        client = server.client
        client.put("/collections/c", json={"vectors": {"size": DIM, "distance": "Cosine"}})
        assert write(client, model, [(i, row, {"n": i}) for i, row in enumerate(rows(500, 1))]) == 200
        job = client.post("/v1/admin/collections/c/compact").json()["job"]
        assert server.wait_job(job)["state"] == "done"
        assert write(client, model, [(400 + i, row, {"late": i}) for i, row in enumerate(rows(200, 2))]) == 200
        client.post("/collections/c/points/delete", json={"points": [1, 2, 450]})
        client.post("/collections/c/points/payload", json={"payload": {"p": 1}, "points": [5, 420]})
        for id_ in (1, 2, 450):
            del model.points[id_]
        for id_ in (5, 420):
            model.points[id_][1]["p"] = 1
        check_all(poster(client), model)
    return data, model.points


def copied(prepared, folder):
    data, points = prepared
    shutil.copytree(data, folder / "data")
    model = Model(DIM)
    model.points = {id_: (vector, dict(payload)) for id_, (vector, payload) in points.items()}
    return folder / "data", model


def upsert(client, model):
    return write(client, model, [(1000 + i, row, {"new": i}) for i, row in enumerate(rows(20, 3))])


def compact(client, model):
    answer = client.post("/v1/admin/collections/c/compact")
    if answer.status_code != 202:
        return answer.status_code
    job = answer.json()["job"]
    until = time.monotonic() + 60
    while (state := client.get(f"/v1/admin/builds/{job}").json()["state"]) in ("queued", "running"):
        assert time.monotonic() < until
        time.sleep(0.02)
    return 200 if state == "done" else 507


def snapshot(client, model):
    made = client.post("/collections/c/snapshots")
    if made.status_code != 200:
        return made.status_code
    name = made.json()["result"]["name"]
    restored = client.put("/collections/d/snapshots/recover", json={"location": f"file:///c/{name}"})
    if restored.status_code == 200:
        check_all(poster(client, "d"), model)
    elif client.get("/collections/d").status_code != 404:
        check_all(poster(client, "d"), model)  # it serves, and only the answer was lost
    return restored.status_code


WORKS = {"upsert": upsert, "compact": compact, "snapshot": snapshot}


def checked(client, model):
    check_all(poster(client), model)
    check_query(poster(client), model, QUERY, None, exact=True)
    check_query(poster(client), model, QUERY, None, exact=False)


@pytest.mark.parametrize(
    ("work", "step"),
    [
        ("upsert", 1),
        ("compact", 7),
        pytest.param("compact", 4, marks=pytest.mark.long),
        pytest.param("snapshot", 6, marks=pytest.mark.long),
    ],
)
def test_s15_each_step_may_find_the_disk_full(prepared, tmp_path, monkeypatch, work, step):
    """The n-th change of the disk fails, for every n (every step-th in the ordinary suite) until none does."""
    data, model = copied(prepared, tmp_path)
    settings = Settings(data_dir=data, compact_auto=False)
    faults = Faults()
    install(faults, monkeypatch.setattr)
    failures, at = 0, 1 - step
    while True:
        at += step
        with TestClient(create_app(settings), raise_server_exceptions=False) as client:
            ready(client)
            faults.calls, faults.at = 0, at
            status = WORKS[work](client, model)
            hit = faults.calls >= at
            faults.at = 0
            assert status in (200, 202, 507), status
            failures += status == 507
            checked(client, model)
            assert write(client, model, [(9000 + at, QUERY, {"after": at})]) == 200
            checked(client, model)
            client.delete("/collections/d")
        if not hit:
            break
    assert status == 200 and at > (1 if work == "upsert" else 5)
    assert failures >= 1 or step > 1
    with TestClient(create_app(settings)) as client:
        ready(client)
        checked(client, model)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("work", "step"), [("upsert", 1), ("compact", 7), ("snapshot", 11)])
def test_s29_each_step_may_be_the_last(prepared, tmp_path, work, step):
    """The process ends at the n-th change of the disk, for every step-th n until the work is done before."""
    data, model = copied(prepared, tmp_path)
    here = str(Path(__file__).parent)
    before = f"import sys; sys.path.append({here!r}); from faults import install_from_environment; install_from_environment()"
    crashes = 0
    for at in range(1, 80, step):
        arm = tmp_path / "arm"
        arm.unlink(missing_ok=True)
        server = LiveServer(
            data, "--no-compact-auto", environment={"FAULT_AT": str(at), "FAULT_FILE": str(arm)}, before=before
        )
        server.wait_ready()
        intended = Model(DIM)
        intended.points = dict(model.points)
        arm.touch()
        try:
            WORKS[work](server.client, intended)
        except Exception:
            crashed = True
        else:
            crashed = server.process.poll() is not None
        arm.unlink()
        if not crashed:
            server.terminate()
            model.points = intended.points
            break
        crashes += 1
        server.process.wait(timeout=30)
        server.kill()
        with live_server(data, "--no-compact-auto") as again:
            if work == "upsert":
                for points in (model.points, intended.points or model.points):
                    model.points = points
                    try:
                        check_all(poster(again.client), model)
                        break
                    except AssertionError:
                        continue
            checked(again.client, model)
            again.client.delete("/collections/d")
    else:
        pytest.fail("the work never came to its end")
    assert crashes >= (1 if work == "upsert" else 2)
    with live_server(data, "--no-compact-auto") as again:
        checked(again.client, model)
