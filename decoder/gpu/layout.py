"""How coded rows lie in a device's memory, and the 4-bit codes made from 8-bit ones.

CodedRows       codes, scales and biases of all rows, dealt over blocks
eight_bits      rows as given: one byte a coordinate
four_bits       the same rows rotated, without their mean, two coordinates a byte
deal, position  row id <-> place in memory

Rows are dealt over blocks like cards: id v lies in block v % blocks, slot v // blocks. The best rows of a query, which are
often neighbours by id, then fall into different blocks, and a scan loses none of them though it keeps few of each block.

An 8-bit code c (value c - 127.5) is kept as the signed byte s = c - 128, value s + 0.5. A byte of 4-bit codes holds
coordinate j in its low half (value code - 7.5) and coordinate j + width / 2 in its high half, signed (value code + 0.5): both
operands of the integer product are then one AND away (b & 15, and b & -16, which is 16 times the high half).
"""

# mypy: disable-error-code="import-not-found,no-any-return"

from __future__ import annotations

from typing import NamedTuple

import torch

BLOCK_ROWS = 128
"""Rows of one block: what one program of the scan reads."""
CHUNK_ROWS = 16_384
"""Rows that are recoded at a time."""
STEP_SEARCH = (0.35, 0.40, 0.45, 0.50, 0.55, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 1.0)
"""Which part of a row's largest coordinate the outermost 4-bit level may stand at; the part with the least error wins."""


class CodedRows(NamedTuple):
    """All rows' codes, dealt; rows past the vocabulary are zero."""

    codes: torch.Tensor
    """int8 [blocks * BLOCK_ROWS, width * bits / 8]."""
    scales: torch.Tensor
    """float32 [blocks * BLOCK_ROWS]."""
    bias: torch.Tensor
    """float32 [blocks * BLOCK_ROWS]: an estimate is bias + scale * <value of the code, query>."""
    mean: torch.Tensor
    """float32 [width]: what was taken from every row before it was coded."""
    rotation: torch.Tensor | None
    """float32 [width, given width]: what the queries' matrix must be multiplied with; None for 8 bits."""
    bits: int
    width: int
    vocab: int


def padded(n: int, least: int = 1) -> int:
    """The least power of two >= n and >= least."""
    return max(least, 1 << max(n - 1, 0).bit_length())


def blocks_of(vocab: int) -> int:
    """Blocks that hold this many rows."""
    return -(-vocab // BLOCK_ROWS)


def position(ids: torch.Tensor, vocab: int) -> torch.Tensor:
    """Where rows lie. ids: any integers in 0..vocab-1."""
    blocks = blocks_of(vocab)
    return (ids % blocks) * BLOCK_ROWS + torch.div(ids, blocks, rounding_mode="floor")


def deal(rows: torch.Tensor) -> torch.Tensor:
    """Rows in the order of their positions, zeros where a position holds none."""
    vocab = len(rows)
    dealt = rows.new_zeros((blocks_of(vocab) * BLOCK_ROWS, *rows.shape[1:]))
    dealt[position(torch.arange(vocab, device=rows.device), vocab)] = rows
    return dealt


def eight_bits(codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor) -> CodedRows:
    """Rows of one byte a coordinate. codes: uint8 [V, width], value code - 127.5; scales, bias: float32 [V]."""
    vocab, given = codes.shape
    signed = (codes ^ 128).view(torch.int8)
    width = -(-given // 64) * 64
    mean = torch.zeros(width, device=codes.device)
    signed = torch.nn.functional.pad(signed, (0, width - given))
    return CodedRows(deal(signed), deal(scales.float()), deal(bias.float()), mean, None, 8, width, vocab)


def four_bits(codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor, *, seed: int) -> CodedRows:
    """The same rows, rotated at random and without their mean, in half the bytes.

    Without the rotation a few large coordinates set a row's step and 16 levels are too few: on SmolLM2's whitened rows 85 %
    of the best 10 were among the best 128 estimates; rotated and centred, all.
    """
    vocab, given = codes.shape
    width = -(-given // 128) * 128
    rotation = torch.nn.functional.pad(_rotation(given, seed, codes.device), (0, 0, 0, width - given))
    mean = _mean_row(codes, scales) @ rotation.T
    packed = torch.empty((vocab, width // 2), dtype=torch.int8, device=codes.device)
    steps = torch.empty(vocab, dtype=torch.float32, device=codes.device)
    for start in range(0, vocab, CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        rows = _values(codes[chunk], scales[chunk]) @ rotation.T - mean
        levels, steps[chunk] = _sixteen_levels(rows)
        packed[chunk] = _packed(levels)
    return CodedRows(deal(packed), deal(steps), deal(bias.float()), mean, rotation, 4, width, vocab)


def unpacked(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """What the integer product takes of codes, int8 [rows, width]: bytes, or low halves and then signed high halves."""
    if bits == 8:
        return codes
    return torch.cat([codes & 15, torch.div(codes & -16, 16, rounding_mode="floor")], dim=1)


def _rotation(width: int, seed: int, device: torch.device) -> torch.Tensor:
    # Not the seed itself: rows drawn from the same stream would be turned into a triangle, the worst rows to code.
    generator = torch.Generator().manual_seed(seed + 0x70F1)
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator).to(device))
    return q * torch.sign(torch.diagonal(r))


def _values(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (codes.float() - 127.5) * scales[:, None]


def _mean_row(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(codes.shape[1], dtype=torch.float64, device=codes.device)
    for start in range(0, len(codes), CHUNK_ROWS):
        chunk = slice(start, start + CHUNK_ROWS)
        total += _values(codes[chunk], scales[chunk]).sum(0, dtype=torch.float64)
    return (total / len(codes)).float()


def _sixteen_levels(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(levels 0..15 as int8, step) of each row: of several steps the one with the least squared error, and its best scale."""
    largest = rows.abs().amax(1).clamp_min(1e-20)
    least = torch.full_like(largest, torch.inf)
    levels = torch.zeros(rows.shape, dtype=torch.int8, device=rows.device)
    steps = torch.zeros_like(largest)
    norms = (rows * rows).sum(1)
    for part in STEP_SEARCH:
        values = torch.round(rows / (largest * (part / 7.5))[:, None] + 7.5).clamp_(0, 15) - 7.5
        products, squares = (rows * values).sum(1), (values * values).sum(1)
        error = norms - products * products / squares
        better = error < least
        least = torch.where(better, error, least)
        steps = torch.where(better, products / squares, steps)
        levels[better] = (values[better] + 7.5).to(torch.int8)
    return levels, steps


def _packed(levels: torch.Tensor) -> torch.Tensor:
    half = levels.shape[1] // 2
    return levels[:, :half] | ((levels[:, half:] - 8) << 4)
