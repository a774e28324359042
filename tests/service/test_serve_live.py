"""The server as a process: crashes, cancels, signals, locks, and what arrives on a real socket."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from live import LiveServer, live_server, wait_for


def rows_file(data_dir: Path, name: str, rows: int, dim: int, seed: int = 0) -> None:
    """Random clusters in the import folder."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((50, dim)).astype(np.float32)
    folder = data_dir / "import"
    folder.mkdir(parents=True, exist_ok=True)
    picks = rng.integers(0, 50, rows)
    np.save(folder / name, centres[picks] + 0.5 * rng.standard_normal((rows, dim)).astype(np.float32))


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def hits(server: LiveServer, name: str, query: list[float]) -> list[int]:
    answer = server.client.post(f"/collections/{name}/points/query", json={"query": query, "limit": 10})
    assert answer.status_code == 200, answer.text
    return [point["id"] for point in answer.json()["result"]["points"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for tests that leave it as it was; collection `c` of 500 rows of 8."""
    data_dir = tmp_path_factory.mktemp("live") / "data"
    rows_file(data_dir, "c.npy", 500, 8)
    with live_server(data_dir) as running:
        assert running.build(collection="c", source={"path": "c.npy"})["state"] == "done"
        yield running


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def test_s12_progress_is_honest(server, tmp_path):
    rows_file(server.data_dir, "twenty.npy", 20_000, 32)
    answer = server.client.post("/v1/admin/builds", json={"collection": "twenty", "source": {"path": "twenty.npy"}})
    job, seen = answer.json()["job"], []
    assert answer.json()["passes"] >= 1
    assert answer.json()["warnings"] == []

    def done():
        state = server.job(job)
        exists = server.client.get("/collections/twenty/exists").json()["result"]["exists"]
        seen.append(state)
        if state["state"] in ("queued", "running"):
            return False
        assert state["state"] == "done", state
        assert exists or server.client.get("/collections/twenty/exists").json()["result"]["exists"]
        return True

    wait_for(done, 120)
    count = server.client.post("/collections/twenty/points/count", json={}).json()["result"]["count"]
    assert count == 20_000
    for before, after in pairwise(seen):
        if before["phase"] == after["phase"]:
            assert before["done"] <= after["done"] or after["state"] == "done"
        assert after["done"] <= after["total"]
    assert {"graph"} <= {state["phase"] for state in seen}
    server.client.delete("/collections/twenty")


def test_s13_cancel_ends_and_leaves_nothing(server):
    rows_file(server.data_dir, "big.npy", 60_000, 32)
    query = np.load(server.data_dir / "import" / "c.npy")[0].tolist()
    expected = hits(server, "c", query)
    before = disk_bytes(server.data_dir)
    body = {"collection": "c", "source": {"path": "big.npy"}, "mode": "replace", "allow_change": True}
    job = server.client.post("/v1/admin/builds", json=body).json()["job"]
    wait_for(lambda: server.job(job)["phase"] in ("write", "graph"), 60)
    refusal = server.client.post("/v1/admin/builds", json=body)
    assert refusal.status_code == 409
    assert job in refusal.json()["status"]["error"]
    begun = time.monotonic()
    assert server.client.post(f"/v1/admin/builds/{job}/cancel").status_code == 200
    assert server.client.post(f"/v1/admin/builds/{job}/cancel").status_code in (200, 409)
    assert server.wait_job(job, 5)["state"] == "cancelled"
    assert time.monotonic() - begun < 5
    assert abs(disk_bytes(server.data_dir) - before) < 1_000_000
    assert hits(server, "c", query) == expected
    again = server.client.post("/v1/admin/builds", json=body)
    assert again.status_code == 202
    server.client.post(f"/v1/admin/builds/{again.json()['job']}/cancel")
    assert server.wait_job(again.json()["job"], 5)["state"] == "cancelled"
    assert server.client.post(f"/v1/admin/builds/{job}/cancel").status_code == 409


@pytest.mark.parametrize("phase", [pytest.param("codes", marks=pytest.mark.long), "graph"])
def test_s14_a_crash_leaves_the_old_or_nothing(tmp_path, phase):
    data_dir = tmp_path / "data"
    rows_file(data_dir, "small.npy", 300, 16)
    rows_file(data_dir, "big.npy", 12_000, 16)
    query = np.load(data_dir / "import" / "small.npy")[0].tolist()
    with live_server(data_dir) as server:
        assert server.build(collection="old", source={"path": "small.npy"})["state"] == "done"
        expected = hits(server, "old", query)
        body = {"collection": "old", "source": {"path": "big.npy"}, "mode": "replace"}
        job = server.client.post("/v1/admin/builds", json=body).json()["job"]
        queued = server.client.post(
            "/v1/admin/builds", json={"collection": "new", "source": {"path": "small.npy"}}
        ).json()
        wait_for(lambda: server.job(job)["phase"] == phase, 60)
        workers = children_of(server.process.pid)
        server.kill()
    assert workers
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers), 10)
    with live_server(data_dir) as server:
        interrupted = server.job(job)
        assert interrupted["state"] == "interrupted"
        assert "restart" in interrupted["error"]["message"].lower()
        assert hits(server, "old", query) == expected
        assert server.wait_job(queued["job"])["state"] == "done"
        if phase == "codes":
            return
        assert server.client.post(f"/v1/admin/builds/{job}/restart").status_code == 202
        assert server.wait_job(job)["state"] == "done"
        assert server.client.post("/collections/old/points/count", json={}).json()["result"]["count"] == 12_000
        assert list((data_dir / "building").iterdir()) == []
        assert len(list((data_dir / "collections").glob("*/*"))) == 2


def test_a_build_process_that_dies_fails_its_job(server):
    rows_file(server.data_dir, "dies.npy", 60_000, 32)
    job = server.client.post("/v1/admin/builds", json={"collection": "dies", "source": {"path": "dies.npy"}}).json()[
        "job"
    ]
    wait_for(lambda: server.job(job)["phase"] is not None, 60)
    for pid in children_of(server.process.pid):
        os.kill(pid, signal.SIGKILL)
    state = server.wait_job(job)
    assert state["state"] == "failed"
    assert "SIGKILL" in state["error"]["message"]
    assert server.client.get("/collections/dies").status_code == 404
    assert list((server.data_dir / "building").iterdir()) == []


def test_deleting_a_collection_cancels_its_build(server):
    rows_file(server.data_dir, "drop.npy", 60_000, 32)
    server.client.put("/collections/drop", json={"vectors": {"size": 32, "distance": "Dot"}})
    job = server.client.post("/v1/admin/builds", json={"collection": "drop", "source": {"path": "drop.npy"}}).json()[
        "job"
    ]
    wait_for(lambda: server.job(job)["phase"] is not None, 60)
    assert server.client.put("/collections/drop", json={"vectors": {"size": 3, "distance": "Dot"}}).status_code == 409
    assert server.client.delete("/collections/drop").json()["result"] is True
    assert server.wait_job(job, 5)["state"] == "cancelled"
    assert server.client.get("/collections/drop").status_code == 404


def test_s37_alias_switches_lose_no_request(server):
    rng = np.random.default_rng(37)
    for name in ("A", "B"):
        vectors = list(rng.standard_normal((50, 4)).astype(np.float32))
        pq.write_table(pa.table({"vector": vectors, "v": [name] * 50}), server.data_dir / "import" / f"{name}.parquet")
        source = {"path": f"{name}.parquet", "vector": "vector", "payload": ["v"]}
        assert server.build(collection=name, source=source, alias="live")["state"] == "done"
    stop, wrong, asked = threading.Event(), [], []

    def read():
        with httpx2.Client(base_url=server.url, timeout=60) as client:
            while not stop.is_set():
                body = {"query": [1.0, 0.0, 0.0, 0.0], "with_payload": True}
                answer = client.post("/collections/live/points/query", json=body)
                asked.append(answer.status_code)
                seen = {point["payload"]["v"] for point in answer.json().get("result", {}).get("points", [])}
                if answer.status_code != 200 or len(seen) != 1:
                    wrong.append(answer.text)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for turn in range(100):
        name = "AB"[turn % 2]
        actions = [
            {"delete_alias": {"alias_name": "live"}},
            {"create_alias": {"collection_name": name, "alias_name": "live"}},
        ]
        assert server.client.post("/collections/aliases", json={"actions": actions}).status_code == 200
        body = {"limit": 50, "with_payload": True}
        points = server.client.post("/collections/live/points/query", json=body).json()["result"]["points"]
        assert {point["payload"]["v"] for point in points} == {name}
    bad = [{"delete_alias": {"alias_name": "live"}}, {"create_alias": {"collection_name": "C", "alias_name": "live"}}]
    assert server.client.post("/collections/aliases", json={"actions": bad}).status_code == 404
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(asked) > 100
    assert server.client.get("/collections/live").json()["result"]["points_count"] == 50


def test_sigterm_drains_and_exits_with_0(tmp_path):
    rows_file(tmp_path / "data", "big.npy", 60_000, 32)
    with live_server(tmp_path / "data") as server:
        body = {"collection": "big", "source": {"path": "big.npy"}}
        job = server.client.post("/v1/admin/builds", json=body).json()["job"]
        wait_for(lambda: server.job(job)["phase"] is not None, 60)
        workers = children_of(server.process.pid)
        with server.client.stream("GET", f"/v1/admin/builds/{job}/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert list(lines)
        assert server.terminate() == 0
        assert time.monotonic() - begun < 10
        assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers)
        assert "Traceback" not in server.errors
    with live_server(tmp_path / "data") as server:
        assert server.job(job)["state"] == "interrupted"


def test_s57_a_second_server_on_the_folder_is_refused(server):
    begun = time.monotonic()
    command = [sys.executable, "-m", "service.cli", "serve", "--port", "0", "--data-dir", str(server.data_dir)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert time.monotonic() - begun < 5
    assert str(server.data_dir) in second.stderr
    assert str(server.process.pid) in second.stderr
    assert server.client.get("/readyz").status_code == 200


def test_s57_a_stale_lock_is_taken_over(tmp_path):
    with live_server(tmp_path / "data") as server:
        server.kill()
    assert (tmp_path / "data" / "fullview.lock").exists()
    with live_server(tmp_path / "data") as server:
        assert server.client.get("/readyz").status_code == 200


def test_a_port_that_is_taken_is_named(server, tmp_path):
    port = server.url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "service.cli", "serve", "--port", port, "--data-dir", str(tmp_path / "other")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert port in second.stderr


def peak_kb(status: str) -> int:
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def test_s45_a_body_over_the_limit_gets_413(server):
    def chunks():
        for _ in range(40):
            yield b" " * 1_000_000

    before = peak_kb(Path(f"/proc/{server.process.pid}/status").read_text())
    for content in (b" " * 40_000_000, chunks()):
        with httpx2.Client(timeout=60) as client:
            headers = {"content-type": "application/json"}
            answer = client.post(f"{server.url}/collections/c/points/query", content=content, headers=headers)
        assert answer.status_code == 413
        for word in ("40,000,000", "32,000,000", "batch"):
            assert word in answer.json()["status"]["error"]
        assert server.client.get("/collections/c").status_code == 200
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert peak_kb(status) - before < 64_000


def test_s47_bytes_that_are_no_http(server):
    host, port = server.url.removeprefix("http://").split(":")
    pid = server.process.pid
    for raw in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"\xff" * 70_000,
    ):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.process.poll() is None
    assert server.process.pid == pid
    assert server.client.get("/collections/c").status_code == 200


def test_s56_the_limit_of_open_files_is_named(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    body = {"vectors": {"size": 2, "distance": "Dot"}}
    with live_server(tmp_path / "data", before=limit) as server:
        for number in range(100):
            answer = server.client.put(f"/collections/c{number}", json=body)
            if answer.status_code != 200:
                break
        assert answer.status_code == 507
        assert "256" in answer.json()["status"]["error"]
        assert number >= 50
        assert server.client.get("/livez").status_code == 200
        assert server.client.post("/collections/c0/points/count", json={}).status_code == 200
    with live_server(tmp_path / "data") as server:
        assert len(server.client.get("/collections").json()["result"]["collections"]) == number


def fill(filler: Path) -> None:
    """Until not one page is free."""
    for block in (1 << 16, 1 << 12):
        with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(block)) == block:
                pass
    assert shutil.disk_usage(filler.parent).free == 0


def test_s15_a_full_disk(small_disk, tmp_path):
    rows_file(tmp_path, "small.npy", 300, 16)
    rows_file(tmp_path, "big.npy", 130_000, 128)
    query = np.load(tmp_path / "import" / "small.npy")[0].tolist()
    with live_server(small_disk / "data", "--import-root", str(tmp_path / "import")) as server:
        assert server.build(collection="c", source={"path": "small.npy"})["state"] == "done"
        expected = hits(server, "c", query)
        failed = server.build(collection="big", source={"path": "big.npy"})
        assert failed["state"] == "failed"
        assert failed["error"]["code"] == "no_room"
        assert "bytes are needed" in failed["error"]["message"]
        assert list((small_disk / "data" / "building").iterdir()) == []
        filler = small_disk / "filler"
        fill(filler)
        answer = server.client.put("/collections/more", json={"vectors": {"size": 2, "distance": "Dot"}})
        upload = server.client.post(
            "/v1/admin/uploads?name=a.npy",
            content=bytes(1_000_000),
            headers={"content-type": "application/octet-stream"},
        )
        assert upload.status_code == 507
        assert answer.status_code == 507
        assert hits(server, "c", query) == expected
        assert server.client.get("/readyz").status_code == 200
        assert server.client.delete("/collections/c").json()["result"] is True
        filler.unlink()
        assert server.build(collection="again", source={"path": "small.npy"})["state"] == "done"
        assert hits(server, "again", query) == expected
