import pickle
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
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
        (np.zeros((4, 8), "i1"), np.ones((1, 1), "f4"), np.full((1, 1), 128), (), ValueError),
        (np.zeros((4, 8), "u1"), np.ones((1, 1), "f4"), np.full((1, 1), 2**32), (), ValueError),
        (np.zeros((4, 8), "u1"), np.ones((1, 1), "f4"), np.full((1, 1), 0.5), (), TypeError),
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


# ---- groups, 4-bit integers, 8-bit floats

LARGEST = {"int8": 127, "int4": 7, "uint8": 255, "float8_e4m3fn": 448, "float8_e5m2": 57344}
LIMITS = {"int8": (-128, 127), "int4": (-8, 7), "uint8": (0, 255)}


def unpacked(q):
    """The codes as numbers, int4 ones by ml_dtypes' bits."""
    if q.dtype != ml_dtypes.int4:
        return q.values.astype(np.float32)
    pairs = np.stack([q.values & 0xF, q.values >> 4], axis=-1).reshape(*q.values.shape[:-1], 2 * q.values.shape[-1])
    return pairs[..., : q.shape[-1]].view(ml_dtypes.int4).astype(np.float32)


def along(x, split, group):
    """Slices of x along the axis `split`, `group` at a time."""
    return [np.take(x, range(i, min(i + group, x.shape[split])), split) for i in range(0, x.shape[split], group)]


def per_element(scale, shape, split, group):
    """What belongs to each element, of scales with one entry per group along `split`."""
    wide = scale if group is None else np.repeat(scale, group, split)[tuple(map(slice, shape))]
    return np.broadcast_to(wide, shape)


GROUPED = [
    ((130, 7), 0, 64),
    ((128, 70), 0, 32),
    ((7, 130), 1, 64),
    ((3, 129), 1, 32),
    ((3, 128), 1, 128),
    ((3, 10), 1, 3),
    ((50, 6), 0, 7),
    ((2, 9, 5), 1, 4),
    ((2, 5, 12), 0, 1),
    ((300,), 0, 128),
    ((5, 4), 0, 100),
    ((1, 4), 0, 2),
    ((4, 1), 0, 3),
    ((0, 4), 0, 2),
    ((4, 0), 1, 2),
    ((70, 1100), 0, 32),
]


@pytest.mark.parametrize(("shape", "split", "group"), GROUPED)
@pytest.mark.parametrize("dtype", list(LARGEST))
def test_every_group_has_its_scale(isa, shape, split, group, dtype, rng):
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(np.float32)
    q = mp.quantize(x, axis=[i for i in range(len(shape)) if i != split], dtype=dtype, group_size=group)
    tops = [np.abs(part) if dtype != "uint8" else np.maximum(part, 0) for part in along(x, split, group)]
    amax = [top.max(axis=split, keepdims=True, initial=0) for top in tops] or [
        np.zeros([0 if i == split else n for i, n in enumerate(shape)])
    ]
    amax = np.concatenate(amax, axis=split).astype(np.float32)
    scale = np.where(amax > 0, amax / np.float32(LARGEST[dtype]), 1).astype(np.float32)
    assert_same_bits(q.scale, scale)
    assert q.shape == shape and q.group_size == group and q.dtype.name == dtype and q.zero_point is None
    wide = per_element(scale, shape, split, group)
    if "float8" in dtype:
        expected = np.clip(x / wide, -LARGEST[dtype], LARGEST[dtype]).astype(dtype)
        np.testing.assert_array_equal(q.values.view(np.uint8), expected.view(np.uint8))
    else:
        np.testing.assert_array_equal(unpacked(q), np.clip(np.rint(x / wide), LIMITS[dtype][0], LARGEST[dtype]))
    assert_same_bits(mp.dequantize(q), unpacked(q) * wide)


