"""Jobs and their processes, with a stand-in for the build that can be deaf, dying or surprising."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_index import open_fake, put_fake
from live import wait_for
from starlette.testclient import TestClient

from service.app import create_app
from service.jobs.messages import BuildSpec, Failed, Message
from service.jobs.store import Job, JobError, JobStore

WORKER = (sys.executable, str(Path(__file__).with_name("stubborn_worker.py")))
BEHAVIOURS = ("deaf", "obedient", "full", "surprise", "exits", "good")


@pytest.fixture
def client(settings):
    settings.import_folder.mkdir(parents=True)
    for behaviour in BEHAVIOURS:
        np.save(settings.import_folder / f"{behaviour}.npy", np.ones((3, 2), np.float32))
    with TestClient(create_app(settings, opener=open_fake, worker_command=WORKER)) as running:
        yield running


def submit(client, behaviour, **body):
    body = {"collection": behaviour, "source": {"path": f"{behaviour}.npy"}} | body
    answer = client.post("/v1/admin/builds", json=body)
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def state_of(client, job):
    return client.get(f"/v1/admin/builds/{job}").json()


def ended(client, job):
    wait_for(lambda: state_of(client, job)["state"] not in ("queued", "running"), 30)
    return state_of(client, job)


def nothing_left(client, settings):
    assert list((settings.data_dir / "building").iterdir()) == []
    assert list((settings.data_dir / "collections").iterdir()) == []
    assert client.get("/collections").json()["result"]["collections"] == []


def test_a_good_build(client):
    state = ended(client, submit(client, "good", metric="dot"))
    assert state["state"] == "done"
    assert state["report"]["skipped_rows"] == [["a", 1]]
    assert "a warning" in state["warnings"]
    assert (state["phase"], state["done"], state["total"]) == ("scan", 1, 2)
    assert client.get("/collections/good").json()["result"]["config"]["params"]["vectors"]["distance"] == "Dot"


@pytest.mark.parametrize("behaviour", ["obedient", "deaf"])
def test_cancel_ends_within_5_seconds(client, settings, behaviour):
    job = submit(client, behaviour)
    wait_for(lambda: state_of(client, job)["phase"] == "scan", 30)
    begun = time.monotonic()
    assert state_of(client, job)["cancelling"] is False
    answer = client.post(f"/v1/admin/builds/{job}/cancel").json()
    assert (answer["state"], answer["cancelling"]) == ("running", True)
    assert (ended(client, job)["state"], state_of(client, job)["cancelling"]) == ("cancelled", False)
    assert time.monotonic() - begun < 5
    nothing_left(client, settings)


def test_a_build_s_peak_is_its_own_however_large_the_server_is(client):
    held = np.ones(75_000_000)
    job = ended(client, submit(client, "good"))
    assert 0 < job["peak_memory_bytes"] < held.nbytes


def test_jobs_are_logged(client, caplog):
    caplog.set_level(logging.INFO, logger="fullview.jobs")
    good = submit(client, "good")
    ended(client, good)
    full = submit(client, "full")
    ended(client, full)
    deaf = submit(client, "deaf")
    wait_for(lambda: state_of(client, deaf)["phase"] == "scan", 30)
    client.post(f"/v1/admin/builds/{deaf}/cancel")
    ended(client, deaf)
    lines = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "fullview.jobs"]

    def said(job, level, *words):
        return any(shown == level and job in text and all(w in text for w in words) for shown, text in lines)

    assert all(said(job, "INFO", "building collection") for job in (good, full, deaf))
    assert said(good, "INFO", "collection good done", "3 rows", " s, measured: recall 0.97")
    assert said(full, "WARNING", "collection full failed", "1,000 bytes")
    assert said(deaf, "WARNING", "collection deaf cancelled")


def test_a_second_cancel_does_not_wait(client, settings):
    job = submit(client, "deaf")
    wait_for(lambda: state_of(client, job)["phase"] == "scan", 30)
    begun = time.monotonic()
    for _ in range(2):
        assert client.post(f"/v1/admin/builds/{job}/cancel").status_code == 200
    assert ended(client, job)["state"] == "cancelled"
    assert time.monotonic() - begun < 4


def test_a_cancel_before_the_process_started_counts(client, settings):
    job = submit(client, "deaf")
    assert client.post(f"/v1/admin/builds/{job}/cancel").status_code == 200
    assert ended(client, job)["state"] == "cancelled"
    nothing_left(client, settings)


def test_a_queued_job_is_cancelled_at_once(client):
    first = submit(client, "deaf")
    queued = submit(client, "good")
    assert state_of(client, queued)["state"] == "queued"
    assert client.post(f"/v1/admin/builds/{queued}/cancel").json()["state"] == "cancelled"
    client.post(f"/v1/admin/builds/{first}/cancel")
    ended(client, first)
    assert client.get("/collections/good").status_code == 404
    assert client.post(f"/v1/admin/builds/{queued}/restart").status_code == 202
    assert ended(client, queued)["state"] == "done"


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ("full", "no_room", ["1,000 bytes", "10 are free"]),
        ("surprise", "internal", ["ZeroDivisionError", "nobody foresaw this"]),
        ("exits", "crashed", ["exit code 7"]),
    ],
)
def test_s15_failures_are_kept_and_leave_nothing(client, settings, behaviour, code, words):
    state = ended(client, submit(client, behaviour))
    assert state["state"] == "failed"
    assert state["error"]["code"] == code
    for word in words:
        assert word in state["error"]["message"]
    nothing_left(client, settings)


def test_a_collection_that_came_meanwhile_is_not_overwritten(client):
    job = submit(client, "obedient")
    wait_for(lambda: state_of(client, job)["phase"] == "scan", 30)
    engine = client.app.state.parts.engine
    put_fake(engine, "good", [[1.0, 2.0]])
    client.post(f"/v1/admin/builds/{job}/cancel")
    ended(client, job)
    answer = client.post("/v1/admin/builds", json={"collection": "good", "source": {"path": "good.npy"}})
    assert answer.status_code == 409
    assert engine.lease("good").index.n == 1


def test_two_builds_of_one_collection_are_refused(client):
    job = submit(client, "deaf", collection="same")
    answer = client.post("/v1/admin/builds", json={"collection": "same", "source": {"path": "good.npy"}})
    assert answer.status_code == 409
    assert job in answer.json()["status"]["error"]
    client.post(f"/v1/admin/builds/{job}/cancel")
    ended(client, job)


def test_a_worker_whose_server_died_ends(tmp_path):
    np.save(tmp_path / "deaf.npy", np.ones((3, 2), np.float32))
    worker = subprocess.Popen(
        WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    spec = BuildSpec(source=str(tmp_path / "deaf.npy"), out=str(tmp_path / "out"), options={})
    worker.stdin.write(msgspec.json.encode(spec) + b"\n")
    worker.stdin.flush()
    assert b"progress" in worker.stdout.readline()
    worker.stdin.close()
    assert worker.wait(10) == -9
    worker.stdout.close()


def test_messages_survive_the_pipe():
    message = Failed(code="x", message='a "quoted"\nline')
    line = msgspec.json.encode(message)
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=Message) == message


def job(name, state="queued"):
    return Job(job=name, collection=name, mode="create", alias=None, request=msgspec.Raw(b'{"a":1}'), state=state)


def test_the_store_remembers(tmp_path):
    store = JobStore(tmp_path / "jobs.db")
    for name in ("a", "b", "c"):
        store.new(job(name))
    done = store.get("b")
    done.state, done.report, done.error = "done", {"rows": 3}, JobError(code="x", message="y")
    store.save(done)
    running = store.get("c")
    running.state = "running"
    store.save(running)
    assert store.active_for("a").job == "a"
    assert store.active_for("b") is None
    store.close()
    again = JobStore(tmp_path / "jobs.db")
    assert [j.job for j in again.all()] == ["a", "b", "c"]
    assert again.get("a").state == "queued"
    assert again.get("b").report == {"rows": 3}
    assert bytes(again.get("b").request) == b'{"a":1}'
    assert again.get("c").state == "interrupted"
    again.delete("b")
    again.close()
    last = JobStore(tmp_path / "jobs.db")
    assert [j.job for j in last.all()] == ["a", "c"]
    last.close()


def test_the_process_looks_at_the_dimension_again(tmp_path):
    """A source that could not be read when the job was submitted."""
    np.save(tmp_path / "good.npy", np.ones((3, 2), np.float32))
    spec = BuildSpec(source=str(tmp_path / "good.npy"), out=str(tmp_path / "out"), options={}, expected_dim=5)
    with subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as worker:
        worker.stdin.write(msgspec.json.encode(spec) + b"\n")
        worker.stdin.flush()
        last = msgspec.json.decode(worker.stdout.readlines()[-1], type=Message)
    assert isinstance(last, Failed)
    assert last.code == "conflict"
    assert "dimension 2" in last.message
    assert "have 5" in last.message
    assert not (tmp_path / "out").exists()
