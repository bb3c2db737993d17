"""Codes, scales and zero points by their formulas, and dequantization."""

import ml_dtypes
import numpy as np
import pytest
from oracles import LARGEST, LIMITS, assert_same_bits, onnx_quantize, onnx_reshaped, unpacked

import mp_core as mp

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
    over, (qmin, qmax) = reduced(shape, axis), LIMITS[dtype]
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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("size", ["smallest", "subnormal", "largest"])
def test_round_trip_of_the_smallest_and_largest_numbers(isa, size, dtype, symmetric, axis, rng):
    """Scales below 2^-126, and those whose product with the largest code might be infinite."""
    if size == "largest":
        tops = np.finfo(np.float32).max * (1 - rng.integers(0, 300, (500, 1)) * 2.0**-24)
        tops = tops if symmetric else tops / 2
    else:
        tops = np.exp2(rng.uniform(-149, -140 if size == "smallest" else -118, (500, 1)))
    x = (np.concatenate([np.ones((500, 1)), rng.uniform(-1, 1, (500, 40))], 1) * tops).astype(np.float32)
    x = np.abs(x) if "uint" in dtype and symmetric else x * rng.choice(np.float32([-1, 1]), (500, 1))
    q = mp.quantize(x if axis == 0 else x.T, axis=axis, dtype=dtype, symmetric=symmetric)
    error, scale = np.abs(mp.dequantize(q, "float64") - (x if axis == 0 else x.T)), q.scale.astype(np.float64)
    assert np.all(error <= scale * (0.5 + 512 * 2.0**-24))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_of_the_smallest_and_largest_numbers(isa, dtype, rng):
    """Half the distance of the two largest codes is the most that an end of the range is off."""
    largest = np.float32(LARGEST[dtype])
    half = largest / (28 if dtype == "float8_e4m3fn" else 14)
    for tops in (np.exp2(rng.uniform(-149, -110, 2000)), 3.4028234663852886e38 * (1 - np.arange(500) * 2.0**-24)):
        x = tops.astype(np.float32)[:, None]
        q = mp.quantize(x, axis=0, dtype=dtype)
        error = np.abs(mp.dequantize(q).astype(np.float64) - x)
        assert np.all(error <= q.scale.astype(np.float64) * half * 1.00001)


@pytest.mark.parametrize("steps", range(100, 300, 7))
def test_only_scales_that_were_too_small_are_rounded_up(isa, steps):
    """The scale of `steps` times 2^-149 is the nearest float but where that is beyond half a step of the codes."""
    q, x = mp.quantize(np.float32([steps * 2.0**-149])), steps / 127
    nearest = round(x)
    assert q.scale[0] == 2.0**-149 * (nearest + (steps > 127.5 * nearest))


def test_an_asymmetric_end_may_be_half_a_step_farther_and_then_infinite():
    """docs/numerics.md says so: lo and hi come back as multiples of the scale."""
    top = np.finfo(np.float32).max
    q = mp.quantize(np.float32([-top, top]), symmetric=False)
    assert q.scale[0] == np.float32(top / 255) - np.float32(-top / 255) and q.zero_point[0] == 0
    with np.errstate(over="ignore"):
        assert mp.dequantize(q).tolist() == [-np.inf, float(np.float32(127) * q.scale[0])]
    x = np.float16([-30000, 65504])
    q = mp.quantize(x, symmetric=False)
    wide = mp.dequantize(q)
    assert np.all(np.abs(wide - x) <= q.scale[0] / 2) and wide[1] > 65520
    assert mp.dequantize(q, "float16")[1] == np.inf
    assert mp.cast(wide, "float16", saturate=True)[1] == 65504


def test_dequantize_is_one_subtraction_and_one_product(isa, rng):
    values = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    scale = rng.random((2, 1)).astype(np.float32)
    zero = np.array([[3], [-100]], np.int32)
    q = mp.QuantizedArray(values, scale, zero, (0,))
    expected = (values.astype(np.int32) - zero).astype(np.float32) * scale
    assert_same_bits(mp.dequantize(q), expected)
    for dtype in ("bfloat16", "float16", "float64"):
        assert_same_bits(mp.dequantize(q, dtype), mp.cast(expected, dtype))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero_point", [0, 5, 127])