@pytest.mark.parametrize(("shape", "axis"), AXES)
@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("source", ["float32", "bfloat16"])
def test_int4_and_float8_along_any_axes(isa, shape, axis, dtype, source, rng):
    x = rng.standard_normal(shape).astype(np.float32).astype(source)
    if dtype == "int4" and not shape:
        with pytest.raises(ValueError, match="must have an axis to be packed"):
            mp.quantize(x, dtype=dtype)
        return
    q, x = mp.quantize(x, axis=axis, dtype=dtype), x.astype(np.float32)
    over = reduced(shape, axis)
    amax = np.abs(x).max(axis=over, keepdims=True, initial=0) if over else np.abs(x)
    assert_same_bits(q.scale, np.where(amax > 0, amax / np.float32(LARGEST[dtype]), 1).astype(np.float32))
    y = x / q.scale
    expected = np.clip(np.rint(y), -7, 7) if dtype == "int4" else y.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(unpacked(q), expected)
    assert_same_bits(mp.dequantize(q, source), (unpacked(q) * q.scale).astype(np.float32).astype(source))


@pytest.mark.parametrize("shape", [(64, 30), (3, 7), (2, 3, 5), (129,)])
@pytest.mark.parametrize("axis", [None, 0])
def test_asymmetric_int4(isa, shape, axis, rng):
    x = (rng.standard_normal(shape) + 1).astype(np.float32)
    q = mp.quantize(x, axis=axis, dtype="int4", symmetric=False)
    over = reduced(shape, axis)
    lo, hi = (
        f(x, axis=over, keepdims=True, initial=0) if over else g(x, np.float32(0))
        for f, g in ((np.min, np.minimum), (np.max, np.maximum))
    )
    scale = np.where(hi > lo, (hi - lo) / np.float32(15), np.float32(1)).astype(np.float32)
    zero = np.clip(np.rint(-8 - lo / scale), -8, 7)
    assert_same_bits(q.scale, scale)
    np.testing.assert_array_equal(q.zero_point, zero)
    np.testing.assert_array_equal(unpacked(q), onnx_quantize(x, scale, zero, -8, 7))
    assert_same_bits(mp.dequantize(q), ((unpacked(q) - q.zero_point) * scale).astype(np.float32))


def test_int4_layout(isa):
    q = mp.quantize([[1.0, -7.0, 4.0]], dtype="int4")
    assert q.values.tolist() == [[0x91, 0x04]] and q.shape == (1, 3) and q.dtype == ml_dtypes.int4
    assert mp.QuantizedArray(q.values, q.scale, None, (), dtype="int4").shape == (1, 4)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_special_values(isa, dtype):
    """NaN has no code that means a number: it becomes +0; infinities the largest finite numbers."""
    x = np.float32([np.nan, -np.nan, np.inf, -np.inf, 3e38, -0.0, -1e-30, 1e-30, 1.0])
    top = LARGEST[dtype]
    q = mp.quantize(x, dtype=dtype, scale=1.0)
    np.testing.assert_array_equal(q.values.astype(np.float32), [0, 0, top, -top, top, 0, 0, 0, 1])
    assert np.signbit(q.values.astype(np.float32)).tolist() == [
        False,
        False,
        False,
        True,
        False,
        True,
        True,
        False,
        False,
    ]
    assert mp.quantize(x[:-1], dtype=dtype).values.astype(np.float32)[4] == top
    assert mp.quantize(x[:4], dtype=dtype).scale == 1


# ---- the quotient without a division

