from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp

RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def onnx_quantize(x, scale, zero_point, qmin, qmax):
    """ONNX QuantizeLinear: saturate(round_half_even(x / scale) + zero_point), in float32."""
    return np.clip(np.rint(x / scale) + zero_point, qmin, qmax)


AXES = [
    ((40,), None),
    ((40,), 0),
    ((7, 33), None),
    ((7, 33), 0),
    ((7, 33), 1),
    ((7, 33), (0, 1)),
    ((3, 5, 17), 1),
    ((3, 5, 17), (0, 1)),
    ((3, 5, 17), (0, 2)),
    ((3, 5, 17), (1, 2)),
    ((3, 5, 17), -1),
    ((2, 3, 4, 5), (1, 3)),
    ((1500, 3), 1),
    ((3, 1500), 1),
    ((3, 1500), 0),
    ((), None),
    ((0, 4), 1),
    ((4, 0), 0),
    ((0,), None),
]


def reduced(shape, axis):
    axes = () if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = {i % len(shape) for i in axes}
    return tuple(i for i in range(len(shape)) if i not in axes)


@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_symmetric_scale_is_amax_over_the_largest_code(isa, shape, axis, dtype, rng):
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)
    q = mp.quantize(x, axis=axis, dtype=dtype)
    assert q.values.shape == x.shape and mp.dequantize(q).shape == x.shape
    over = reduced(shape, axis)
    top = np.abs(x) if dtype == "int8" else np.maximum(x, 0)
    amax = top.max(axis=over, keepdims=True, initial=0).astype(np.float32) if over else top
    largest = np.float32(127 if dtype == "int8" else 255)
    scale = np.where(amax > 0, amax / largest, 1).astype(np.float32)
    assert_same_bits(q.scale, scale)
    assert q.zero_point is None and q.values.dtype == dtype
    low = -127 if dtype == "int8" else 0
    np.testing.assert_array_equal(q.values, onnx_quantize(x, scale, 0, low, largest))


@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_asymmetric_follows_dynamic_quantize_linear(isa, shape, axis, dtype, rng):
    x = (rng.standard_normal(shape) + 0.5).astype(np.float32)
    q = mp.quantize(x, axis=axis, dtype=dtype, symmetric=False)
    over, (qmin, qmax) = reduced(shape, axis), RANGES[dtype]
    lo, hi = (
        f(x, axis=over, keepdims=True, initial=0) if over else g(x, np.float32(0))
        for f, g in ((np.min, np.minimum), (np.max, np.maximum))
    )
    scale = np.where(hi > lo, (hi - lo) / np.float32(255), np.float32(1)).astype(np.float32)
    zero = np.clip(np.rint(qmin - lo / scale), qmin, qmax)
    assert_same_bits(q.scale, scale)
    np.testing.assert_array_equal(q.zero_point, zero)
    np.testing.assert_array_equal(q.values, onnx_quantize(x, scale, zero, qmin, qmax))


