"""What a build's process and the server say to each other: one JSON object a line.

server -> process, on stdin: a BuildSpec, a FoldSpec or a DecoderSpec, then `cancel` at most once. The end of stdin means
that the server died.
process -> server, on stdout: Progress lines, then one of Done, Failed, Cancelled.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

CHANGE_ADVICE = 'build with mode "replace" and "allow_change": true'
"""What to do where a build has another dimension or metric than its collection."""


class BuildSpec(msgspec.Struct, tag="collection", kw_only=True):
    """Everything that the process of a collection's build needs. Paths are absolute and checked."""

    source: str
    out: str
    vector: str | None = None
    id: str | None = None
    payload: list[str] | str | None = None
    """Names of columns, or `*`: every other column."""
    queries: str | None = None
    options: dict[str, Any]
    """Fields of index.BuildOptions."""
    expected_dim: int | None = None
    """Dimension of the collection that is filled or replaced; None: any."""
    given_up: int = 0
    """Writes to the collection up to this sequence number are given up when the build serves."""

    @property
    def payload_names(self) -> Literal["*"] | list[str] | None:
        """`payload` as index.build takes it."""
        if isinstance(self.payload, str):
            return "*" if self.payload == "*" else [self.payload]
        return self.payload


class FoldSpec(msgspec.Struct, tag="fold", kw_only=True):
    """Everything that the process needs which folds a collection's writes, and rows of a source, into a new generation."""

    out: str
    old: str | None
    """Folder of the generation that serves; None: nothing was built yet."""
    store: str
    """The collection's points.db; it need not be there."""
    sequence: int
    """Writes up to this sequence number are folded."""
    folded: int
    given_up: int
    """Which of them the old generation has already: see CollectionRecord."""
    dim: int
    options: dict[str, Any]
    """Fields of index.BuildOptions: for a first generation, and where a build is asked for anew."""
    added: BuildSpec | None = None
    """Rows of a source that are put in, in place of points of their ids."""
    queries: str | None = None
    """Sample queries that the collection was built with."""
    rebuild: bool = False
    """Build from nothing, whatever could be kept."""


class SnapshotSpec(msgspec.Struct, tag="snapshot", kw_only=True):
    """Everything that the process of a snapshot needs; the files it names do not change."""

    out: str
    """The file that is made."""
    generation: str | None
    store: str | None
    collection: str
    size: int
    distance: str
    config: msgspec.Raw
    generation_number: int
    folded: int
    given_up: int
    sequence: int


class RestoreSpec(msgspec.Struct, tag="restore", kw_only=True):
    """Everything that the process needs which unpacks and verifies a snapshot."""

    out: str
    path: str
    checksum: str | None = None
    """SHA-256 that the file must have."""


class DecoderSpec(msgspec.Struct, tag="decoder", kw_only=True):
    """Everything that the process of a decoder's build needs. Paths are absolute and checked."""

    out: str
    """The folder that is made: the decoder below it, and the words of its tokens where they are known."""
    weight: str
    tensor: str | None = None
    dtype: str | None = None
    bias: str | None = None
    scale: float | None = None
    softcap: float | None = None
    vocab_size: int | None = None
    calibration: str | None = None
    serve: str | None = None
    """The model that completions will run: only looked at before the build."""
    words: str | None = None
    """What tells the words of the tokens (decoder_words.py); None: they are not known."""
    words_found: bool = False
    """Nobody named that file: where it tells no words after all, the decoder does without."""
    options: dict[str, Any]
    """Fields of decoder.DecoderOptions."""


Spec = BuildSpec | FoldSpec | SnapshotSpec | RestoreSpec | DecoderSpec


class Progress(msgspec.Struct, tag="progress", kw_only=True):
    """How far a phase is."""

    phase: str
    done: int
    total: int
    rate: float
    eta_s: float | None
    peak_memory_bytes: int


class Done(msgspec.Struct, tag="done", kw_only=True):
    """What was built lies at `out`, complete."""

    dim: int = 0
    empty: bool = False
    """Nothing lies at `out`: no point with a vector is left."""
    metric: str | None = None
    """None of a decoder."""
    report: dict[str, Any]
    peak_memory_bytes: int


class Failed(msgspec.Struct, tag="failed", kw_only=True):
    """Nothing lies at `out`."""

    code: str
    message: str


class Cancelled(msgspec.Struct, tag="cancelled"):
    """Nothing lies at `out`."""


Message = Progress | Done | Failed | Cancelled
