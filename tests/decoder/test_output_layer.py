"""Output layers from arrays: what is kept, what is refused, what their hash covers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from layer_oracle import DTYPES, bfloat16_bits, random_layer, random_states, stored

from decoder import tensors
from decoder.errors import BadWeightsError, DecoderOptionsError
from decoder.kernels.dots import BFLOAT16, FLOAT16, FLOAT32
from decoder.output_layer import BLOCK_BYTES, OutputLayer


def weight_of(rows: int = 7, dim: int = 5) -> np.ndarray:
    return random_states(rows, dim, seed=3)


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, kind", [("float32", FLOAT32), ("float16", FLOAT16), ("bfloat16", BFLOAT16)])
def test_a_contiguous_weight_is_not_copied(dtype, kind):
    weight = stored(weight_of(), dtype)
    layer = OutputLayer(weight, dtype=dtype)
    assert np.shares_memory(layer.weight, weight) and np.shares_memory(layer.bits, weight)
    assert (layer.dtype, layer.kind, layer.dim, layer.vocab_size) == (dtype, kind, 5, 7)
    assert layer.bits.dtype == (np.float32 if dtype == "float32" else np.uint16)
    assert (layer.scale, layer.softcap) == (1.0, None)
    np.testing.assert_array_equal(layer.bias, np.zeros(7, np.float32))


def test_other_layouts_become_contiguous():
    weight = weight_of()
    for given in (np.asfortranarray(weight), np.repeat(weight, 2, axis=0)[::2], weight.astype(">f4"), weight.tolist()):
        layer = OutputLayer(given)
        assert layer.weight.flags.c_contiguous and layer.weight.dtype == np.float32 and layer.weight.dtype.isnative
        np.testing.assert_array_equal(layer.weight, weight)


def test_float64_is_rounded_to_float32():
    weight = weight_of().astype(np.float64) / 3
    assert OutputLayer(weight).dtype == "float32"
    np.testing.assert_array_equal(OutputLayer(weight).weight, weight.astype(np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_come_as_float32(dtype):
    layer = random_layer(9, 6, dtype)
    ids = [8, 0, 0, 3]
    rows = layer.rows(ids)
    assert rows.dtype == np.float32 and rows.shape == (4, 6) and not np.shares_memory(rows, layer.weight)
    expected = layer.bits[ids]
    if dtype == "bfloat16":
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    elif dtype == "float16":
        expected = expected.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("name", ["weight", "bias", "scale", "vocab_size", "bits"])
def test_a_layer_is_immutable(name):
    layer = OutputLayer(weight_of())
    with pytest.raises(AttributeError, match="immutable"):
        setattr(layer, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(layer, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_layer_can_be_pickled_and_copied(dtype):
    layer = random_layer(9, 6, dtype, scale=0.5, softcap=3.0, vocab_size=8)
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert other.weights_hash() == layer.weights_hash() and repr(other) == repr(layer)


def test_a_layer_says_what_it_is():
    assert repr(OutputLayer(weight_of(), vocab_size=6)) == "OutputLayer(6 x 5, float32, 1 padding rows)"


@pytest.mark.parametrize("length", [7, 6])
def test_a_bias_may_leave_padding_out(length):
    bias = np.arange(length, dtype=np.float64)
    layer = OutputLayer(weight_of(), bias, vocab_size=6)
    assert layer.bias.dtype == np.float32 and layer.bias.tolist() == [0, 1, 2, 3, 4, 5]
    assert OutputLayer(weight_of(), bias[None, :6], vocab_size=6).bias.tolist() == [0, 1, 2, 3, 4, 5]


def test_bfloat16_marked_by_its_dtype():
    bits = bfloat16_bits(weight_of())
    layer = OutputLayer(bits.view(tensors.BFLOAT16_BITS))
    assert layer.dtype == "bfloat16" and np.shares_memory(layer.weight, bits)
    np.testing.assert_array_equal(layer.weight, bits)


def test_a_dtype_called_bfloat16_torch_free():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="gives NumPy a bfloat16")
    weight = weight_of().astype(ml_dtypes.bfloat16)
    layer = OutputLayer(weight)
    assert layer.dtype == "bfloat16" and np.shares_memory(layer.weight, weight)
    np.testing.assert_array_equal(layer.rows(range(7)), weight.astype(np.float32))


# --- torch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_tensors_share_their_memory(dtype):
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    weight = torch.nn.Parameter(torch.randn(7, 5).to(getattr(torch, dtype)))
    layer = OutputLayer(weight, torch.arange(7, dtype=torch.bfloat16), scale=0.5)
    assert layer.dtype == dtype and layer.bias.tolist() == list(range(7))
    np.testing.assert_array_equal(layer.rows(range(7)), weight.detach().float().numpy())
    before = layer.weights_hash()
    with torch.no_grad():
        weight[3] *= 3
    np.testing.assert_array_equal(layer.rows(range(7)), weight.detach().float().numpy())
    assert layer.weights_hash() != before


def test_torch_tensors_that_are_not_contiguous_are_copied():
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.randn(5, 7).to(dtype).T
        np.testing.assert_array_equal(OutputLayer(weight).rows(range(7)), weight.float().numpy())


def test_torch_tensors_elsewhere_are_refused():
    torch = pytest.importorskip("torch", reason="tensors are torch's")
    with pytest.raises(BadWeightsError, match=r"meta.*cpu"):
        OutputLayer(torch.empty(7, 5, device="meta"))
    with pytest.raises(BadWeightsError, match="to_dense"):
        OutputLayer(torch.eye(5).to_sparse())


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weight, said",
    [
        (np.zeros(5, np.float32), r"shape \(5,\)"),
        (np.zeros((2, 3, 4), np.float32), r"shape \(2, 3, 4\)"),
        (np.zeros((0, 5), np.float32), r"shape \(0, 5\)"),
        (np.zeros((5, 0), np.float32), r"shape \(5, 0\)"),
        (np.zeros((5, 2), np.int8), "int8.*dequantised"),
        (np.zeros((5, 2), np.uint16), 'dtype="bfloat16"'),
        (np.zeros((5, 2), bool), "bool"),
        (np.array([["a"]]), "dtype <U1"),
        ([[1.0], [1.0, 2.0]], "inhomogeneous"),
        (None, r"shape \(\)"),
    ],
)
def test_weights_of_no_use(weight, said):
    with pytest.raises(BadWeightsError, match=said) as caught:
        OutputLayer(weight)
    assert caught.value.token_ids == [] and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "dtype, said", [("bfloat16", "holds float32"), ("float8", "needed one of"), ("float16", "float32")]
)
def test_a_dtype_that_the_weight_has_not(dtype, said):
    with pytest.raises(BadWeightsError, match=said):
        OutputLayer(weight_of(), dtype=dtype)


@pytest.mark.parametrize(
    "bias, said",
    [
        (np.zeros(8, np.float32), r"shape \(8,\), needed \[7\]"),
        (np.zeros((7, 1), np.float32), r"shape \(7, 1\)"),
        (np.float32(3), r"shape \(\)"),
        (["a"] * 7, "dtype"),
        (np.zeros(7, complex), "complex"),
    ],
)
def test_biases_of_no_use(bias, said):
    with pytest.raises(BadWeightsError, match=said):
        OutputLayer(weight_of(), bias)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"scale": 0.0}, "scale is 0.0"),
        ({"scale": -1.0}, "scale is -1.0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"scale": "2"}, "scale is '2'"),
        ({"softcap": 0.0}, "softcap is 0.0"),
        ({"softcap": float("inf")}, "softcap is inf"),
        ({"softcap": 1e39}, r"softcap is 1e\+39"),
        ({"softcap": 1e-46}, "softcap is 1e-46"),
        ({"scale": 1e39}, r"scale is 1e\+39"),
        ({"scale": 1e-46}, "scale is 1e-46"),
        ({"softcap": True}, "softcap is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 8}, "vocab_size is 8, but the weight has 7 rows"),
        ({"vocab_size": 6.0}, "vocab_size is 6.0"),
    ],
)
def test_options_of_no_use(options, said):
    with pytest.raises(DecoderOptionsError, match=said):
        OutputLayer(weight_of(), **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_name_their_tokens(dtype, bad):
    rows = 3 * BLOCK_BYTES // (4 * 64) // 2
    weight = np.zeros((rows, 64), np.float32)
    weight[17, 3] = weight[rows - 1, 63] = bad
    with pytest.raises(BadWeightsError, match=f"token ids 17, {rows - 1} ") as caught:
        OutputLayer(stored(weight, dtype), dtype=dtype)
    assert caught.value.token_ids == [17, rows - 1]


def test_many_bad_rows_are_counted():
    weight = weight_of(40)
    weight[5:25] = np.nan
    with pytest.raises(BadWeightsError, match="5, 6, 7, 8, 9 and 15 more") as caught:
        OutputLayer(weight)
    assert caught.value.token_ids == list(range(5, 25))


def test_a_bad_bias_names_its_token():
    bias = np.zeros(7)
    bias[4] = 1e300
    with pytest.raises(BadWeightsError, match="bias of token id 4 ") as caught:
        OutputLayer(weight_of(), bias)
    assert caught.value.token_ids == [4]


def test_float64_past_float32_is_refused():
    weight = weight_of().astype(np.float64)
    weight[2, 2] = 1e300
    with pytest.raises(BadWeightsError, match="token id 2 "):
        OutputLayer(weight)


def test_the_largest_numbers_are_finite():
    for dtype, largest in (("float16", 65504.0), ("float32", np.finfo(np.float32).max)):
        assert OutputLayer(np.full((2, 3), -largest, dtype)).vocab_size == 2
    assert OutputLayer(np.full((2, 3), 0x7F7F, np.uint16), dtype="bfloat16").vocab_size == 2


def test_padding_may_hold_anything():
    weight, bias = weight_of(), np.zeros(7)
    weight[6], bias[6] = np.nan, np.inf
    layer = OutputLayer(weight, bias, vocab_size=6)
    assert layer.vocab_size == 6 and len(layer.weight) == 7


# --- scale, soft-cap and hash ---------------------------------------------------------------------------------------


def test_finish_keeps_the_shape_and_the_input():
    layer = OutputLayer(weight_of(), scale=0.5, softcap=30.0)
    raw = np.array([[124.0, 60.0], [10.0, -3.0]])
    out = layer.finish(raw)
    assert out.dtype == np.float32 and raw[0, 0] == 124.0
    np.testing.assert_allclose(out, 30 * np.tanh(raw * 0.5 / 30), rtol=1e-6)
    assert layer.finish(np.empty((0, 3))).shape == (0, 3)
    values = np.ones(3, np.float32)
    assert OutputLayer(weight_of()).finish(values) is not values


def test_the_hash_covers_all_that_decides_logits():
    weight, bias = weight_of(), np.arange(7, dtype=np.float32)
    first = OutputLayer(weight, bias).weights_hash()
    assert first == OutputLayer(weight.copy(), bias.copy()).weights_hash() and len(first) == 32
    others = [
        OutputLayer(weight, bias, scale=2.0),
        OutputLayer(weight, bias, softcap=30.0),
        OutputLayer(weight, bias, vocab_size=6),
        OutputLayer(weight, bias + 1),
        OutputLayer(weight),
        OutputLayer(weight.astype(np.float16), bias),
        OutputLayer(weight.reshape(5, 7)),
        OutputLayer(np.where(weight == weight[6, 4], 0, weight), bias),
    ]
    hashes = {layer.weights_hash() for layer in others}
    assert len(hashes) == len(others) and first not in hashes


def test_s71_an_edit_in_place_shows_in_the_hash():
    weight = weight_of()
    layer = OutputLayer(weight)
    before = layer.weights_hash()
    weight[3] *= 3
    assert layer.weights_hash() != before
    weight[3] /= 3
