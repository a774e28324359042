"""Jobs that build decoders, and the registry that they publish into, with stand-ins for build and decoder."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
import types

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from decoder_application import WEIGHT, WORKER, application, body_of, import_root, refused
from fake_decoder import open_fake_decoder, put_fake_decoder, replaced
from fake_index import open_fake
from live import wait_for
from starlette.testclient import TestClient

from index.errors import SourceError
from service.app import create_app
from service.catalogue import Catalogue
from service.errors import ConflictError, UnreadableModelError
from service.jobs.messages import BuildSpec, DecoderSpec, Spec
from service.jobs.store import Job, JobStore
from service.settings import Settings


@pytest.fixture
def client(settings):
    import_root(settings)
    with TestClient(application(settings)) as running:
        yield running


def submit(client, name="good", **changes):
    answer = client.post("/v1/admin/decoders", json=body_of(name, **changes))
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def state_of(client, job):
    return client.get(f"/v1/admin/builds/{job}").json()


def ended(client, job):
    wait_for(lambda: state_of(client, job)["state"] not in ("queued", "running"), 30)
    return state_of(client, job)


def built(client, name="good", **changes):
    state = ended(client, submit(client, name, **changes))
    assert state["state"] == "done", state
    return state


def best(client, name="good"):
    answer = client.post(f"/v1/decoders/{name}/topk", json={"hidden": [1.0] * 4, "k": 3})
    assert answer.status_code == 200, answer.text
    return answer.json()["token_ids"][0], answer.json()["logits"][0]


def folders(settings):
    return sorted(path.name for path in (settings.data_dir / "decoders").iterdir())


def nothing_left(client, settings):
    assert list((settings.data_dir / "building").iterdir()) == []
    assert folders(settings) == []
    assert client.get("/v1/decoders").json() == {"decoders": []}


def test_a_good_build(client, settings):
    state = built(client, bias="bias.npy", recall=0.999, seed=3, threads=1, calibration={"path": "states.npy"})
    assert (state["kind"], state["decoder"], state["collection"]) == ("decoder", "good", None)
    assert state["report"]["options"] == {"recall": 0.999, "seed": 3, "threads": 1}
    assert "a warning" in state["warnings"]
    ids, logits = best(client)
    expected = (WEIGHT + np.float32(5)) @ np.ones(4, np.float32) + np.arange(20)
    assert ids == np.argsort(-expected)[:3].tolist()
    assert np.allclose(logits, -np.sort(-expected)[:3], rtol=1e-5)
    (row,) = client.get("/v1/decoders").json()["decoders"]
    assert (row["name"], row["state"], row["vocab_size"], row["dim"]) == ("good", "ready", 20, 4)
    (name,) = folders(settings)
    assert "good" not in name


def test_decoder_jobs_stand_among_the_builds(client):
    answer = client.post("/v1/admin/builds", json={"collection": "good", "source": {"path": "good.npy"}})
    ended(client, answer.json()["job"])
    built(client)
    listed = client.get("/v1/admin/builds").json()["builds"]
    assert [(job["kind"], job["collection"], job["decoder"]) for job in listed] == [
        ("collection", "good", None),
        ("decoder", None, "good"),
    ]
    with client.stream("GET", f"/v1/admin/builds/{listed[1]['job']}/events") as stream:
        (line,) = [line for line in stream.iter_lines() if line.startswith("data: ")]
    assert json.loads(line[6:])["kind"] == "decoder"
    assert 'fullview_builds{state="done"} 2.0' in client.get("/metrics").text
    assert client.delete(f"/v1/admin/builds/{listed[1]['job']}").json() == {"deleted": True}
    assert best(client)


def test_without_calibration_the_job_says_what_that_costs(client):
    answer = client.post("/v1/admin/decoders", json=body_of())
    assert "calibration" in answer.json()["warnings"][0]
    ended(client, answer.json()["job"])
    answer = client.post("/v1/admin/decoders", json=body_of("other", calibration={"path": "states.npy"}))
    assert answer.json()["warnings"] == []
    ended(client, answer.json()["job"])


@pytest.mark.parametrize("behaviour", ["obedient", "deaf"])
def test_cancel_ends_within_5_seconds(client, settings, behaviour):
    job = submit(client, behaviour)
    wait_for(lambda: state_of(client, job)["phase"] == "scan", 30)
    begun = time.monotonic()
    client.post(f"/v1/admin/builds/{job}/cancel")
    assert ended(client, job)["state"] == "cancelled"
    assert time.monotonic() - begun < 5
    nothing_left(client, settings)


@pytest.mark.parametrize(
    ("behaviour", "code", "word"),
    [("full", "no_room", "1,000 bytes"), ("surprise", "internal", "ZeroDivisionError"), ("exits", "crashed", "code 7")],
)
def test_failures_are_kept_and_leave_nothing(client, settings, behaviour, code, word):
    state = ended(client, submit(client, behaviour))
    assert (state["state"], state["error"]["code"]) == ("failed", code)
    assert word in state["error"]["message"]
    nothing_left(client, settings)


def test_jobs_are_logged(client, caplog):
    caplog.set_level(logging.INFO, logger="fullview.jobs")
    built(client)
    ended(client, submit(client, "full"))
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "building decoder good, mode create" in said
    assert "decoder good done: 20 tokens in " in said and "recall@10 measured: walk 0.5" in said
    assert "decoder full failed: " in said


def test_create_and_replace(client, settings):
    built(client)
    before, (folder,) = best(client), folders(settings)
    created = client.get("/v1/decoders/good").json()["created_at"]
    refused(client, body_of(), 409, "'good'", "replace")
    built(client, weight={"path": "other.npy"}, mode="replace")
    info = client.get("/v1/decoders/good").json()
    assert (info["builds"], info["created_at"]) == (2, created)
    assert best(client) != before
    assert folder not in folders(settings)
    assert len(folders(settings)) == 1


def test_a_replaced_decoder_serves_until_its_last_user_is_done(client, settings):
    built(client)
    (folder,) = folders(settings)
    decoders = client.app.state.parts.decoders
    lease = decoders.lease("good")
    built(client, weight={"path": "other.npy"}, mode="replace")
    assert folder in folders(settings)
    assert lease.head.topk(np.ones(4, np.float32), k=1).token_ids.shape == (1, 1)
    lease.release()
    assert lease.head.closed
    assert folder not in folders(settings)


def test_a_request_that_runs_while_it_is_deleted_is_answered(client, settings):
    built(client)
    head = client.app.state.parts.decoders.lease("good").head
    client.app.state.parts.decoders.find("good").opened.release()
    head.blocked = threading.Event()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(best(client)))
    asking.start()
    wait_for(lambda: any(call["k"] == 3 for call in head.calls), 10)
    assert client.delete("/v1/admin/decoders/good").json() == {"deleted": True}
    assert client.post("/v1/decoders/good/topk", json={"hidden": [1.0] * 4}).status_code == 404
    assert not head.closed
    head.blocked.set()
    asking.join()
    assert len(answers) == 1
    wait_for(lambda: head.closed and folders(settings) == [], 10)


def test_a_name_that_was_taken_meanwhile_is_not_overwritten(client, settings):
    decoders = client.app.state.parts.decoders
    put_fake_decoder(decoders, "taken", WEIGHT)
    record = decoders.find("taken").record
    late = replaced(record, folder="late")
    shutil.copytree(decoders.root / record.folder, decoders.root / "late")
    opened = decoders.open(late)
    with pytest.raises(ConflictError, match="already exists"):
        decoders.publish(late, opened, may_replace=False)
    assert opened.head.closed
    assert folders(settings) == [record.folder]
    assert best(client, "taken")


def test_two_builds_of_one_decoder_are_refused(client):
    job = submit(client, "same", weight={"path": "obedient.npy"})
    said = refused(client, body_of("same", weight={"path": "good.npy"}), 409, job)
    assert "decoder 'same'" in said
    # A collection of that name is another thing.
    answer = client.post("/v1/admin/builds", json={"collection": "same", "source": {"path": "good.npy"}})
    assert answer.status_code == 202
    client.post(f"/v1/admin/builds/{job}/cancel")
    ended(client, job)
    ended(client, answer.json()["job"])


def test_deleting_a_decoder_cancels_its_build(client, settings):
    built(client)
    job = submit(client, weight={"path": "obedient.npy"}, mode="replace")
    wait_for(lambda: state_of(client, job)["phase"] == "scan", 30)
    assert client.delete("/v1/admin/decoders/good").json() == {"deleted": True}
    assert ended(client, job)["state"] == "cancelled"
    nothing_left(client, settings)
    job = submit(client, "obedient")
    assert client.delete("/v1/admin/decoders/obedient").json() == {"deleted": False}
    assert ended(client, job)["state"] == "cancelled"


def test_restart_looks_at_the_files_again(client, settings):
    job = submit(client, "full")
    ended(client, job)
    good = (settings.import_folder / "good.npy").read_bytes()
    (settings.import_folder / "full.npy").unlink()
    assert client.post(f"/v1/admin/builds/{job}/restart").status_code == 404
    (settings.import_folder / "full.npy").write_bytes(good)
    assert client.post(f"/v1/admin/builds/{job}/restart").status_code == 202
    assert ended(client, job)["state"] == "failed"


def test_decoders_come_back_after_a_restart(settings, client):
    built(client)
    expected = best(client)
    client.__exit__(None, None, None)
    (settings.data_dir / "decoders" / "leftover").mkdir()
    with TestClient(application(settings)) as again:
        wait_for(lambda: again.get("/readyz").status_code == 200, 10)
        assert again.get("/readyz").json()["decoders_loaded"] == 1
        assert best(again) == expected
        assert len(folders(settings)) == 1
    client.__enter__()


def test_a_damaged_decoder_keeps_no_other_down(settings, client):
    built(client)
    built(client, "other")
    client.__exit__(None, None, None)
    broken = Catalogue(settings.data_dir / "catalogue.db")
    (record,) = [r for r in broken.decoders() if r.name == "good"]
    broken.close()
    (settings.data_dir / "decoders" / record.folder / "head" / "weight.npy").unlink()
    with TestClient(application(settings)) as again:
        wait_for(lambda: again.get("/readyz").status_code == 200, 10)
        assert list(again.get("/readyz").json()["decoders_damaged"]) == ["good"]
        answer = again.post("/v1/decoders/good/topk", json={"hidden": [1.0] * 4})
        assert (answer.status_code, answer.json()["code"]) == (503, "damaged")
        assert "weight.npy" in answer.json()["status"]["error"]
        assert [row["state"] for row in again.get("/v1/decoders").json()["decoders"]] == ["damaged", "ready"]
        assert "weight.npy" in again.get("/v1/decoders/good").json()["reason"]
        assert best(again, "other")
        built(again, mode="replace")
        assert best(again)
        assert again.delete("/v1/admin/decoders/other").json() == {"deleted": True}
    client.__enter__()


def test_while_a_decoder_is_loaded(settings, client):
    built(client)
    client.__exit__(None, None, None)
    go = threading.Event()

    def slow(path):
        go.wait(20)
        return open_fake_decoder(path)

    app = create_app(settings, opener=open_fake, decoder_opener=slow, worker_command=WORKER)
    with TestClient(app) as again:
        ready = again.get("/readyz")
        assert (ready.status_code, ready.json()["missing"]) == (503, ["0/1 decoders loaded"])
        answer = again.post("/v1/decoders/good/topk", json={"hidden": [1.0] * 4})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert again.delete("/v1/admin/decoders/good").status_code == 503
        assert again.get("/v1/decoders").json()["decoders"][0]["state"] == "loading"
        go.set()
        wait_for(lambda: again.get("/readyz").status_code == 200, 10)
        assert best(again)
    client.__enter__()


def test_served_lists_decoders_with_a_model(client):
    decoders = client.app.state.parts.decoders
    put_fake_decoder(decoders, "plain", WEIGHT)
    put_fake_decoder(decoders, "speaks", WEIGHT, serve="model")
    assert [name for name, _ in decoders.served()] == ["speaks"]
    lease = decoders.lease("plain")
    assert lease.text is None
    lease.release()


def test_a_model_is_loaded_once(client, settings, monkeypatch):
    (settings.import_folder / "model").mkdir()
    loads = []
    module = type(sys)("service.text.model")
    module.load_text_model = lambda path: loads.append(path) or "a model"
    monkeypatch.setitem(sys.modules, "service.text.model", module)
    decoders = client.app.state.parts.decoders
    put_fake_decoder(decoders, "speaks", WEIGHT, serve="model")
    lease = decoders.lease("speaks")
    assert [lease.text, lease.text] == ["a model"] * 2
    assert [path.name for path in loads] == ["model"]
    lease.release()
    put_fake_decoder(decoders, "gone", WEIGHT, serve="gone")
    lease = decoders.lease("gone")
    with pytest.raises(UnreadableModelError, match="'gone', which cannot be read as it lies there"):
        _ = lease.text
    lease.release()


def test_a_model_that_cannot_be_read_is_told_in_one_line_and_not_asked_for_again(client, settings, monkeypatch):
    root = settings.import_folder
    (root / "model").mkdir()

    def load(path):
        raise SourceError(
            f"{path}: its tokenizer cannot be read: one of\n (1) a file in '{path}'\n (2) " + "more " * 100
        )

    monkeypatch.setitem(sys.modules, "service.text.model", types.SimpleNamespace(load_text_model=load))
    put_fake_decoder(client.app.state.parts.decoders, "speaks", WEIGHT, serve="model")
    answer = client.post("/v1/completions", json={"model": "speaks", "prompt": "a"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], answer.headers["x-should-retry"]) == (409, "model_unreadable", "false")
    assert "model: its tokenizer cannot be read: one of (1) a file in 'model' (2) more" in error["message"]
    assert str(settings.data_dir) not in error["message"] and "\n" not in error["message"]
    assert len(error["message"]) < 600


def test_words_beside_a_weight_are_found_but_links_are_not_followed_out(client, settings, tmp_path):
    (settings.import_folder / "words.json").write_text('["a"]')
    assert built(client)["report"]["words"].endswith("words.json")
    (settings.import_folder / "words.json").unlink()
    (tmp_path / "secret.json").write_text('["a"]')
    (settings.import_folder / "words.json").symlink_to(tmp_path / "secret.json")
    refused(client, body_of("other"), 400, "link that leads out")


def test_uploads_are_weights_too(client, settings, tmp_path):
    np.save(tmp_path / "w.npy", WEIGHT)
    made = client.post("/v1/admin/uploads?name=w.npy", content=(tmp_path / "w.npy").read_bytes()).json()["upload"]
    built(client, weight={"upload": made})
    pq.write_table(pa.table({"vector": list(np.ones((300, 4), np.float32))}), settings.import_folder / "states.parquet")
    built(client, "other", calibration={"path": "states.parquet"})


def test_specs_are_told_apart():
    build = BuildSpec(source="a", out="b", options={})
    decoder = DecoderSpec(weight="a", out="b", options={"recall": 0.5})
    for spec in (build, decoder):
        assert msgspec.json.decode(msgspec.json.encode(spec), type=Spec) == spec


def test_jobs_of_before_there_were_decoders_are_those_of_collections(tmp_path):
    store = JobStore(tmp_path / "jobs.db")
    store.new(Job(job="a", collection="c", mode="create", request=msgspec.Raw(b"{}")))
    store.new(Job(job="b", kind="decoder", decoder="c", mode="create", request=msgspec.Raw(b"{}")))
    assert store.active_for("c").job == "a"
    assert store.active_for("c", builds="decoder").job == "b"
    old = {"job": "z", "collection": "old", "mode": "create", "alias": None, "request": {}}
    assert msgspec.json.decode(msgspec.json.encode(old), type=Job).target == "collection 'old'"
    store.close()


def test_the_catalogue_keeps_decoders(tmp_path, client, settings):
    head = put_fake_decoder(client.app.state.parts.decoders, "d", WEIGHT)
    record = client.app.state.parts.decoders.find("d").record
    catalogue = Catalogue(tmp_path / "catalogue.db")
    catalogue.put_decoder(record)
    catalogue.put_decoder(replaced(record, folder="another", number=2))
    assert [(r.folder, r.number) for r in catalogue.decoders()] == [("another", 2)]
    catalogue.delete_decoder("d")
    assert catalogue.decoders() == []
    catalogue.close()
    assert head.path.is_dir()


def test_a_default_stands_nowhere_else():
    assert Settings().decoder_k_max == 10_000
