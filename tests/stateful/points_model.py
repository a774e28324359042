"""A collection as a plain dict, and random operations on it together with the requests that ask a server for the same.

Model         what a collection must be: id -> (vector or None, payload)
Operations    random operations: each changes the model and is the body of a request
check_*       what a server answers against what the model says

Predicates are written down twice here, as Qdrant's JSON and as Python: nothing of service/filters is used.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Payload = dict[str, Any]
Predicate = tuple[dict[str, Any], Callable[[Any, Payload], bool]]
WORDS = ("red", "green", "blue", "Blau", "")


def order_of(id_: Any) -> tuple[bool, Any]:
    return isinstance(id_, str), id_


@dataclass
class Model:
    dim: int
    points: dict[Any, tuple[np.ndarray | None, Payload]] = field(default_factory=dict)

    def matching(self, predicate: Predicate | None) -> list[Any]:
        """Ids ascending."""
        found = [i for i, (_, payload) in self.points.items() if predicate is None or predicate[1](i, payload)]
        return sorted(found, key=order_of)

    def nearest(self, query: np.ndarray, predicate: Predicate | None) -> list[tuple[float, Any]]:
        """(score, id) of all points with vectors that match, best first, in float64."""
        found = []
        for id_ in self.matching(predicate):
            vector = self.points[id_][0]
            if vector is not None:
                found.append((_cosine(vector.astype(np.float64), query.astype(np.float64)), id_))
        return sorted(found, key=lambda hit: (-hit[0], order_of(hit[1])))


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = np.sqrt((one @ one) * (other @ other))
    return float(np.clip(one @ other / lengths, -1, 1)) if lengths > 0 else 0.0


class Operations:
    """Random operations. ids: how many different ones there are."""

    def __init__(self, model: Model, seed: int, *, ids: int = 400) -> None:
        self.model, self.random = model, np.random.default_rng(seed)
        texts = [str(uuid.UUID(int=int(n))) for n in range(1, ids // 4)]
        self.ids = [*range(ids // 2), *(2**63 + n for n in range(ids // 4)), *texts, "plain", "é", "e\u0301"]

    # --- pieces -------------------------------------------------------------

    def some(self, values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def id(self) -> Any:
        return self.some(self.ids)

    def vector(self) -> np.ndarray:
        return np.round(self.random.standard_normal(self.model.dim), 3).astype(np.float32)

    def payload(self) -> Payload:
        chosen: Payload = {}
        if self.random.random() < 0.8:
            chosen["n"] = int(self.random.integers(50))
        if self.random.random() < 0.6:
            chosen["word"] = self.some(WORDS)
        if self.random.random() < 0.4:
            chosen["list"] = [int(v) for v in self.random.integers(8, size=int(self.random.integers(4)))]
        if self.random.random() < 0.3:
            chosen["in"] = {"side": float(np.round(self.random.random(), 2)), "flag": bool(self.random.integers(2))}
        if self.random.random() < 0.1:
            chosen["null"] = None
        return chosen

    def predicate(self) -> Predicate:
        """A filter and what it means."""
        kind = int(self.random.integers(8))
        if kind == 0:
            n = int(self.random.integers(50))
            return {"must": [{"key": "n", "match": {"value": n}}]}, lambda _, p: p.get("n") == n
        if kind == 1:
            low = int(self.random.integers(50))
            return {"must": {"key": "n", "range": {"gte": low}}}, lambda _, p: p.get("n", -1) >= low
        if kind == 2:
            word = self.some(WORDS)
            return {"must_not": [{"key": "word", "match": {"value": word}}]}, lambda _, p: p.get("word") != word
        if kind == 3:
            element = int(self.random.integers(8))
            return {"must": [{"key": "list", "match": {"any": [element]}}]}, lambda _, p: element in p.get("list", [])
        if kind == 4:
            return {
                "must": [{"key": "in.flag", "match": {"value": True}}]
            }, lambda _, p: p.get("in", {}).get("flag") is True
        if kind == 5:
            ids = [self.id() for _ in range(20)]
            return {"must": [{"has_id": ids}]}, lambda i, _: i in ids
        if kind == 6:
            return {"must": [{"is_empty": {"key": "list"}}]}, lambda _, p: not p.get("list")
        one, other = self.predicate(), self.predicate()
        return {"should": [one[0], other[0]]}, lambda i, p: one[1](i, p) or other[1](i, p)

    # --- operations: (member of points/batch, what it does to the model) -------

    def operation(self) -> tuple[str, dict[str, Any]]:
        """One random operation; the model has it already."""
        kind = self.some(
            ("upsert",) * 5 + ("delete", "delete", "set", "overwrite", "unset", "clear", "vectors", "bare")
        )
        result: tuple[str, dict[str, Any]] = getattr(self, f"_{kind}")()
        return result

    def _upsert(self) -> tuple[str, dict[str, Any]]:
        points = []
        for _ in range(int(self.random.integers(1, 12))):
            id_, payload = self.id(), self.payload()
            vector = None if self.random.random() < 0.05 else self.vector()
            self.model.points[id_] = vector, payload
            points.append({"id": id_, "vector": {} if vector is None else vector.tolist(), "payload": payload})
        return "upsert", {"points": points}

    def _selector(self) -> tuple[list[Any], dict[str, Any]]:
        if self.random.random() < 0.3:
            wanted = self.predicate()
            return self.model.matching(wanted), {"filter": wanted[0]}
        there = list(self.model.points)
        ids = [self.some(there) for _ in range(int(self.random.integers(1, 6)))] if there else []
        return list(dict.fromkeys(ids)), {"points": ids}

    def _delete(self) -> tuple[str, dict[str, Any]]:
        ids, body = self._selector()
        if (
            len(ids) > 20 and self.random.random() < 0.97
        ):  # most deletes by filter are large: few of them, or little is left
            ids, body = ids[:3], {"points": ids[:3]}
        for id_ in ids:
            del self.model.points[id_]
        return "delete", body

    def _change(self, change: Callable[[Payload], Payload]) -> dict[str, Any]:
        ids, body = self._selector()
        for id_ in ids:
            vector, payload = self.model.points[id_]
            self.model.points[id_] = vector, change(payload)
        return body

    def _set(self) -> tuple[str, dict[str, Any]]:
        given = self.payload()
        return "set_payload", {"payload": given, **self._change(lambda p: _without_null(p, given))}

    def _overwrite(self) -> tuple[str, dict[str, Any]]:
        given = self.payload()
        return "overwrite_payload", {"payload": given, **self._change(lambda _: dict(given))}

    def _unset(self) -> tuple[str, dict[str, Any]]:
        body = self._change(lambda p: {name: value for name, value in p.items() if name not in ("n", "word")})
        return "delete_payload", {"keys": ["n", "word"], **body}

    def _clear(self) -> tuple[str, dict[str, Any]]:
        return "clear_payload", self._change(lambda _: {})

    def _vectors(self) -> tuple[str, dict[str, Any]]:
        there = list(self.model.points)
        points = []
        for _ in range(3 if there else 0):
            id_, vector = self.some(there), self.vector()
            self.model.points[id_] = vector, self.model.points[id_][1]
            points.append({"id": id_, "vector": vector.tolist()})
        return ("update_vectors", {"points": points}) if points else self._upsert()

    def _bare(self) -> tuple[str, dict[str, Any]]:
        there = list(self.model.points)
        if not there:
            return self._upsert()
        id_ = self.some(there)
        self.model.points[id_] = None, self.model.points[id_][1]
        return "delete_vectors", {"points": [id_], "vector": [""]}


def _without_null(payload: Payload, given: Payload) -> Payload:
    """Members merged; as in Qdrant, one that is null is taken out."""
    merged = payload | given
    return {name: value for name, value in merged.items() if not (name in given and value is None)}


def check_all(post: Callable[[str, dict[str, Any]], Any], model: Model) -> None:
    """Every point, by scroll, with payload and vector."""
    found, offset = [], None
    while True:
        page = post("/points/scroll", {"limit": 97, "with_vector": True, "offset": offset})
        found += page["points"]
        offset = page["next_page_offset"]
        if offset is None:
            break
    assert [point["id"] for point in found] == model.matching(None)
    for point in found:
        vector, payload = model.points[point["id"]]
        assert point["payload"] == payload
        assert point["vector"] == ({} if vector is None else vector.tolist())


def check_filter(post: Callable[[str, dict[str, Any]], Any], model: Model, wanted: Predicate) -> None:
    """Counted and scrolled by a filter."""
    ids = model.matching(wanted)
    assert post("/points/count", {"filter": wanted[0]}) == {"count": len(ids)}
    page = post("/points/scroll", {"limit": 50, "filter": wanted[0], "with_payload": False})
    assert [point["id"] for point in page["points"]] == ids[:50]


def check_query(
    post: Callable[[str, dict[str, Any]], Any],
    model: Model,
    query: np.ndarray,
    wanted: Predicate | None,
    *,
    exact: bool,
    limit: int = 10,
) -> None:
    """Hits of one query: exact ones in the reference's order; others complete, with exact scores, best first."""
    body: dict[str, Any] = {"query": query.tolist(), "limit": limit, "params": {"exact": exact}}
    if wanted is not None:
        body["filter"] = wanted[0]
    hits = [(hit["score"], hit["id"]) for hit in post("/points/query", body)["points"]]
    true = model.nearest(query, wanted)
    scores = {id_: score for score, id_ in true}
    assert len(hits) == min(limit, len(true))
    assert len({id_ for _, id_ in hits}) == len(hits)
    assert all(abs(score - scores[id_]) < 2e-6 for score, id_ in hits)
    assert all(a[0] >= b[0] for a, b in itertools.pairwise(hits))
    if exact:
        assert all(abs(a[0] - b[0]) < 2e-6 for a, b in zip(hits, true))
        ties = {round(score, 5) for score, _ in true[: limit + 1]}
        if len(ties) == len(true[: limit + 1]):
            assert [id_ for _, id_ in hits] == [id_ for _, id_ in true[:limit]]
