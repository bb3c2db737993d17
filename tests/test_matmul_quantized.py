"""Products of codes and scales, compared with integer products in int64, rescaled."""

import dataclasses
import itertools

import ml_dtypes
import numpy as np
import pytest
from oracles import LIMITS, assert_same_bits, gamma, integers, onnx_qlinear_matmul, scaled_bound, values

import mp_core as mp


def test_quantized_product_is_the_rescaled_integer_product(isa, rng):
    x, w, bias = rng.standard_normal((9, 300)), rng.standard_normal((300, 50)), rng.standard_normal(50)
    q, k = mp.quantize(x, axis=0), mp.quantize(w, axis=1)
    total = (q.values.astype(np.int64) @ k.values.astype(np.int64)).astype(np.float32)
    expected = total * q.scale * k.scale + bias.astype(np.float32)
    for right in (k, mp.pack(k)):
        assert_same_bits(mp.matmul(q, right, bias=bias), expected)
    assert mp.matmul(q, mp.pack(k), out_dtype="bfloat16").dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("size", [1.0, 2.0**-126])
def test_narrow_results_of_codes_are_casts_of_the_float32_result(isa, dtype, activation, size, rng):
    """Subnormal results too: the instruction that rounds to bfloat16 would flush them."""
    x, w = rng.standard_normal((13, 70)) * size, rng.standard_normal((70, 96))
    for rows, columns in itertools.product((1, 6, 13), (96, 83)):
        q, k = mp.quantize(x[:rows], axis=0), mp.pack(mp.quantize(w[:, :columns], axis=1))
        settings = {"bias": rng.standard_normal(columns) * size, "activation": activation}
        wide = mp.matmul(q, k, **settings)
        assert rows == 1 or size == 1 or np.any((wide != 0) & (np.abs(wide) < 2.0**-126))
        assert_same_bits(mp.matmul(q, k, out_dtype=dtype, **settings), mp.cast(wide, dtype))


def test_quantized_batch(rng):
    x, w = rng.standard_normal((2, 5, 40)), rng.standard_normal((40, 7))
    q, k = mp.quantize(x, axis=(0, 1)), mp.quantize(w, axis=1)
    c = mp.matmul(q, mp.pack(k))
    for i in range(2):
        row = mp.quantize(x[i], axis=0)
        assert_same_bits(c[i], mp.matmul(row, k))


@pytest.mark.parametrize("symmetric", [True, False])
def test_quantized_left_operand_beside_a_float_is_dequantized(symmetric, rng):
    x, w = rng.standard_normal((4, 30)).astype(np.float32), rng.standard_normal((30, 5)).astype(np.float32)
    q = mp.quantize(x, axis=1, symmetric=symmetric)
    assert_same_bits(mp.matmul(q, w), mp.matmul(mp.dequantize(q), w))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_quantized_weights_beside_floats_are_scaled_after_the_product(dtype, isa, rng):
    x, w = values(rng, (4, 30), dtype), rng.standard_normal((30, 5)).astype(np.float32)
    q = mp.quantize(w, axis=1)
    expected = mp.matmul(x, mp.cast(q.values, dtype), out_dtype="float32" if dtype != "float64" else None) * q.scale
    assert mp.matmul(x, q).dtype == x.dtype
    got = mp.matmul(x, q, out_dtype="float32")
    if dtype == "float64":
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    else:
        assert_same_bits(got, expected)
    assert_same_bits(mp.matmul(x, mp.pack(q), out_dtype="float32"), got)


def test_weights_with_zero_points_beside_floats_are_dequantized(rng):
    x, w = rng.standard_normal((4, 30)).astype(np.float32), rng.standard_normal((30, 5)).astype(np.float32)
    q = mp.quantize(w, axis=1, symmetric=False)
    assert_same_bits(mp.matmul(x, q), mp.matmul(x, mp.dequantize(q)))
    assert_same_bits(mp.matmul(x, mp.pack(q)), mp.matmul(x, mp.dequantize(q)))


