"""How coded rows lie in memory, and how well 4 bits stand for 8."""

from __future__ import annotations

import pytest
from gpu_layers import coded, estimates_of, layer_of, layout, queries_of, results, states_of, torch


@pytest.mark.parametrize("vocab", [1, 127, 128, 129, 1000])
def test_every_row_has_its_own_place(vocab):
    places = layout.position(torch.arange(vocab), vocab)
    assert len(places.unique()) == vocab
    assert places.min() >= 0 and places.max() < layout.blocks_of(vocab) * layout.BLOCK_ROWS


def test_dealt_rows_are_found_where_position_says_and_the_rest_is_zero():
    rows = torch.arange(1, 301, dtype=torch.float32)[:, None].expand(-1, 3)
    dealt = layout.deal(rows)
    assert dealt.shape == (384, 3)
    assert torch.equal(dealt[layout.position(torch.arange(300), 300)], rows)
    assert dealt.count_nonzero() == rows.numel()


def test_neighbours_by_id_lie_in_different_blocks():
    places = layout.position(torch.arange(1000), 1000)
    assert (places[1:] // layout.BLOCK_ROWS != places[:-1] // layout.BLOCK_ROWS).all()


@pytest.mark.parametrize("dim", [1, 64, 100])
def test_eight_bits_stand_for_the_values_given(dim):
    layer = layer_of(200, dim)
    rows, matrix = coded(layer, 8)
    assert rows.width % 64 == 0 and rows.codes.dtype == torch.int8
    queries = queries_of(layer, rows, matrix, states_of(3, dim))
    values = (layer.codes.double() - 127.5) * layer.scales.double()[:, None]
    query = (queries.codes.double() * queries.scales.double()[:, None])[:, :dim]
    assert torch.allclose(estimates_of(rows, queries), query @ values.T + layer.bias.double())


@pytest.mark.parametrize("dim", [100, 256])
def test_four_bits_estimate_nearly_as_well(dim):
    layer = layer_of(500, dim)
    layer.weight[:, 0] += 3.0  # a common part: the mean takes it away
    layer = layer._replace(scales=layer.weight.abs().amax(1) / 127.5)
    codes = (layer.weight / layer.scales[:, None] + 127.5).round().clamp(0, 255).to(torch.uint8)
    rows, matrix = coded(layer._replace(codes=codes), 4)
    assert rows.codes.shape[1] * 2 == rows.width and rows.width % 128 == 0
    states = states_of(20, dim)
    error = (
        estimates_of(rows, queries_of(layer, rows, matrix, states)) - (states @ layer.weight.T + layer.bias).double()
    )
    spread = (states @ (layer.weight - layer.weight.mean(0)).T).std()
    assert error.std() < 0.15 * spread
    assert abs(error.mean()) < 0.02 * spread


def test_halves_of_a_byte_come_back():
    levels = torch.randint(0, 16, (7, 128), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    packed = layout._packed(levels)
    assert packed.dtype == torch.int8 and packed.shape == (7, 64)
    back = layout.unpacked(packed, 4)
    assert torch.equal(back[:, :64], levels[:, :64]) and torch.equal(back[:, 64:], levels[:, 64:] - 8)


def test_blocks_keep_room_for_what_chance_deals_them():
    generator = torch.Generator().manual_seed(0)
    for vocab in (1000, 49_152, 256_000):
        blocks, kept = layout.blocks_of(vocab), results.kept_of(vocab, 128)
        most = [
            torch.bincount(torch.randperm(vocab, generator=generator)[:128] % blocks).max().item() for _ in range(200)
        ]
        assert max(most) <= kept <= layout.BLOCK_ROWS
    assert results.kept_of(100, 128) == layout.BLOCK_ROWS