HARD_SCALES = np.float32([1.0, 1 / 127, 0.1, 1.9999999, float.fromhex("0x1.3ad8dap-8"), 3e-18, 1e18])
EXTREME_SCALES = np.float32([1e-45, 1e-38, 8e-19, 1.2e18, 2.0**-60, 2.0**60, 3e38])


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
def test_ties_are_where_the_rounded_quotient_has_them(isa, extreme, by_column, rng):
    """All half codes times many scales, and the floats around them: what a product with 1 / scale gets wrong."""
    scales = EXTREME_SCALES if extreme else np.append(HARD_SCALES, np.float32(np.exp2(rng.uniform(-50, 50, 93))))
    with np.errstate(over="ignore"):
        x = (np.arange(-260, 261)[:, None] / 2 * scales.astype(np.float64)).astype(np.float32)
    x = np.concatenate([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.clip(np.rint(x / scales), -128, 127)
    if by_column:
        np.testing.assert_array_equal(mp.quantize(x, axis=1, scale=scales).values, expected)
    else:
        np.testing.assert_array_equal(mp.quantize(x.T, axis=0, scale=scales).values, expected.T)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("cols", [64, 100, 16, 7])
def test_codes_near_a_tie_are_those_of_the_quotient(isa, dtype, cols, rng):
    """Up to 40 floats to either side of every tie and end, with zero points, NaN and Inf between them."""
    low, high = RANGES.get(dtype, (-8, 7))
    scale = np.float32(np.exp2(rng.uniform(-50, 50, (300, 1))))
    zero = rng.integers(low, high, (300, 1), endpoint=True).astype(np.int32)
    ties = rng.integers(low - 2, high + 3, (300, cols)) - 0.5 - zero
    steps = rng.integers(-40, 41, ties.shape, np.int32)
    x = ((ties * scale.astype(np.float64)).astype(np.float32).view(np.int32) + steps).view(np.float32)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-45, 0.0, -0.0, 40000.0, -40000.0], np.float32)
    payload = np.array([0x7F812345, 0xFFFFFFFF], np.uint32).view(np.float32)
    places = rng.random(x.shape) < 0.02
    x[places] = rng.choice(np.concatenate([odd, payload]), np.count_nonzero(places))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = onnx_quantize(x, scale, zero, low, high)
    expected = np.where(np.isnan(x), zero, expected)
    q = mp.quantize(x, axis=0, scale=scale, zero_point=zero, dtype=dtype)
    np.testing.assert_array_equal(mp.quantization.unpacked_codes(q), expected)
    if dtype != "int4":
        q = mp.quantize(x.T, axis=1, scale=scale.T, zero_point=zero.T, dtype=dtype)
        np.testing.assert_array_equal(q.values, expected.T)


def assert_quantized(x, scale, dtype, zero_point):
    with np.errstate(over="ignore", invalid="ignore"):
        expected = onnx_quantize(x, np.float32(scale), zero_point, *RANGES[dtype])
    expected[np.isnan(x)] = zero_point
    codes = mp.quantize(x, scale=scale, zero_point=zero_point, dtype=dtype).values
    np.testing.assert_array_equal(codes, expected.astype(dtype))


@pytest.mark.parametrize("scale", [1.0, 0.1, 1 / 127, float.fromhex("0x1.fffffep-3")])
@pytest.mark.parametrize(("dtype", "zero_point"), [("int8", 0), ("int8", -77), ("uint8", 0), ("uint8", 131)])
def test_floats_of_all_kinds(isa, scale, dtype, zero_point):
    x = np.arange(0, 1 << 32, 32749, dtype=np.uint32).view(np.float32)
    assert_quantized(x, float(np.float32(scale)), dtype, zero_point)


@pytest.mark.exhaustive
def test_every_quotient(isa):
    """All floats from a quarter of a step to 512 steps: below, every code is the zero point, above, an end."""
    scale = np.float32(1 / 127)
    first, last = (int((scale * np.float32(steps)).view(np.uint32)) for steps in (0.25, 512))
    for start in range(first, last, 1 << 22):
        x = np.arange(start, min(start + (1 << 22), last), dtype=np.uint32).view(np.float32)
        assert_quantized(x, float(scale), "int8", -77)
        assert_quantized(-x, float(scale), "uint8", 131)


