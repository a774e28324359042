"""create_app(): the application of one data folder, with all its routes.

The order of the parts: lock on the folder, engine (collections), decoders, runner (builds), gate (keys, limits, errors)
around the routes. Shutting down goes the other way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from service.answers import failure
from service.data_lock import DataLock
from service.decoders import Decoders
from service.engine import Engine
from service.errors import Problem
from service.gate import Gate
from service.generation import Opener, open_with_index
from service.jobs.collection_job import CollectionJobs
from service.jobs.compaction import Compactor, FoldJobs
from service.jobs.decoder_job import DecoderJobs
from service.jobs.kinds import JobKind
from service.jobs.runner import WORKER_COMMAND, JobRunner
from service.jobs.snapshot_jobs import RestoreJobs, SnapshotJobs
from service.jobs.store import JobKindName, JobStore
from service.metrics import Metrics
from service.routes import aliases, builds, collections, groups, later, openai, points, snapshots, uploads, writes
from service.routes import decoders as decoder_routes
from service.routes import service as service_routes
from service.routes.context import AppParts
from service.served_decoder import DecoderOpener, open_with_decoder
from service.settings import Settings
from service.uploads import remove_parts

_BEAT_EVERY_S = 1.0
_WORDS = {404: "not_found", 405: "method"}


def create_app(
    settings: Settings,
    *,
    opener: Opener = open_with_index,
    decoder_opener: DecoderOpener = open_with_decoder,
    worker_command: Sequence[str] = WORKER_COMMAND,
    data_lock: DataLock | None = None,
) -> FastAPI:
    """The application. Nothing is touched on the disk before it starts.

    opener, decoder_opener: what opens an index folder, and a decoder's; worker_command: what runs a build: tests put others
    in their place. data_lock: taken over where the caller has it already, else taken at start (DataFolderInUseError).
    """
    metrics = Metrics()

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        lock = data_lock if data_lock is not None else await asyncio.to_thread(DataLock, settings.data_dir)
        try:
            async with _running(settings, metrics, opener, decoder_opener, worker_command) as own:
                app.state.parts = own
                yield
        finally:
            lock.release()

    app = FastAPI(title="fullview", lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False)
    # Routes are tried in this order: those of queries come first.
    for family in (
        points,
        writes,
        groups,
        decoder_routes,
        collections,
        aliases,
        snapshots,
        service_routes,
        uploads,
        builds,
        openai,
        later,
    ):
        app.include_router(family.router)
    app.include_router(builds.compact_router)
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _http_problem)
    app.add_middleware(Gate, settings=settings, metrics=metrics)
    return app


@contextlib.asynccontextmanager
async def _running(
    settings: Settings,
    metrics: Metrics,
    opener: Opener,
    decoder_opener: DecoderOpener,
    worker_command: Sequence[str],
) -> AsyncIterator[AppParts]:
    """Engine, decoders and runner from start to end."""
    await asyncio.to_thread(settings.import_folder.mkdir, parents=True, exist_ok=True)
    await asyncio.to_thread(remove_parts, settings.data_dir)
    engine = Engine(settings, opener)
    await asyncio.to_thread(engine.start)
    decoders = Decoders(settings, engine, decoder_opener)
    await asyncio.to_thread(decoders.start)
    store = await asyncio.to_thread(JobStore, settings.data_dir / "jobs.db")
    kinds: dict[JobKindName, JobKind] = {
        "collection": CollectionJobs(engine),
        "compaction": FoldJobs(engine, "compaction"),
        "append": FoldJobs(engine, "append"),
        "restore": RestoreJobs(engine),
        "snapshot": SnapshotJobs(engine),
        "decoder": DecoderJobs(engine, decoders),
    }
    runner = JobRunner(store, settings, kinds, worker_command=worker_command)
    await asyncio.to_thread(runner.start)
    engine.after_write = Compactor(engine, runner).after_write
    own = AppParts(
        settings=settings,
        engine=engine,
        decoders=decoders,
        runner=runner,
        metrics=metrics,
        completions=asyncio.Semaphore(settings.completions_parallel),
    )
    metrics.before_scrape(lambda: service_routes.collect(own))
    beat = asyncio.create_task(_beat(engine.pool.stalled_s))
    try:
        yield own
    finally:
        own.draining = True
        beat.cancel()
        await asyncio.to_thread(runner.close)
        await asyncio.to_thread(engine.close)
        await asyncio.to_thread(decoders.close)
        await asyncio.to_thread(store.close)


async def _beat(send_beat: Callable[[], float]) -> None:
    """Keeps the pool's heartbeat going, so that readiness knows for how long it has not answered."""
    while True:
        send_beat()
        await asyncio.sleep(_BEAT_EVERY_S)


async def _http_problem(request: Request, error: Exception) -> Response:
    """Starlette's and FastAPI's own refusals in our shape."""
    path, method = request.url.path, request.method
    status = error.status_code if isinstance(error, HTTPException) else 400
    if status == 404:
        sentence = f"There is no route {path!r}. docs/http.md lists all routes."
    elif status == 405:
        sentence = f"{path!r} does not take {method}. docs/http.md lists all routes."
    else:
        sentence = f"The request cannot be read: {error}."
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    problem = Problem(status=status, code=_WORDS.get(status, "malformed"), sentence=sentence, headers=headers)
    state = request.scope["state"]
    return failure(problem, path=path, request_id=state["request_id"], started=state["started"])
