"""The memory budget: what it means in bytes, and which preview, bits and degree it buys.

budget_bytes   "1/4" or megabytes -> bytes
choose_design  bytes -> Design, with the reasons; BudgetTooSmallError names the least that works

Everything resident when serving counts: codes, scalars, links, checksums, id codes where they are not in the pages,
tables of equal vectors, and the scratch of two searches at a time (each further one takes about 1 MB more). Nothing here
depends on the machine but whether faiss is installed: the same data and budget give the same index everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from index import option_checks as checks
from index.errors import BudgetTooSmallError
from index.fullview.layout import PageLayout
from index.options import BuildOptions, PreviewKind
from index.preview.clustering import faiss_installed, require_faiss
from index.preview.route import graph_bytes

FLOOR_BYTES = 16_000_000
"""A fraction never means less than this: below it the process's own working memory is what counts."""
FIXED_BYTES = 500_000
SCRATCH_BYTES = 1_000_000
"""Scratch of one search: two buffers of about 100 pages, the table of visited rows, candidates of a few queries."""
SEARCHES = 2
FLAT_ROWS = 8_000
"""Up to this many distinct rows all codes are scored: a walk would score a third of them, at random places."""
DEGREE = 32
LEAST_DEGREE = {8: 32, 4: 16, 2: 16, 1: 12}
LIST_ROWS = 64
"""Distinct rows of an ivf list, on average."""


@dataclass(frozen=True, slots=True)
class Design:
    """What is built: preview, bits a dimension or "pq", links a row (graph), and the expected resident bytes by part.

    lists: how many (ivf); parts: sub-quantisers, a byte each ("pq")."""

    preview: PreviewKind
    bits: int | str
    degree: int
    resident: dict[str, int]
    choices: list[str] = field(default_factory=list)
    lists: int = 0
    parts: int = 0

    @property
    def total(self) -> int:
        """Expected resident bytes."""
        return sum(self.resident.values())


def budget_bytes(budget: str | float, *, n: int, dim: int) -> int:
    """Bytes of a budget: megabytes (10^6 bytes) as a number, or a fraction "1/4" of the vectors as float32."""
    budget = checks.budget("memory_budget", budget)
    if isinstance(budget, str):
        value = checks.fraction_of("memory_budget", budget)
        if "/" in budget:
            return max(FLOOR_BYTES, int(value * n * dim * 4))
        budget = float(value)
    return int(budget * 1e6)


def _why_raised(options: BuildOptions, layout: PageLayout) -> list[str]:
    """A sentence where a fraction means less than the floor."""
    asked = options.memory_budget
    if not isinstance(asked, str) or "/" not in asked:
        return []
    meant = checks.fraction_of("memory_budget", asked) * layout.n * layout.dim * 4 / 1_000_000
    if meant * 1_000_000 >= FLOOR_BYTES:
        return []
    shown = f"{float(meant):.2g}" if meant < 1 else f"{float(meant):.1f}"
    floor = FLOOR_BYTES // 1_000_000
    return [f"{asked} of the vectors is {shown} MB; raised to {floor} MB, the least that a fraction means"]


def fixed_parts(layout: PageLayout) -> dict[str, int]:
    """Resident bytes that no choice changes."""
    parts = {"fixed": FIXED_BYTES, "scratch": SCRATCH_BYTES * SEARCHES, "checksums": 4 * layout.file_pages}
    if not layout.ids_in_pages:
        parts["ids"] = 8 * layout.n
    return parts


def choose_design(layout: PageLayout, *, nodes: int, options: BuildOptions, budget: int) -> Design:
    """The best design for `nodes` distinct vectors that the budget pays for.

    Raises BudgetTooSmallError; MissingExtraError where that design is an ivf and faiss is not installed.
    """
    kind = _preview_of(options.preview, nodes)
    tried = (8, 4, 2, 1) if options.bits == "auto" else (options.bits,)
    purse = _Purse(layout, nodes, budget, given_bits=options.bits != "auto")
    order = [(kind, bits) for bits in tried]
    if options.preview == "auto" and kind is PreviewKind.GRAPH:
        order = _graph_or_lists(tried)
    for wanted, bits in order:
        design = purse.design(wanted, bits)
        if design is None:
            continue
        if wanted is not kind:
            design.choices.insert(0, _why_lists(purse))
        design.choices[:0] = _why_raised(options, layout)
        if wanted is PreviewKind.IVF:
            require_faiss('preview="ivf"')
        return design
    last, bits = order[-1]
    why = purse.shortage(last, bits)
    if options.preview == "auto" and last is PreviewKind.GRAPH and not faiss_installed():
        lists = purse.least(PreviewKind.IVF, bits) / 1e6
        why += f"; lists (preview ivf) would take {lists:.1f} MB, they need faiss: pip install 'fullview[cpu]'"
    raise BudgetTooSmallError(budget_bytes=budget, needed_bytes=purse.least(last, bits), why=why)


def _graph_or_lists(tried: Sequence[int | str]) -> list[tuple[PreviewKind, int | str]]:
    """What "auto" tries, best first: lists of 2 bits read a third of the pages of a graph of 1 bit (decision 0005).

    Lists only where faiss, which clusters, is installed.
    """
    graphs: list[tuple[PreviewKind, int | str]] = [(PreviewKind.GRAPH, bits) for bits in tried]
    if not faiss_installed():
        return graphs
    lists: list[tuple[PreviewKind, int | str]] = [(PreviewKind.IVF, bits) for bits in tried]
    fine = [design for design in graphs + lists if design[1] != 1]
    return fine + [design for design in graphs + lists if design[1] == 1]


