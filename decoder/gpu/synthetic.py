"""Layers for measuring a device without real weights: rows in clusters, states near rows, and a graph made of the clusters.

ClusteredLayer   weight, codes, links, entries; states()
clustered        one on a device, from a seed

Rows that are only noise have no neighbours worth the name, and no graph helps there: a row here is the sum of a direction it
shares with 64 clusters, one it shares with its cluster of 64 rows, and its own. Recall measured on it says whether kernels
work, nothing of real layers.
"""

# mypy: disallow-untyped-calls=False, disable-error-code="import-not-found,no-any-return"

from __future__ import annotations

from typing import NamedTuple

import torch

CLUSTER = 64
"""Rows of a cluster, which lie side by side; and clusters that share a direction."""
CHUNK_ROWS = 16_384
STATE_LENGTH = 12.0
"""The logit of a state's own row; rows of its cluster get two thirds of it, of its family of clusters one third."""


class ClusteredLayer(NamedTuple):
    """An output layer with codes in the hidden states' own frame and a graph."""

    weight: torch.Tensor
    """bfloat16 [V, d]."""
    codes: torch.Tensor
    """uint8 [V, d]."""
    scales: torch.Tensor
    """float32 [V]."""
    links: torch.Tensor
    """int32 [V, degree]: half to the nearest rows of the own cluster, half into the nearest clusters."""
    entries: torch.Tensor
    """int32 [m]: spread over all clusters."""

    def states(self, n: int, *, seed: int) -> torch.Tensor:
        """Hidden states float32 [n, d], each near a row drawn at random."""
        generator = torch.Generator(self.weight.device).manual_seed(seed)
        (vocab, dim), device = self.weight.shape, self.weight.device
        rows = self.weight[torch.randint(vocab, (n,), generator=generator, device=device)].float()
        noise = torch.randn(n, dim, generator=generator, device=device) / dim**0.5
        return STATE_LENGTH * (rows + 0.5 * noise)


def clustered(
    vocab: int, dim: int, *, device: torch.device, seed: int = 0, degree: int = 32, entries: int = 1_024
) -> ClusteredLayer:
    """A layer of `vocab` rows. degree: links of a row, even."""
    generator = torch.Generator(device).manual_seed(seed)

    def directions(count: int) -> torch.Tensor:
        return torch.randn(count, dim, generator=generator, device=device) / (3 * dim) ** 0.5

    clusters = -(-vocab // CLUSTER)
    families = directions(-(-clusters // CLUSTER))
    centres = families.repeat_interleave(CLUSTER, dim=0)[:clusters] + directions(clusters)
    weight = torch.empty((vocab, dim), dtype=torch.bfloat16, device=device)
    codes = torch.empty((vocab, dim), dtype=torch.uint8, device=device)
    scales = torch.empty(vocab, device=device)
    for start in range(0, vocab, CHUNK_ROWS):
        ids = torch.arange(start, min(start + CHUNK_ROWS, vocab), device=device)
        rows = (centres[ids // CLUSTER] + directions(len(ids))).to(torch.bfloat16)
        weight[ids] = rows
        scales[ids] = rows.float().abs().amax(1) / 127.5
        codes[ids] = (rows.float() / scales[ids, None] + 127.5).round().clamp(0, 255).to(torch.uint8)
    links = torch.cat([_near(weight, degree // 2), _far(centres, vocab, degree - degree // 2)], dim=1)
    spread = torch.arange(min(entries, vocab), device=device) * vocab // min(entries, vocab)
    return ClusteredLayer(weight, codes, scales, links, spread.to(torch.int32))


def _near(weight: torch.Tensor, degree: int) -> torch.Tensor:
    """The nearest rows of each row's own cluster, int32 [V, degree]; -1 where the cluster has fewer."""
    vocab = len(weight)
    found = torch.full((vocab, degree), -1, dtype=torch.int32, device=weight.device)
    for start in range(0, vocab, CHUNK_ROWS):
        rows = weight[start : start + CHUNK_ROWS].float()
        padded = torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % CLUSTER)).view(-1, CLUSTER, weight.shape[1])
        products = padded @ padded.transpose(1, 2)
        products.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        first = start + torch.arange(len(padded), device=weight.device)[:, None, None] * CLUSTER
        ids = (first + products.topk(degree, dim=2).indices).view(-1, degree)[: len(rows)]
        found[start : start + len(rows)] = torch.where(ids < vocab, ids, -1).to(torch.int32)
    return found


def _far(centres: torch.Tensor, vocab: int, degree: int) -> torch.Tensor:
    """A row in each of the clusters nearest to a row's own, int32 [V, degree]: the one of the same place there."""
    products = centres @ centres.T
    products.fill_diagonal_(-torch.inf)
    near = products.topk(min(degree, len(centres) - 1), dim=1).indices
    ids = torch.arange(vocab, device=centres.device)
    found = near[ids // CLUSTER] * CLUSTER + (ids % CLUSTER)[:, None]
    found = torch.nn.functional.pad(found, (0, degree - found.shape[1]), value=-1)
    return torch.where(found < vocab, found, -1).to(torch.int32)
