"""Every kernel against its twin on one device, over odd sizes, ties and both widths of codes.

Check           what was compared, the largest difference, what is allowed
check_kernels   all of them

Estimates must agree bit by bit, so ids do too; what is summed in floats may differ by rounding (and by TF32 in project).
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from decoder.gpu import kernels, reference
from decoder.gpu.layout import CodedRows, eight_bits, four_bits
from decoder.gpu.results import Queries, kept_of

LINKS, ENTRIES = 9, 12
Finish = dict[str, Any]


class Check(NamedTuple):
    """One comparison. worst: the largest difference, infinite where ids or shapes differ."""

    name: str
    worst: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the kernel and its twin agree."""
        return self.worst <= self.allowed


def check_kernels(
    device: torch.device,
    *,
    vocab: int = 5_003,
    dim: int = 300,
    batch: int = 37,
    keep: int = 64,
    widths: Sequence[int] = (4, 8),
) -> Iterator[Check]:
    """Compare all kernels, with 4 and 8 bits, with and without a soft-cap. The last tenth of the rows repeats the first."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(vocab, dim, generator=generator)
    bias = torch.randn(vocab, generator=generator)
    twice = vocab // 10
    weight[-twice:], bias[-twice:] = weight[:twice], bias[:twice]
    scales = weight.abs().amax(1) / 127.5
    codes = (weight / scales[:, None] + 127.5).round().clamp(0, 255).to(torch.uint8)
    states = torch.randn(batch, dim, generator=generator)
    states[batch // 2, 3] = torch.nan
    links = torch.randint(-1, vocab, (vocab, LINKS), generator=generator, dtype=torch.int32)
    weight, bias, scales, codes, states, links = (t.to(device) for t in (weight, bias, scales, codes, states, links))
    for bits in widths:
        rows = four_bits(codes, scales, bias, seed=1) if bits == 4 else eight_bits(codes, scales, bias)
        turned = torch.eye(dim, device=device) if rows.rotation is None else rows.rotation
        matrix = torch.nn.functional.pad(turned, (0, 0, 0, rows.width - len(turned)))
        yield from _queries(rows, matrix, states, bits)
        nothing = torch.zeros(dim, device=device)
        rotated = reference.project(states, nothing, matrix)
        queries = reference.quantise(rotated, states, nothing, nothing, rows.mean, bits=bits, vocab=vocab)
        for softcap in (None, 20.0):
            finish: Finish = {"scale": 0.9, "softcap": softcap}
            label = f"{bits} bits" + (", soft-capped" if softcap else "")
            yield from _screened(rows, queries, weight, bias, states, finish, keep, label)
            yield from _walked(rows, queries, links, finish, label)


def _queries(rows: CodedRows, matrix: torch.Tensor, states: torch.Tensor, bits: int) -> Iterator[Check]:
    mean = 0.1 * torch.ones(states.shape[1], device=states.device)
    found, wanted = (run.project(states, mean, matrix) for run in (kernels, reference))
    # TF32 keeps 10 bits of a factor.
    yield Check(f"project, {bits} bits", _worst(found, wanted), 4e-3 * float(wanted.abs().max()))
    centre = torch.linspace(-1.0, 1.0, len(mean), device=states.device)
    given = (wanted, states, mean, centre, rows.mean)
    both = [run.quantise(*given, bits=bits, vocab=rows.vocab) for run in (kernels, reference)]
    allowed = {"offsets": 1e-4}
    for name, ours, theirs in zip(Queries._fields, *both):
        yield Check(f"quantise: {name}, {bits} bits", _worst(ours, theirs), allowed.get(name, 0.0))


def _screened(
    rows: CodedRows,
    queries: Queries,
    weight: torch.Tensor,
    bias: torch.Tensor,
    states: torch.Tensor,
    finish: Finish,
    keep: int,
    label: str,
) -> Iterator[Check]:
    n, kept, exact = len(states), kept_of(rows.vocab, keep), 0.0 if finish["softcap"] is None else 1e-3
    found, wanted = (run.scan(rows, queries, kept=kept, **finish) for run in (kernels, reference))
    yield Check(f"scan: estimates, {label}", _worst(found.estimates, wanted.estimates), exact)
    yield Check(f"scan: ids, {label}", _worst(found.ids, wanted.ids) if exact == 0.0 else 0.0, 0.0)
    yield Check(f"scan: rest, {label}", _worst(found.rest, wanted.rest), 1e-4)
    alone = kernels.scan(rows, Queries(*(part[:1].contiguous() for part in queries)), kept=kept, **finish)
    yield Check(f"scan: one query alone, {label}", _worst(alone.estimates, found.estimates[:1]), 0.0)
    flat = (wanted.estimates.view(n, -1), wanted.ids.view(n, -1))
    chosen, twin = (run.select(*flat, keep=keep) for run in (kernels, reference))
    yield Check(f"select: ids, {label}", _worst(chosen.ids, twin.ids), 0.0)
    rest = torch.logsumexp(chosen.rest, 1), torch.logsumexp(twin.rest, 1)
    yield Check(f"select: rest, {label}", _worst(*rest), 1e-4)
    half = weight.to(torch.bfloat16)
    logits, theirs = (run.score(half, bias, states, twin.ids, **finish) for run in (kernels, reference))
    yield Check(f"score, {label}", _worst(logits, theirs), 1e-3)
    nothing, scored = theirs[:, :0], torch.arange(n, dtype=torch.int32, device=states.device)
    sampled = twin.estimates - 3.0
    for drawn in (nothing, sampled):
        arguments = (theirs, twin.estimates, twin.ids, wanted.rest, twin.rest, drawn, queries.failed, scored)
        ordered, twice = (run.order(*arguments, vocab=rows.vocab) for run in (kernels, reference))
        name = f"order{', sampled' if drawn.shape[1] else ''}, {label}"
        yield Check(f"{name}: ids", _worst(ordered.ids, twice.ids), 0.0)
        for part in ("logits", "logprobs", "log_partition", "stderr", "failed", "rows_scored"):
            yield Check(f"{name}: {part}", _worst(getattr(ordered, part), getattr(twice, part)), 1e-3)


def _walked(rows: CodedRows, queries: Queries, links: torch.Tensor, finish: Finish, label: str) -> Iterator[Check]:
    if finish["softcap"] is not None:
        # The last bit of a soft-capped estimate may send two walks different ways: only what needs no walk is compared.
        links = torch.full_like(links, -1)
    entries = torch.arange(0, rows.vocab, -(-rows.vocab // ENTRIES), dtype=torch.int32, device=links.device)
    effort = {"steps": 3, "beam": 16, "places": 1_024}
    found, wanted = (run.walk(rows, queries, links, entries, **effort, **finish) for run in (kernels, reference))
    allowed = 0.0 if finish["softcap"] is None else 1e-4
    yield Check(f"walk: seen, {label}", _worst(found.seen, wanted.seen), 0.0)
    yield Check(f"walk: filled, {label}", _worst(found.filled, wanted.filled), 0.0)
    pools = [_by_id(pool.ids, pool.estimates) for pool in (found, wanted)]
    yield Check(f"walk: ids, {label}", _worst(pools[0][0], pools[1][0]), 0.0)
    yield Check(f"walk: estimates, {label}", _worst(pools[0][1], pools[1][1]), allowed)
    permutation = torch.randperm(rows.vocab, generator=torch.Generator().manual_seed(3)).to(links.device, torch.int32)
    drawn = [run.sample(rows, queries, permutation, wanted.seen, size=64, **finish) for run in (kernels, reference)]
    yield Check(f"sample, {label}", _worst(*drawn), allowed)


def _by_id(ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The filled places of pools, in the order of their ids."""
    order = torch.sort(ids, dim=1).indices
    there = ids.gather(1, order) >= 0
    return ids.gather(1, order), torch.where(there, values.gather(1, order), 0.0)


def _worst(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest absolute difference; infinite where shapes or infinities differ."""
    if found.shape != wanted.shape:
        return float("inf")
    ours, theirs = found.double(), wanted.double()
    same = ours == theirs
    difference = torch.where(same, 0.0, (ours - theirs).abs())
    return float(difference.nan_to_num(nan=torch.inf).max()) if difference.numel() else 0.0
