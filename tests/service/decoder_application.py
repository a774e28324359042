"""An application for tests of decoder jobs: stand-ins for index, decoder and build; weights say how their builds behave."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from fake_decoder import open_fake_decoder
from fake_index import open_fake

from service.app import create_app

WORKER = (sys.executable, str(Path(__file__).with_name("stubborn_worker.py")))
BEHAVIOURS = ("deaf", "obedient", "full", "surprise", "exits", "good", "other")
WEIGHT = np.random.default_rng(1).standard_normal((20, 4)).astype(np.float32)


def application(settings):
    return create_app(settings, opener=open_fake, decoder_opener=open_fake_decoder, worker_command=WORKER)


def import_root(settings):
    """The import folder with a weight for each behaviour, and what goes with it or does not."""
    root = settings.import_folder
    root.mkdir(parents=True)
    for number, behaviour in enumerate(BEHAVIOURS):
        np.save(root / f"{behaviour}.npy", WEIGHT + np.float32(number))
    np.save(root / "states.npy", np.ones((200, 4), np.float32))
    np.save(root / "few.npy", np.ones((199, 4), np.float32))
    np.save(root / "wide.npy", np.ones((300, 7), np.float32))
    np.save(root / "bias.npy", np.arange(20, dtype=np.float32))
    np.save(root / "short.npy", np.arange(19, dtype=np.float32))
    np.save(root / "flat.npy", np.ones(20, np.float32))
    for name in ("notes.txt", "junk.npy", "junk.safetensors", "junk.gguf", "junk.json"):
        (root / name).write_text("no such thing")
    for name, count in (("many.json", 21), ("exact.json", 20)):
        (root / name).write_text(json.dumps([f"w{number}" for number in range(count)]))
    for folder, config in (("bare", {}), ("long", {"hidden_size": 7})):
        (root / folder).mkdir()
        (root / folder / "config.json").write_text(json.dumps(config))
    (root / "long" / "tokenizer.json").write_text("{}")
    (root / "junk").mkdir()


def body_of(name="good", **changes):
    return {"name": name, "weight": {"path": f"{name}.npy"}} | changes


def refused(client, body, status, *words):
    answer = client.post("/v1/admin/decoders", json=body)
    assert answer.status_code == status, answer.text
    said = answer.json()["status"]["error"]
    for word in words:
        assert str(word) in said, said
    return said