def test_ties_clamps_and_special_values(isa, dtype, zero_point):
    qmin, qmax = LIMITS[dtype]
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


# ---- groups, 4-bit integers, 8-bit floats


def numbers(q):
    """The codes as numbers."""
    codes = unpacked(q.values, q.shape[-1], q.dtype == ml_dtypes.int4) if "int4" in q.dtype.name else q.values
    return codes.astype(np.float32)


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
    tops = [np.abs(part) if "uint" not in dtype else np.maximum(part, 0) for part in along(x, split, group)]
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
        np.testing.assert_array_equal(numbers(q), np.clip(np.rint(x / wide), LIMITS[dtype][0], LARGEST[dtype]))
    assert_same_bits(mp.dequantize(q), numbers(q) * wide)


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
    np.testing.assert_array_equal(numbers(q), expected)
    assert_same_bits(mp.dequantize(q, source), (numbers(q) * q.scale).astype(np.float32).astype(source))


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
    np.testing.assert_array_equal(numbers(q), onnx_quantize(x, scale, zero, -8, 7))
    assert_same_bits(mp.dequantize(q), ((numbers(q) - q.zero_point) * scale).astype(np.float32))


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
    np.testing.assert_array_equal(numbers(q), np.clip(np.rint(x / s) + z, low, high))
    assert_same_bits(mp.dequantize(q), (numbers(q) - z).astype(np.float32) * s)


@pytest.mark.parametrize("x", [[-1.0, 0.0, 1.55], [0.5, 2.0], [-3.0, -1.0], [0.0, 0.0], [1e-45, 0.0]])
def test_onnx_dynamic_quantize_linear(isa, x):
    x = np.float32(x)
    q = mp.quantize(x, dtype="uint8", symmetric=False)
    lo, hi = min(np.float32(0), x.min()), max(np.float32(0), x.max())
    scale = max((hi - lo) / np.float32(255), np.float32(1e-45)) if hi > lo else np.float32(1)
    zero = np.rint(np.clip(0 - lo / scale, 0, 255))
    assert q.scale[0] == scale and q.zero_point[0] == zero
    np.testing.assert_array_equal(q.values, np.clip(np.rint(x / scale) + zero, 0, 255))


ONNX_LIMITS = LIMITS | {"int16": (-32768, 32767), "uint16": (0, 65535)}


