"""What can be said of a build before it starts: whether the budget works, how often the source is read.

A source that cannot be read is not refused here: its job fails and keeps the sentence that says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from index.errors import SourceError
from index.options import BuildOptions
from service.jobs.messages import BuildSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Foresight:
    """passes: how often the source is read. warnings: what the client should know now."""

    passes: int = 1
    warnings: list[str] = field(default_factory=list)


PASSES = 2
"""A build reads its source once to look at every row, and once to write it in its final order."""


def foresee(spec: BuildSpec) -> Foresight:
    """Reads headers only. Raises BudgetTooSmallError, OptionsError."""
    # Imported here: readers of columns and the budget's tables are not needed by a server that never builds.
    from index.budget import budget_bytes, choose_design
    from index.fullview.layout import PageLayout
    from index.sources import open_source

    options = BuildOptions(**spec.options)
    try:
        source = open_source(spec.source, vector=spec.vector, ids=spec.id)
    except (SourceError, OSError) as error:
        return Foresight(warnings=[f"The source cannot be read as it is now: {error}"])
    if source.n == 0:
        return Foresight(warnings=["The source holds no rows as it is now."])
    budget = budget_bytes(options.memory_budget, n=source.n, dim=source.dim)
    layout = PageLayout(source.n, source.dim, source.dtype)
    if options.preview != "ivf":
        choose_design(layout, nodes=source.n, options=options, budget=budget)
    return Foresight(
        passes=PASSES,
        warnings=[f"The source ({source.n:,} rows of dimension {source.dim}) is read {PASSES} times."],
    )
