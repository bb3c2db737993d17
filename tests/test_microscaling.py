"""Microscaling formats against a reference in NumPy, written from the specifications (docs/numerics.md)."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from oracles import assert_same_bits
from orders import ORDERS, added, sums

import mp_core as mp
from mp_core.arrays.quantization.microscaling import MICROSCALING

E2M1 = ml_dtypes.float4_e2m1fn
ELEMENTS = {
    "mxfp4": (E2M1, 2, 6.0, 1.0),
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 8, 448.0, 1.0),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 15, 57344.0, 1.0),
    "mxint8": (np.int8, 0, 127 / 64, 64.0),
}
FOURS = ("mxfp4", "nvfp4")


def reference(name, x):
    """Codes (as numbers) and scales of the rows of `x`, by the text of the specifications."""
    if name == "nvfp4":
        blocks = x.reshape(len(x), -1, 16)
        largest = np.abs(blocks).max(-1)
        g = np.float32(largest.max() / np.float32(2688))
        scale = np.clip(largest / np.float32(6) / g, 2.0**-9, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        scale = np.where(largest > 0, scale, 1) * g
        dtype, most, unit = E2M1, 6.0, 1.0
    else:
        dtype, exponent, most, unit = ELEMENTS[name]
        blocks = x.reshape(len(x), -1, 32)
        largest = np.abs(blocks).max(-1).astype(np.float64)
        shared = np.floor(np.log2(np.where(largest > 0, largest, 1))) - exponent
        scale = np.where(largest > 0, 2.0 ** np.clip(shared, -127, 127), 1.0)
    quotients = np.clip(blocks / scale[..., None], -most, most) * unit
    codes = np.rint(quotients).astype(np.int8) if dtype is np.int8 else quotients.astype(np.float32).astype(dtype)
    return codes.astype(np.float32).reshape(x.shape), (scale / unit).astype(np.float32)


def numbers(q):
    """The codes of an array as float32 numbers."""
    return mp.dequantize(
        mp.QuantizedArray(q.values, np.ones_like(q.scale), None, q.axis, q.group_size, q.dtype, q.shape)
    )


@pytest.mark.parametrize("name", MICROSCALING)
@pytest.mark.parametrize("size", [1.0, 1e-3, 3e4, 2.0**-130])
def test_codes_and_scales_are_those_of_the_specification(name, size, isa, rng):
    if name == "nvfp4" and size < 1e-30:
        pytest.skip("its float32 scale has a least value: the next test")
    x = (rng.standard_normal((7, 96)) * size * 2.0 ** rng.integers(-6, 6, (7, 96))).astype(np.float32)
    x[0, :32], x[1, 32:64] = 0, np.sign(x[1, 32:64]) * np.float32(size)
    codes, scale = reference(name, x)
    for q in (mp.quantize(x, dtype=name), mp.quantize(np.ascontiguousarray(x.T), axis=1, dtype=name).T):
        assert q.dtype == MICROSCALING[name].codes and q.group_size == MICROSCALING[name].block
        assert_same_bits(q.scale, scale)
        assert_same_bits(numbers(q), codes)
        assert_same_bits(mp.dequantize(q), codes * np.repeat(scale, q.group_size, 1))
        for dtype in ("float16", "bfloat16"):
            with np.errstate(over="ignore"):
                assert_same_bits(mp.dequantize(q, dtype), mp.cast(mp.dequantize(q), dtype))


def test_ties_of_every_element_go_to_even(isa):
    """The values of e2m1 and the points halfway between two of them, both signs, scaled by a power of two."""
    values = np.arange(16, dtype=np.uint8).view(E2M1).astype(np.float32)[:8]
    between = (values[1:] + values[:-1]) / 2
    x = np.zeros(32, np.float32)
    x[:8], x[8:15], x[15:22], x[22] = values, between, -between, -6
    q = mp.quantize(x * 8, dtype="mxfp4")
    assert_same_bits(q.scale, np.float32([8]))
    expected = [0, 1, 1, 2, 2, 4, 4]
    assert numbers(q)[:15].tolist() == [*values, *expected]
    assert numbers(q)[15:23].tolist() == [*(-x for x in expected), -6]
    assert np.signbit(numbers(q)[15])


def test_values_above_the_largest_code_saturate(isa):
    """The scale is rounded down: 7.9 becomes 6, 1.999 becomes 127 / 64, as in microxcaling."""
    for name, largest, most in (("mxfp4", 7.9, 6.0), ("mxfp8_e4m3", 511.0, 448.0), ("mxint8", -1.999, -127 / 64)):
        q = mp.quantize(np.full(32, largest, np.float32), dtype=name)
        assert set(mp.dequantize(q).tolist()) == {most}


def test_what_is_not_finite_counts_in_no_scale(isa):
    x = np.ones((2, 32), np.float32)
    x[0, :3] = np.inf, -np.inf, np.nan
    x[1] = np.nan
    for name in MICROSCALING:
        q = mp.quantize(x, dtype=name)
        got = mp.dequantize(q)
        assert np.isfinite(q.scale).all() and got[0, 0] == -got[0, 1] >= 1 and got[0, 2] == 0 and not got[1].any()
        zeros = mp.quantize(np.zeros(64, np.float32), dtype=name)
        assert set(zeros.scale.tolist()) == {2.0**-6 if name == "mxint8" else 1.0} and not mp.dequantize(zeros).any()


def test_scales_have_limits(isa):
    tiny = np.full(32, 2.0**-149, np.float32)
    assert mp.quantize(tiny, dtype="mxfp4").scale == 2.0**-127
    assert mp.quantize(tiny, dtype="mxint8").scale == 2.0**-133
    assert mp.quantize(tiny, dtype="nvfp4").scale.tolist() == [2.0**-126, 2.0**-126]
    large = np.full(32, np.finfo(np.float32).max)
    assert [float(mp.quantize(large, dtype=name).scale[0]) for name in ("mxfp4", "mxint8")] == [2.0**125, 2.0**121]
    assert np.isfinite(mp.dequantize(mp.quantize(large, dtype="nvfp4"))).all()


@pytest.mark.parametrize("name", MICROSCALING)
def test_arguments_that_do_not_fit_are_refused(name):
    block, x = MICROSCALING[name].block, np.ones((4, 32))
    for shape, settings in (((4, block + 8), {}), ((block - 1, 4), {"axis": 1})):
        with pytest.raises(ValueError, match=rf"`x` must have a multiple of {block} elements along axis"):
            mp.quantize(np.ones(shape), dtype=name, **settings)
    for settings in ({"scale": 1.0}, {"zero_point": 0}, {"symmetric": False}):
        with pytest.raises(ValueError, match=f"`{next(iter(settings))}` must be .* for {name}; received"):
            mp.quantize(x, dtype=name, **settings)
    with pytest.raises(ValueError, match=f"`group_size` must be {block} or None for {name}; received 8"):
        mp.quantize(x, dtype=name, group_size=8)
    with pytest.raises(ValueError, match="must have an axis of blocks"):
        mp.quantize(1.0, dtype=name)
    with pytest.raises(ValueError, match="`axis` must leave out one axis"):
        mp.quantize(x, dtype=name, axis=(0, 1))


def test_an_array_is_made_of_codes_and_scales_of_a_file():
    """One code in each element, or two in a byte; scales of float8_e8m0fnu."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (3, 2)).view(E2M1)
    scale = np.float32([[0.5], [4], [2.0**-127]]).astype(ml_dtypes.float8_e8m0fnu)
    q = mp.QuantizedArray(codes, scale, axis=0, group_size=32)
    assert_same_bits(mp.dequantize(q), codes.astype(np.float32) * scale.astype(np.float32))
    pairs = codes.view(np.uint8)[:, ::2] | codes.view(np.uint8)[:, 1::2] << 4
    assert_same_bits(q.values, pairs)
    again = mp.QuantizedArray(pairs, scale, axis=0, group_size=32, dtype="float4_e2m1fn")
    assert again.shape == (3, 32) and "float4_e2m1fn" in repr(again)
    for other in (again, pickle.loads(pickle.dumps(q)), q.T.T):
        assert_same_bits(other.values, q.values)
        assert_same_bits(other.scale, q.scale)
    with pytest.raises(ValueError, match="`zero_point` must be None for float4_e2m1fn"):
        mp.QuantizedArray(codes, scale, 0, axis=0, group_size=32)
    with pytest.raises(ValueError, match="`scale` must broadcast"):
        mp.QuantizedArray(codes, scale.T, axis=0, group_size=32)
    nan = mp.QuantizedArray(codes, np.full((3, 1), np.nan).astype(ml_dtypes.float8_e8m0fnu), axis=0, group_size=32)
    assert np.isnan(mp.dequantize(nan)).all()