@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("symmetric", [True, False])
def test_round_trip_is_within_half_a_step(isa, shape, axis, symmetric, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    q = mp.quantize(x, axis=axis, symmetric=symmetric)
    error = np.abs(mp.dequantize(q).astype(np.float64) - x)
    assert np.all(error <= q.scale * (0.5 + (0.5 if not symmetric else 0) + 1e-5))


def test_dequantize_is_one_subtraction_and_one_product(isa, rng):
    values = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    scale = rng.random((2, 1)).astype(np.float32)
    zero = np.array([[3], [-100]], np.int32)
    q = mp.QuantizedArray(values, scale, zero, (0,))
    expected = (values.astype(np.int32) - zero).astype(np.float32) * scale
    assert_same_bits(mp.dequantize(q), expected)
    for dtype in ("bfloat16", "float16", "float64"):
        assert_same_bits(mp.dequantize(q, dtype), mp.cast(expected, dtype))


def test_division_is_true_division(isa):
    """The quotient is 41.5, which rounds to 42; times the rounded reciprocal it would be 41.499996."""
    x, scale = np.float32(float.fromhex("0x1.98513ap-3")), np.float32(float.fromhex("0x1.3ad8dap-8"))
    assert x / scale == 41.5 and x * (np.float32(1) / scale) < 41.5
    assert mp.quantize([x], scale=scale).values.tolist() == [42]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero_point", [0, 5, 127])
def test_ties_clamps_and_special_values(isa, dtype, zero_point):
    qmin, qmax = RANGES[dtype]
    x = np.float32(
        [0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, 3e38, -3e38, np.inf, -np.inf, np.nan, -np.nan, 0, -0.0, 1e-45]
    )
    q = mp.quantize(x, scale=1.0, zero_point=zero_point, dtype=dtype)
    expected = np.where(
        np.isnan(x), zero_point, onnx_quantize(np.nan_to_num(x, posinf=1e30, neginf=-1e30), 1, zero_point, qmin, qmax)
    )
    np.testing.assert_array_equal(q.values, expected)


def test_infinities_and_nan_do_not_spoil_a_computed_scale(isa):
    x = np.float32([[1, -2, np.inf], [np.nan, 0.5, -np.inf], [np.nan, np.inf, np.nan], [0, 0, 0]])
    q = mp.quantize(x, axis=0)
    np.testing.assert_array_equal(q.scale.ravel(), np.float32([2 / 127, 0.5 / 127, 1, 1]))
    np.testing.assert_array_equal(q.values, [[64, -127, 127], [0, 127, -127], [0, 127, 0], [0, 0, 0]])


def test_the_smallest_numbers_have_a_scale(isa):
    tiny = np.float32([3e-45, -1e-45])
    q = mp.quantize(tiny)
    assert q.scale > 0
    assert_same_bits(mp.dequantize(q), tiny)
    q = mp.quantize(np.float32([3e38, -3e38]), symmetric=False)
    assert np.all(np.isfinite(q.scale)) and q.values.tolist() == [127, -128]


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float8_e4m3fn", "float64", "int32"])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_other_types_quantize_as_their_float32_values(isa, source, axis, rng):
    x = (8 * rng.standard_normal((9, 70))).astype(source)
    a, b = mp.quantize(x, axis=axis), mp.quantize(mp.cast(x, "float32"), axis=axis)
    assert_same_bits(a.values, b.values)
    assert_same_bits(a.scale, b.scale)


def test_rows_without_elements_need_no_memory():
    """In a thread of its own, which has no scratch yet."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: mp.quantize(np.zeros((3, 0), np.float32), axis=0)).result().scale.shape == (3, 1)


def test_any_layout_gives_the_same_codes(rng):
    x = rng.standard_normal((20, 30)).astype(np.float32)
    expected = mp.quantize(x, axis=1)
    for view in (np.asfortranarray(x), np.repeat(x, 2, 0)[::2], x[::-1][::-1], x.astype(">f4")):
        q = mp.quantize(view, axis=1)
        assert_same_bits(q.values, expected.values)
        assert q.values.flags.c_contiguous


def test_threads_do_not_change_codes(rng):
    x = rng.standard_normal((700, 600)).astype(np.float32)
    for axis in (None, 0, 1):
        results = []
        for count in (1, 2, 5):
            with mp.config.num_threads(count):
                results.append(mp.quantize(x, axis=axis))
        for other in results[1:]:
            assert_same_bits(other.values, results[0].values)
            assert_same_bits(other.scale, results[0].scale)


def test_given_scales_broadcast_or_run_along_the_axis(rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    scale = np.float32([0.1, 0.2, 0.3, 0.4])
    a = mp.quantize(x, axis=1, scale=scale, zero_point=[1, 2, 3, 4])
    b = mp.quantize(x, axis=1, scale=scale[None], zero_point=np.int32([[1, 2, 3, 4]]))
    assert_same_bits(a.values, b.values)
    np.testing.assert_array_equal(a.values, onnx_quantize(x, scale, [1, 2, 3, 4], -128, 127))


@pytest.mark.parametrize(
    ("values", "scale", "zero_point", "axis", "error"),
    [
        (np.zeros((4, 8), "i1"), np.ones((1, 1), "f4"), None, (1,), ValueError),
        (np.zeros((4, 8), "i1"), np.ones((1, 2), "f4"), None, (1,), ValueError),
        (np.zeros((4, 8), "i1"), np.ones((1, 8), "f4"), np.zeros(1, "i4"), (1,), ValueError),
        (np.zeros((4, 8)), np.ones((1, 1), "f4"), None, (), TypeError),
        ([1, 2], np.ones(1, "f4"), None, (), TypeError),
    ],
)
def test_a_quantized_array_checks_what_the_kernels_trust(values, scale, zero_point, axis, error):
    with pytest.raises(error, match="must"):
        mp.QuantizedArray(values, scale, zero_point, axis)


def test_long_rows_quantize_as_short_ones(rng):
    x = rng.standard_normal(200_000).astype("bfloat16")
    q = mp.quantize(x)
    expected = onnx_quantize(x.astype(np.float32), q.scale, 0, -127, 127)
    np.testing.assert_array_equal(q.values, expected)
    assert q.scale == np.abs(x.astype(np.float32)).max() / np.float32(127)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.quantize(X, dtype="int16"), TypeError, "`dtype` must be one of int8, uint8, int4, .*received int16"),
        (lambda: mp.quantize(X, axis=2), ValueError, "`axis` must name distinct axes .*received 2"),
        (lambda: mp.quantize(X, axis=(0, -2)), ValueError, "distinct"),
        (lambda: mp.quantize(X, scale=0.0), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, scale=np.inf), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, scale=np.nan), ValueError, "`scale` must be positive and finite"),
        (lambda: mp.quantize(X, zero_point=1), ValueError, "`zero_point` must be None unless `scale`"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=2**32 + 1), ValueError, "`zero_point` must lie in"),
        (lambda: mp.quantize(X, axis=1.5), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, axis="0"), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=128), ValueError, r"must lie in \[-128, 127\]"),
        (lambda: mp.quantize(X, scale=1.0, zero_point=1.5), TypeError, "`zero_point` must be integers"),
        (lambda: mp.quantize(X, axis=1, scale=[1.0, 2.0]), ValueError, "`scale` must broadcast to shape"),
        (lambda: mp.quantize(["x"]), TypeError, "`x` must be an array"),
        (lambda: mp.dequantize(X), TypeError, "`q` must be a QuantizedArray; received ndarray"),
        (lambda: mp.dequantize(mp.quantize(X), "int8"), TypeError, "`dtype` must be a float type"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
