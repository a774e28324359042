"""Options, one frozen dataclass per lifetime: what a build fixes, what opening chooses, what each search may ask.

Fields that change answers stand apart from fields that change only speed and memory. A default stands here and nowhere
else: command line and HTTP read it from these classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Metric(StrEnum):
    """How two vectors are compared. Stored in manifests by value."""

    COSINE = "cosine"
    DOT = "dot"
    L2 = "l2"

    @property
    def larger_is_better(self) -> bool:
        """True where a higher score means nearer (cosine, dot)."""
        return self is not Metric.L2


class PreviewKind(StrEnum):
    """What finds candidates among the codes. Stored in manifests by value."""

    GRAPH = "graph"
    IVF = "ivf"
    FLAT = "flat"


class IoMode(StrEnum):
    """How pages are read."""

    LINUX_AIO = "linux_aio"
    THREADS = "threads"
    BUFFERED = "buffered"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Fixed in the files of an index for ever."""

    # --- changes the answer -------------------------------------------------
    metric: str = "cosine"
    """cosine, dot or l2."""
    memory_budget: str | float = "1/4"
    """What the index may keep in memory when serving: MB (10^6 bytes), or a fraction of the vectors as float32."""
    preview: str = "auto"
    """graph, ivf, flat, or auto: chosen by budget and measured recall."""
    bits: int | str = "auto"
    """Bits a dimension of a code: 1, 2, 4, 8, "pq" (ivf only) or "auto"."""
    recall: float = 0.95
    """The recall@10 that the default operating point must reach, as measured at build."""
    seed: int = 0
    """Seed of everything random. The same seed gives the same index, whatever the threads."""
    on_bad_rows: str = "fail"
    """fail: a row with NaN or infinity ends the build. skip: such rows are left out and listed in the report."""
    # --- changes only speed and memory --------------------------------------
    threads: int | None = None
    """Threads of the build; None: one for each core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """May differ each time an index is opened."""

    io_mode: str = "auto"
    """linux_aio, threads, buffered, or auto: the first of these that works on this file system."""
    huge_pages: bool = True
    """Ask the system for huge pages for codes and links: 1.2 to 1.7 times faster walks where it gives them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """May differ for each search. All None: the collection's default operating point."""

    # --- changes the answer -------------------------------------------------
    recall: float | None = None
    """Use the cheapest operating point whose measured recall reaches this."""
    beam: int | None = None
    """Best rows that the graph walk keeps. More raises recall and the rows scored."""
    probes: int | None = None
    """IVF lists visited. More raises recall and the rows scored."""
    rerank: int | None = None
    """Read exactly this many candidates, in place of the calibrated stop rule."""
    exact: bool = False
    """Score every stored vector: the oracle. Slow."""
    score_threshold: float | None = None
    """Leave out hits that are worse than this score; equal stays in."""
