"""Codes are those of the rounded quotient, for every number, at every position."""

import dataclasses

import numpy as np
import pytest
from oracles import LARGEST, LIMITS, assert_same_bits, onnx_quantize

import mp_core as mp

HARD_SCALES = np.float32([1.0, 1 / 127, 0.1, 1.9999999, float.fromhex("0x1.3ad8dap-8"), 3e-18, 1e18])
EXTREME_SCALES = np.float32([1e-45, 1e-38, 8e-19, 1.2e18, 2.0**-60, 2.0**60, 3e38])


def test_division_is_true_division(isa):
    """The quotient is 41.5, which rounds to 42; times the rounded reciprocal it would be 41.499996."""
    x, scale = np.float32(float.fromhex("0x1.98513ap-3")), np.float32(float.fromhex("0x1.3ad8dap-8"))
    assert x / scale == 41.5 and x * (np.float32(1) / scale) < 41.5
    assert mp.quantize([x], scale=scale).values.tolist() == [42]


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
    low, high = LIMITS[dtype]
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
        expected = onnx_quantize(x, np.float32(scale), zero_point, *LIMITS[dtype])
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


def float8_codes(x, scale, dtype):
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = np.clip(x / scale, -LARGEST[dtype], LARGEST[dtype])
    return np.where(np.isnan(quotient), np.float32(0), quotient).astype(dtype)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("cols", [64, 100, 16, 256])
