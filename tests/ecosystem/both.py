"""Two clients with the same calls: one of a live server of ours, one of Qdrant's own local mode, which is the oracle.

Both     read() compares the answers, write() the effects; refused() wants a refusal from each
same()   scores within 1e-5; vectors by direction under cosine, where local mode keeps unit vectors
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse
from qdrant_client.http.models import QueryResponse

SCORE = 1e-5
DISTANCES = (models.Distance.COSINE, models.Distance.DOT, models.Distance.EUCLID)
EXACT = models.SearchParams(exact=True)


class Both:
    """Both clients, looking at a collection of the same name. ours: QdrantClient of the server."""

    def __init__(self, ours: QdrantClient, name: str, *, size: int, distance: models.Distance) -> None:
        self.ours, self.oracle, self.name = ours, QdrantClient(":memory:"), name
        self.size, self.distance = size, distance
        self.unit = distance == models.Distance.COSINE
        self.calls = 0
        for client in (ours, self.oracle):
            client.create_collection(name, vectors_config=models.VectorParams(size=size, distance=distance))

    def write(self, call: str, *args: Any, **kwargs: Any) -> None:
        """A call that both take."""
        getattr(self.oracle, call)(self.name, *args, **kwargs)
        getattr(self.ours, call)(self.name, *args, **kwargs)
        self.calls += 1

    def read(self, call: str, *args: Any, **kwargs: Any) -> Any:
        """Both answers, compared; returns ours."""
        expected = getattr(self.oracle, call)(self.name, *args, **kwargs)
        found = getattr(self.ours, call)(self.name, *args, **kwargs)
        self.calls += 1
        same(found, expected, f"{call} {args} {kwargs}", unit=self.unit)
        return found

    def refused(self, call: str, *args: Any, **kwargs: Any) -> int:
        """Both refuse; returns the status of ours, which is the user's error and not the server's."""
        with pytest.raises((ValueError, KeyError, TypeError, AssertionError)):
            getattr(self.oracle, call)(self.name, *args, **kwargs)
        with pytest.raises(UnexpectedResponse) as caught:
            getattr(self.ours, call)(self.name, *args, **kwargs)
        status = caught.value.status_code
        assert 400 <= status < 500, caught.value
        return status

    def state(self) -> None:
        """Everything that is stored is the same."""
        self.read("scroll", limit=10_000, with_payload=True, with_vectors=True)
        self.read("count")

    def close(self) -> None:
        """The collection is gone afterwards."""
        self.ours.delete_collection(self.name)
        self.oracle.close()


def same(found: Any, expected: Any, what: str, *, unit: bool) -> None:
    """Fails where answers of the two clients differ. unit: vectors may differ in length."""
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected), f"{_ids(found)} instead of {_ids(expected)} from {what}"
        if _ids(expected) != [None] * len(expected):
            assert _ids(found) == _ids(expected), f"ids of {what}"
        for one, other in zip(found, expected, strict=True):
            same(one, other, what, unit=unit)
    elif isinstance(expected, QueryResponse):
        same(found.points, expected.points, what, unit=unit)
    elif isinstance(expected, models.GroupsResult):
        assert [group.id for group in found.groups] == [group.id for group in expected.groups], f"groups of {what}"
        for one, other in zip(found.groups, expected.groups, strict=True):
            same(one.hits, other.hits, what, unit=unit)
    elif isinstance(expected, models.FacetResponse):
        assert found.hits == expected.hits, f"hits of {what}"
    elif isinstance(expected, models.ScoredPoint | models.Record):
        where = f"of {found.id!r} from {what}"
        assert found.payload == expected.payload, f"payload {where}"
        if isinstance(expected, models.ScoredPoint):
            assert found.score == pytest.approx(expected.score, abs=SCORE, rel=SCORE), f"score {where}"
        else:
            assert found.order_value == expected.order_value, f"order_value {where}"
        _same_vector(found.vector, expected.vector, f"vector {where}", unit=unit)
    else:
        assert found == expected, what


def _ids(answer: Any) -> list[Any]:
    return [getattr(one, "id", None) for one in answer]


def _same_vector(found: Any, expected: Any, what: str, *, unit: bool) -> None:
    if not isinstance(expected, list):
        assert found == expected, what
        return
    vector = np.array(found, np.float64)
    length = float(np.linalg.norm(vector)) if unit else 1.0
    assert vector / (length or 1.0) == pytest.approx(np.array(expected), abs=1e-5, rel=1e-5), what
