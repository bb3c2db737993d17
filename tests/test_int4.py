"""Products of int4 with zero points: with floats as their differences multiply, with int8 rows exactly by group."""

import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core.arrays.products.plans import product_plan
from mp_core.dtype_policies import Scheme
from mp_core.layers import Dense

SHAPES = [(8, 16), (13, 1), (64, 33), (200, 80), (1100, 150), (2184, 70)]
GROUPS = [None, 8, 64, 1 << 15]


def codes(rng, k, n, group, symmetric=False):
    """Random int4 codes of a right operand."""
    w = rng.standard_normal((k, n)).astype(np.float32) + np.linspace(-1, 1, n, dtype=np.float32)
    return mp.quantize(w, axis=1, dtype="int4", group_size=group, symmetric=symmetric)


def numbers(q):
    """The codes of int4 as int64, and the zero point and number of the scale group of each row."""
    k, n = q.shape
    raw = q.values.reshape(-1)
    values = np.stack((raw & 15, raw >> 4), -1).reshape(*q.values.shape[:-1], -1)[..., :n].astype(np.int64)
    values = np.where(values > 7, values - 16, values)
    group = np.arange(k) // min(q.group_size or k, k)
    zero = np.zeros_like(q.scale, np.int64) if q.zero_point is None else q.zero_point
    return values, np.broadcast_to(zero, q.scale.shape)[group], group


def differences(q):
    """The same matrix as int8 codes without zero points."""
    values, zero, _ = numbers(q)
    return mp.QuantizedArray((values - zero).astype(np.int8), q.scale, None, q.axis, q.group_size)


def exact_sums(rows, q):
    """``(a @ b) * scales`` as dynamic_matmul's notes say it: exact sums of groups, scaled and added in float32."""
    values, zero, group = numbers(q)
    scale = np.broadcast_to(q.scale, (len(q.scale), q.shape[1]))
    total = np.zeros((len(rows.values), q.shape[1]), np.float32)
    for g in range(group[-1] + 1):
        own = group == g
        s = (rows.values[:, own].astype(np.int64) @ (values - zero)[own]).astype(np.float32)
        if q.group_size is None:
            return s * rows.scale * scale[0]
        if g == 0:
            total = s * scale[0]
            continue
        wide = s.astype(np.float64) * scale[g]  # exact: 24 bits by 24 bits
        added = wide + total
        halfway = added.view(np.int64) & 0x1FFFFFFF == 0x10000000  # only there could rounding twice differ
        total, before = added.astype(np.float32), total
        for i, j in zip(*np.nonzero(halfway), strict=True):
            total[i, j] = rounded(Fraction(float(wide[i, j])) + Fraction(float(before[i, j])))
    return total * rows.scale