def test_scales_of_your_own_need_no_power_of_two(isa, rng):
    x = rng.standard_normal((48, 5)).astype(np.float32)
    q = mp.quantize(x, axis=1, dtype="float4_e2m1fn", group_size=24)
    assert_same_bits(q.scale, np.abs(x).reshape(2, 24, 5).max(1) / np.float32(6))
    quotients = x / np.repeat(q.scale, 24, 0)
    assert_same_bits(numbers(q), quotients.astype(E2M1).astype(np.float32))


def weights(rng, name, k, n):
    """A matrix whose scales are short numbers, so that float64 computes the sums below exactly."""
    w = rng.standard_normal((k, n)).astype(np.float32)
    w[0, 0] = 2688 / 512
    w = np.clip(w, -w[0, 0], w[0, 0])
    return mp.quantize(w, axis=1, dtype=name)


@pytest.mark.parametrize("name", MICROSCALING)
@pytest.mark.parametrize("k", [32, 160, 2304])
def test_products_with_floats_add_in_the_order_of_the_contract(name, k, isa, rng):
    k, n, rows = (k, 70, (1, 5, 64)) if isa != "scalar" else (min(k, 160), 20, (1, 7))
    q = weights(rng, name, k, n)
    packed, codes, group = mp.pack(q), numbers(q), q.group_size
    assert packed.dtype == q.dtype and packed.shape == (k, n)
    assert_same_bits(np.asarray(mp.cast(packed.unpack(), "float32")), codes)
    a = rng.standard_normal((max(rows), k)).astype(np.float16)
    total = None
    for number, first in enumerate(range(0, k, group)):
        s = np.zeros((len(a), n), np.float32)
        for p in range(first, first + group):
            s = (a[:, p : p + 1].astype(np.float64) * codes[p] + s).astype(np.float32)
        r = q.scale[number].astype(np.float64)
        total = (s * r if total is None else s * r + total).astype(np.float32)
    for m in rows:
        for left in (a[:m], a[:m].astype(np.float32)):
            assert_same_bits(mp.matmul(left, packed, out_dtype="float32"), total[:m])
            assert_same_bits(mp.matmul(left, q, out_dtype="float32"), total[:m])
    if name in FOURS:
        size = mp.pack(np.zeros((k, n), np.float32)).nbytes - 64
        assert packed.nbytes == size // 8 + 64 + q.scale.size  # a byte for each scale


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MICROSCALING)
def test_products_in_pairs_add_in_both_orders(name, order, rng):
    q, a = weights(rng, name, 320, 40), mp.cast(rng.standard_normal((33, 320)), "bfloat16")
    expected = sums(order, mp.cast(a, "float32"), numbers(q), q.scale, q.group_size)
    with added(order):
        for m in (1, 4, 33):
            assert_same_bits(mp.matmul(a[:m], mp.pack(q), out_dtype="float32"), expected[:m])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", (*FOURS, "mxint8"))
