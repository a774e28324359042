"""An application with decoders that are handed in ready, for tests of completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from exact_head import ExactHead
from starlette.testclient import TestClient
from table_model import TableModel, TableTokenizer

from decoder.build import build_decoder
from decoder.head import OpenDecoder, open_decoder
from decoder.options import DecoderOptions
from decoder.output_layer import OutputLayer
from service.app import create_app
from service.errors import NotFoundError
from service.settings import Settings

FOUR = np.array([1.0, 0.0, -1.0, -2.0], np.float32)
"""Logits of the scenarios."""


class ReadyLease:
    def __init__(self, head: Any, text: Any) -> None:
        self.head, self.text = head, text
        self.taken, self.released = 0, 0

    def release(self) -> None:
        self.released += 1

    @property
    def open(self) -> int:
        return self.taken - self.released


class ReadyDecoders:
    """The registry's face. leases: by name."""

    def __init__(self, **made: tuple[Any, Any]) -> None:
        self.leases = {name: ReadyLease(head, text) for name, (head, text) in made.items()}

    def lease(self, name: str) -> ReadyLease:
        if name not in self.leases:
            raise NotFoundError(f"no decoder {name!r}")
        self.leases[name].taken += 1
        return self.leases[name]

    def served(self) -> list[tuple[str, float]]:
        return [(name, 1.5e9) for name, lease in self.leases.items() if lease.text is not None]

    def all(self) -> list[Any]:
        return []


def layer_of(count: int) -> OutputLayer:
    """Logits are the state itself."""
    return OutputLayer(np.eye(count, dtype=np.float32))


def built(layer: OutputLayer, folder: Path, **options: Any) -> OpenDecoder:
    """A real decoder. options: of build_decoder."""
    build_decoder(layer, folder, options=DecoderOptions(threads=1), **options)
    return open_decoder(folder)


def always(logits: np.ndarray, pieces: list[bytes], **options: Any) -> tuple[ExactHead, TableModel]:
    """A model that has the same logits after every token."""
    states = np.tile(np.asarray(logits, np.float32), (len(pieces), 1))
    return ExactHead(layer_of(len(pieces))), TableModel(states, TableTokenizer(pieces), **options)


def chain(pieces: list[bytes], **options: Any) -> tuple[ExactHead, TableModel]:
    """A model that says its tokens in order."""
    states = np.zeros((len(pieces), len(pieces)), np.float32)
    for at in range(len(pieces)):
        states[at, (at + 1) % len(pieces)] = 5.0
    return ExactHead(layer_of(len(pieces))), TableModel(states, TableTokenizer(pieces), **options)


@contextmanager
def serving(data_dir: Path, settings: dict[str, Any] | None = None, **made: tuple[Any, Any]) -> Iterator[TestClient]:
    """A client of an application with these decoders; client.decoders is the registry."""
    with TestClient(create_app(Settings(data_dir=data_dir, **(settings or {})))) as client:
        client.decoders = client.app.state.parts.decoders = ReadyDecoders(**made)
        yield client


def completed(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return strict(answer.content)


def chatted(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return strict(answer.content)


def streamed(client: TestClient, path: str = "/v1/completions", **body: Any) -> list[dict[str, Any]]:
    """Chunks of a streamed answer, which has to come to its end."""
    answer = client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], answer.text
    return [strict(event.removeprefix("data: ")) for event in events[:-2]]


def refused(client: TestClient, status: int = 400, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = strict(answer.content)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def strict(text: str | bytes) -> Any:
    """JSON without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def top_of(choice: dict[str, Any], place: int = 0) -> dict[str, float]:
    return choice["logprobs"]["top_logprobs"][place]
