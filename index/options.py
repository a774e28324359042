"""Options, one frozen dataclass per lifetime: what a build fixes, what opening chooses, what each search may ask.

Fields that change answers stand apart from fields that change only speed and memory. A default stands here and nowhere
else: command line and HTTP read it from these classes. Making one checks every type and range at once and raises
OptionsError; NumPy's numbers become Python's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from index import option_checks as checks
from index.errors import OptionsError

SEED_MAX = 2**63 - 1
THREADS_MAX = 4096
EFFORT_MAX = 2**31 - 1


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
    """Seed of everything random, 0 to 2^63 - 1. The same seed gives the same index, whatever the threads."""
    on_bad_rows: str = "fail"
    """fail: a row with NaN or infinity ends the build. skip: such rows are left out and listed in the report."""
    # --- changes only speed and memory --------------------------------------
    threads: int | None = None
    """Threads of the build; None: one for each core."""

    def __post_init__(self) -> None:
        _put(self, "metric", checks.one_of("metric", self.metric, Metric))
        _put(self, "memory_budget", checks.budget("memory_budget", self.memory_budget))
        _put(self, "preview", checks.one_of("preview", self.preview, ["auto", *PreviewKind]))
        if self.bits not in ("auto", "pq"):
            if isinstance(self.bits, bool | str | float) or self.bits not in (1, 2, 4, 8):
                raise OptionsError(f'bits is {self.bits!r}, needed 1, 2, 4, 8 or "auto" ("pq" with preview="ivf")')
            _put(self, "bits", int(self.bits))
        if self.bits == "pq" and self.preview != PreviewKind.IVF:
            raise OptionsError(f'bits is "pq" with preview={self.preview!r}, only preview="ivf" has such codes')
        _put(self, "recall", checks.share("recall", self.recall, whole_too=False))
        _put(self, "seed", checks.whole("seed", self.seed, low=0, high=SEED_MAX))
        _put(self, "on_bad_rows", checks.one_of("on_bad_rows", self.on_bad_rows, ["fail", "skip"]))
        if self.threads is not None:
            _put(self, "threads", checks.whole("threads", self.threads, low=1, high=THREADS_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """May differ each time an index is opened."""

    io_mode: str = "auto"
    """linux_aio, threads, buffered, or auto: the first of these that works on this file system."""
    huge_pages: bool = True
    """Ask the system for huge pages for codes and links: 1.2 to 1.7 times faster walks where it gives them."""

    def __post_init__(self) -> None:
        _put(self, "io_mode", checks.one_of("io_mode", self.io_mode, ["auto", *IoMode]))
        _put(self, "huge_pages", checks.yes_or_no("huge_pages", self.huge_pages))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """May differ for each search. All None: the collection's default operating point."""

    # --- changes the answer -------------------------------------------------
    recall: float | None = None
    """Use the cheapest operating point whose measured recall reaches this."""
    beam: int | None = None
    """Best rows that the graph walk keeps (flat: candidates kept). More raises recall and the rows scored. Not for ivf."""
    probes: int | None = None
    """IVF lists visited. More raises recall and the rows scored. Only for ivf."""
    rerank: int | None = None
    """Read exactly this many candidates, in place of the calibrated stop rule."""
    exact: bool = False
    """Score every stored vector: the oracle. Slow."""
    score_threshold: float | None = None
    """Leave out hits that are worse than this score; equal stays in."""

    def __post_init__(self) -> None:
        if self.recall is not None:
            _put(self, "recall", checks.share("recall", self.recall, whole_too=True))
        efforts = [name for name in ("beam", "probes", "rerank") if getattr(self, name) is not None]
        for name in efforts:
            _put(self, name, checks.whole(name, getattr(self, name), low=1, high=EFFORT_MAX))
        if self.exact is not False:
            _put(self, "exact", checks.yes_or_no("exact", self.exact))
        if self.score_threshold is not None:
            _put(self, "score_threshold", checks.number("score_threshold", self.score_threshold))
        for name in efforts:
            if self.recall is not None and name != "rerank":
                raise OptionsError(f"recall and {name} were both given; recall chooses the {name} itself. Give one.")
        if self.exact and (efforts or self.recall is not None):
            what = " and ".join([*efforts, *(["recall"] if self.recall is not None else [])])
            raise OptionsError(f"exact and {what} were both given; exact scores every stored vector. Give one.")


def _put(options: object, name: str, value: object) -> None:
    """Set a field of a frozen dataclass that is just being made."""
    object.__setattr__(options, name, value)