def test_float8_codes_near_a_middle_are_those_of_the_quotient(isa, dtype, cols, rng):
    """Up to 4 floats to either side of every middle of two codes, among numbers that have their codes at once."""
    codes = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    codes = np.unique(codes[np.isfinite(codes)])
    shape = (1280, cols)
    middles = rng.choice((codes[1:] + codes[:-1]) / 2, shape)
    scale = np.float32(np.exp2(rng.uniform(-59, 59, (len(middles), 1))))
    steps = rng.integers(-4, 5, shape, np.int32)
    near = ((middles * scale.astype(np.float64)).astype(np.float32).view(np.int32) + steps).view(np.float32)
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1e-45, 0.0, -0.0], np.float32)
    some = rng.random(shape)
    x = np.where(some < 1 / 64, near, rng.choice([1, 20, -300], shape) * rng.uniform(1, 1.1, shape) * scale).astype(
        np.float32
    )
    x = np.where(some > 1 - 1 / 512, rng.choice(odd, shape), x)
    expected = float8_codes(x, scale, dtype)
    assert_same_bits(mp.quantize(x, axis=0, scale=scale, dtype=dtype).values, expected)
    assert_same_bits(mp.quantize(np.ascontiguousarray(x.T), axis=1, scale=scale.T, dtype=dtype).values, expected.T)
    assert_same_bits(mp.quantize(x, scale=scale[0], dtype=dtype).values, float8_codes(x, scale[0], dtype))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_large_float8_arrays_are_written_past_the_caches(axis, rng):
    some = rng.standard_normal((97, 640)).astype(np.float32)
    x = np.resize(some, (97 * (1 + (1 << 24) // some.size), 640))
    q = mp.quantize(x, axis=axis, dtype="float8_e4m3fn")
    scale = q.scale[:97] if axis == 0 else q.scale
    assert_same_bits(q.values, np.resize(float8_codes(some, scale, "float8_e4m3fn"), x.shape))


def test_any_layout_gives_the_same_codes(rng):
    x = rng.standard_normal((20, 30)).astype(np.float32)
    expected = mp.quantize(x, axis=1)
    for view in (np.asfortranarray(x), np.repeat(x, 2, 0)[::2], x[::-1][::-1], x.astype(">f4")):
        q = mp.quantize(view, axis=1)
        assert_same_bits(q.values, expected.values)
        assert q.values.flags.c_contiguous


def test_long_rows_quantize_as_short_ones(rng):
    x = rng.standard_normal(200_000).astype("bfloat16")
    q = mp.quantize(x)
    expected = onnx_quantize(x.astype(np.float32), q.scale, 0, -127, 127)
    np.testing.assert_array_equal(q.values, expected)
    assert q.scale == np.abs(x.astype(np.float32)).max() / np.float32(127)


def test_large_arrays_are_written_past_the_caches(rng):
    x = np.resize(rng.standard_normal(1 << 16).astype(np.float32), (1 << 24) + 17)
    q = mp.quantize(x)
    expected = np.rint(x[: 1 << 16] / q.scale).astype(np.int8)
    np.testing.assert_array_equal(q.values, np.resize(expected, x.size))
    assert_same_bits(mp.dequantize(q), np.resize(expected.astype(np.float32) * q.scale, x.size))


@pytest.mark.parametrize("cols", [63, 5003, 17_001])
@pytest.mark.parametrize("symmetric", [True, False])
def test_rows_from_memory_are_read_one_after_the_other(isa, cols, symmetric, rng):
    """More columns than are known at a time, or fewer than a vector has; what is not finite, ties."""
    some = rng.standard_normal((97, cols)).astype(np.float32)
    some[:, ::50] = 0.5
    some[0, ::50] = 127
    some[5, 1::60], some[6, 2::60], some[7, 3::60] = np.nan, np.inf, -np.inf
    x = np.resize(some, (97 * (1 + (1 << 22) // some.size), cols))
    q = mp.quantize(x, axis=1, symmetric=symmetric)
    expected = mp.quantize(some, axis=1, symmetric=symmetric)
    assert_same_bits(q.scale, expected.scale)
    zero, low = (0, -127) if symmetric else (q.zero_point[0], -128)
    codes = np.where(np.isnan(some), zero, onnx_quantize(some, q.scale[0], zero, low, 127))
    np.testing.assert_array_equal(q.values, np.resize(codes, x.shape))


def at_element(offset, template):
    """An array like the template whose memory begins so many elements after a cache line."""
    buffer = np.empty(template.nbytes + 64 + 64 * template.itemsize, np.uint8)
    start = -buffer.ctypes.data % 64 + offset * template.itemsize
    return buffer[start : start + template.nbytes].view(template.dtype).reshape(template.shape)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 4, 5, 15])
@pytest.mark.parametrize(("axis", "group_size"), [(1, None), (0, None), (0, 64), (0, 48), (1, 64)])
@pytest.mark.parametrize("kind", [{}, {"dtype": "uint8", "symmetric": False}, {"dtype": "int4"}], ids=str)
def test_large_results_begin_anywhere_in_a_cache_line(offset, axis, group_size, kind, rng):
    some = rng.standard_normal((64, 960)).astype(np.float32)
    x = np.resize(some, (64 * (1 + (1 << 24) // some.size), 960))
    expected = mp.quantize(some, axis=axis, group_size=group_size, **kind)
    q = mp.quantize(x, axis=axis, group_size=group_size, **kind)
    out = dataclasses.replace(q, values=at_element(offset, q.values))
    assert mp.quantize(x, axis=axis, group_size=group_size, out=out, **kind) is out
    assert_same_bits(out.values, np.resize(expected.values, q.values.shape))
    back = mp.dequantize(q, out=at_element(offset, x))
    assert_same_bits(back, np.resize(mp.dequantize(expected), x.shape))


@pytest.mark.parametrize("symmetric", [True, False])
def test_parts_of_wide_rows_begin_anywhere_in_a_cache_line(isa, symmetric, rng):
    """More columns than are known at a time, past the caches; short groups, back to any element of a cache line."""
    some = rng.standard_normal((8, 17_024)).astype(np.float32)
    x = np.resize(some, (8 * (1 + (1 << 24) // some.size), 17_024))
    expected, groups = (
        mp.quantize(some, axis=axis, group_size=size, symmetric=symmetric) for axis, size in [(1, None), (0, 32)]
    )
    q = mp.quantize(x, axis=1, symmetric=symmetric)
    out = dataclasses.replace(q, values=at_element(5, q.values))
    mp.quantize(x, axis=1, symmetric=symmetric, out=out)
    assert_same_bits(out.values, np.resize(expected.values, x.shape))
    back = mp.dequantize(mp.quantize(x, axis=0, group_size=32, symmetric=symmetric), out=at_element(5, x))
    assert_same_bits(back, np.resize(mp.dequantize(groups), x.shape))


@pytest.mark.parametrize("cols", [640, 1000, 5003])
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