@pytest.mark.parametrize("shape", [(32, 3), (352, 70), (2304, 64)])
def test_dynamic_products_are_sums_of_integers(name, dtype, shape, isa, rng):
    shape = shape if isa != "scalar" else (min(shape[0], 352), 20)
    q, a = weights(rng, name, *shape), mp.cast(rng.standard_normal((70, shape[0])), dtype)
    rows, packed = mp.quantize(a, axis=0), mp.pack(q)
    doubled = (2 * numbers(q)).astype(np.int64)
    total = None
    for number, first in enumerate(range(0, shape[0], q.group_size)):
        part = slice(first, first + q.group_size)
        s = (rows.values[:, part].astype(np.int64) @ doubled[part]).astype(np.float64)
        r = q.scale[number].astype(np.float64) / 2
        total = (s * r if total is None else s * r + total).astype(np.float32)
    bias = rng.standard_normal(shape[1]).astype(np.float32)
    for m in (1, 3, 70):
        got = mp.dynamic_matmul(a[:m], packed, bias=bias, out_dtype="float32")
        assert_same_bits(got, total[:m] * rows.scale[:m] + bias)


@pytest.mark.parametrize("r", [2.0**-149, 3 * 2.0**-149, 2.0**-127, 2.0**-126, 2.0**127, np.inf, np.nan])
def test_halved_scales_are_rounded_alike_in_panels_and_copies(r, isa, rng):
    """A row alone decodes panels in registers, many rows decode them first, and halve the scales there."""
    w = mp.quantize(rng.standard_normal((64, 40)), axis=1, dtype="mxfp4")
    packed = mp.pack(mp.QuantizedArray(w.values, np.full_like(w.scale, r), None, w.axis, 32, w.dtype, w.shape))
    a = (rng.standard_normal((70, 64)) * 1e30).astype(np.float32)
    many = mp.dynamic_matmul(a, packed)
    for m in (1, 2, 3, 5, 8):
        assert_same_bits(mp.dynamic_matmul(a[:m], packed), many[:m])
    half = np.float32(r) / np.float32(2)
    if np.isfinite(r) and r < 1:
        assert many.any() == (half > 0)


