"""DecoderOptions: what a decoder is built with. Fixed in its files."""

from __future__ import annotations

from dataclasses import dataclass

from decoder import option_checks as checks


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderOptions:
    """Checked when made; DecoderOptionsError names what makes no sense."""

    # --- changes the answer ---------------------------------------------------
    recall: float = 0.99
    """Share of a state's exact best tokens that answers hold, unless a call asks for another. Higher costs time: 0.999 takes
    about twice as long as 0.99."""
    logprob_error: float = 0.004
    """Mean absolute error of estimated log-probabilities, in nats, that a mode may have where another has less."""
    width: int | None = None
    """Coordinates of a code, the leading ones of all; None: all. Fewer are quicker to score and need a wider beam."""
    lead: int | None = None
    """Leading coordinates that a screen reads of every row, in steps of 64, half a byte each; None: 4/9, at most 512."""
    degree: int = 56
    """Links of a row that come from the graph and from calibration states: 4 bytes each."""
    room: int = 8
    """Places for links to rows that few others link to."""
    clusters: int = 256
    """Clusters of calibration states, each with entry tokens of its own."""
    seed: int = 0
    """Of everything random, log Z's samples included."""

    # --- changes only speed and memory ----------------------------------------
    threads: int | None = None
    """Threads of the build; None: one for each core."""

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "recall", checks.number("recall", self.recall, low=0.0, high=1.0, above=True))
        keep(self, "logprob_error", checks.number("logprob_error", self.logprob_error, low=0.0, above=True))
        if self.width is not None:
            keep(self, "width", checks.whole("width", self.width, low=16))
        if self.lead is not None:
            keep(self, "lead", checks.whole("lead", self.lead, low=1))
        keep(self, "degree", checks.whole("degree", self.degree, low=4, high=512))
        keep(self, "room", checks.whole("room", self.room, low=0, high=512))
        keep(self, "clusters", checks.whole("clusters", self.clusters, low=1, high=65_536))
        keep(self, "seed", checks.whole("seed", self.seed, low=0, high=2**63 - 1))
        if self.threads is not None:
            keep(self, "threads", checks.whole("threads", self.threads, low=1, high=1024))
