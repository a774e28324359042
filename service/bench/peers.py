"""The peers that fullview is measured against: what installs them, what they can do, how they are built.

Variants are a peer's build parameters; the report takes the best variant at each recall. The first one is what a run
builds by default, the others are built with --variants all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from index.errors import OptionsError
from index.options import Metric

ANY_METRIC = frozenset(Metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way of building. label: what tells it apart, "" for the default."""

    label: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """worker: module on_NAME of workers/. requirements: what pip installs; none for fullview itself.

    on_disk: whether searches read from the device; where not, everything is in memory whatever the budget.
    """

    name: str
    worker: str
    requirements: tuple[str, ...] = ()
    on_disk: bool = False
    metrics: frozenset[Metric] = ANY_METRIC
    variants: tuple[Variant, ...] = (Variant(label="", parameters={}),)


FULLVIEW = Contender(name="fullview", worker="fullview", on_disk=True)

PEERS = {
    peer.name: peer
    for peer in (
        Contender(
            name="diskann",
            worker="diskann",
            requirements=("diskannpy-rust==0.49.1", "numpy"),
            on_disk=True,
            metrics=frozenset({Metric.COSINE, Metric.L2}),
            variants=(
                Variant(label="", parameters={"pq_share": 1.0}),
                # A quarter of the budget for shorter codes, which are scored faster; the rest caches nodes.
                Variant(label="short codes", parameters={"pq_share": 0.25}),
            ),
        ),
        Contender(
            name="hnswlib",
            worker="hnswlib",
            requirements=("hnswlib==0.8.0", "numpy"),
            variants=(
                Variant(label="", parameters={"m": 16, "ef_construction": 200}),
                Variant(label="M 32", parameters={"m": 32, "ef_construction": 200}),
            ),
        ),
        Contender(name="faiss-ivfpq", worker="faiss_ivfpq", requirements=("faiss-cpu==1.15.1", "numpy")),
        Contender(
            name="faiss-hnsw",
            worker="faiss_hnsw",
            requirements=("faiss-cpu==1.15.1", "numpy"),
            variants=(
                Variant(label="", parameters={"m": 16, "ef_construction": 200}),
                Variant(label="M 32", parameters={"m": 32, "ef_construction": 200}),
            ),
        ),
        Contender(
            name="usearch",
            worker="usearch",
            requirements=("usearch>=2.26,<3", "numpy"),
            variants=(
                Variant(label="", parameters={"m": 16, "ef_construction": 200, "dtype": "f32"}),
                Variant(label="float16", parameters={"m": 16, "ef_construction": 200, "dtype": "f16"}),
            ),
        ),
    )
}


def peers_named(text: str) -> list[Contender]:
    """The peers of a list such as "diskann,hnswlib"; none for "" or "none"."""
    names = [name.strip() for name in text.split(",") if name.strip() and name.strip() != "none"]
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise OptionsError(f"peer {unknown[0]!r} is not known; there are {', '.join(PEERS)}, or none.")
    return [PEERS[name] for name in dict.fromkeys(names)]
