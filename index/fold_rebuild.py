"""When folding does not pay, and what is done instead: the generation is built from its rows.

wanted_options   options of the new generation
why_rebuild      why the old preview cannot be kept, or None
rebuild          a build whose source streams the kept rows and the new ones
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from index.budget import Design, budget_bytes, choose_design
from index.build import FEW_NODES, make_folder
from index.errors import BudgetTooSmallError
from index.fold_plan import Given
from index.folder import Generation
from index.fullview import PageLayout
from index.options import BuildOptions, Metric, PreviewKind
from index.progress import Steps
from index.report import BuildReport
from index.sources import VectorSource
from index.stored_rows import KeptRows

LEAST_KEPT = 0.5
"""With less of the old rows kept, building anew is cheaper than mending what is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOptions:
    """How to fold."""

    build: BuildOptions | None = None
    """Options of the new generation; None: those of the old one. Another metric or seed means a rebuild."""
    threads: int | None = None
    """Threads; None: one for each core."""
    rebuild: bool = False
    """Build anew whatever changed."""


def wanted_options(old: Generation, options: FoldOptions) -> BuildOptions:
    """Options of the new generation: those given, else the old one's. An older manifest tells only what came of them."""
    if options.build is not None:
        return replace(options.build, threads=options.threads or options.build.threads)
    manifest = old.manifest
    told = manifest.extras.get("options") or {
        "metric": manifest.metric,
        "memory_budget": float(manifest.extras["budget_bytes"]) / 1e6,
        "preview": manifest.preview,
        "bits": manifest.preview_parameters["bits"],
        "recall": manifest.promise["recall"],
        "seed": manifest.preview_parameters["seed"],
    }
    return BuildOptions(**(told | {"threads": options.threads, "on_bad_rows": "fail"}))


def why_rebuild(given: Given, wanted: BuildOptions, options: FoldOptions) -> str | None:
    """Why the old preview cannot be kept; None where it can."""
    old = given.old
    if options.rebuild:
        return "a rebuild was asked for"
    if old.preview.kind is PreviewKind.IVF:
        return "lists are made of all rows"
    if Metric(wanted.metric) is not old.metric or wanted.seed != old.coder.seed:
        return "metric or seed is another"
    if min(old.preview.nodes, given.n) <= FEW_NODES:
        return f"{min(old.preview.nodes, given.n)} rows are few"
    if len(given.kept) < LEAST_KEPT * max(old.n, given.n):
        return f"{len(given.kept):,} of {old.n:,} rows are kept, {len(given.vectors):,} are new"
    layout = PageLayout(given.n, old.dim, given.dtype)
    budget = budget_bytes(wanted.memory_budget, n=layout.n, dim=layout.dim)
    try:
        design = choose_design(layout, nodes=given.n, options=wanted, budget=budget)
    except BudgetTooSmallError:
        return "the rows have outgrown the budget"
    same = design.preview is old.preview.kind and isinstance(design.bits, int) and isinstance(old.preview.bits, int)
    degree = int(old.manifest.preview_parameters["degree"])
    if not same or (int(design.bits), design.degree) < (int(old.preview.bits), degree):
        return f"so many rows are built as {design.preview.value} of {design.bits} bits with {design.degree} links"
    return None


def told_of(given: Given, done: str, why: str) -> dict[str, Any]:
    """What the report says."""
    return {
        "done": done,
        "why": why,
        "rows_kept": len(given.kept),
        "rows_dropped": given.old.n - len(given.kept),
        "rows_added": len(given.vectors),
        "dtype": f"{given.old.dtype} to {given.dtype}" if given.old.dtype != given.dtype else str(given.dtype),
    }


def rebuild(
    given: Given, wanted: BuildOptions, target: Path, queries: Any, steps: Steps, why: str, *, replace: bool
) -> BuildReport:
    """Build from the kept rows, streamed, and the new ones."""
    sources = given.sources
    payloads = (lambda numbers: given.payloads_of(sources[numbers])) if given.has_payload else None
    shard = KeptRows(given.old, given.kept, given.vectors, payloads)
    source = VectorSource(
        n=shard.n,
        dim=shard.dim,
        dtype=given.dtype,
        given_dtype=given.dtype,
        format="generation",
        shards=[(str(shard.path), shard.n)],
        empty_shards=[],
        conversion=None,
        _files=(shard,),
    )
    layout = PageLayout(source.n, source.dim, source.dtype)
    budget = budget_bytes(wanted.memory_budget, n=source.n, dim=source.dim)
    design: Design = choose_design(layout, nodes=source.n, options=wanted, budget=budget)
    told = told_of(given, "rebuilt", why)
    ids, payload = given.ids_of(sources), "*" if given.has_payload else None
    return make_folder(
        source, design, target, wanted, steps, ids, payload, queries, replace=replace, fold=told
    )  # fmt: skip