@pytest.mark.parametrize("dtype", ONNX_LIMITS)
@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [((20, 35), 1, 0), ((20, 35), 0, 8), ((20, 35), -1, 8), ((20, 35), None, 0), ((2, 6, 5), 1, 0), ((2, 6, 5), 1, 4)],
)
def test_codes_of_onnx_mean_what_they_mean_there(isa, dtype, shape, axis, block, rng):
    """QuantizeLinear and DequantizeLinear, with their meaning of axis and block_size, by their formulas."""
    low, high = ONNX_LIMITS[dtype]
    x = (rng.standard_normal(shape) * (1000 if dtype.endswith("16") else 1)).astype(np.float32)
    x.flat[:4] = 1e30, -1e30, np.inf, -np.inf
    size = () if axis is None else (shape[axis],)
    if block:
        size = tuple(-(-n // block) if i == axis % len(shape) else n for i, n in enumerate(shape))
    scale, zero = rng.uniform(0.01, 0.2, size).astype(np.float32), rng.integers(low, high + 1, size)
    s, z = (onnx_reshaped(part, shape, axis, block) for part in (scale, zero))
    with np.errstate(over="ignore"):
        codes = onnx_quantize(x, s, z.astype(np.float32), low, high)
    stored = codes.astype(getattr(ml_dtypes, dtype) if "int4" in dtype else dtype)
    typed_zero = zero.astype(stored.dtype)
    q = mp.QuantizedArray.from_onnx(stored, scale, typed_zero, axis=1 if axis is None else axis, block_size=block)
    expected = (codes - z).astype(np.float32) * s
    assert_same_bits(mp.dequantize(q), expected)
    assert_same_bits(mp.dequantize(q, "float16"), mp.cast(expected, "float16"))
    again = mp.quantize(x, axis=q.axis, group_size=q.group_size, scale=q.scale, zero_point=q.zero_point, dtype=dtype)
    np.testing.assert_array_equal(again.values, q.values)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_codes_of_16_bits(dtype, rng):
    x = rng.standard_normal((6, 10)).astype(np.float32)
    x[0, :2] = np.nan, np.inf
    q = mp.quantize(x, scale=1e-3, zero_point=100, dtype=dtype)
    assert q.values[0, :2].tolist() == [100, ONNX_LIMITS[dtype][1]] and q.values.dtype == dtype
    back, w = mp.dequantize(q), rng.standard_normal((10, 4)).astype(np.float32)
    for left in (q, mp.QuantizedArray(np.asfortranarray(q.values), q.scale, q.zero_point)):
        assert_same_bits(mp.matmul(left, w), mp.matmul(back, w))
        assert_same_bits(mp.matmul(w.T[:, :6].copy(), left), mp.matmul(w.T[:, :6].copy(), back))
    out = mp.quantize(2 * x, scale=1e-3, zero_point=100, dtype=dtype, out=q)
    assert (
        out is q
        and out.values[5, 5] == np.rint(2 * x[5, 5] / np.float32(1e-3)).clip(-100 if dtype == "uint16" else -1e5) + 100
    )


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_codes_beyond_float32_are_infinite_without_a_warning(dtype):
    q = mp.QuantizedArray(np.array([100, -100, 0], dtype), [3e38, 3e38, np.inf], axis=0)
    np.testing.assert_array_equal(mp.dequantize(q), np.float32([np.inf, -np.inf, np.nan]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_division_of_onnx_in_a_narrow_type(dtype, rng):
    """ONNX divides in the type of x and scale: what the notes of quantize say gives its codes."""
    x, scale = rng.standard_normal((50, 200)).astype(dtype), np.asarray(0.013, dtype)
    onnx = np.clip(np.rint((x / scale).astype(np.float32)) + 5, -128, 127)
    got = mp.quantize(x / scale, scale=1.0, zero_point=5)
    np.testing.assert_array_equal(got.values, onnx)
    here = mp.quantize(x, scale=scale, zero_point=5).values
    assert np.any(here != onnx) and np.abs(here - onnx).max() == 1
    assert mp.QuantizedArray.from_onnx(got.values, scale, 5).scale == np.float32(scale)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("shape", "axis", "group_size"),
    [
        ((7, 6), 0, None),
        ((7, 6), (), None),
        ((7, 5), 0, 2),
        ((7, 5), 1, 3),
        ((2, 3, 5), (0, 2), None),
        ((0, 4), 0, None),
    ],
)
def test_the_transpose_stands_for_the_same_numbers(dtype, shape, axis, group_size, rng):
    x = rng.standard_normal(shape)
    q = mp.quantize(x, axis=axis, dtype=dtype, symmetric="float" in dtype, group_size=group_size)
    turned = q.T
    assert (turned.shape, turned.dtype, turned.group_size) == (shape[::-1], q.dtype, group_size)
    np.testing.assert_array_equal(mp.dequantize(turned), mp.dequantize(q).T)
    np.testing.assert_array_equal(mp.dequantize(turned.T), mp.dequantize(q))
    assert "int4" in dtype or not x.size or np.shares_memory(turned.values, q.values)


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_a_number_becomes_a_code_of_16_bits(dtype):
    q = mp.quantize(np.float32(3.2), dtype=dtype, scale=0.1)
    assert q.values.shape == () and q.values == 32
    assert mp.dequantize(q) == np.float32(0.1) * 32
