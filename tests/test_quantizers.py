"""Keras' quantizers, compared with their formulas."""

import json

import ml_dtypes
import numpy as np
import pytest

from mp_core import cast, quantize
from mp_core.quantizers import (
    AbsMaxQuantizer,
    abs_max_quantize,
    abs_max_quantize_grouped_with_zero_point,
    compute_float8_amax_history,
    compute_float8_scale,
    deserialize,
    fake_quant_with_min_max_vars,
    get,
    pack_int4,
    quantize_and_dequantize,
    serialize,
    unpack_int4,
)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_abs_max_quantize_is_its_formula(axis, dtype, rng):
    x = (rng.standard_normal((7, 9)) * 10).astype(dtype)
    codes, scale = abs_max_quantize(x, axis)
    expected = 127 / (np.abs(x).max(axis=axis, keepdims=True) + x.dtype.type(1e-7))
    np.testing.assert_array_equal(scale, expected)
    np.testing.assert_array_equal(codes, np.clip(np.rint(x * expected), -127, 127))


@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float16, ml_dtypes.bfloat16])
def test_numpy_scalars_are_as_the_numbers_of_python(kind, rng):
    """127 - -127 overflows in int8, and a scale divided from an int64 is float64."""
    x, ends = rng.standard_normal((6, 4)).astype(np.float32), (-127, 127)
    given = tuple(map(kind, ends))
    assert AbsMaxQuantizer(0, given) == AbsMaxQuantizer(0, ends)
    for one, other in (
        (abs_max_quantize(x, 0, given), abs_max_quantize(x, 0, ends)),
        (abs_max_quantize_grouped_with_zero_point(x, 2, given), abs_max_quantize_grouped_with_zero_point(x, 2, ends)),
        ([fake_quant_with_min_max_vars(x, kind(-1), kind(1), np.int8(8))], [fake_quant_with_min_max_vars(x, -1, 1)]),
    ):
        for found, expected in zip(one, other, strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    json.dumps(AbsMaxQuantizer(0, given, epsilon=kind(1)).get_config())


@pytest.mark.parametrize("axis", [np.int64(1), [1], (-1,), np.array([1])])
def test_any_integer_is_an_axis(axis, rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    for result, expected in zip(abs_max_quantize(x, axis), abs_max_quantize(x, 1), strict=True):
        np.testing.assert_array_equal(result, expected)
    assert json.loads(json.dumps(AbsMaxQuantizer(axis).get_config()))["axis"] == [int(i) for i in np.atleast_1d(axis)]


def test_a_single_number_has_no_axes():
    codes, scale = abs_max_quantize(np.float32(-3.0), ())
    assert codes.shape == scale.shape == () and codes == -127 and scale == np.float32(127) / np.float32(3 + 1e-7)


def test_zeros_without_epsilon_are_zeros():
    codes, scale = abs_max_quantize(np.zeros(3, np.float32), 0, epsilon=0.0)
    assert codes.tolist() == [0, 0, 0] and scale == np.inf


def test_fake_quant_has_the_shape_of_its_inputs():
    assert fake_quant_with_min_max_vars(np.float32(0.5), [[0.0]], [[1.0]], num_bits=2).shape == ()


@pytest.mark.parametrize(("amax", "margin"), [(1e-45, 0), (3e38, 20), (1.0, 2000), (1.0, -2000)])
def test_a_float8_scale_that_would_be_0_or_infinite_is_kept(amax, margin):
    assert compute_float8_scale(amax, 3.0, 448.0, margin=margin) == 3.0


def test_trap_14_float8_delayed_scaling():
    """The old scale rounds; the new one comes from the old history; the newest amax is at index 0 after roll(-1)."""
    history, scale = np.array([6.0, 2.0, 4.0], np.float32), np.float32(0.5)
    x = np.array([1.0, -9.0, 0.3], np.float32)
    rounded = quantize_and_dequantize(x, scale, "float8_e4m3fn", "float32")
    np.testing.assert_array_equal(rounded, (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale)
    new_scale = compute_float8_scale(history.max(), scale, 448.0)
    assert new_scale == np.float32(6.0) / np.float32(448.0)
    np.testing.assert_array_equal(compute_float8_amax_history(x, history), [9.0, 4.0, 6.0])
    for amax in (0.0, -1.0, np.inf, np.nan):
        assert compute_float8_scale(amax, scale, 448.0) == scale
    assert compute_float8_scale(3.0, 1.0, 448.0, margin=1) == np.float32(6.0) / np.float32(448.0)


@pytest.mark.parametrize(("dtype", "largest"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
def test_quantize_and_dequantize_clips(dtype, largest, compute):
    result = quantize_and_dequantize([largest * 1.5 if compute != "float16" else largest, 1.0], 1.0, dtype, compute)
    assert result.dtype == compute and result.astype(np.float32).tolist() == [largest, 1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_trap_15_abs_max_scale_is_a_multiplier_and_zero_rows_stay_zero(dtype):
    x = cast([[0.5, -2.0, 1.1], [0, 0, 0]], dtype)
    values, scale = abs_max_quantize(x, axis=-1)
    np.testing.assert_array_equal(values, [[32, -127, 70], [0, 0, 0]])
    assert np.isfinite(scale).all() and scale.shape == (2, 1)
    assert scale.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_allclose(values / scale, x.astype(float), atol=1 / 63)


def test_abs_max_quantize_range_and_nan():
    values, scale = abs_max_quantize(np.array([-2.0, 1.0], np.float32), 0, value_range=(-8, 7))
    assert (values.min(), scale.item()) == (-7, pytest.approx(3.5))
    assert abs_max_quantize(np.array([np.nan, 1.0], np.float32), 0)[0][0] == 0


# ---- AbsMaxQuantizer


def test_abs_max_quantizer_is_abs_max_quantize(rng):
    x = rng.standard_normal((5, 6)).astype(np.float32)
    for quantizer, axis in ((AbsMaxQuantizer(), -1), (AbsMaxQuantizer(axis=0), 0), (AbsMaxQuantizer((0, 1)), (0, 1))):
        for got, expected in zip(quantizer(x), abs_max_quantize(x, axis), strict=True):
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(AbsMaxQuantizer(axis=0)(x, axis=1)[0], abs_max_quantize(x, 1)[0])
    values, scale = AbsMaxQuantizer(value_range=(-8, 7), epsilon=0.0)(np.float32([[-2.0, 1.0]]))
    assert values.tolist() == [[-7, 4]] and scale.tolist() == [[3.5]]


def test_abs_max_quantizer_config():
    assert AbsMaxQuantizer().get_config() == {"value_range": (-127, 127), "epsilon": 1e-7, "output_dtype": "int8"}
    quantizer = AbsMaxQuantizer(axis=-1, value_range=(-8, 7), output_dtype="uint8")
    assert quantizer.axis == (-1,) and quantizer.get_config()["axis"] == (-1,)
    saved = json.loads(json.dumps(serialize(quantizer)))
    assert saved["module"] == "keras.quantizers" and saved["class_name"] == "AbsMaxQuantizer"
    assert deserialize(saved) == quantizer and deserialize(serialize(AbsMaxQuantizer())) == AbsMaxQuantizer()


def test_get():
    quantizer = AbsMaxQuantizer(axis=1)
    assert get(None) is None and get(quantizer) is quantizer
    assert get("abs_max_quantizer", axis=0) == get("AbsMaxQuantizer", axis=0) == AbsMaxQuantizer(axis=0)
    assert get(AbsMaxQuantizer, axis=0) == AbsMaxQuantizer(axis=0) and get(serialize(quantizer)) == quantizer


# ---- fake_quant_with_min_max_vars


def fake_quant(x, least, most, num_bits, narrow):
    """TensorFlow's description, one range, in float32."""
    f = np.float32
    low, high = f(1 if narrow else 0), f(2**num_bits - 1)
    scale, inverse = f(f(most - least) / f(high - low)), f(f(high - low) / f(most - least))
    zero = min(max(f(np.rint(f(low - f(least / scale)))), low), high)
    start, end = f(f(low - zero) * scale), f(f(high - zero) * scale)
    steps = (np.clip(x, start, end) - start) * inverse
    return np.floor((steps - np.floor(f(f(-start * inverse) + f(0.5)))) + f(0.5)) * scale


@pytest.mark.parametrize("num_bits", [2, 4, 8, 16])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (-1.0, 1.0), (-0.1, 63.65), (0.3, 2.0), (-5.0, -1.0)])
def test_fake_quant_is_its_formula(num_bits, narrow, least, most, rng):
    x = np.append(rng.uniform(-7, 70, 500), [np.inf, -np.inf, 0.0]).astype(np.float32)
    expected = fake_quant(x, np.float32(least), np.float32(most), num_bits, narrow)
    np.testing.assert_array_equal(fake_quant_with_min_max_vars(x, least, most, num_bits, narrow), expected)
    half = x[:-3].astype("bfloat16")
    got = fake_quant_with_min_max_vars(half, least, most, num_bits, narrow)
    wide = fake_quant(half.astype(np.float32), np.float32(least), np.float32(most), num_bits, narrow)
    assert got.dtype == half.dtype
    np.testing.assert_array_equal(got.view(np.uint16), wide.astype("bfloat16").view(np.uint16))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_fake_quant_along_an_axis(axis, rng):
    x = rng.uniform(-3, 3, (4, 5)).astype(np.float32)
    least, most = -rng.random(x.shape[axis]).astype(np.float32), rng.random(x.shape[axis]).astype(np.float32)
    least[0] = most[0] = 0
    got = np.moveaxis(fake_quant_with_min_max_vars(x, least, most, axis=axis), axis, 0)
    assert not got[0].any()
    for i, part in enumerate(np.moveaxis(x, axis, 0)):
        if i:
            np.testing.assert_array_equal(got[i], fake_quant(part, least[i], most[i], 8, False))


# ---- int4


@pytest.mark.parametrize(("rows", "block"), [(8, 4), (9, 4), (3, 4), (5, 1), (1, 128), (7, 10**12), (0, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_grouped_quantization_is_keras_formula(rows, block, dtype, rng):
    """By whole blocks, filled up with zeros, as Keras writes it."""
    x = (rng.standard_normal((rows, 5)) * 3 + 1).astype(dtype)
    x[:, 1] = np.abs(x[:, 1])
    x[:, 2] = 0
    values, scale, zero = abs_max_quantize_grouped_with_zero_point(x, block)
    size = min(block, max(rows, 1))
    groups = -(-rows // size)
    blocks = np.zeros((groups * size, 5), dtype)
    blocks[:rows] = x
    blocks = blocks.reshape(groups, size, 5)
    low, high = np.minimum(blocks.min(1, initial=0), 0), np.maximum(blocks.max(1, initial=0), 0)
    expected_scale = (high - low + x.dtype.type(1e-7)) / x.dtype.type(15)
    expected_zero = np.clip(np.rint(-low / expected_scale) - 8, -8, 7)
    codes = np.clip(np.rint(blocks / expected_scale[:, None]) + expected_zero[:, None], -8, 7)
    np.testing.assert_array_equal(scale, expected_scale)
    np.testing.assert_array_equal(zero, expected_zero)
    np.testing.assert_array_equal(values, codes.reshape(-1, 5)[:rows])
    assert (values.dtype, zero.dtype, scale.dtype) == (np.int8, np.int8, dtype)
    error = np.abs((codes - expected_zero[:, None]) * expected_scale[:, None] - blocks)
    assert (error <= expected_scale[:, None] * 1.001).all()  # zero point and code are rounded, half a step each


def test_grouped_quantization_of_numbers_that_are_none():
    x = np.array([[1.0, np.nan, np.inf], [2.0, 3.0, -1.0]], np.float32)
    values, scale, zero = abs_max_quantize_grouped_with_zero_point(x, 2)
    assert np.isfinite(scale).all()
    assert values[0, 1] == zero[0, 1] and values[0, 2] == 7


@pytest.mark.parametrize("shape", [(3, 2), (5, 131, 3), (64,), (0, 4), (4, 0), (129, 2)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_pack_int4_has_the_even_index_in_the_low_half(isa, shape, dtype, rng):
    low, high = (-8, 8) if dtype == "int8" else (0, 16)
    x = rng.integers(low, high, shape).astype(dtype)
    for axis in range(-len(shape), len(shape)):
        packed, packed_shape, length = pack_int4(x, axis, dtype)
        first = np.moveaxis(x, axis, 0).astype(np.uint8) & 0xF
        first = np.concatenate([first, np.zeros_like(first[: len(first) % 2])])
        expected = np.moveaxis((first[::2] | first[1::2] << 4).view(dtype), 0, axis)
        np.testing.assert_array_equal(packed, expected)
        assert packed_shape == packed.shape and length == x.shape[axis] and packed.dtype == dtype
        back = unpack_int4(packed, length, axis, dtype)
        assert back.dtype == dtype
        np.testing.assert_array_equal(back, x)


def test_float8_edges():
    for dtype, top in (("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)):
        x = [np.inf, -np.inf, 1e38, np.nan]
        np.testing.assert_array_equal(
            quantize_and_dequantize(x, 0.5, dtype, "float32"), [top / 2, -top / 2, top / 2, np.nan]
        )
    history = compute_float8_amax_history([np.nan, 1.0], [1.0, 2.0])
    assert np.isnan(history[0]) and compute_float8_scale(history.max(), 3.0, 448.0) == 3.0
    assert compute_float8_amax_history([], [1.0, 2.0]).tolist() == [0.0, 1.0]


I8 = np.zeros((3, 2), np.int8)
X = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: AbsMaxQuantizer(value_range=(-129, 127)), ValueError, "within the interval"),
        (lambda: AbsMaxQuantizer(value_range=(-127, 128)), ValueError, "within the interval"),
        (lambda: AbsMaxQuantizer(output_dtype="int3"), TypeError, "`output_dtype` must be one of"),
        (lambda: get("no such"), ValueError, "Could not interpret quantizer identifier"),
        (lambda: get(3), ValueError, "Could not interpret quantizer identifier"),
        (lambda: deserialize({"class_name": "X"}), ValueError, "Unknown quantizer class_name='X'"),
        (lambda: compute_float8_amax_history([1.0], []), ValueError, "`amax_history` must have at least one entry"),
        (lambda: quantize_and_dequantize([1.0], 1.0, "int8", "float32"), ValueError, "`quantized_dtype` must be"),
        (lambda: fake_quant_with_min_max_vars([1.0], 0.0, 1.0, num_bits=1), ValueError, r"range \[2, 16\]"),
        (lambda: fake_quant_with_min_max_vars([1.0], 0.0, 1.0, num_bits=17), ValueError, r"range \[2, 16\]"),
        (lambda: fake_quant_with_min_max_vars([1.0], 2.0, 1.0), ValueError, "`min_vals` must not be greater"),
        (lambda: fake_quant_with_min_max_vars([1.0], np.nan, 1.0), ValueError, "`min_vals` must not be greater"),
        (lambda: fake_quant_with_min_max_vars([1.0], [0.0, 1.0], 1.0), ValueError, "`min_vals` must be one number, or"),
        (lambda: pack_int4(np.zeros(3)), TypeError, "`arr` must be of type int8; received float64"),
        (lambda: pack_int4(I8, dtype="int16"), ValueError, "`dtype` must be int8 or uint8"),
        (lambda: pack_int4(I8, axis=2), ValueError, "`axis` must lie in"),
        (lambda: pack_int4(I8 + 8), ValueError, "`arr` must hold -8 to 7; received 8 to 8"),
        (lambda: abs_max_quantize_grouped_with_zero_point(np.zeros(3), 2), ValueError, "`inputs` must be a matrix"),
        (lambda: abs_max_quantize_grouped_with_zero_point(I8, 0), ValueError, "`block_size` must be a positive"),
        (lambda: abs_max_quantize_grouped_with_zero_point(I8, 1.5), ValueError, "`block_size` must be a positive"),
        (lambda: unpack_int4(I8, 7), ValueError, "`orig_len` must be"),
        (lambda: unpack_int4(I8, -1), ValueError, "`orig_len` must be"),
        (lambda: unpack_int4(I8, 2.5), TypeError, "`orig_len` must be an integer; received orig_len=2.5"),
        (lambda: fake_quant_with_min_max_vars(X, 0.0, 1.0, 2.5), TypeError, "`num_bits` must be an integer"),
        (lambda: abs_max_quantize(X, 0, "ab"), ValueError, "`value_range` must be two increasing numbers"),
        (lambda: unpack_int4(X, 6), TypeError, "`packed` must be of type int8 or uint8"),
        (
            lambda: abs_max_quantize(X, 0, epsilon=-3),
            ValueError,
            "`epsilon` must be a number of at least 0",
        ),
        (lambda: AbsMaxQuantizer(epsilon="x"), ValueError, "`epsilon` must be a number"),
        (lambda: AbsMaxQuantizer(value_range=3), ValueError, "`value_range` must be two increasing numbers"),
        (lambda: abs_max_quantize(X, 1.5), TypeError, "`axis` must be an int"),
        (lambda: AbsMaxQuantizer(axis="a"), TypeError, "`axis` must be an int"),
        (lambda: abs_max_quantize(X, 0, (-300, 300)), ValueError, "`value_range` must be .* range of int8"),
        (lambda: abs_max_quantize(X, 0, dtype="uint8"), ValueError, "`value_range` must be .* range of uint8"),
        (lambda: abs_max_quantize(X, 0, (7, -7)), ValueError, "`value_range` must be two increasing numbers"),
        (lambda: abs_max_quantize(X, 0, (1, 2, 3)), ValueError, "`value_range` must be two"),
        (lambda: abs_max_quantize_grouped_with_zero_point(X, 2, (7, 7)), ValueError, "`value_range` must be two"),
        (lambda: abs_max_quantize_grouped_with_zero_point(X, True), ValueError, "`block_size` must be a positive"),
        (lambda: deserialize(None), ValueError, "A serialized quantizer must be a dictionary"),
        (lambda: compute_float8_amax_history(X, 1.0), ValueError, "`amax_history` must have at least one entry"),
        (lambda: quantize_and_dequantize(X, 1.0, "float8_e5m2", "int32"), TypeError, "`compute_dtype` must be a float"),
        (lambda: fake_quant_with_min_max_vars(X, -3e38, 3e38), ValueError, "`max_vals` - `min_vals` must be finite"),
        (lambda: fake_quant_with_min_max_vars(X, 0.0, np.inf), ValueError, "`max_vals` - `min_vals` must be finite"),
        (lambda: fake_quant_with_min_max_vars(X, 0.0, 1e-45), ValueError, "have a reciprocal in float32"),
        (lambda: fake_quant_with_min_max_vars(X, 0.0, [1.0, 2.0]), ValueError, r"`max_vals` must be one .*\(2,\)"),
        (lambda: fake_quant_with_min_max_vars(X, [0.0] * 3, 1.0, axis=1), ValueError, r"`min_vals` must .*\(3,\)"),
        (lambda: fake_quant_with_min_max_vars(X, 0.0, 1.0, axis=2), ValueError, "`axis` must lie in"),
        (lambda: fake_quant_with_min_max_vars(X, 0j, 1.0), TypeError, "`min_vals` must be an array"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_one_scale_for_all():
    x = np.array([[1.0, -2.0], [0.5, 4.0]], np.float32)
    codes, scale = abs_max_quantize(x, None)
    assert scale.shape == (1, 1)
    np.testing.assert_array_equal(codes, np.rint(x * scale).astype(np.int8))
    assert abs_max_quantize(np.float32(3), None)[0] == 127


@pytest.mark.parametrize(("dtype", "value_range"), [("uint8", (0, 255)), ("int16", (-3000, 3000)), ("int8", (-8, 7))])
def test_zero_points_have_the_range_of_the_codes(dtype, value_range):
    x = np.array([[-3.0], [0.0], [5.0]], np.float32)
    codes, scale, zero = abs_max_quantize_grouped_with_zero_point(x, 2, value_range, dtype, to_numpy=True)
    assert codes.dtype == zero.dtype == dtype
    block = np.array([0, 0, 1])
    np.testing.assert_allclose((codes.astype(float) - zero[block]) * scale[block], x, atol=0.51 * scale.max())


def test_integers_are_floats_to_fake_quantization_and_bytes_hold_two_codes():
    assert fake_quant_with_min_max_vars([1, 9], 0.0, 3.0, num_bits=2).tolist() == [1.0, 3.0]
    assert unpack_int4(np.array([45, 1], np.int8), None).tolist() == [-3, 2, 1, 0]


def test_int4_codes_unpack_from_bytes_of_either_type():
    q = quantize(np.array([[1.0, -7.0, 4.0, 2.0]], np.float32), dtype="int4")
    assert unpack_int4(q.values, 4, axis=-1).tolist() == [[1, -7, 4, 2]]
    assert unpack_int4(q.values.view(np.int8), 4, axis=-1, dtype="uint8").tolist() == [[1, 9, 4, 2]]


def test_a_block_wider_than_float32_is_scaled_by_parts():
    values, scale, zero_point = abs_max_quantize_grouped_with_zero_point(np.array([[3e38], [-3e38]], np.float32), 2)
    assert np.isfinite(scale).all() and values.ravel().tolist() == [7, -8]
    np.testing.assert_allclose((values - np.float64(zero_point)) * scale, [[3e38], [-3e38]], rtol=0.1)