@pytest.mark.parametrize("a_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("b_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("per_row", [True, False])
@pytest.mark.parametrize("symmetric", [(True, False), (False, True), (False, False)])
def test_zero_points_are_part_of_the_integer_product(isa, a_dtype, b_dtype, per_row, symmetric, rng):
    """ONNX MatMulInteger: sum (a - za) (b - zb), exactly; then the scales."""
    x, w = rng.standard_normal((9, 131)) + 0.5, rng.standard_normal((131, 70)) - 0.3
    a = mp.quantize(x, axis=0 if per_row else None, dtype=a_dtype, symmetric=symmetric[0])
    b = mp.quantize(w, axis=1, dtype=b_dtype, symmetric=symmetric[1])
    wide_a, wide_b = (
        q.values.astype(np.int64) - (0 if q.zero_point is None else q.zero_point.astype(np.int64)) for q in (a, b)
    )
    exact = wide_a @ wide_b
    plain_a, plain_b = (dataclasses.replace(q, scale=np.ones_like(q.scale)) for q in (a, b))
    assert np.array_equal(mp.matmul(plain_a, plain_b, out_dtype="int32"), exact)
    assert_same_bits(mp.matmul(a, mp.pack(b)), exact.astype(np.float32) * a.scale * b.scale)


def test_an_integer_result_does_not_leave_scales_out():
    one = np.ones((2, 2), np.int8)
    plain, scaled = (mp.QuantizedArray(one, np.full((1, 1), scale), None, ()) for scale in (1.0, 0.5))
    assert mp.matmul(plain, plain, out_dtype="int32").tolist() == [[2, 2], [2, 2]]
    for call in (
        lambda: mp.matmul(plain, scaled, out_dtype="int32"),
        lambda: mp.matmul(scaled, plain, out_dtype="int32"),
        lambda: mp.matmul(scaled, mp.pack(plain), out_dtype="int32", out=np.zeros((2, 2), np.int32)),
        lambda: mp.einsum("ij,jk->ik", plain, scaled, out_dtype="int32"),
        lambda: mp.dynamic_matmul(np.ones((2, 2), np.float32), mp.pack(scaled), out_dtype="int32"),
        lambda: mp.matmul(one, mp.pack(scaled), out_dtype="int32"),
        lambda: mp.matmul(plain, plain, out_dtype="int32", bias=[1.0, 1.0]),
    ):
        with pytest.raises(TypeError, match="`out_dtype`"):
            call()


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_row_from_memory_is_exact(isa, dtype, rng):
    a, b = integers(rng, (2, 1031), dtype), integers(rng, (1031, 1030), "int8")
    a[0], b[:, :3] = np.iinfo(dtype).max, -128
    for m in 1, 2:
        assert np.array_equal(mp.matmul(a[:m], mp.pack(b)), a[:m].astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize(("k", "n"), [(1, 16), (63, 64), (64, 33), (200, 80), (1100, 150), (2051, 48)])
def test_every_number_of_rows(isa, k, n, rng):
    """Tiles of up to 32 rows by 64 elements of k and 16 columns: whole ones, what is left, and their epilogues."""
    a, b = rng.integers(0, 256, (70, k), np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    packed, bias = mp.pack(b), rng.standard_normal(n, np.float32)
    signed = a.view(np.int8)
    exact, exact_signed = (x.astype(np.int64) @ b.astype(np.int64) for x in (a, signed))
    row_scale, scale = rng.uniform(-1, 1, (70, 1)).astype(np.float32), rng.uniform(-1, 1, (1, n)).astype(np.float32)
    row_scale[3], scale[0, 0], bias[:2] = -0.0, -1, (-0.0, np.inf)  # a sum of 0 keeps its sign
    columns = mp.pack(mp.QuantizedArray(b, scale, None, (1,)))
    for m in (5, 6, 7, *range(14, 19), 31, 32, 33, 47, 48, 49, 63, 64, 65, 70):
        for right in (b, packed):
            assert np.array_equal(mp.matmul(a[:m], right), exact[:m])
            assert np.array_equal(mp.matmul(signed[:m], right), exact_signed[:m])
        rows = mp.QuantizedArray(signed[:m], row_scale[:m], None, (0,))
        expected = exact_signed[:m].astype(np.float32) * row_scale[:m] * scale
        assert_same_bits(mp.matmul(rows, columns), expected)
        assert_same_bits(mp.matmul(rows, columns, bias=bias), expected + bias)
        assert np.array_equal(mp.matmul(rows, columns, activation="relu"), np.maximum(expected, 0))
        assert_same_bits(mp.matmul(rows, columns, out_dtype="float16"), mp.cast(expected, "float16"))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("scale", [None, 0.02])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("m", [1, 7, 200])
def test_dynamic_matmul_is_quantize_and_matmul(isa, m, dtype, scale, symmetric, rng):
    x = values(rng, (m, 300), dtype)
    x[0, 3:5] = np.nan, np.inf
    w = mp.pack(mp.quantize(rng.standard_normal((300, 70)), axis=1, symmetric=symmetric))
    bias, residual = values(rng, 70, "float32"), values(rng, (m, 70), "float32")
    rows = mp.quantize(x, axis=0) if scale is None else mp.quantize(x, scale=scale)
    for threads in (1, 2, 3):
        with mp.config.num_threads(threads):
            got = mp.dynamic_matmul(x, w, scale=scale, bias=bias, activation="gelu", residual=residual)
            expected = mp.matmul(rows, w, out_dtype=x.dtype, bias=bias, activation="gelu", residual=residual)
            assert_same_bits(got, expected)
    assert_same_bits(mp.dynamic_matmul(x[0], w, scale=scale), mp.dynamic_matmul(x, w, scale=scale)[0])
    backwards = x[:, ::-1]
    assert_same_bits(mp.dynamic_matmul(backwards, w, scale=scale), mp.dynamic_matmul(backwards.copy(), w, scale=scale))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("m", [1, 48, 64])
def test_dynamic_matmul_over_an_empty_k_is_zero(m):
    """Its rows have scales, which must not be what an earlier product left in the scratch: here NaN."""
    w = mp.pack(mp.quantize(np.empty((0, 5), np.float32), axis=1))
    with mp.config.num_threads(1):
        mp.matmul(np.full((64, 64), np.nan, np.float16), np.ones((64, 64), np.float32))
        assert_same_bits(mp.dynamic_matmul(np.empty((m, 0), np.float32), w), np.zeros((m, 5), np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("m", [1, 7, 200])
def test_fixed_matmul_is_quantize_by_columns_and_matmul(isa, m, dtype, rng):
    x, bias = values(rng, (2, m, 300), dtype), values(rng, 70, "float32")
    x[0, 0, 3:5] = np.nan, np.inf
    w = mp.pack(mp.quantize(rng.standard_normal((300, 70)), axis=1))
    steps, zeros = rng.uniform(0.01, 0.1, 300).astype(np.float32), rng.integers(-50, 50, 300).astype(np.int32)
    codes = mp.quantize(x, axis=-1, scale=steps, zero_point=zeros).values
    rows = mp.QuantizedArray(codes, np.ones((1, 1, 1), np.float32), None, ())
    expected = mp.matmul(rows, w, out_dtype=x.dtype, bias=bias, activation="relu")
    for threads in (1, 3):
        with mp.config.num_threads(threads):
            assert_same_bits(mp.ops.fixed_matmul(x, w, steps, zeros, bias=bias, activation="relu"), expected)
    with pytest.raises(ValueError, match="length 300"):
        mp.ops.fixed_matmul(x, w, steps[::-1], zeros)


def test_zero_points_shorten_the_exact_depth():
    a = mp.quantize(np.zeros((1, 33026)), dtype="uint8", scale=1.0, zero_point=3)
    b = mp.quantize(np.zeros((33026, 1)), dtype="uint8", scale=1.0, zero_point=5)
    with pytest.raises(ValueError, match="k <= 33025"):
        mp.matmul(a, b)


def test_quantized_vector_is_a_row(rng):
    """The same integers, and not a dequantized kernel at every call."""
    x, w = rng.standard_normal(40).astype(np.float32), mp.pack(mp.quantize(rng.standard_normal((40, 7)), axis=1))
    assert_same_bits(mp.matmul(mp.quantize(x), w), mp.matmul(mp.quantize(x[None], axis=0), w)[0])


def test_quantized_beside_a_packed_float_takes_its_type(rng):
    q, w = mp.quantize(rng.standard_normal((3, 8)), axis=0), rng.standard_normal((8, 2)).astype("bfloat16")
    assert_same_bits(mp.matmul(q, mp.pack(w)), mp.matmul(mp.dequantize(q), w, out_dtype="bfloat16"))


def test_a_grouped_left_operand_is_dequantized_before_a_product(rng):
    x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, 7)).astype(np.float32)
    a = mp.quantize(x, axis=1, group_size=2)
    right = mp.quantize(w, axis=1)
    assert_same_bits(mp.matmul(a, right), mp.matmul(mp.dequantize(a), right))
    q = mp.quantize(rng.standard_normal((64, 6)), axis=1, dtype="int4", group_size=32, symmetric=False)
    y = rng.standard_normal((3, 64)).astype(np.float32)
    assert_same_bits(mp.matmul(y, q), mp.matmul(y, mp.dequantize(q)))


def test_scaled_float8_beside_float8_is_dequantized_in_any_layout(isa, rng):
    a, q = (
        values(rng, (8, 32), "float8_e4m3fn"),
        mp.quantize(rng.standard_normal((32, 20)), axis=1, dtype="float8_e4m3fn"),
    )
    expected = mp.matmul(a.astype(np.float32), mp.dequantize(q))
    for left in (a, np.asfortranarray(a)):
        assert_same_bits(mp.matmul(left, mp.pack(q)), expected)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_codes_beside_float8_are_not_rounded_to_it(axis):
    q, one = mp.quantize([[1000, 2], [3, 4]], axis=axis), mp.cast(np.eye(2), "float8_e4m3fn")
    for product in (mp.matmul(q, one), mp.matmul(q, mp.pack(one)), mp.matmul(one, q), mp.matmul(q, [[1, 0], [0, 1]])):
        assert product.dtype == np.float32
        np.testing.assert_allclose(product, mp.dequantize(q), rtol=1e-6)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float16", "bfloat16", "float32", "float64"])
def test_what_codes_stand_for_is_not_rounded_to_the_type_of_the_other_operand(dtype, size, symmetric, rng):
    x = mp.cast(rng.standard_normal((4, 64)), dtype)
    for axis in (None, 0, 1):
        q = mp.quantize(size * rng.standard_normal((64, 32)), axis=axis, symmetric=symmetric)
        exact = x.astype(np.float64) @ mp.dequantize(q, "float64")
        for b in (q, mp.pack(q)) if axis != 0 else (q,):
            product = mp.matmul(x, b, out_dtype="float32")
            np.testing.assert_allclose(product, exact, rtol=0, atol=1e-6 * np.abs(exact).max())
            assert mp.matmul(x, b).dtype == (np.float32 if "float8" in dtype else x.dtype)


def exact_error(got, a, codes, scale, group=None):
    rows = np.repeat(scale.astype(np.longdouble), group or len(codes), 0)[: len(codes)]
    return np.abs(got.astype(np.longdouble) - a.astype(np.longdouble) @ (codes.astype(np.longdouble) * rows))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("k", "group"), [(1, 8), (8, 8), (16, 8), (20, 8), (64, 16), (300, 32), (1, None), (300, None)]
)
def test_error_of_scaled_products_is_within_the_stated_bound(isa, dtype, k, group, rng):
    a, codes = values(rng, (50, k), dtype), rng.integers(-127, 128, (k, 40)).astype(np.int8)
    scale = rng.uniform(0.5, 1, (-(-k // group) if group else 1, 40)).astype(np.float32)
    got = mp.matmul(a, mp.QuantizedArray(codes, scale, None, (1,), group), out_dtype="float32")
    error = exact_error(got, a, codes, scale, group)
    assert np.all(error <= scaled_bound(a, codes, scale, dtype == "bfloat16", group))
    if k == 1 and dtype == "float32":  # the scale is a rounding of its own
        assert np.any(error > gamma(1) * np.abs(a.astype(np.float64)) @ np.abs(codes * scale.astype(np.float64)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("group", [None, 8])
@pytest.mark.parametrize("a_size", [2.0**-140, 2.0**-60, 1.0])
@pytest.mark.parametrize("scale_size", [2.0**-145, 2.0**-127, 2.0**-70])
def test_small_scales_lose_no_more_than_the_bound_says(isa, dtype, group, a_size, scale_size, rng):
    a = (rng.standard_normal((20, 40)) * a_size).astype(np.float32).astype(dtype)
    codes = rng.integers(-127, 128, (40, 30)).astype(np.int8)
    scale = (rng.uniform(0.5, 1, (5 if group else 1, 30)) * scale_size).astype(np.float32)
    got = mp.matmul(a, mp.QuantizedArray(codes, scale, None, (1,), group), out_dtype="float32")
    assert np.all(exact_error(got, a, codes, scale, group) <= scaled_bound(a, codes, scale, dtype == "bfloat16", group))


def test_sums_overflow_or_are_flushed_before_their_scales():
    q = mp.QuantizedArray(np.full((1, 1), 100, np.int8), 1e-3, None, ())
    huge = np.float32([[3e38]])
    assert mp.matmul(huge, q)[0, 0] == np.inf and np.isfinite(mp.matmul(huge, mp.dequantize(q)))
    q = mp.QuantizedArray(np.full((1, 1), 100, np.int8), 1e-38, None, ())
    one = np.ones((1, 1), "bfloat16")
    assert mp.matmul(one, q) == 0 and mp.matmul(one, mp.dequantize(q)) > 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("kind", "as_codes"),
    [
        ({}, True),
        ({"dtype": "int4"}, True),
        ({"dtype": "float8_e4m3fn"}, True),
        ({"dtype": "int4", "group_size": 16}, True),
        ({"dtype": "int4", "group_size": 12}, False),
        ({"group_size": 4}, False),
        ({"dtype": "uint8"}, False),
        ({"dtype": "uint8", "group_size": 8}, False),
        ({"symmetric": False}, False),
    ],
    ids=str,
)
def test_which_quantized_right_operands_multiply_as_their_codes(isa, dtype, kind, as_codes, rng):
    """As docs/numerics.md says; the others are dequantized, and multiplied wide."""
    x, w = values(rng, (3, 48), dtype), rng.standard_normal((48, 10)).astype(np.float32)
    q = mp.quantize(w, axis=1, **kind)
    wide = mp.matmul(x, mp.dequantize(q), out_dtype="float32")
    got = mp.matmul(x, q, out_dtype="float32")
    assert np.array_equal(got, wide) is not as_codes
    if as_codes and "group_size" not in kind:
        codes = mp.quantization.unpacked_codes(q)
        assert_same_bits(got, mp.matmul(x, mp.cast(codes, dtype), out_dtype="float32") * q.scale)


@pytest.mark.parametrize("dtype", ["int4", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize(("k", "n"), [(512, 1), (512, 65), (512, 129), (9000, 1)])
def test_panels_of_any_width_beside_many_rows(isa, dtype, k, n, rng):
    """What is fetched ahead of a panel of one column is less than a byte a row of int4."""
    packed = mp.pack(mp.quantize(rng.standard_normal((k, n)), axis=1, dtype=dtype))
    x = rng.standard_normal((60, k)).astype(np.float32)
    many = mp.matmul(x, packed)
    for row in (0, 59):
        assert_same_bits(many[row : row + 1], mp.matmul(x[row : row + 1], packed))


@pytest.mark.parametrize("a_dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (5, 37, 70), (40, 300, 17)])
def test_uint8_on_the_right_is_exact(isa, a_dtype, m, k, n, rng):
    a, b = integers(rng, (2, m, k), a_dtype), integers(rng, (2, k, n), "uint8")
    exact = a.astype(np.int64) @ b.astype(np.int64)
    got = mp.matmul(a, b)
    assert got.dtype == np.int32 and np.array_equal(got, exact)
    assert np.array_equal(mp.matmul(a[0], b[0][:, ::-1]), exact[0][:, ::-1])
    assert np.array_equal(mp.matmul(a[0, 0], b[0], out_dtype="float64"), exact[0, 0])
    bias = rng.standard_normal(n).astype(np.float32)
    expected = exact.astype(np.float32) + bias
    assert_same_bits(mp.matmul(a, b, out_dtype="float32", bias=bias), expected)


def test_uint8_by_uint8_may_be_as_deep_as_is_exact():
    a = np.full((1, 33025), 255, np.uint8)
    assert mp.matmul(a, a.T).tolist() == [[33025 * 255 * 255]]
    with pytest.raises(ValueError, match="k <= 33025"):
        mp.matmul(np.zeros((1, 33026), np.uint8), np.zeros((33026, 1), np.uint8))
    with pytest.raises(TypeError, match="a matrix of uint8"):
        mp.matmul(a, a[0])


@pytest.mark.parametrize(
    "kind",
    [
        {"axis": 2},
        {"axis": (0, 2)},
        {},
        {"axis": (0, 2), "dtype": "uint8", "symmetric": False},
        {"axis": (0, 2), "dtype": "int4", "group_size": 8},
        {"axis": (0, 2), "dtype": "uint4", "symmetric": False},
        {"axis": (0, 1)},
    ],
    ids=str,
)
def test_matrices_of_a_quantized_right_operand_are_multiplied_one_by_one(isa, kind, rng):
    """As they are alone: as integers, or as their codes, or dequantized."""
    w, x = rng.standard_normal((3, 24, 10)).astype(np.float32), rng.standard_normal((2, 3, 5, 24)).astype(np.float32)
    q, rows = mp.quantize(w, **kind), mp.quantize(x, axis=(0, 1, 2), symmetric=False)

    def matrix(j):
        values, scale, zero = (
            None if part is None else part[j if len(part) > 1 else 0] for part in (q.values, q.scale, q.zero_point)
        )
        return mp.QuantizedArray(values, scale, zero, [i - 1 for i in q.axis if i], q.group_size, q.dtype, q.shape[1:])

    more = {"bias": rng.standard_normal(10).astype(np.float32), "activation": "relu"}
    residual = rng.standard_normal((2, 3, 5, 10)).astype(np.float32)
    for left, one in ((x, lambda i, j: x[i, j]), (rows, lambda i, j: mp.quantize(x[i, j], axis=0, symmetric=False))):
        got = mp.matmul(left, q, residual=residual, **more)
        out = np.zeros_like(got)
        assert mp.matmul(left, q, residual=residual, out=out, **more) is out
        assert_same_bits(out, got)
        for i, j in np.ndindex(2, 3):
            assert_same_bits(got[i, j], mp.matmul(one(i, j), matrix(j), residual=residual[i, j], **more))
    assert_same_bits(mp.matmul(x[0, 0], q), mp.matmul(np.broadcast_to(x[0, 0], (3, 5, 24)), q))
    assert mp.matmul(x[0, 0, 0], q).shape == (3, 10) and mp.matmul(np.zeros((0, 1, 5, 24), "f4"), q).shape == (
        0,
        3,
        5,
        10,
    )
    with pytest.raises(ValueError, match="must broadcast"):
        mp.matmul(x[:, :2], q)


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype", "dtype"), [("uint8", "uint8", None), ("uint8", "int8", "int8"), ("int8", "int8", None)]
)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_qlinear_matmul_has_the_codes_of_onnx(isa, a_dtype, b_dtype, dtype, per_column, batch, rng):
    a, b = integers(rng, (*batch, 9, 64), a_dtype), integers(rng, (*batch, 64, 33), b_dtype)
    size = (*[1] * len(batch), 1, 33) if per_column else ()
    a_scale, b_scale = np.float32(0.043), rng.uniform(0.01, 0.1, size).astype(np.float32)
    b_zero, out_dtype = rng.integers(*LIMITS[b_dtype], size), dtype or a_dtype
    a_zero, y_zero = rng.integers(*LIMITS[a_dtype]), int(rng.integers(*LIMITS[out_dtype]))
    left = mp.QuantizedArray(a, a_scale, a_zero)
    right = mp.QuantizedArray(b, b_scale, b_zero, len(batch) + 1 if per_column else ())
    got = mp.qlinear_matmul(left, right, out_scale=1.7, out_zero_point=y_zero, dtype=dtype)
    expected = onnx_qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, 1.7, y_zero, out_dtype)
    assert_same_bits(got.values, expected)
    assert got.scale.item() == np.float32(1.7) and got.zero_point.item() == y_zero
    if not batch:
        packed = mp.qlinear_matmul(left, mp.pack(right), out_scale=1.7, out_zero_point=y_zero, dtype=dtype)
        assert_same_bits(packed.values, expected)
        row = mp.QuantizedArray(a[4], a_scale, a_zero)
        for b_too in (right, mp.pack(right)):
            got = mp.qlinear_matmul(row, b_too, out_scale=1.7, out_zero_point=y_zero, dtype=dtype)
            assert_same_bits(got.values, expected[4])


ONE = mp.QuantizedArray(np.ones((2, 2), np.int8), 1.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.qlinear_matmul(np.ones((2, 2), np.int8), ONE, out_scale=1.0), TypeError, "`a` must be a Quantized"),
        (lambda: mp.qlinear_matmul(ONE, np.ones((2, 2), np.int8), out_scale=1.0), TypeError, "`b` must be a Quantized"),
        (lambda: mp.qlinear_matmul(ONE, mp.quantize(np.eye(2), axis=0), out_scale=1.0), TypeError, "`b` must be"),
        (lambda: mp.qlinear_matmul(ONE, mp.pack(np.eye(2, dtype="f4")), out_scale=1.0), TypeError, "`b` must be"),
        (lambda: mp.qlinear_matmul(ONE, ONE, out_scale=0.0), ValueError, "`out_scale` must be a finite number above 0"),
        (lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1e-50), ValueError, "positive and finite in float32"),
        (lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1e39), ValueError, "positive and finite in float32"),
        (lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1e-40), ValueError, "`out_scale` must not be so small"),
        (
            lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1.0, out_zero_point=128),
            ValueError,
            "`out_zero_point` must lie",
        ),
        (
            lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1.0, out_zero_point=0.5),
            TypeError,
            "`out_zero_point` must be an",
        ),
        (lambda: mp.qlinear_matmul(ONE, ONE, out_scale=1.0, dtype="int4"), TypeError, "`dtype` must be int8 or uint8"),
    ],
)
def test_qlinear_matmul_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_int32_sums_are_not_touched_by_scales_of_1(isa):
    """A float product by 1 would set the quiet bit of sums that are signalling NaNs as floats."""
    a, b = (
        mp.QuantizedArray(np.full(shape, code, np.int8), 1.0) for shape, code in (((1, 512), -127), ((512, 16), 127))
    )
    assert np.all(mp.matmul(a, b, out_dtype="int32") == -127 * 127 * 512)