def rounded(x):
    """The float32 that is nearest to a fraction, ties to even."""
    near = np.float32(float(x))
    around = [np.nextafter(near, -np.inf), near, np.nextafter(near, np.inf)]
    return min(around, key=lambda y: (abs(Fraction(float(y)) - x), int(y.view(np.int32)) & 1))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_packed_int4_has_the_bits_of_the_differences(isa, dtype, group, k, n, rng):
    q = codes(rng, k, n, group)
    packed, expected = mp.pack(q), mp.pack(differences(q))
    assert packed.dtype == "int4" and packed.zero_point.shape == packed.scale.shape
    bias = rng.standard_normal(n).astype(np.float32)
    for m in (1, 2, 3, 5, 6, 7, 40, 200):  # as the panels are up to 3, 5 or 6 rows, then decoded first
        x = mp.cast(rng.standard_normal((m, k)), dtype)
        assert_same_bits(mp.matmul(x, packed), mp.matmul(x, expected))
        settings = {"bias": bias, "activation": "gelu", "out_dtype": "float32"}
        assert_same_bits(mp.matmul(x[::-1], packed, **settings), mp.matmul(x[::-1], expected, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_dynamic_products_are_exact_in_each_group(isa, symmetric, group, k, n, rng):
    q = codes(rng, k, n, group, symmetric)
    packed = mp.pack(q)
    for m in (1, 2, 3, 4, 5, 6, 7, 40, 200):
        x = rng.standard_normal((m, k)).astype(np.float32)
        rows = mp.quantize(x, axis=0)
        expected = exact_sums(rows, q)
        assert_same_bits(mp.dynamic_matmul(x, packed), expected)
        assert_same_bits(mp.dynamic_matmul(np.asfortranarray(x), packed), expected)  # the general path
        one = mp.dynamic_matmul(x, packed, scale=0.05)
        assert_same_bits(one, exact_sums(mp.quantize(x, scale=0.05), q))


@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
def test_dynamic_products_have_an_epilogue(isa, out_dtype, rng):
    q = codes(rng, 192, 96, 64)
    packed, bias = mp.pack(q), rng.standard_normal(96).astype(np.float32)
    for m in (1, 6, 50):
        x, residual = rng.standard_normal((m, 192)).astype(np.float32), rng.standard_normal((m, 96)).astype(np.float32)
        exact = exact_sums(mp.quantize(x, axis=0), q) + bias
        assert_same_bits(mp.dynamic_matmul(x, packed, bias=bias, out_dtype=out_dtype), mp.cast(exact, out_dtype))
        got = mp.dynamic_matmul(x, packed, bias=bias, residual=residual, activation="relu", out_dtype=out_dtype)
        assert_same_bits(got, mp.cast(np.maximum(exact, 0) + residual, out_dtype))


@pytest.mark.parametrize("settings", [{}, {"quantize": "found"}], ids=["floats", "integers"])
def test_few_rows_read_four_bits_as_they_are_packed(isa, settings):
    """Decoding the panel of 64 columns for one row alone would cost more than the product.

    Beside integers, some instruction sets read four bits beside any number of rows.
    """
    settings = settings | {"b_dtype": "int4", "layout": "packed", "zero_point": True, "group": 64, "reproducible": True}
    plans = [product_plan(m, 1024, 3072, "bfloat16", **settings) for m in (1, 2, 3, 200)]
    assert [plan["copied"] for plan in plans[:3]] == [False, False, False]
    assert plans[3]["copied"] or "quantize" in settings


def test_results_do_not_depend_on_threads_or_rows_beside(rng):
    q = codes(rng, 1024, 300, 64)
    packed, x = mp.pack(q), mp.cast(rng.standard_normal((130, 1024)), "bfloat16")
    for multiply in (mp.matmul, mp.dynamic_matmul):
        expected = multiply(x, packed)
        for threads in (1, 2, 5):
            with mp.config.num_threads(threads):
                assert_same_bits(multiply(x, packed), expected)
        assert_same_bits(np.concatenate([multiply(row, packed) for row in np.split(x, 130)]), expected)


def test_sums_of_many_ranges_of_k_do_not_depend_on_rows_beside(isa, rng):
    """A matrix that comes from memory is multiplied range by range beside some numbers of rows."""
    packed = mp.pack(codes(rng, 1088, 2048, 64))
    x = rng.standard_normal((60, 1088)).astype(np.float32)
    expected = np.concatenate([mp.dynamic_matmul(row, packed) for row in np.split(x, 60)])
    for m in (4, 5, 7, 11, 40, 60):
        assert_same_bits(mp.dynamic_matmul(x[:m], packed), expected[:m])


def test_scales_keep_the_sign_of_zero(isa):
    """The first group's sum is multiplied by its scale, not added to +0."""
    q = mp.QuantizedArray(
        np.zeros((64, 8), np.uint8),
        np.full((1, 16), -1, np.float32),
        np.zeros((1, 16), np.int32),
        (1,),
        64,
        "int4",
        (64, 16),
    )
    got = mp.dynamic_matmul(np.ones((7, 64), np.float32), mp.pack(q), scale=1.0)
    assert np.signbit(got).all() and not got.any()


def test_extremes_are_exact(isa):
    """The largest codes, the smallest zero points, and signs of both."""
    k, n = 4096, 16
    for code, zero in ((7, -8), (-8, 7), (-8, -8), (7, 7)):
        values = np.full((k, n), (code & 15) * 17, np.uint8)[:, : n // 2]
        q = mp.QuantizedArray(
            values, np.ones((k // 64, n), np.float32), np.full((k // 64, n), zero, np.int32), (1,), 64, "int4", (k, n)
        )
        rows = np.where(np.arange(7)[:, None] == 1, np.float32(-127), np.float32(127)) * np.ones((7, k), np.float32)
        got = mp.dynamic_matmul(rows, mp.pack(q), scale=1.0)
        np.testing.assert_array_equal(got, rows[:, :1] * (code - zero) * k * np.ones((1, n)))


def test_an_unpacked_array_with_zero_points_is_dequantized_as_before(rng):
    q = codes(rng, 128, 48, 64)
    x = rng.standard_normal((4, 128)).astype(np.float32)
    assert_same_bits(mp.matmul(x, q), mp.matmul(x, mp.dequantize(q)))
    np.testing.assert_allclose(mp.matmul(x, mp.pack(q)), mp.matmul(x, q), rtol=1e-4, atol=1e-4)


def test_a_packed_matrix_keeps_codes_and_zero_points(rng):
    for group in GROUPS:
        q = codes(rng, 200, 70, group)
        packed = mp.pack(q)
        values, _, _ = numbers(q)
        np.testing.assert_array_equal(packed.unpack().astype(int), values)
        again = pickle.loads(pickle.dumps(packed))
        x = rng.standard_normal((3, 200)).astype(np.float32)
        assert_same_bits(mp.matmul(x, again), mp.matmul(x, packed))
        np.testing.assert_array_equal(again.zero_point, packed.zero_point)
        assert packed.nbytes < 200 * 70 * (1 / 2 + 5 / (group or 200)) + 64 + 70 * 4 + 5 * 70


def test_bad_zero_points_are_refused(rng):
    packed = mp.pack(codes(rng, 64, 16, 8))
    parts = (packed.shape, packed.dtype, packed.data, None, packed.scale)
    for zero, message in (
        (np.full((8, 16), 8, np.int8), r"must lie in \[-8, 7\]"),
        (np.zeros((8, 15), np.int8), r"contiguous int8 of shape \(8, 16\)"),
        (np.zeros((8, 16), np.int32), r"contiguous int8 of shape \(8, 16\)"),
    ):
        with pytest.raises(ValueError, match=message):
            mp.PackedMatrix(*parts, zero, 8)


def test_integers_have_no_int32_result(rng):
    packed = mp.pack(codes(rng, 64, 16, 8))
    with pytest.raises(TypeError, match="`out_dtype` must be a float type"):
        mp.dynamic_matmul(np.ones((2, 64), np.float32), packed, out_dtype="int32")


@pytest.mark.parametrize("scheme", ["int4/64", "int4/dynamic/64", "int4/-1", "int4/dynamic/-1", "int4/24"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_layers_hold_four_bits(scheme, dtype, rng):
    """Their products are those of the packed codes, and their packed kernels have half a byte for a weight."""
    layer = Dense(70, dtype=f"{scheme}_from_{dtype}")
    layer.build((None, 192))
    layer.set_matrix(Scheme.parse(scheme).quantize(rng.standard_normal((70, 192)).astype(np.float32)))
    x = mp.cast(rng.standard_normal((5, 192)), layer.compute_dtype)
    packed = mp.pack(layer.matrix.T)
    multiply = mp.dynamic_matmul if "dynamic" in scheme else mp.matmul
    assert packed.dtype == "int4"
    assert_same_bits(layer(x), multiply(x, packed))
    assert_same_bits(mp.compile(layer, x)(x), layer(x))


def test_dynamic_products_are_those_of_the_numbers_for_which_codes_stand(rng):
    q = codes(rng, 512, 64, 64)
    x = rng.standard_normal((32, 512)).astype(np.float32)
    rows = mp.quantize(x, axis=0)
    dequantized = mp.dequantize(rows).astype(np.float64) @ mp.dequantize(q, "float64")
    np.testing.assert_allclose(mp.dynamic_matmul(x, mp.pack(q)), dequantized, rtol=1e-4, atol=1e-3)


def test_dataclasses_of_codes_are_not_changed(rng):
    q = codes(rng, 64, 16, 8)
    before = dataclasses.replace(q, values=q.values.copy())
    mp.pack(q)
    np.testing.assert_array_equal(q.values, before.values)
