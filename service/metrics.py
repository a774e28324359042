"""Prometheus metrics: seconds and bytes, route templates as labels. One registry an application.

Invariant: no label holds what a client made up, but names of collections, decoders and jobs that exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

if TYPE_CHECKING:
    from service.hits import WorkDone

_SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 30.0)
_DECODER_SECONDS = (0.00005, 0.0001, 0.0002, *_SECONDS)
_METHODS = frozenset({"GET", "PUT", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class _CollectionSeries:
    """The series of one collection."""

    def __init__(self, metrics: Metrics, collection: str) -> None:
        self.queries = metrics._queries.labels(collection)
        self.pages = metrics._pages.labels(collection)
        self.bytes = metrics._bytes.labels(collection)
        self.scored = metrics._scored.labels(collection)
        self.reranked = metrics._reranked.labels(collection)
        self._seconds, self._collection = metrics._query_seconds, collection
        self._stages: dict[str, Histogram] = {}

    def stage(self, name: str) -> Histogram:
        """Seconds of a stage."""
        found = self._stages.get(name)
        return (
            found if found is not None else self._stages.setdefault(name, self._seconds.labels(self._collection, name))
        )


class Metrics:
    """What /metrics shows. Threads: any."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self._requests = Counter(
            "fullview_http_requests", "Requests answered.", ["method", "route", "status"], registry=registry
        )
        self._request_seconds = Histogram(
            "fullview_http_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS, registry=registry
        )
        self._queries = Counter("fullview_queries", "Queries answered.", ["collection"], registry=registry)
        self._query_seconds = Histogram(
            "fullview_query_seconds",
            "Time of a search by stage.",
            ["collection", "stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._pages = Counter("fullview_pages_read", "Pages read from disk.", ["collection"], registry=registry)
        self._bytes = Counter("fullview_bytes_read", "Bytes read from disk.", ["collection"], registry=registry)
        self._scored = Counter("fullview_rows_scored", "Rows scored by their codes.", ["collection"], registry=registry)
        self._reranked = Counter("fullview_rows_reranked", "Rows scored exactly.", ["collection"], registry=registry)
        self._decoder_tokens = Counter(
            "fullview_decoder_tokens", "Hidden states answered.", ["decoder", "mode"], registry=registry
        )
        self._decoder_seconds = Histogram(
            "fullview_decoder_seconds",
            "Time of a call of a decoder.",
            ["decoder", "mode"],
            buckets=_DECODER_SECONDS,
            registry=registry,
        )
        self._decoders_damaged = Gauge(
            "fullview_decoders_damaged", "Decoders that cannot be served.", registry=registry
        )
        self._refused = Counter("fullview_refused", "Requests refused.", ["reason"], registry=registry)
        self._resident = Gauge(
            "fullview_resident_bytes", "Memory of open indexes and decoders.", ["part"], registry=registry
        )
        self._points = Gauge("fullview_collection_points", "Points of a collection.", ["collection"], registry=registry)
        self._damaged = Gauge("fullview_collections_damaged", "Collections that cannot be served.", registry=registry)
        self._builds = Gauge("fullview_builds", "Build jobs by state.", ["state"], registry=registry)
        self._progress = Gauge(
            "fullview_build_progress_ratio", "Share of the phase that is done.", ["job"], registry=registry
        )
        self._collect: list[Callable[[], None]] = []
        # labels() costs a lock and a tuple of strings at each call: what queries need is looked up once.
        self._series: dict[str, _CollectionSeries] = {}
        self._answered: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def before_scrape(self, collect: Callable[[], None]) -> None:
        """Call `collect` before each scrape: gauges that are read, not counted."""
        self._collect.append(collect)

    def text(self) -> bytes:
        """The exposition."""
        for collect in self._collect:
            collect()
        return generate_latest(self.registry)

    def request_done(self, method: str, route: str, status: int, seconds: float) -> None:
        """One request answered; status 0: the client left before."""
        key = (method if method in _METHODS else "other", route, status)
        series = self._answered.get(key)
        if series is None:
            made = self._requests.labels(key[0], route, str(status)), self._request_seconds.labels(route)
            series = self._answered.setdefault(key, made)
        series[0].inc()
        series[1].observe(seconds)
        if status in {413, 429, 503, 507}:
            self._refused.labels({413: "too_large", 429: "too_many", 503: "not_ready", 507: "no_room"}[status]).inc()

    def refused(self, reason: str) -> None:
        """A request that was not served."""
        self._refused.labels(reason).inc()

    def queries_done(self, collection: str, *, count: int, seconds: float, work: WorkDone) -> None:
        """`count` queries answered by one search of `seconds`."""
        series = self._series.get(collection)
        if series is None:
            series = self._series.setdefault(collection, _CollectionSeries(self, collection))
        series.queries.inc(count)
        series.stage("all").observe(seconds)
        series.pages.inc(work.pages_read)
        series.bytes.inc(work.bytes_read)
        series.scored.inc(work.rows_scored)
        series.reranked.inc(work.rows_reranked)
        for stage, micros in work.microseconds.items():
            series.stage(stage).observe(micros * 1e-6)

    def forget(self, collection: str) -> None:
        """A collection is gone; so are its series."""
        self._series.pop(collection, None)
        for counter in (self._queries, self._pages, self._bytes, self._scored, self._reranked):
            with contextlib.suppress(KeyError):
                counter.remove(collection)
        self._query_seconds.remove_by_labels({"collection": collection})

    def decoder_done(self, decoder: str, mode: str, *, tokens: int, seconds: float) -> None:
        """Next tokens of `tokens` hidden states were found by one call of `seconds`."""
        self._decoder_tokens.labels(decoder, mode).inc(tokens)
        self._decoder_seconds.labels(decoder, mode).observe(seconds)

    def forget_decoder(self, decoder: str) -> None:
        """A decoder is gone; so are its series."""
        for series in (self._decoder_tokens, self._decoder_seconds):
            series.remove_by_labels({"decoder": decoder})

    def decoders(self, *, damaged: int) -> None:
        """State of all decoders."""
        self._decoders_damaged.set(damaged)

    def collections(self, points: Mapping[str, int], resident: Mapping[str, int], *, damaged: int) -> None:
        """State of all collections: points by name, resident bytes by part."""
        self._points.clear()
        for name, count in points.items():
            self._points.labels(name).set(count)
        self._resident.clear()
        for part, size in resident.items():
            self._resident.labels(part).set(size)
        self._damaged.set(damaged)

    def builds(self, states: Mapping[str, int], progress: Mapping[str, float]) -> None:
        """Jobs by state; share done of those that run."""
        for state, count in states.items():
            self._builds.labels(state).set(count)
        self._progress.clear()
        for job, ratio in progress.items():
            self._progress.labels(job).set(ratio)
