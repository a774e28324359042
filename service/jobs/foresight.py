"""What can be said of a build before it starts: whether budget and dimension fit, how often the source is read.

A source that cannot be read is not refused here: its job fails and keeps the sentence that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from index.errors import SourceError
from index.options import BuildOptions
from service.errors import ConflictError
from service.jobs.messages import CHANGE_ADVICE, BuildSpec

PASSES = 3
"""A build streams its source three times (scan, codes, write) and never holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """passes: how often the source is read. warnings: what the client should mind."""

    passes: int = PASSES
    warnings: list[str] = field(default_factory=list)


def foresee(spec: BuildSpec) -> Foresight:
    """Reads headers only. Raises BudgetTooSmallError, OptionsError, ConflictError for another dimension."""
    # Imported here: a server that never builds does not need the builder.
    from index import check_build

    options = BuildOptions(**spec.options)
    try:
        source, _ = check_build(
            spec.source, options=options, vector=spec.vector, ids=spec.id, payload=spec.payload_names
        )
    except (SourceError, OSError) as error:
        return Foresight(warnings=[f"The source cannot be read as it is now: {error}"])
    require_dim(spec, source.dim)
    return Foresight()


def require_dim(spec: BuildSpec, dim: int) -> None:
    """Raises ConflictError for a source of another dimension than the collection's, where that must not change."""
    if spec.expected_dim is not None and dim != spec.expected_dim:
        raise ConflictError(
            f"{Path(spec.source).name} holds vectors of dimension {dim}, the collection's have {spec.expected_dim}. "
            f"Build from vectors of {spec.expected_dim} components, or {CHANGE_ADVICE}."
        )
