"""Decoders of one data folder: who may use which, and how one build replaces another. The engine's twin for decoders.

lease()           a decoder by name, held open while it is used
read()            work on a lease in the CPU pool, with a deadline
served()          those that completions can be asked of
publish() delete()     changes: the catalogue first (durable), then what requests see (atomic)
start() close()   leftovers out, decoders opened in the background, their models loaded after that; all closed

Invariant: a request uses exactly one build of a decoder from its first step to its last.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from decoder.errors import CorruptDecoderError, DecoderError
from index.errors import VectorIndexError
from service.catalogue import DecoderRecord
from service.decoder_warm import warm_head
from service.engine import Engine
from service.errors import ConflictError, DamagedError, NotFoundError, NotReadyError
from service.folders import remove_folder
from service.model_loader import ModelLoader
from service.served_decoder import DecoderOpener, ServedDecoder
from service.settings import Settings

if TYPE_CHECKING:
    from decoder.head import OpenDecoder
    from service.text.model import TextModel

log = logging.getLogger("fullview.decoders")

T = TypeVar("T")

DECODERS_FOLDER = "decoders"


@dataclass(slots=True)
class DecoderState:
    """One decoder as requests see it. Changed only under the registry's lock."""

    record: DecoderRecord
    opened: ServedDecoder | None = None
    loading: bool = False
    damage: str | None = None
    """Why it cannot be served, or what a read found; None: all is well."""


@dataclass(frozen=True, slots=True)
class DecoderLease:
    """A decoder held open until the lease is given back."""

    record: DecoderRecord
    opened: ServedDecoder

    @property
    def head(self) -> OpenDecoder:
        """The open decoder."""
        return self.opened.head

    @property
    def text(self) -> TextModel | None:
        """The model that completions run, loaded when it is first asked for; None where the decoder has none."""
        return self.opened.text

    @property
    def words(self) -> Sequence[str] | None:
        """The word of each token; None where they are not known."""
        return self.opened.words

    def release(self) -> None:
        """Give it back."""
        self.opened.release()


