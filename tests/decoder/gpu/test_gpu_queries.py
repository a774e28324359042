"""Hidden states become int8 queries: contracts over the twins and the kernels, and their agreement."""

from __future__ import annotations

import pytest
from gpu_layers import DEVICE, both, coded, implementation, layer_of, reference, states_of, torch

# Products of floats on a device are TF32's.
TOLERANCE = 1e-5 if DEVICE.type == "cpu" else 5e-3


@both
@pytest.mark.parametrize(("n", "dim", "width"), [(1, 5, 64), (3, 130, 128), (17, 128, 64)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_projection_is_the_product_with_what_was_moved(run, n, dim, width, dtype):
    matrix, mean = states_of(width, dim, seed=2).to(getattr(torch, dtype)), states_of(1, dim, seed=3)[0]
    states = states_of(n, dim)
    wanted = (states - mean).double() @ matrix.double().T
    found = run.project(states, mean, matrix)
    assert found.dtype == torch.float32
    assert (found.double() - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


@both
@pytest.mark.parametrize("bits", [4, 8])
def test_the_largest_component_becomes_127_and_shifts_say_what_codes_leave_out(run, bits):
    states = states_of(3, 100)
    rotated = torch.nn.functional.pad(states, (0, 28))
    row_mean, mean, centre = states_of(1, 128, seed=5)[0], states_of(1, 100, seed=6)[0], states_of(1, 100, seed=7)[0]
    found = run.quantise(rotated, states, mean, centre, row_mean, bits=bits, vocab=1000)
    offsets = rotated.double() @ row_mean.double() + (states - mean).double() @ centre.double()
    assert torch.allclose(found.offsets.double(), offsets, rtol=1e-5, atol=1e-4)
    assert (found.codes.abs().amax(1) == 127).all() and found.codes.dtype == torch.int8
    values = found.codes.double() * found.scales.double()[:, None]
    assert ((values - rotated.double()).abs().amax(1) <= 0.501 * found.scales.double()).all()
    left = torch.full((128,), 0.5, dtype=torch.float64, device=DEVICE)
    left[: 64 if bits == 4 else 0] = -7.5
    assert torch.equal(found.shifts.double(), found.codes.double() @ left)
    assert ((found.windows >= 0) & (found.windows < 1000)).all()


@both
def test_a_query_of_zeros_is_all_zeros(run):
    states = torch.zeros((2, 64), device=DEVICE)
    ones = torch.ones(64, device=DEVICE)
    found = run.quantise(states, states, 0.0 * ones, ones, ones, bits=8, vocab=7)
    assert (found.codes == 0).all() and (found.scales == 1.0).all() and (found.offsets == 0.0).all()
    assert (found.windows == 0).all()


@both
def test_states_that_are_not_finite_are_marked_and_leave_the_others_alone(run):
    states = states_of(4, 70)
    states[1, 3], states[2, 69] = torch.nan, -torch.inf
    rows, matrix = coded(layer_of(100, 70), 4)
    mean = torch.zeros(70, device=DEVICE)
    rotated = run.project(states, mean, matrix)
    assert rotated.isfinite().all()
    found = run.quantise(rotated, states, mean, mean + 1.0, rows.mean, bits=4, vocab=100)
    assert found.offsets.isfinite().all()
    assert found.failed.tolist() == [0, 1, 1, 0]
    alone = run.project(states[:1].contiguous(), torch.zeros(70, device=DEVICE), matrix)
    assert torch.allclose(alone[0], rotated[0], rtol=0, atol=TOLERANCE * float(rotated.abs().max()))


@pytest.mark.parametrize("bits", [4, 8])
def test_kernel_and_twin_agree(bits):
    kernels = implementation("triton")
    rotated, mean = states_of(5, 192), states_of(1, 192, seed=9)[0]
    given = (rotated, rotated, mean, states_of(1, 192, seed=8)[0], mean)
    found = kernels.quantise(*given, bits=bits, vocab=12_345)
    wanted = reference.quantise(*given, bits=bits, vocab=12_345)
    for name in ("codes", "scales", "shifts", "windows", "failed"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name
    assert torch.allclose(found.offsets, wanted.offsets, rtol=1e-5, atol=1e-5)