@pytest.mark.parametrize("place", [0, 5, 63, 64, 100, 129])
@pytest.mark.parametrize("shape", [(130,), (130, 3), (40, 130)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_one_infinity_or_nan_changes_no_scale(isa, place, shape, symmetric, axis, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    at = (place,) + (1,) * (x.ndim - 1) if len(x) == 130 else (1, place)
    x[at] = 0
    expected = mp.quantize(x, axis=axis, symmetric=symmetric).scale
    for value in (np.inf, -np.inf, np.nan):
        x[at] = value
        assert_same_bits(mp.quantize(x, axis=axis, symmetric=symmetric).scale, expected)


@pytest.mark.parametrize("group_size", [1, 5, 16, 32, 48, 64, 300])
@pytest.mark.parametrize("offset", [0, 1, 16])
def test_runs_of_any_length_anywhere(isa, group_size, offset, rng):
    """Whatever the length of a run and the alignment of its numbers, its codes are those of its own slice."""
    x = rng.standard_normal(37 * group_size + offset).astype(np.float32)[offset:].reshape(37, group_size)
    q = mp.quantize(x.reshape(1, -1), axis=0, group_size=group_size)
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    assert_same_bits(q.scale.ravel(), scale.ravel())
    np.testing.assert_array_equal(q.values.reshape(x.shape), np.rint(x / scale))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_ties_are_where_the_rounded_quotient_has_them(isa, dtype, rng):
    codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    codes = np.unique(codes[np.isfinite(codes)])
    middle = np.concatenate([codes, (codes[1:] + codes[:-1]) / 2])[:, None]
    scales = np.append(HARD_SCALES, EXTREME_SCALES)
    with np.errstate(over="ignore"):
        x = (middle * scales.astype(np.float64)).astype(np.float32)
    x = np.concatenate([np.nextafter(x, np.float32(-np.inf)), x, np.nextafter(x, np.float32(np.inf))])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = np.clip(x / scales, -LARGEST[dtype], LARGEST[dtype]).astype(dtype)
    got = mp.quantize(x, axis=1, scale=scales, dtype=dtype).values
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


# ---- ONNX


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4"])
@pytest.mark.parametrize(("axis", "block"), [(0, None), (1, None), (0, 8), (1, 8)])
def test_onnx_quantize_and_dequantize_linear(isa, dtype, axis, block, rng):
    """QuantizeLinear(x, scale, zero_point, axis, block_size): blocks along `axis`, without them a scale per index."""
    x = rng.standard_normal((20, 35)).astype(np.float32)
    keep = axis if block is None else 1 - axis
    shape = tuple(n if i == keep else 1 if block is None else -(-n // block) for i, n in enumerate(x.shape))
    low, high = LIMITS[dtype]
    scale = rng.uniform(0.005, 0.2, shape).astype(np.float32)
    zero = rng.integers(low, high + 1, shape).astype(np.int32)
    q = mp.quantize(x, axis=keep, dtype=dtype, group_size=block, scale=scale, zero_point=zero)
    s, z = (per_element(part, x.shape, axis, block) for part in (scale, zero))
    np.testing.assert_array_equal(unpacked(q), np.clip(np.rint(x / s) + z, low, high))
    assert_same_bits(mp.dequantize(q), (unpacked(q) - z).astype(np.float32) * s)


@pytest.mark.parametrize("x", [[-1.0, 0.0, 1.55], [0.5, 2.0], [-3.0, -1.0], [0.0, 0.0], [1e-45, 0.0]])
def test_onnx_dynamic_quantize_linear(isa, x):
    x = np.float32(x)
    q = mp.quantize(x, dtype="uint8", symmetric=False)
    lo, hi = min(np.float32(0), x.min()), max(np.float32(0), x.max())
    scale = max((hi - lo) / np.float32(255), np.float32(1e-45)) if hi > lo else np.float32(1)
    zero = np.rint(np.clip(0 - lo / scale, 0, 255))
    assert q.scale[0] == scale and q.zero_point[0] == zero
    np.testing.assert_array_equal(q.values, np.clip(np.rint(x / scale) + zero, 0, 255))


# ---- out, threads, sizes

KINDS = [
    {},
    {"axis": 1, "symmetric": False},
    {"axis": 0, "dtype": "float8_e4m3fn"},
    {"axis": 1, "dtype": "int4", "group_size": 32},
    {"axis": 0, "group_size": 48, "dtype": "uint8", "symmetric": False},
    {"axis": 1, "scale": 0.02, "zero_point": 3},
]


@pytest.mark.parametrize("kind", KINDS)
def test_out_takes_what_a_call_like_it_returned(kind, rng):
    a, b = rng.standard_normal((2, 70, 130)).astype(np.float32)
    out, expected = mp.quantize(a, **kind), mp.quantize(b, **kind)
    assert mp.quantize(b, out=out, **kind) is out
    assert_same_bits(out.values, expected.values)
    assert_same_bits(out.scale, expected.scale)
    if expected.zero_point is not None:
        assert_same_bits(out.zero_point, expected.zero_point)
    for dtype in ("float32", "bfloat16", "float64"):
        x = np.zeros((70, 130), dtype)
        assert mp.dequantize(out, dtype, out=x) is x
        assert_same_bits(x, mp.dequantize(expected, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_unusual_arguments_give_what_usual_ones_do(kind, rng):
    """The short way serves ndarrays, names of types and ints; everything else takes another."""
    x = rng.standard_normal((24, 64)).astype(np.float32)
    usual = mp.quantize(x, **kind)
    unusual = dict(kind, dtype=np.dtype(usual.dtype), axis=usual.axis)
    if kind.get("group_size"):
        unusual["group_size"] = np.int64(kind["group_size"])
    again = mp.quantize(x.tolist(), **unusual)
    for part in ("values", "scale", "zero_point"):
        a, b = getattr(usual, part), getattr(again, part)
        assert (a is None) == (b is None)
        assert a is None or (a.dtype == b.dtype and a.tobytes() == b.tobytes())
    assert (usual.axis, usual.group_size, usual.dtype, usual.shape) == (
        again.axis,
        again.group_size,
        again.dtype,
        again.shape,
    )
    y = mp.dequantize(usual)
    out = np.empty((64, 24), np.float32).T
    assert mp.dequantize(usual, np.float32, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), y)


@pytest.mark.parametrize("given", [True, False, 1.0])
def test_an_int_is_no_bool(given):
    """A shape and arguments that were served before do not let through what only equals them."""
    x = np.ones((4, 4), np.float32)
    mp.quantize(x, axis=1)
    mp.quantize(x, axis=1, group_size=1)
    with pytest.raises((TypeError, ValueError), match="group_size"):
        mp.quantize(x, axis=1, group_size=given)


def test_out_may_overlap(rng):
    x = rng.standard_normal((4, 64)).astype("float8_e4m3fn")
    expected = mp.quantize(x, dtype="float8_e4m3fn", scale=0.5)
    out = mp.QuantizedArray(x, np.ones((1, 1), np.float32), None, ())
    assert_same_bits(mp.quantize(x, dtype="float8_e4m3fn", scale=0.5, out=out).values, expected.values)
    back = mp.dequantize(expected, "float8_e4m3fn")
    assert_same_bits(mp.dequantize(out, "float8_e4m3fn", out=x), back)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(700, 611), (3, 200_001), (200_000, 3)])
def test_threads_do_not_change_any_kind(kind, shape, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    with mp.config.num_threads(1):
        expected = mp.quantize(x, **kind)
        numbers = mp.dequantize(expected)
    for count in (2, 5):
        with mp.config.num_threads(count):
            q = mp.quantize(x, **kind)
            assert_same_bits(mp.dequantize(q), numbers)
        assert_same_bits(q.values, expected.values)
        assert_same_bits(q.scale, expected.scale)


def test_large_arrays_are_written_past_the_caches(rng):
    x = np.resize(rng.standard_normal(1 << 16).astype(np.float32), (1 << 24) + 17)
    q = mp.quantize(x)
    expected = np.rint(x[: 1 << 16] / q.scale).astype(np.int8)
    np.testing.assert_array_equal(q.values, np.resize(expected, x.size))
    assert_same_bits(mp.dequantize(q), np.resize(expected.astype(np.float32) * q.scale, x.size))


@pytest.mark.parametrize("cols", [640, 1000])
@pytest.mark.parametrize("kind", [{}, {"group_size": 97}, {"dtype": "uint8", "symmetric": False}], ids=str)
def test_large_matrices_are_read_ahead_and_written_past_the_caches(cols, kind, rng):
    some = rng.standard_normal((97, cols)).astype(np.float32)
    some[:, :2] = 0.5  # beside numbers that have their codes at once, ties
    some[0, :2] = 127
    x = np.resize(some, (97 * (1 + (1 << 24) // some.size), cols))
    q = mp.quantize(x, axis=1, **kind)
    scale, zero = q.scale[0], 0 if q.zero_point is None else q.zero_point[0]
    expected = np.resize((np.rint(some / scale) + zero).astype(q.values.dtype), x.shape)
    np.testing.assert_array_equal(q.values, expected)
    given = mp.quantize(x, axis=1, scale=scale, zero_point=None if q.zero_point is None else zero, dtype=q.dtype)
    np.testing.assert_array_equal(given.values, expected)


def test_a_grouped_left_operand_is_dequantized_before_a_product(rng):
    x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, 7)).astype(np.float32)
    a = mp.quantize(x, axis=1, group_size=2)
    right = mp.quantize(w, axis=1)
    assert_same_bits(mp.matmul(a, right), mp.matmul(mp.dequantize(a), right))
    q = mp.quantize(rng.standard_normal((64, 6)), axis=1, dtype="int4", group_size=32, symmetric=False)
    y = rng.standard_normal((3, 64)).astype(np.float32)
    assert_same_bits(mp.matmul(y, q), mp.matmul(y, mp.dequantize(q)))


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: mp.quantize(X, dtype="int16"),
            TypeError,
            "`dtype` must be one of int8, uint8, int4, .*received int16",
        ),
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
        (lambda: mp.quantize(X, dtype="int16x"), TypeError, "`dtype` must be one of"),
        (lambda: mp.quantize(X, dtype=None), TypeError, "`dtype` must be one of .*received None"),
        (lambda: mp.quantize(X, axis=0, group_size=0), ValueError, "`group_size` must be positive"),
        (lambda: mp.quantize(X, axis=0, group_size=True), ValueError, "`group_size` must be positive"),
        (lambda: mp.quantize(X, axis=0, group_size=2.0), TypeError, "`group_size` must be an int"),
        (lambda: mp.quantize(X, group_size=2), ValueError, "`axis` must leave out one axis"),
        (lambda: mp.quantize(X, axis=(0, 1), group_size=2), ValueError, "`axis` must leave out one axis"),
        (lambda: mp.quantize(X, axis=(1.0,)), TypeError, "`axis` must be an int"),
        (lambda: mp.quantize(X, dtype="float8_e5m2", symmetric=False), ValueError, "`symmetric` True"),
        (lambda: mp.quantize(X, dtype="float8_e5m2", scale=1.0, zero_point=0), ValueError, "`zero_point` must be None"),
        (lambda: mp.quantize(X, dtype="int4", scale=1.0, zero_point=8), ValueError, r"must lie in \[-8, 7\]"),
        (lambda: mp.quantize(X, out=X), TypeError, "`out` must be a QuantizedArray; received ndarray"),
        (lambda: mp.quantize(X, out=mp.quantize(X, axis=0)), ValueError, "`out` must have"),
        (lambda: mp.quantize(X, out=mp.quantize(X, dtype="uint8")), ValueError, "`out` must have"),
        (lambda: mp.dequantize(mp.quantize(X), out=np.zeros((3, 2), "f4")), ValueError, "`out` must have shape"),
        (lambda: mp.QuantizedArray(np.zeros((4, 8), "i1"), np.ones((1, 8)), None, (1,), 3), ValueError, "`scale` must"),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 8), "i1"), np.ones((1, 8)), None, (1,), dtype="int4"),
            TypeError,
            "uint8 for int4",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 8), "u1"), np.ones((1, 1)), None, (), None, "int4", (4, 17)),
            ValueError,
            "`shape` must",
        ),
        (
            lambda: mp.QuantizedArray(np.zeros((4, 0), "u1"), np.ones((4, 1)), None, (0,), None, "int4", (4, -1)),
            ValueError,
            "`shape` must",
        ),
        (lambda: mp.QuantizedArray(np.zeros(4, "i1"), [1j], None, ()), TypeError, "`scale` must be an array"),
        (lambda: mp.QuantizedArray(np.zeros(4, "i1"), [1.0], ["0"], ()), TypeError, "`zero_point` must be an array"),
        (lambda: mp.dequantize(X), TypeError, "`q` must be a QuantizedArray; received ndarray"),
        (lambda: mp.dequantize(mp.quantize(X), "int8"), TypeError, "`dtype` must be a float type"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "float8_e4m3fn"])
def test_a_pickle_is_checked_and_has_the_types_by_identity(dtype):
    q = mp.quantize(X, axis=0, dtype=dtype)
    restored = pickle.loads(pickle.dumps(q))
    assert restored.dtype is q.dtype and restored.shape == q.shape
    np.testing.assert_array_equal(mp.dequantize(restored), mp.dequantize(q))
    object.__setattr__(q, "scale", np.ones((1, 1), np.float32))
    with pytest.raises(ValueError, match="`scale` must have shape"):
        pickle.loads(pickle.dumps(q))
