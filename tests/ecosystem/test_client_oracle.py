"""Qdrant's own client against a live server of ours, call by call beside QdrantClient(":memory:"), the oracle.

Decided differences stand in DIFFERENCES, and test_decided_differences runs them.
"""

from __future__ import annotations

import pytest
from both import DISTANCES, Both
from qdrant_client import QdrantClient, models
from random_calls import IDS, Caller

pytestmark = pytest.mark.filterwarnings(
    "ignore:Local mode performs exact:UserWarning", "ignore:Payload indexes have no effect:UserWarning"
)

SEEDS = range(60)
STEPS = 8
COMPACTIONS = 3
"""The first builds a generation, the others fold what was written into it."""


@pytest.fixture(scope="module")
def ours(server):
    client = QdrantClient(url=server.url, check_compatibility=False)
    yield client
    client.close()


@pytest.fixture
def pair(ours, request):
    """Makes pairs; all are closed afterwards."""
    made = []

    def make(distance: models.Distance = models.Distance.COSINE, *, size: int = 5) -> Both:
        name = f"{request.node.name[:60]} {len(made)}".replace("/", "_").replace(":", "_")
        made.append(Both(ours, name, size=size, distance=distance))
        return made[-1]

    yield make
    for both in made:
        both.close()


def filled(both: Both, seed: int) -> Caller:
    """Half of all ids stored."""
    caller = Caller(both, seed)
    both.write("upsert", [caller.point(id_) for id_ in caller.random.sample(IDS, len(IDS) // 2)])
    return caller


@pytest.mark.parametrize("seed", SEEDS)
def test_random_calls(pair, seed):
    both = pair(DISTANCES[seed % 3])
    caller = filled(both, seed)
    for _ in range(STEPS):
        caller.write()
        caller.read()
        caller.read()
    both.state()


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_random_calls_after_a_compaction(pair, server, seed):
    """The same over generations and what was written since."""
    both = pair(DISTANCES[seed % 3])
    caller = filled(both, seed)
    for _ in range(COMPACTIONS):
        compact(server, both.name)
        for _ in range(STEPS):
            caller.read()
        both.state()
        for _ in range(STEPS):
            caller.write()
            caller.read()
            caller.read()
        both.state()


def compact(server, name: str) -> None:
    """Everything that was written is in a generation afterwards."""
    answer = server.client.post(f"/v1/admin/collections/{name}/compact")
    assert answer.status_code == 202, answer.text
    assert server.wait_job(answer.json()["job"])["state"] == "done"
