"""Jobs that build decoders: what their body asks, what their process is told, how the decoder comes to serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from index.errors import BuildCancelledError
from service.catalogue import DecoderRecord
from service.decoders import Decoders, new_folder_name
from service.engine import Engine
from service.folders import move_into, remove_folder
from service.jobs.decoder_foresight import foresee
from service.jobs.decoder_request import DecoderBody, to_spec
from service.jobs.foresight import Foresight
from service.jobs.messages import DecoderSpec, Done, Spec
from service.jobs.store import Job


class DecoderJobs:
    """A JobKind (kinds.py)."""

    def __init__(self, engine: Engine, decoders: Decoders) -> None:
        self._engine, self._decoders = engine, decoders

    def foresee(self, request: msgspec.Raw) -> Foresight:
        """Reads headers of files. Raises ServiceError, DecoderError, SourceError."""
        self._engine.require_descriptors()
        return foresee(to_spec(_body(request), self._decoders, self._engine.settings.data_dir))

    def spec(self, job: Job, out: Path) -> DecoderSpec:
        """Raises as foresee() does."""
        return to_spec(_body(job.request), self._decoders, out)

    def publish(self, job: Job, spec: Spec, done: Done, built: Path, *, is_stopped: Callable[[], bool]) -> None:
        """The decoder takes its name. Raises ConflictError where that was taken meanwhile."""
        decoders = self._decoders
        record = DecoderRecord(
            name=job.name,
            folder=new_folder_name(),
            number=1,
            device="cpu",
            serve=_body(job.request).serve,
            created_at=time.time(),
        )
        folder = move_into(decoders.root, built, record.folder)
        try:
            opened = decoders.open(record)
        except BaseException:
            remove_folder(folder)
            raise
        if is_stopped():
            opened.retire(remove_files=True)
            raise BuildCancelledError("cancelled while the decoder was being opened")
        decoders.publish(record, opened, may_replace=job.mode == "replace")

    def finished(self, job: Job) -> None:
        """Nothing is held."""

    def words_of(self, report: Mapping[str, Any], seconds: float) -> str:
        """Tokens, seconds, and recall@10 of each way that was measured."""
        points = report.get("promise", {}).get("points", {})
        shown = ", ".join(f"{mode} {point['recall']['10']:.4g}" for mode, point in points.items())
        return f"{report.get('vocab_size')} tokens in {seconds:.1f} s, recall@10 measured: {shown or 'exact'}"


def _body(request: msgspec.Raw) -> DecoderBody:
    return msgspec.json.decode(request, type=DecoderBody)