def test_packed_scales_take_a_byte_each_and_keep_their_bits(rng):
    """The largest code of a part of an NVFP4 matrix may be any; numbers of two scales are decoded too."""
    for _ in range(200):
        g = np.float32(rng.random() * 10.0 ** rng.integers(-20, 5) + 1e-25)
        shape = (int(rng.integers(1, 9)), int(rng.integers(1, 130)))
        largest = rng.choice([448.0, 300.0, 7.0, 0.01, 2.0])
        codes = (rng.random(shape) * largest).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        codes[codes == 0] = 2.0**-9
        for scale in (codes * g, 2.0 ** rng.integers(-125, 128, shape).astype(np.float32)):
            values = np.zeros((32 * shape[0], shape[1]), np.int8)
            packed = mp.pack(mp.QuantizedArray(values, scale, axis=1, group_size=32))
            assert packed.nbytes == packed.data.nbytes + packed.column_sums.nbytes + scale.size
            for other in (packed, pickle.loads(pickle.dumps(packed))):
                assert_same_bits(other.scale, scale)
            assert not packed.scale.flags.writeable


@pytest.mark.parametrize("scale", [0.1, 2.0**-126, np.inf, -1.0, 0.0])
def test_other_scales_stay_float32(scale, isa, rng):
    scales = np.float32([[scale, 1.0], [1.0, 0.61803]])
    w = mp.QuantizedArray(rng.integers(-127, 128, (64, 2)).astype(np.int8), scales, axis=1, group_size=32)
    packed, a = mp.pack(w), rng.integers(-9, 9, (3, 64)).astype(np.float32)
    assert packed.nbytes == packed.data.nbytes + packed.column_sums.nbytes + scales.nbytes
    assert_same_bits(packed.scale, scales)
    s = [(a[:, part].astype(np.float64) @ w.values[part]).astype(np.float32) for part in (slice(32), slice(32, 64))]
    with np.errstate(invalid="ignore"):
        expected = (s[1].astype(np.float64) * scales[1] + (s[0] * scales[0])).astype(np.float32)
    assert_same_bits(mp.matmul(a, packed), expected)


def test_dynamic_products_need_groups(rng):
    whole = mp.pack(mp.quantize(rng.standard_normal((32, 3)), axis=1, dtype="float4_e2m1fn"))
    with pytest.raises(TypeError, match="float4_e2m1fn in scale groups"):
        mp.dynamic_matmul(np.ones((1, 32), np.float32), whole)
    x = rng.standard_normal((2, 32)).astype(np.float32)
    assert_same_bits(mp.matmul(x, whole), mp.matmul(x, mp.cast(whole.unpack(), "float32")) * whole.scale)


def test_packed_codes_are_pickled_and_checked(rng):
    packed = mp.pack(weights(rng, "mxfp4", 64, 5))
    again = pickle.loads(pickle.dumps(packed))
    assert_same_bits(again.unpack().view(np.uint8), packed.unpack().view(np.uint8))
    make, (shape, name, data, *others) = packed.__reduce__()
    with pytest.raises(ValueError, match="`data` must be contiguous uint8"):
        make(shape, name, data[:-1].copy(), *others)
    with pytest.raises(ValueError, match="`scale` must be contiguous float32"):
        make(shape, name, data, None, others[1][:1].copy(), None, 32)
    with pytest.raises(ValueError, match="`scale` must be"):
        make(shape, name, data, None, None, None, None)
