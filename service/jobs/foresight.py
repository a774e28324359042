"""What can be said of a build before it starts: whether the budget works, how often the source is read.

A source that cannot be read is not refused here: its job fails and keeps the sentence that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from index.errors import SourceError
from index.options import BuildOptions
from service.jobs.messages import BuildSpec

PASSES = 3
"""A build streams its source three times (scan, codes, write) and never holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """passes: how often the source is read. warnings: what the client should know now."""

    passes: int = PASSES
    warnings: list[str] = field(default_factory=list)


def foresee(spec: BuildSpec) -> Foresight:
    """Reads headers only. Raises BudgetTooSmallError, OptionsError."""
    # Imported here: a server that never builds does not need the builder.
    from index import check_build

    options = BuildOptions(**spec.options)
    try:
        source, _ = check_build(
            spec.source, options=options, vector=spec.vector, ids=spec.id, payload=spec.payload_names
        )
    except (SourceError, OSError) as error:
        return Foresight(warnings=[f"The source cannot be read as it is now: {error}"])
    warning = f"{source.n:,} rows of dimension {source.dim} are read {PASSES} times: memory never holds them."
    return Foresight(warnings=[warning])
