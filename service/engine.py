"""Collections, aliases and their open indexes: who may read what, and how one generation replaces another.

lease()           a collection by name or alias, held open while it is read
read()            work on a lease in the CPU pool, with a deadline
write()           operations on its points: durable, then seen by every request that comes later
create() change() delete() set_aliases() publish()     the catalogue first (durable), then what requests see (atomic)
start() close()   leftovers out, indexes opened in the background; all closed

Invariant: a request reads exactly one generation and one moment of its delta from its first step to its last. Names
resolve at its start, so an answer to a request that was sent after a swap returned never comes from the old side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from index.errors import BuildCancelledError, CorruptIndexError, ReadFailedError, VectorIndexError
from index.options import OpenOptions
from service.alias_changes import AliasChange, apply_change
from service.catalogue import Catalogue, CollectionRecord
from service.disk_reserve import RESERVE_FILE, DiskReserve
from service.errors import ConflictError, DamagedError, MalformedError, NoRoomError, NotFoundError, NotReadyError
from service.folders import remove_folder_if_there, remove_generation, remove_leftovers
from service.generation import Generation, Opener, SearchableIndex
from service.handover import Handover
from service.points.operations import Operation
from service.points.resolve import resolve
from service.points.store import STORE_NAME
from service.points.written import OpenStores, WrittenPoints
from service.pool import CpuPool
from service.served import METRIC_OF_DISTANCE, Collection, CountedRelease, Lease
from service.settings import Settings
from service.warm import warm, warm_delta

log = logging.getLogger("fullview.engine")

T = TypeVar("T")

COLLECTIONS_FOLDER = "collections"
SNAPSHOTS_FOLDER = "snapshots"

# What a collection will hold once it is built or loaded (vectors, ids, payloads), and what connections, databases, builds
# and running scans need beside.
_DESCRIPTORS_EACH = 3
_DESCRIPTORS_RESERVE = 24


class Engine:
    """All collections of one data folder. Threads: any. start() first, close() last; the caller holds the DataLock."""

    def __init__(self, settings: Settings, opener: Opener) -> None:
        self.settings = settings
        self.pool = CpuPool(settings.search_threads)
        self._opener = opener
        self._options = OpenOptions(io_mode=settings.io_mode)
        # _writing: one change at a time, the disk included. _lock: what requests see, held for a moment only, so that a
        # lookup on the event loop never waits for a disk.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._collections: dict[str, Collection] = {}
        self._aliases: dict[str, str] = {}  # alias -> collection name
        self._catalogue: Catalogue | None = None
        self.reserve = DiskReserve(settings.data_dir / RESERVE_FILE)
        self._stores = OpenStores()
        self.after_write: Callable[[Collection], None] = lambda collection: None
        """Called after each write, outside of all locks."""
        self._closing = False
        self._loader: threading.Thread | None = None

    # --- life ---------------------------------------------------------------

    def start(self) -> None:
        """Read the catalogue, remove leftovers, open indexes in the background."""
        self._catalogue = Catalogue(self.settings.data_dir / "catalogue.db")
        self.reserve.fill()
        records = self._catalogue.collections()
        names = {record.id: record.name for record in records}
        self._collections = {record.name: Collection(record, self._written_of(record)) for record in records}
        for collection in self._collections.values():
            collection.loading = collection.record.generation is not None or collection.written.store.path.exists()
        self._aliases = {alias: names[target] for alias, target in self._catalogue.aliases().items()}
        kept = {record.id: record.generation for record in records}
        remove_leftovers(
            self.settings.data_dir / COLLECTIONS_FOLDER, kept, beside=(STORE_NAME, SNAPSHOTS_FOLDER, "queries")
        )
        self._loader = threading.Thread(target=self._load_all, name="fullview-loader", daemon=True)
        self._loader.start()

    def close(self) -> None:
        """Close every index; running searches end first."""
        self._closing = True
        if self._loader is not None:
            self._loader.join()
        self.pool.close()
        for collection in self._collections.values():
            collection.written.close()
            if collection.generation is not None:
                collection.generation.retire(remove_files=False)
        if self._catalogue is not None:
            self._catalogue.close()

    @property
    def catalogue(self) -> Catalogue:
        """What is on the disk of collections and decoders."""
        assert self._catalogue is not None, "start() comes first"
        return self._catalogue

    def folder_of(self, collection_id: str) -> Path:
        """Where a collection's generations lie."""
        return self.settings.data_dir / COLLECTIONS_FOLDER / collection_id

    # --- reading ------------------------------------------------------------

    def lease(self, name: str) -> Lease:
        """The collection of that name or alias, held open. Raises NotFoundError, NotReadyError, DamagedError."""
        with self._lock:
            collection = self._find(name)
            if collection.loading:
                raise NotReadyError(f"Collection {name!r} is still being loaded. Try again in a second.")
            generation = collection.generation
            if generation is None and collection.damage is not None:
                raise DamagedError(collection.damage)
            if generation is not None:
                acquired = generation.acquire()
                assert acquired, "a retired generation is still in the catalogue"
            return Lease(collection.record, generation, collection.written.view)

    async def read(self, name: str, work: Callable[[Lease], T], *, timeout_s: float) -> T:
        """work(lease) in the CPU pool. What a read finds damaged is remembered and shown."""
        return (await self.read_parts(name, [work], timeout_s=timeout_s))[0]

    async def read_parts(self, name: str, works: Sequence[Callable[[Lease], T]], *, timeout_s: float) -> list[T]:
        """Several works over one lease, in as many threads as are free; their results in order."""
        lease = self.lease(name)
        release = lease.release if len(works) == 1 else CountedRelease(lease, len(works)).release
        try:
            if len(works) == 1:
                return [await self.pool.run(lambda: works[0](lease), timeout_s=timeout_s, release=release)]
            runs = (self.pool.run(partial(work, lease), timeout_s=timeout_s, release=release) for work in works)
            return list(await asyncio.gather(*runs))
        except (CorruptIndexError, ReadFailedError) as error:
            self._note_damage(lease, str(error))
            raise

    def find(self, name: str) -> Collection:
        """A copy of the collection's state, by name or alias; works for what is loading or damaged too."""
        with self._lock:
            return replace(self._find(name))

    def exists(self, name: str) -> bool:
        """True for the name of a collection or an alias."""
        with self._lock:
            return name in self._collections or name in self._aliases

    def has_points(self, name: str) -> bool:
        """Whether the collection holds anything that a build would replace."""
        collection = self.find(name)
        return collection.record.generation is not None or bool(len(collection.written.view.points))

    def is_alias(self, name: str) -> bool:
        """True for an alias."""
        with self._lock:
            return name in self._aliases

    def all(self) -> list[Collection]:
        """Copies of all states, by name."""
        with self._lock:
            return [replace(self._collections[name]) for name in sorted(self._collections)]

    def aliases(self) -> dict[str, str]:
        """Alias -> collection name."""
        with self._lock:
            return dict(self._aliases)

    # --- changing -----------------------------------------------------------

    def create(self, name: str, *, size: int, distance: str, config: bytes) -> None:
        """An empty collection. Raises ConflictError, MalformedError (an alias has the name), NoRoomError."""
        with self._writing:
            if name in self._aliases:
                raise MalformedError(f"Cannot create collection {name!r}: an alias has that name. Delete the alias.")
            if name in self._collections:
                raise ConflictError(f"Collection {name!r} already exists. Delete it first, or choose another name.")
            self.require_descriptors()
            record = CollectionRecord(
                id=uuid.uuid4().hex,
                name=name,
                size=size,
                distance=distance,
                config=config,
                generation=None,
                generation_number=0,
                created_at=time.time(),
            )
            self.catalogue.put(record)
            with self._lock:
                self._collections[name] = Collection(record, self._written_of(record))

    def change(self, name: str, config: Callable[[bytes], bytes]) -> None:
        """Another configuration to be echoed; config: the one before -> the one from now on. Raises NotFoundError."""
        with self._writing:
            collection = self.find(name)
            record = replace(collection.record, config=config(collection.record.config))
            self.catalogue.put(record)
            with self._lock:
                self._collections[record.name].record = record

    def write(self, name: str, operations_of: Callable[[CollectionRecord], Sequence[Operation]]) -> int:
        """Run the operations on a collection's points: all of them, durable and visible afterwards, or none.

        Returns the sequence number of the write. Raises NotFoundError, NotReadyError, DamagedError, NoRoomError, and what
        operations_of raises.
        """
        operations = operations_of(self.find(name).record)
        while True:
            collection = self.find(name)
            with collection.written.lock:
                lease = self.lease(name)
                try:
                    if self.find(name).written is not collection.written:
                        continue  # another collection has the name now, or the same one other vectors
                    if lease.record.size != collection.record.size:
                        operations = operations_of(lease.record)
                    self._require_room(collection)
                    sequence = collection.written.write(resolve(operations, lease.view))
                finally:
                    lease.release()
            self.after_write(collection)
            return sequence

    def delete(self, name: str) -> bool:
        """Forget a collection and its aliases; its files go when the last reader is done. False: there is none."""
        with self._writing:
            collection = self._collections.get(name)
            if collection is None:
                return False
            if collection.loading:
                raise NotReadyError(f"Collection {name!r} is still being loaded. Try again in a second.")
            self.forget(partial(self.catalogue.delete, collection.record.id))
            with self._lock:
                del self._collections[name]
                self._aliases = {alias: target for alias, target in self._aliases.items() if target != name}
        self._remove(collection)
        self.reserve.fill()
        return True

    def forget(self, delete: Callable[[], None]) -> None:
        """Delete from the catalogue, even where the disk is full; reserve.fill() once the files are gone."""
        try:
            delete()
        except sqlite3.OperationalError:
            # A full disk must not keep anybody from making room on it.
            self.reserve.empty()
            delete()

    def set_aliases(self, changes: Sequence[AliasChange]) -> None:
        """All changes or none. Raises NotFoundError, ConflictError."""
        with self._writing:
            aliases = dict(self._aliases)
            for change in changes:
                apply_change(change, aliases, self._collections)
            ids = {alias: self._collections[target].record.id for alias, target in aliases.items()}
            self.catalogue.replace_aliases(ids)
            with self._lock:
                self._aliases = aliases

    def publish(
        self, record: CollectionRecord, index: SearchableIndex | None, *, alias: str | None, may_replace: bool
    ) -> None:
        """Let a built generation serve. record names it; the index is open already and belongs to the engine now.

        index: None where no point with a vector is left. record.folded, given_up: which writes count no more; the others
        stay, on top of the new generation.
        A collection that has points is replaced only where `may_replace`; an empty one is filled. Raises ConflictError.
        """
        generation = None
        if index is not None:
            generation = Generation(index, self.folder_of(record.id) / str(record.generation))
        try:
            with self._lock:
                before = self._collections.get(record.name)
            handover = Handover(before, self._written_of(record), record, index)
            with self._writing:
                old = self._collections.get(record.name)
                self._require_publishable(record, old, alias=alias, may_replace=may_replace)
                number = old.record.generation_number + 1 if old is not None else 1
                # The configuration as it is now: a PATCH that was answered while the job ran stays.
                config = old.record.config if old is not None else record.config
                record = replace(record, generation_number=number, config=config)
                with handover.lock:
                    # Nobody writes from here on until requests see the new generation and the delta on top of it.
                    handover.finish(old)
                    self.catalogue.put(record, alias=alias)
                    with self._lock:
                        handover.written.rebase(handover.delta)
                        self._collections[record.name] = Collection(record, handover.written, generation)
                        if alias is not None:
                            self._aliases = {**self._aliases, alias: record.name}
        except BaseException:
            if generation is not None:
                generation.retire(remove_files=True)
            raise
        handover.written.forget(record)
        if old is not None:
            self._retire(old)

    def restore(self, record: CollectionRecord, *, sequence: int, is_stopped: Callable[[], bool]) -> None:
        """Let a collection serve whose files lie in its folder already, in place of what has its name, if anything has.

        sequence: of the last write that it had. Raises ConflictError, CorruptIndexError, BuildCancelledError.
        """
        folder, written = self.folder_of(record.id), self._written_of(record)
        generation = None
        try:
            if record.generation is not None:
                generation = Generation(self.open(folder / record.generation), folder / record.generation)
            self._load_written(written, record, generation)
            written.store.sequence = max(written.store.sequence, sequence)
            if is_stopped():
                raise BuildCancelledError("cancelled while the index was being opened")
            with self._writing:
                if record.name in self._aliases:
                    raise ConflictError(
                        f"An alias has the name {record.name!r}. Delete it, or restore under another name."
                    )
                old = self._collections.get(record.name)
                aliases = {alias: record.id for alias, target in self._aliases.items() if target == record.name}
                self.catalogue.put_in_place(record, old.record.id if old is not None else None, aliases)
                with self._lock:
                    self._collections[record.name] = Collection(record, written, generation)
        except BaseException:
            written.close()
            if generation is not None:
                generation.retire(remove_files=True)
            raise
        if old is not None:
            self._keep_snapshots(old.record, record)
            self._remove(old)

    def open(self, folder: Path) -> SearchableIndex:
        """Open an index and search it as queries do, so that no user's is the first. Raises what the opener raises."""
        index = self._opener(folder, self._options)
        try:
            warm(index, self.settings)
        except BaseException:
            index.close()
            raise
        return index

    # --- inside -------------------------------------------------------------

    def _find(self, name: str) -> Collection:
        collection = self._collections.get(self._aliases.get(name, name))
        if collection is None:
            raise NotFoundError(f"Collection {name!r} does not exist. GET /collections lists those that do.")
        return collection

    def _written_of(self, record: CollectionRecord) -> WrittenPoints:
        metric = METRIC_OF_DISTANCE[record.distance]
        return WrittenPoints(self.folder_of(record.id), dim=record.size, metric=metric, stores=self._stores)

    def _require_room(self, collection: Collection) -> None:
        held, limit = collection.written.resident_bytes, self.settings.delta_bytes
        if held > limit:
            raise NotReadyError(
                f"Collection {collection.record.name!r} holds {held / 1e6:.0f} MB of points that are not in its generation "
                f"yet; the limit (delta_memory_mb) is {limit / 1e6:.0f}. Nothing was written. Try again when its compaction "
                "is done (GET /v1/admin/builds)."
            )

    def _remove(self, collection: Collection) -> None:
        """The files of what the catalogue has forgotten."""
        folder = self.folder_of(collection.record.id)
        with collection.written.lock:
            collection.written.remove()
        remove_folder_if_there(folder / SNAPSHOTS_FOLDER)
        (folder / "queries.npy").unlink(missing_ok=True)
        self._retire(collection)
        with contextlib.suppress(OSError):  # a generation that is still read takes the folder with it
            folder.rmdir()

    def _keep_snapshots(self, old: CollectionRecord, new: CollectionRecord) -> None:
        snapshots = self.folder_of(old.id) / SNAPSHOTS_FOLDER
        if snapshots.exists():
            snapshots.rename(self.folder_of(new.id) / SNAPSHOTS_FOLDER)

    def _retire(self, collection: Collection) -> None:
        if collection.generation is not None:
            collection.generation.retire(remove_files=True)
        elif collection.record.generation is not None:
            remove_generation(self.folder_of(collection.record.id) / collection.record.generation)

    def _require_publishable(
        self, record: CollectionRecord, old: Collection | None, *, alias: str | None, may_replace: bool
    ) -> None:
        if record.name in self._aliases:
            raise ConflictError(
                f"An alias took the name {record.name!r} while the build ran. Delete it, restart the job."
            )
        if alias is not None and alias in self._collections:
            raise ConflictError(f"Alias {alias!r}: a collection has that name. Choose another alias.")
        if old is None:
            return
        if old.record.id != record.id:
            raise ConflictError(f"Collection {record.name!r} was created anew while the build ran. Restart the job.")
        if not may_replace and (old.record.generation is not None or old.written.view.points.size):
            raise ConflictError(f'Collection {record.name!r} already exists. Build with mode "replace" to replace it.')

    def require_descriptors(self) -> None:
        """Raises NoRoomError where one more collection would leave too few descriptors for everything else."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with self._lock:
            to_come = sum(each.generation is None and each.damage is None for each in self._collections.values())
        needed = (
            sum(1 for _ in Path("/proc/self/fd").iterdir()) + _DESCRIPTORS_EACH * (to_come + 1) + _DESCRIPTORS_RESERVE
        )
        if needed > limit:
            raise NoRoomError(
                f"{needed} open files would be needed with one more collection, the limit (ulimit -n) is {limit}. "
                "Raise it, or delete collections."
            )

    def _note_damage(self, lease: Lease, reason: str) -> None:
        log.error("collection %s: %s", lease.record.name, reason)
        with self._lock:
            collection = self._collections.get(lease.record.name)
            if collection is not None and collection.generation is lease.generation:
                collection.damage = reason

    def _load_all(self) -> None:
        warm_delta()
        for name in sorted(self._collections):
            collection = self._collections.get(name)
            if self._closing or collection is None or not collection.loading:
                continue
            self._load(collection)

    def _load(self, collection: Collection) -> None:
        record, written = collection.record, collection.written
        folder = self.folder_of(record.id)
        generation, damage = None, None
        try:
            if record.generation is not None:
                folder = folder / record.generation
                generation = Generation(self.open(folder), folder)
            self._load_written(written, record, generation)
        except (VectorIndexError, OSError) as error:
            damage = str(error)
            log.error("collection %s cannot be served: %s", record.name, damage)
        except Exception as error:
            # Nobody foresaw this, but one collection must never keep the others down.
            damage = f"{folder}: {type(error).__name__}: {error}"
            log.exception("collection %s cannot be served", record.name)
        if damage is not None and generation is not None:
            generation.retire(remove_files=False)
            generation = None
        with self._lock:
            collection.generation, collection.damage, collection.loading = generation, damage, False

    def _load_written(self, written: WrittenPoints, record: CollectionRecord, generation: Generation | None) -> None:
        index = generation.index if generation is not None else None
        with written.lock:
            written.load(
                record,
                n=index.n if index is not None else 0,
                rows_of=index.ids.rows_of if index is not None else None,
            )