class Decoders:
    """All decoders of one data folder. Threads: any. start() after the engine's; close() after the engine's too."""

    def __init__(self, settings: Settings, engine: Engine, opener: DecoderOpener) -> None:
        self.settings = settings
        self._engine, self._opener = engine, opener
        # As in the engine: _writing for one change at a time, _lock for what requests see, held for a moment only.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._states: dict[str, DecoderState] = {}
        self._closing = False
        self._models = ModelLoader(may_load=self._is_loaded)
        self._loader: threading.Thread | None = None

    @property
    def root(self) -> Path:
        """Where the folders of all decoders lie."""
        return self.settings.data_dir / DECODERS_FOLDER

    # --- life ---------------------------------------------------------------

    def start(self) -> None:
        """Read the catalogue, remove leftovers, open decoders in the background."""
        records = self._engine.catalogue.decoders()
        self._states = {record.name: DecoderState(record, loading=True) for record in records}
        self.root.mkdir(exist_ok=True)
        kept = {record.folder for record in records}
        for folder in self.root.iterdir():
            if folder.name not in kept:
                log.info("removing what an unfinished build or deletion left: %s", folder)
                remove_folder(folder)
        self._loader = threading.Thread(target=self._load_all, name="fullview-decoder-loader", daemon=True)
        self._loader.start()

    def close(self) -> None:
        """Close every decoder; those in use when their last reader is done."""
        self._closing = True
        if self._loader is not None:
            self._loader.join()
        self._models.close(timeout_s=self.settings.drain_s)
        for state in self._states.values():
            if state.opened is not None:
                state.opened.retire(remove_files=False)

    # --- using --------------------------------------------------------------

    def lease(self, name: str) -> DecoderLease:
        """The decoder of that name, held open. Raises NotFoundError, NotReadyError, DamagedError."""
        with self._lock:
            state = self._find(name)
            if state.loading:
                raise NotReadyError(f"Decoder {name!r} is still being loaded. Try again in a second.")
            if state.opened is None:
                raise DamagedError(str(state.damage))
            if not state.opened.acquire():
                raise NotReadyError("The server is shutting down.")
            return DecoderLease(state.record, state.opened)

    async def read(self, name: str, work: Callable[[DecoderLease], T], *, timeout_s: float) -> T:
        """work(lease) in the CPU pool. What it finds damaged is remembered and shown."""
        lease = self.lease(name)
        try:
            return await self._engine.pool.run(lambda: work(lease), timeout_s=timeout_s, release=lease.release)
        except CorruptDecoderError as error:
            self._note_damage(lease, str(error))
            raise

    def find(self, name: str) -> DecoderState:
        """A copy of the decoder's state; works for what is loading or damaged too. Raises NotFoundError."""
        with self._lock:
            return replace(self._find(name))

    def exists(self, name: str) -> bool:
        """True for the name of a decoder."""
        with self._lock:
            return name in self._states

    def all(self) -> list[DecoderState]:
        """Copies of all states, by name."""
        with self._lock:
            return [replace(self._states[name]) for name in sorted(self._states)]

    def served(self) -> list[tuple[str, float]]:
        """Name and time of creation of each decoder with a model that completions run; damaged ones are left out."""
        return [
            (state.record.name, state.record.created_at)
            for state in self.all()
            if state.record.serve is not None and state.damage is None
        ]

    # --- changing -----------------------------------------------------------

    def open(self, record: DecoderRecord) -> ServedDecoder:
        """Open the folder that a record names and ask it as requests do. Raises what the opener raises."""
        opened = ServedDecoder.open(self._opener, record, root=self.root, import_root=self.settings.import_folder)
        try:
            warm_head(opened.head, self.settings)
        except BaseException:
            opened.retire(remove_files=False)
            raise
        return opened

    def publish(self, record: DecoderRecord, opened: ServedDecoder, *, may_replace: bool) -> None:
        """Let a built decoder serve; it belongs to the registry now. Raises ConflictError where the name is taken."""
        with self._writing:
            old = self._states.get(record.name)
            try:
                if old is not None:
                    if not may_replace:
                        raise ConflictError(
                            f'Decoder {record.name!r} already exists. Build with mode "replace" to replace it.'
                        )
                    record = replace(record, number=old.record.number + 1, created_at=old.record.created_at)
                self._engine.catalogue.put_decoder(record)
            except BaseException:
                opened.retire(remove_files=True)
                raise
            with self._lock:
                self._states[record.name] = DecoderState(record, opened)
        if old is not None:
            self._retire(old)
        self._preload(opened)

    def delete(self, name: str) -> bool:
        """Forget a decoder; its files go when the last reader is done. False: there is none."""
        with self._writing:
            state = self._states.get(name)
            if state is None:
                return False
            if state.loading:
                raise NotReadyError(f"Decoder {name!r} is still being loaded. Try again in a second.")
            self._engine.forget(partial(self._engine.catalogue.delete_decoder, name))
            with self._lock:
                del self._states[name]
        self._retire(state)
        self._engine.reserve.fill()
        return True

    # --- inside -------------------------------------------------------------

    def _find(self, name: str) -> DecoderState:
        state = self._states.get(name)
        if state is None:
            raise NotFoundError(f"Decoder {name!r} does not exist. GET /v1/decoders lists those that do.")
        return state

    def _retire(self, state: DecoderState) -> None:
        if state.opened is not None:
            state.opened.retire(remove_files=True)
        else:
            remove_folder(self.root / state.record.folder)

    def _note_damage(self, lease: DecoderLease, reason: str) -> None:
        log.error("decoder %s: %s", lease.record.name, reason)
        with self._lock:
            state = self._states.get(lease.record.name)
            if state is not None and state.opened is lease.opened:
                state.damage = reason

    def _load_all(self) -> None:
        for name in sorted(self._states):
            state = self._states.get(name)
            if self._closing or state is None or not state.loading:
                continue
            self._load(state)

    def _load(self, state: DecoderState) -> None:
        opened, damage = None, None
        try:
            opened = self.open(state.record)
        except (DecoderError, VectorIndexError, OSError) as error:
            damage = str(error)
            log.error("decoder %s cannot be served: %s", state.record.name, damage)
        except Exception as error:
            # Nobody foresaw this, but one decoder must never keep the others down.
            damage = f"{self.root / state.record.folder}: {type(error).__name__}: {error}"
            log.exception("decoder %s cannot be served", state.record.name)
        with self._lock:
            replaced = self._states.get(state.record.name) is not state
            state.opened, state.damage, state.loading = opened, damage, False
        if replaced and opened is not None:  # by a build that was faster
            opened.retire(remove_files=True)
        elif opened is not None:
            self._preload(opened)

    def _preload(self, opened: ServedDecoder) -> None:
        if self.settings.preload_models:
            self._models.add(opened)

    def _is_loaded(self) -> bool:
        """True when readiness waits for no collection and no decoder."""
        loading = any(each.loading for each in self._engine.all()) or any(state.loading for state in self.all())
        return not loading


def new_folder_name() -> str:
    """A name for the folder of a build; users' names never become paths."""
    return os.urandom(16).hex()
