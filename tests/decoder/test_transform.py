"""The frame: inner products are those of the layer, states isotropic, leading coordinates heavy."""

from __future__ import annotations

import numpy as np
import pytest
from layer_oracle import logits64, random_layer, random_states
from threadpoolctl import threadpool_info, threadpool_limits

from decoder.kernels.dots import FLOAT16, FLOAT32
from decoder.kernels.frame import project
from decoder.output_layer import OutputLayer
from decoder.transform import LEAST_WIDTH, Frame, Projection, each_block, fit_frame, graph_rows


def calibration(n: int, dim: int, seed: int = 7) -> np.ndarray:
    """States with a mean, and directions of very different variance."""
    generator = np.random.default_rng(seed)
    mix = generator.normal(size=(dim, dim)) * np.geomspace(3.0, 0.02, dim)
    return (generator.normal(size=(n, dim)) @ mix.T + generator.normal(size=dim) * 2).astype(np.float32)


def fitted(layer, states, **options):
    return fit_frame(layer, states, **{"lead": 16, "seed": 0, **options})


def raw_logits(layer, frame, rows, hidden) -> np.ndarray:
    """bias + y . q + offset of all tokens."""
    coordinates, offsets = frame.states(hidden)
    weight = layer.rows(np.arange(layer.vocab_size))
    y, biases = rows.coordinates(weight), rows.biases(weight, layer.bias)
    return coordinates.astype(np.float64) @ y[:, : frame.width].T.astype(np.float64) + biases + offsets[:, None]


@pytest.mark.parametrize("dim", [1, 3, 16, 40])
@pytest.mark.parametrize("states", [None, 1, 2, 500])
def test_inner_products_are_those_of_the_layer(dim, states):
    layer = random_layer(300, dim, "float32")
    known = None if states is None else calibration(states, dim)
    frame, rows = fitted(layer, known)
    hidden = random_states(6, dim) if known is None else calibration(6, dim, seed=8)
    np.testing.assert_allclose(raw_logits(layer, frame, rows, hidden), logits64(layer, hidden), atol=2e-3, rtol=1e-4)
    assert frame.width == max(dim, LEAST_WIDTH)
    assert frame.projection.flags.c_contiguous and frame.projection.dtype == np.float32


def test_states_become_isotropic():
    layer, (known, others) = random_layer(300, 24, "float32"), np.split(calibration(8000, 24), 2)
    coordinates, _ = fitted(layer, known)[0].states(others)
    before, after = (np.linalg.eigvalsh(np.cov(states.T)) for states in (others, coordinates))
    assert before[-1] > 1e4 * before[0]
    # All directions alike, but for those in which the calibration states hardly vary.
    assert (after < 1.3).all() and np.count_nonzero(after > 0.7) >= np.count_nonzero(before > 2e-3 * before.mean())
    np.testing.assert_allclose(coordinates.mean(axis=0), 0.0, atol=0.1)


def test_leading_coordinates_carry_most_of_the_score():
    layer, known = random_layer(500, 48, "float32"), calibration(1000, 48)
    _, rows = fitted(layer, known)
    y = rows.coordinates(layer.rows(np.arange(500)))
    energy = np.square(y).mean(axis=0)
    assert energy[:16].sum() > 0.8 * energy.sum()
    # Turned among themselves: none of the leading ones is much larger than the others.
    assert energy[:16].max() < 12 * energy[:16].min() and (np.diff(energy[16:]) <= 1e-4 * energy.max()).all()


def test_fewer_coordinates_are_the_first_of_all():
    layer, known = random_layer(100, 40, "float32"), calibration(500, 40)
    whole, rows = fitted(layer, known)
    narrow, same = fitted(layer, known, width=20)
    assert narrow.width == 20 and narrow.projection.tobytes() == whole.projection[:20].tobytes()
    assert same.axes.tobytes() == rows.axes.tobytes()


def test_frequent_answers_weigh_more():
    """Rows of the second half differ in their own two directions only: who answers often has its directions first."""
    weight = np.zeros((400, 20), np.float32)
    weight[:200, :2], weight[200:, 2:4] = np.random.default_rng(0).normal(size=(2, 200, 2))
    layer, known = OutputLayer(weight), random_states(2000, 20)
    for often, directions in ((slice(0, 200), (0, 1)), (slice(200, 400), (2, 3))):
        frequency = np.zeros(400)
        frequency[often] = 1000.0
        _, rows = fitted(layer, known, frequency=frequency, lead=1)
        heavy = np.abs(rows.axes[:, :2]).sum(axis=1)
        assert set(np.argsort(-heavy)[:2].tolist()) == set(directions)