def _why_lists(purse: _Purse) -> str:
    bits = 1 if purse.given_bits else 2
    least = purse.least(PreviewKind.GRAPH, bits) / 1e6
    return f"ivf: the least that a graph with codes as good takes here is {least:.1f} MB"


@dataclass(frozen=True, slots=True)
class _Purse:
    """What a budget pays for. given_bits: the bits were asked for, so fewer links are accepted than would be chosen."""

    layout: PageLayout
    nodes: int
    budget: int
    given_bits: bool

    @property
    def width(self) -> int:
        return max(8, -(-self.layout.dim // 8) * 8)

    def design(self, kind: PreviewKind, bits: int | str) -> Design | None:
        """The design with these codes, or None where it costs too much."""
        parts = fixed_parts(self.layout)
        each = (self.budget - sum(parts.values())) / max(1, self.nodes)
        if kind is PreviewKind.IVF:
            return self._ivf(bits, each, parts)
        assert isinstance(bits, int), "only ivf has product quantisers"
        code = self.width * bits // 8 + 8
        degree = 0
        if kind is PreviewKind.GRAPH:
            degree = min(DEGREE, int((each - code) // 4)) // 2 * 2
            if degree < self._least_degree(bits):
                return None
        elif code > each:
            return None
        resident = parts | _node_parts(self.nodes, code, degree)
        return Design(kind, bits, degree, resident, _reasons(kind, bits, degree, each, self.nodes))

    def _ivf(self, bits: int | str, each: float, parts: dict[str, int]) -> Design | None:
        tables = list_tables(self.nodes, self.width)
        tables |= {"codebooks": 256 * 4 * self.width} if bits == "pq" else {}
        room = each - 8 - sum(tables.values()) / max(1, self.nodes)
        code = largest_parts(self.width, room) if bits == "pq" else self.width * int(bits) // 8
        if code > room or code < 1:
            return None
        lists = lists_of(self.nodes)
        spent = f"that {each:.0f} bytes for each of {self.nodes:,} distinct rows pay for, lists included"
        what = f"{code} sub-quantisers of 8 bits" if bits == "pq" else f"{bits}-bit codes"
        return Design(
            PreviewKind.IVF,
            bits,
            0,
            parts | _node_parts(self.nodes, code + 8, 0) | tables,
            [f"{what}: the most {spent}", f"ivf with about {lists:,} lists of {LIST_ROWS} rows"],
            lists=lists,
            parts=code if bits == "pq" else 0,
        )

    def least(self, kind: PreviewKind, bits: int | str) -> int:
        """Bytes that the smallest preview of this kind takes with these codes."""
        fixed = sum(fixed_parts(self.layout).values())
        code = 1 if isinstance(bits, str) else self.width * bits // 8
        if kind is PreviewKind.IVF:
            books = 256 * 4 * self.width if bits == "pq" else 0
            return fixed + books + sum(list_tables(self.nodes, self.width).values()) + self.nodes * (code + 8)
        degree = self._least_degree(bits) if kind is PreviewKind.GRAPH else 0
        return fixed + self.nodes * (code + 8 + 4 * degree)

    def shortage(self, kind: PreviewKind, bits: int | str) -> str:
        """What the least consists of, in words."""
        what = "a one-byte code" if bits == "pq" else f"{bits}-bit codes"
        if kind is PreviewKind.GRAPH:
            what += f" and {self._least_degree(bits)} links a row"
        elif kind is PreviewKind.IVF:
            what += f" in lists of {LIST_ROWS} rows"
        fixed = sum(fixed_parts(self.layout).values())
        return f"{self.nodes:,} rows of dim {self.layout.dim}, {what}, {fixed / 1e6:.1f} MB whatever is chosen"

    def _least_degree(self, bits: int | str) -> int:
        return 8 if self.given_bits else LEAST_DEGREE[int(bits)]


def lists_of(nodes: int) -> int:
    """How many ivf lists so many distinct rows get."""
    return max(1, round(nodes / LIST_ROWS))


def list_tables(nodes: int, width: int) -> dict[str, int]:
    """Resident bytes of what finds lists: where each begins, its centroid, and hnswlib's links between centroids."""
    lists = lists_of(nodes)
    return {"lists": 4 * (lists + 1), "centroids": (width + 8) * lists, "route": graph_bytes(lists, width)}


def largest_parts(width: int, room: float) -> int:
    """The most sub-quantisers, a byte each, that `room` bytes hold: a divisor of width, two components each at least."""
    return max((parts for parts in range(1, width // 2 + 1) if width % parts == 0 and parts <= room), default=0)


def _node_parts(nodes: int, code: int, degree: int) -> dict[str, int]:
    parts = {"codes": nodes * (code - 8), "scalars": nodes * 8}
    return parts | {"links": nodes * degree * 4} if degree else parts


def _preview_of(asked: str, nodes: int) -> PreviewKind:
    if asked == "auto":
        return PreviewKind.FLAT if nodes <= FLAT_ROWS else PreviewKind.GRAPH
    return PreviewKind(asked)


def _reasons(kind: PreviewKind, bits: int, degree: int, each: float, nodes: int) -> list[str]:
    why = [f"{bits}-bit codes: the most that {each:.0f} bytes for each of {nodes:,} distinct rows pay for"]
    if kind is PreviewKind.GRAPH:
        why.append(f"graph with {degree} links a row ({DEGREE} at most: more cost memory and save few rows scored)")
    elif kind is PreviewKind.FLAT:
        why.append(f"flat: all codes of {nodes:,} distinct rows are scored (walks pay from {FLAT_ROWS:,} rows on)")
    return why
