"""The memory budget: what it means in bytes, and which preview, bits and degree it buys.

budget_bytes   "1/4", 0.25 or megabytes -> bytes
choose_design  bytes -> Design, with the reasons; BudgetTooSmallError names the least that works

Everything resident when serving counts: codes, scalars, links, checksums, id codes where they are not in the pages,
tables of equal vectors, and the scratch of as many searches as there are cores.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fractions import Fraction

from index.errors import BudgetTooSmallError, OptionsError
from index.fullview.layout import PageLayout
from index.options import BuildOptions, PreviewKind

FLOOR_BYTES = 16_000_000
"""A fraction never means less than this: below it the process's own working memory is what counts."""
FIXED_BYTES = 500_000
SCRATCH_BYTES = 1_000_000
"""Scratch of one search: two buffers of about 100 pages, the table of visited rows, candidates of a few queries."""
FLAT_ROWS = 8_000
"""Up to this many distinct rows all codes are scored: a walk would score a third of them, at random places."""
DEGREE = 32
LEAST_DEGREE = {8: 32, 4: 16, 2: 16, 1: 12}


@dataclass(frozen=True, slots=True)
class Design:
    """What is built: preview, bits a dimension, links a row (graph), and the expected resident bytes by part."""

    preview: PreviewKind
    bits: int
    degree: int
    resident: dict[str, int]
    choices: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Expected resident bytes."""
        return sum(self.resident.values())


def budget_bytes(budget: str | float, *, n: int, dim: int) -> int:
    """Bytes of a budget: megabytes (10^6 bytes) as a number, or a fraction "1/4" of the vectors as float32."""
    if isinstance(budget, bool):
        raise OptionsError(f'memory_budget is {budget}, needed megabytes or a fraction such as "1/4"')
    if isinstance(budget, str):
        try:
            value = Fraction(budget) if "/" in budget else Fraction(float(budget))
        except (ValueError, ZeroDivisionError, OverflowError):
            raise OptionsError(f'memory_budget is {budget!r}, needed megabytes or a fraction such as "1/4"') from None
        if "/" in budget:
            if not 0 < value <= 4:
                raise OptionsError(f"memory_budget is {budget!r} of the vectors, needed above 0 and at most 4/1")
            return max(FLOOR_BYTES, int(value * n * dim * 4))
        budget = float(value)
    if not 0 < budget < 1e9:
        raise OptionsError(f"memory_budget is {budget} MB, needed above 0 (10^6 bytes each) and below 10^9")
    return int(budget * 1e6)


def fixed_parts(layout: PageLayout, *, threads: int | None = None) -> dict[str, int]:
    """Resident bytes that no choice changes."""
    cores = threads or os.cpu_count() or 1
    parts = {"fixed": FIXED_BYTES, "scratch": SCRATCH_BYTES * cores, "checksums": 4 * layout.file_pages}
    if not layout.ids_in_pages:
        parts["ids"] = 8 * layout.n
    return parts


def choose_design(layout: PageLayout, *, nodes: int, options: BuildOptions, budget: int) -> Design:
    """The best design for `nodes` distinct vectors that the budget pays for."""
    width = max(8, -(-layout.dim // 8) * 8)
    parts = fixed_parts(layout)
    spare = budget - sum(parts.values())
    each = spare / max(1, nodes)
    kind = _preview_of(options.preview, nodes)
    tried = (8, 4, 2, 1) if options.bits == "auto" else (_bits_of(options.bits),)
    for bits in tried:
        code = width * bits // 8 + 8
        degree = 0
        if kind is PreviewKind.GRAPH:
            degree = min(DEGREE, int((each - code) // 4)) // 2 * 2
            if degree < (LEAST_DEGREE[bits] if options.bits == "auto" else 8):
                continue
        elif code > each:
            continue
        return Design(
            kind, bits, degree, parts | _node_parts(nodes, code, degree), _reasons(kind, bits, degree, each, nodes)
        )
    least_code = width * tried[-1] // 8 + 8
    least_degree = (LEAST_DEGREE[tried[-1]] if options.bits == "auto" else 8) if kind is PreviewKind.GRAPH else 0
    needed = sum(parts.values()) + nodes * (least_code + 4 * least_degree)
    what = f"{tried[-1]}-bit codes" + (f" and {least_degree} links a row" if least_degree else "")
    raise BudgetTooSmallError(
        budget_bytes=budget,
        needed_bytes=needed,
        why=f"{nodes:,} rows of dim {layout.dim}, {what}, {sum(parts.values()) / 1e6:.1f} MB whatever is chosen",
    )


def _node_parts(nodes: int, code: int, degree: int) -> dict[str, int]:
    parts = {"codes": nodes * (code - 8), "scalars": nodes * 8}
    return parts | {"links": nodes * degree * 4} if degree else parts


def _preview_of(asked: str, nodes: int) -> PreviewKind:
    if asked == "auto":
        return PreviewKind.FLAT if nodes <= FLAT_ROWS else PreviewKind.GRAPH
    try:
        return PreviewKind(asked)
    except ValueError:
        raise OptionsError(f"preview is {asked!r}, needed auto, {', '.join(PreviewKind)}") from None


def _bits_of(bits: int | str) -> int:
    if bits not in (1, 2, 4, 8) or isinstance(bits, bool):
        raise OptionsError(f'bits is {bits!r}, needed 1, 2, 4, 8 or "auto" ("pq" with preview="ivf")')
    return int(bits)


def _reasons(kind: PreviewKind, bits: int, degree: int, each: float, nodes: int) -> list[str]:
    why = [f"{bits}-bit codes: the most that {each:.0f} bytes for each of {nodes:,} distinct rows pay for"]
    if kind is PreviewKind.GRAPH:
        why.append(f"graph with {degree} links a row ({DEGREE} at most: more cost memory and save few rows scored)")
    elif kind is PreviewKind.FLAT:
        why.append(f"flat: all codes of {nodes:,} distinct rows are scored (walks pay from {FLAT_ROWS:,} rows on)")
    return why