def test_the_same_seed_gives_the_same_frame():
    layer, known = random_layer(100, 20), calibration(300, 20)
    first, second, other = (fitted(layer, known, seed=seed)[0] for seed in (1, 1, 2))
    assert first.projection.tobytes() == second.projection.tobytes() != other.projection.tobytes()


@pytest.mark.parametrize("states", [np.zeros((300, 20), np.float32), np.full((300, 20), 1e-15, np.float32)])
def test_states_that_hardly_vary(states):
    layer = random_layer(100, 20, "float32")
    frame, rows = fitted(layer, states)
    assert all(np.isfinite(array).all() for array in (frame.projection, rows.axes))


def test_progress_is_told_block_by_block():
    told = []
    fit_frame(random_layer(9000, 4), None, lead=16, seed=0, on_block=lambda done, total: told.append((done, total)))
    assert told == [(8192, 9000), (9000, 9000)]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_blocks_come_in_order_and_leave_padding_out(threads):
    layer = random_layer(20_000, 4, vocab_size=19_999)
    blocks = list(each_block(layer, lambda start, rows: (start, len(rows)), threads))
    assert blocks == [(8192, (0, 8192)), (16384, (8192, 8192)), (19_999, (16384, 3615))]


def test_what_fails_in_a_block_is_told():
    def fail(start: int, rows: np.ndarray) -> None:
        raise ZeroDivisionError(start)

    with pytest.raises(ZeroDivisionError, match="8192"):
        list(each_block(random_layer(9000, 4), lambda start, rows: None if start == 0 else fail(start, rows), 2))


@pytest.mark.parametrize(("size", "dim"), [(20_000, 192), (3000, 24), (9000, 576)])
def test_a_frame_has_the_same_bits_for_any_number_of_threads(size, dim):
    """Sizes at which BLAS of one processor or another splits products or decompositions among its threads."""
    layer, states = random_layer(size, dim, "float32"), calibration(3000, dim)
    seen = set()
    for blas, threads in ((1, 1), (2, 1), (2, 2), (4, 3)):
        with threadpool_limits(blas, user_api="blas"):
            frame, rows = fitted(layer, states, threads=threads)
            assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {blas}
        arrays = (frame.mean, frame.centre, frame.projection, rows.axes)
        seen.add(b"".join(array.tobytes() for array in arrays))
    assert len(seen) == 1


@pytest.mark.parametrize("biases", ["none", "some", "large"])
def test_the_nearest_graph_rows_are_the_largest_inner_products(biases):
    """As the graph measures: the distance of two rows, one of which stands for a query."""
    generator = np.random.default_rng(3)
    y = generator.normal(size=(500, 24)).astype(np.float32)
    bias = (generator.normal(size=500) * {"none": 0, "some": 1, "large": 30}[biases]).astype(np.float32)
    middle = float(np.median(bias))
    longest = float((np.square(y).sum(axis=1) + (bias - middle) ** 2).max())
    rows = graph_rows(y, bias, longest=longest, middle=middle)
    assert len(rows) == 500
    # Every row has the same length, so that the nearest is the one with the largest inner product.
    decoded = (rows.codes.astype(np.float32)) * rows.scalars[:, 1:2]
    lengths = np.square(decoded).sum(axis=1)
    assert rows.codes.dtype == np.int8 and np.isfinite(rows.scalars).all()
    np.testing.assert_allclose(rows.scalars[:, 0], longest, rtol=0.03) if biases != "large" else None
    assert (lengths <= longest * 1.05).all()


class TestProjection:
    @pytest.mark.parametrize("scale, kind", [(1.0, FLOAT16), (1e-4, FLOAT32), (1e6, FLOAT32)])
    def test_half_precision_where_the_numbers_fit(self, scale, kind):
        generator = np.random.default_rng(0)
        frame = Frame(
            np.zeros(20, np.float32),
            generator.normal(size=20).astype(np.float32),
            (generator.normal(size=(16, 20)) * scale).astype(np.float32),
        )
        projection = Projection.of(frame)
        assert projection.kind == kind and projection.rows.dtype == np.uint8
        assert projection.rows.shape == (17, 40 if kind == FLOAT16 else 80)
        state, out = random_states(1, 20)[0], np.empty(17, np.float32)
        project(projection.rows, projection.kind, state, out)
        np.testing.assert_allclose(out[:16], frame.projection @ state, rtol=2e-3, atol=5e-3 * scale)
        assert out[16] == pytest.approx(frame.centre @ state, abs=5e-3)
