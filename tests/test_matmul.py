import pickle

import ml_dtypes
import numpy as np
import pytest
from oracles import ACTIVATIONS, FLOATS, assert_same_bits, nearest, product_bound, values

import mp_core as mp

# Zero, one, odd, the tails of every tile (6 rows, 16 lanes, 64 columns, groups of 2 and 4), blocks of k (1024, 2048).
SHAPES = [
    (0, 3, 4),
    (3, 0, 4),
    (3, 4, 0),
    (1, 1, 1),
    (1, 7, 1),
    (2, 3, 5),
    (5, 17, 15),
    (6, 64, 64),
    (7, 33, 65),
    (13, 31, 63),
    (12, 129, 130),
    (1, 100, 200),
    (64, 1, 48),
    (11, 1025, 17),
    (3, 2049, 20),
    (4, 4101, 3),
]


def integers(rng, shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_error_bound(isa, dtype, m, k, n, rng):
    a, b = values(rng, (m, k), dtype), values(rng, (k, n), dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for out_dtype in ("float32", "bfloat16"):
        c = mp.matmul(a, b, out_dtype=out_dtype)
        assert c.dtype == out_dtype
        assert np.all(np.abs(c.astype(np.float64) - exact) <= product_bound(a, b, dtype, out_dtype))


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
@pytest.mark.parametrize("k", [1, 1000, 20000, 2**20])
def test_error_bound_for_long_sums_and_wide_exponents(dtype, k, rng):
    a, b = values(rng, (3, k), dtype, 12), values(rng, (k, 5), dtype, 12)
    c = mp.matmul(a, b, out_dtype="float32")
    assert np.all(np.abs(c - a.astype(np.float64) @ b.astype(np.float64)) <= product_bound(a, b, dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_integer_valued_products_are_exact(isa, dtype, rng):
    largest = 4 if "float8" in dtype else 16
    a = rng.integers(-largest, largest + 1, (29, 300)).astype(dtype)
    b = rng.integers(-largest, largest + 1, (300, 70)).astype(dtype)
    np.testing.assert_array_equal(mp.matmul(a, b, out_dtype="float32"), a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("a_dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
def test_int8_is_exact(isa, a_dtype, m, k, n, rng):
    a, b = integers(rng, (m, k), a_dtype), integers(rng, (k, n))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    for right in (b, mp.pack(b)):
        c = mp.matmul(a, right)
        assert c.dtype == np.int32
        np.testing.assert_array_equal(c, exact)


@pytest.mark.parametrize(("x", "y"), [(-128, -128), (-128, 127), (127, 127), (127, -128)])
def test_int8_extremes_at_the_largest_depth(isa, x, y):
    a, b = np.full((2, 131071), x, np.int8), np.full((131071, 17), y, np.int8)
    assert np.all(mp.matmul(a, b) == x * y * 131071)


@pytest.mark.parametrize("y", [-128, 127])
def test_uint8_extremes_at_the_largest_depth(isa, y):
    a, b = np.full((2, 65793), 255, np.uint8), np.full((65793, 17), y, np.int8)
    assert np.all(mp.matmul(a, b) == 255 * y * 65793)


def test_int8_beyond_int32_is_refused():
    with pytest.raises(ValueError, match=r"uint8 products need k <= 65793 .*received k = 65794"):
        mp.matmul(np.zeros((1, 65794), np.uint8), np.zeros((65794, 1), np.int8))
    with pytest.raises(ValueError, match=r"k <= 131071 .*received k = 131072"):
        mp.matmul(np.zeros((1, 131072), np.int8), np.zeros((131072, 1), np.int8))
    with pytest.raises(ValueError, match="k <= 131071"):
        mp.matmul(np.zeros((1, 131072), np.int8), mp.pack(np.zeros((131072, 1), np.int8)))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_same_bits_for_any_batch_packing_stride_and_thread_count(isa, dtype, rng):
    k, n = (2100, 150)
    if dtype == "int8":
        a, b = integers(rng, (64, k)), integers(rng, (k, n))
    else:
        a, b = values(rng, (64, k), dtype, 10), values(rng, (k, n), dtype, 10)
    expected = mp.matmul(a, b)
    wide_a, wide_b = np.zeros((64, 2 * k), a.dtype), np.zeros((2 * k, 3 * n), b.dtype)
    wide_a[:, ::2], wide_b[::2, ::3] = a, b
    rights = {
        "array": b,
        "packed": mp.pack(b),
        "transposed": np.ascontiguousarray(b.T).T,
        "strided": wide_b[::2, ::3],
        "reversed": np.ascontiguousarray(b[::-1, ::-1])[::-1, ::-1],
    }
    lefts = {
        "array": a,
        "transposed": np.ascontiguousarray(a.T).T,
        "strided": wide_a[:, ::2],
        "reversed": np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    }
    for right in rights.values():
        assert_same_bits(mp.matmul(a, right), expected)
    for left in lefts.values():
        assert_same_bits(mp.matmul(left, b), expected)
        assert_same_bits(mp.matmul(left, rights["packed"]), expected)
    for rows in (1, 2, 7):
        for right in (b, rights["packed"]):
            assert_same_bits(mp.matmul(a[:rows], right), expected[:rows])
    for threads in (1, 2, 3, 5):
        with mp.config.num_threads(threads):
            for right in (b, rights["packed"]):
                assert_same_bits(mp.matmul(a, right), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_special_values_reach_the_result(isa, dtype):
    a = np.array([[np.inf, 1, 0], [np.nan, 0, 0], [0, 0, 0], [1, -np.inf, 0], [np.inf, 0, 1]]).astype(dtype)
    b = np.array([[1, 0], [1, 2], [3, 4]]).astype(dtype)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(mp.matmul(a, b, out_dtype="float32"), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 7])
def test_padding_lanes_of_a_group_read_nothing(isa, dtype, k):
    """An infinity behind the last element of a row must not meet the padding of the panel: Inf * 0 is NaN."""
    memory = np.full((4, k + 5), np.inf if dtype == "bfloat16" else 127).astype(dtype)
    memory[:, :k] = 1
    b = np.ones((k, 3), memory.dtype)
    assert np.all(mp.matmul(memory[:, :k], b).astype(np.float32) == k)


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 4), (4,)),
        ((5, 2, 4), (4, 3)),
        ((5, 2, 4), (5, 4, 3)),
        ((2, 4), (5, 4, 3)),
        ((6, 1, 2, 4), (5, 4, 3)),
        ((5, 2, 4), (4,)),
        ((4,), (5, 4, 3)),
        ((0, 2, 4), (4, 3)),
        ((1, 1, 2, 4), (3, 1, 4, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8"])
def test_shapes_of_numpy_matmul(a_shape, b_shape, dtype, rng):
    a = rng.integers(-8, 9, a_shape).astype(dtype)
    b = rng.integers(-8, 9, b_shape).astype(dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    c = mp.matmul(a, b)
    assert c.shape == expected.shape
    np.testing.assert_array_equal(c.astype(np.float64), expected)
    if len(b_shape) >= 2 and dtype != "float64":
        np.testing.assert_array_equal(mp.matmul(a, mp.pack(b)).astype(np.float64), expected)


def test_attention_views(rng):
    """Heads as views of (batch, tokens, heads, width), the second product written into such a view."""
    q, k, v = (values(rng, (2, 9, 3, 8), "bfloat16").transpose(0, 2, 1, 3) for _ in range(3))
    scores = mp.matmul(q, k.transpose(0, 1, 3, 2), out_dtype="float32")
    expected = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 1, 3, 2)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-4)
    buffer = np.zeros((2, 9, 3, 8), ml_dtypes.bfloat16)
    out = buffer.transpose(0, 2, 1, 3)
    p = mp.cast(scores, "bfloat16")
    assert mp.matmul(p, v, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), mp.matmul(p, np.ascontiguousarray(v)))


@pytest.mark.parametrize(
    "pair",
    [
        ("float16", "bfloat16", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float16", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float64", "float16", "float64"),
        ("float8_e5m2", "float8_e5m2", "float8_e5m2"),
        ("int8", "float32", "float32"),
        ("float16", "int8", "float16"),
    ],
)
def test_default_result_type(pair):
    a_dtype, b_dtype, expected = pair
    a, b = np.ones((2, 3), a_dtype), np.ones((3, 2), b_dtype)
    assert mp.matmul(a, b).dtype == expected
    assert np.all(mp.matmul(a, b).astype(np.float64) == 3)


@pytest.mark.parametrize("out_dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float64"])
def test_result_types(isa, dtype, out_dtype, rng):
    a, b = rng.integers(-9, 9, (5, 40)).astype(dtype), rng.integers(-9, 9, (40, 21)).astype(dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    expected = exact.astype(out_dtype) if out_dtype in ("float64", "float32") else nearest(exact, out_dtype)
    assert_same_bits(mp.matmul(a, b, out_dtype=out_dtype), expected)


OUT = {
    "contiguous": lambda shape, dtype: np.empty(shape, dtype),
    "rows apart": lambda shape, dtype: np.empty((shape[0], shape[1] + 9), dtype)[:, 4:-5],
    "transposed": lambda shape, dtype: np.empty(shape[::-1], dtype).T,
    "reversed": lambda shape, dtype: np.empty(shape, dtype)[::-1],
    "columns apart": lambda shape, dtype: np.empty((shape[0], 2 * shape[1]), dtype)[:, ::2],
    "unaligned": lambda shape, dtype: (
        np.empty(shape[0] * shape[1] * np.dtype(dtype).itemsize + 1, np.uint8)[1:].view(dtype).reshape(shape)
    ),
}


@pytest.mark.parametrize("layout", OUT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_out(isa, layout, dtype, rng):
    a, b = values(rng, (7, 20), dtype), values(rng, (20, 33), dtype)
    out = OUT[layout]((7, 33), dtype)
    assert mp.matmul(a, b, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), mp.matmul(a, b))


@pytest.mark.parametrize("which", ["a", "b"])
def test_out_may_overlap_an_operand(which, rng):
    a, b = values(rng, (20, 20), "float32"), values(rng, (20, 20), "float32")
    expected = mp.matmul(a, b)
    mp.matmul(a, b, out={"a": a, "b": b}[which])
    assert_same_bits({"a": a, "b": b}[which], expected)


def test_out_may_overlap_bias_and_scales(rng):
    a, b, bias = values(rng, (20, 6), "float32"), values(rng, (6, 8), "float32"), values(rng, (8,), "float32")
    expected = mp.matmul(a, b, bias=bias)
    out = np.zeros((20, 8), np.float32)
    out[0] = bias
    assert_same_bits(mp.matmul(a, b, bias=out[0], out=out), expected)
    q, w = mp.quantize(a, axis=0), mp.quantize(b, axis=1)
    expected = mp.matmul(q, w)
    out[:, 0] = q.scale[:, 0]
    shared = mp.QuantizedArray(q.values, out[:, :1], None, (0,))
    assert_same_bits(mp.matmul(shared, w, out=out), expected)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("shape", [((2, 3, 0), (0, 4)), ((2, 3, 4), (4, 0)), ((2, 0, 4), (4, 5)), ((0, 3, 0), (0, 0))])
def test_empty_products_of_three_axes(dtype, shape):
    a, b = (np.zeros(one, dtype) for one in shape)
    for right in (b, mp.pack(b)):
        c = mp.matmul(a, right)
        assert c.shape == (*shape[0][:2], shape[1][1]) and not c.astype(np.float32).any()


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_bias_and_activation(isa, dtype, activation, rng):
    a, b, bias = values(rng, (9, 64), dtype, 1), values(rng, (64, 70), dtype, 1), rng.standard_normal(70)
    expected = ACTIVATIONS.get(activation, np.asarray)(a.astype(np.float64) @ b.astype(np.float64) + bias)
    for kind in ("float32", "float16", "bfloat16", "float64"):
        c = mp.matmul(a, b, bias=bias.astype(kind), activation=activation, out_dtype="float32")
        error = np.abs(c - expected).max()
        if dtype == kind == "float64":
            np.testing.assert_allclose(
                mp.matmul(a, b, bias=bias, activation=activation), expected, rtol=1e-12, atol=1e-12
            )
        assert error <= {"float32": 1e-4, "float64": 1e-4, "float16": 2e-3, "bfloat16": 2e-2}[kind]


def test_float64_results_round_once_or_not_at_all(isa):
    a, b = np.full((1, 70000), 127, np.int8), np.full((70000, 1), 127, np.int8)
    b[0] = 126
    assert mp.matmul(a, b, out_dtype="float64") == 127 * 127 * 70000 - 127
    x = np.array([[1 + 2.0**-8 + 2.0**-40]])
    assert_same_bits(mp.matmul(x, np.ones((1, 1)), out_dtype="bfloat16"), mp.cast(x, "bfloat16"))


def test_bias_of_an_empty_product_is_the_result():
    bias = np.array([1.0, -2.0, 3.0], np.float32)
    c = mp.matmul(np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), bias=bias, activation="relu")
    np.testing.assert_array_equal(c, [[1, 0, 3], [1, 0, 3]])


# ---- quantized operands


def test_quantized_product_is_the_rescaled_integer_product(isa, rng):
    x, w, bias = rng.standard_normal((9, 300)), rng.standard_normal((300, 50)), rng.standard_normal(50)
    q, k = mp.quantize(x, axis=0), mp.quantize(w, axis=1)
    total = (q.values.astype(np.int64) @ k.values.astype(np.int64)).astype(np.float32)
    expected = total * q.scale * k.scale + bias.astype(np.float32)
    for right in (k, mp.pack(k)):
        assert_same_bits(mp.matmul(q, right, bias=bias), expected)
    assert mp.matmul(q, mp.pack(k), out_dtype="bfloat16").dtype == ml_dtypes.bfloat16


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
    assert np.array_equal(mp.matmul(a, b, out_dtype="int32"), exact)
    assert_same_bits(mp.matmul(a, mp.pack(b)), exact.astype(np.float32) * a.scale * b.scale)


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
    assert_same_bits(mp.matmul(q, mp.pack(w)), mp.matmul(mp.dequantize(q, "bfloat16"), w))


def test_a_grouped_left_operand_is_dequantized_before_a_product(rng):
    x, w = rng.standard_normal((5, 1)).astype(np.float32), rng.standard_normal((1, 7)).astype(np.float32)
    a = mp.quantize(x, axis=1, group_size=2)
    right = mp.quantize(w, axis=1)
    assert_same_bits(mp.matmul(a, right), mp.matmul(mp.dequantize(a), right))
    q = mp.quantize(rng.standard_normal((64, 6)), axis=1, dtype="int4", group_size=32, symmetric=False)
    y = rng.standard_normal((3, 64)).astype(np.float32)
    assert_same_bits(mp.matmul(y, q), mp.matmul(y, mp.dequantize(q)))


# ---- packed matrices


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (1, 1), (3, 17), (65, 130), (2, 3, 33, 20), (2, 0, 4)])
def test_unpack_gives_the_matrix_back(isa, dtype, shape, rng):
    b = integers(rng, shape) if dtype == "int8" else values(rng, shape, dtype)
    packed = mp.pack(b)
    assert packed.shape == shape and packed.dtype == b.dtype
    assert_same_bits(packed.unpack(), b)
    assert_same_bits(mp.pack(np.asfortranarray(b)).unpack(), b)


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_packed_matrices_pickle_with_buffers_out_of_band(dtype, rng):
    b = integers(rng, (130, 70)) if dtype == "int8" else values(rng, (130, 70), dtype)
    packed = mp.pack(mp.quantize(b, axis=1)) if dtype == "int8" else mp.pack(b)
    buffers = []
    data = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2000 and buffers
    again = pickle.loads(data, buffers=buffers)
    assert_same_bits(again.unpack(), packed.unpack())
    a = b.T.copy() if dtype != "int8" else mp.quantize(b.T, axis=0)
    assert_same_bits(mp.matmul(a, again), mp.matmul(a, packed))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_packed_memory_is_the_narrow_bytes(dtype):
    """The bytes of the elements, k rounded up to 4 at most, 64 bytes of slack, and 4 for the sum of an int8 column."""
    for k, n in ((384, 1536), (64, 64), (4, 16), (1000, 81), (4096, 1)):
        packed = mp.pack(np.zeros((k, n), dtype))
        assert packed.data.nbytes == k * n * packed.dtype.itemsize + 64 and packed.data.ctypes.data % 64 == 0
        assert packed.nbytes == packed.data.nbytes + (4 * n if dtype == "int8" else 0)


def test_packing_casts(rng):
    b = values(rng, (20, 20), "float32")
    assert_same_bits(mp.pack(b, dtype="bfloat16").unpack(), b.astype(ml_dtypes.bfloat16))
    assert_same_bits(mp.pack(b, dtype="float8_e4m3fn").unpack(), b.astype(ml_dtypes.float8_e4m3fn))


def test_packed_beside_a_wider_left_operand(rng):
    a, b = values(rng, (3, 20), "float32"), values(rng, (20, 4), "bfloat16")
    assert_same_bits(mp.matmul(a, mp.pack(b)), mp.matmul(a, b))


BYTES, ZEROS = np.zeros(1088, np.uint8), np.zeros(16, np.int32)


@pytest.mark.parametrize(
    "arguments",
    [
        ((1000, 100000), "float32", BYTES),
        ((4, 4), "int8", np.zeros(80, np.uint8)),
        ((4,), "float32", BYTES),
        ((4, 16), "float64", BYTES),
        ((16, 16), "float32", BYTES.view(np.int8)),
        ((16, 16), "float32", BYTES, None, np.zeros(3, np.float32)),
        ((16, 16), "float32", BYTES[::2]),
        ((16, 16), "float32", None),
        ((-16, -16), "float32", BYTES),
        ((16, 16), ">f4", BYTES),
        ((2**60, 4), "float32", BYTES[:64]),  # sizes that are 0 modulo 2^64
        ((2**58, 64, 1), "float32", BYTES[:64]),
        ((0, 2**70, 3), "float32", BYTES[:64]),
        ((16, 16), "bfloat16", BYTES[:576], None, np.ones((2, 16), np.float32), None, 7),
        ((32, 16), "int4", BYTES[:320]),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], None, ZEROS),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], np.ones(16, np.float32), ZEROS + 128),
        ((4, 16), "int8", BYTES[:128], ZEROS[None], np.ones((1, 16), np.float32), ZEROS, 8),
        ((4, 16), "float8_e5m2", BYTES[:128], None, np.ones(16, np.float32), ZEROS),
    ],
)
def test_a_packed_matrix_checks_what_the_kernels_trust(arguments):
    shape, dtype, *parts = arguments
    with pytest.raises(ValueError, match=r"received|too big"):
        mp.PackedMatrix(shape, np.dtype(dtype), *parts)
    assert mp.PackedMatrix((16, 16), np.dtype("float32"), BYTES).nbytes == 1088


def test_a_packed_matrix_does_not_change(rng):
    q = mp.quantize(rng.standard_normal((16, 3)), axis=1)
    a, packed = values(rng, (2, 16), "float32"), mp.pack(q)
    expected = mp.matmul(a, packed)
    mp.quantize(rng.standard_normal((16, 3)), axis=1, out=q)
    packed.__init__((10**7, 3), packed.dtype, None)
    assert packed.shape == (16, 3)
    assert_same_bits(mp.matmul(a, packed), expected)
    for part in (packed.data, packed.column_sums, packed.scale):
        assert not part.flags.writeable

    class Unfinished(mp.PackedMatrix):
        def __init__(self, *arguments):
            pass

    with pytest.raises(ValueError, match="received"):
        Unfinished((10**7, 3), packed.dtype, None)
    with pytest.raises(TypeError):
        mp.PackedMatrix.__new__(mp.PackedMatrix)


@pytest.mark.parametrize("group", [8, 2**40 + 8, 2**62 + 8, 2**80])
@pytest.mark.parametrize("k", [0, 7, 3000])
def test_groups_of_any_length(isa, group, k):
    packed = mp.pack(np.ones((k, 33), np.int8))
    scale = np.full((-(-k // group), 33), 2, np.float32)
    packed = mp.PackedMatrix((k, 33), packed.dtype, packed.data, packed.column_sums, scale, None, group)
    for m in (1, 3, 5, 9):
        mp.matmul(
            np.full((9, 300), np.inf, np.float32), np.full((300, 33), np.inf, np.float32)
        )  # leaves infinities behind
        for dtype in ("float32", "bfloat16"):
            assert np.all(mp.matmul(np.ones((m, k), dtype), packed, out_dtype="float32") == 2 * k)


def test_operands_beyond_the_address_space_are_refused():
    one = np.ones(1, "float8_e4m3fn")
    with pytest.raises(ValueError, match="too big"):
        mp.pack(np.broadcast_to(one, (1, 2**62)))
    k = 6148914691236517206  # 3 k = 2 modulo 2^64: scratch of two bytes
    with pytest.raises(MemoryError, match="k = 6148914691236517206"):
        mp.matmul(np.broadcast_to(one, (1, k)), np.broadcast_to(one, (k, 1)))


@pytest.mark.parametrize("k", [1, 3, 17, 33, 49])  # malloc's headers hold 17, 33, 49
def test_two_vectors_give_a_number(k):
    x = np.ones(k, np.float32)
    assert_same_bits(mp.matmul(x, x), np.full((), k, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_residual_without_axes(dtype):
    x = np.ones(3, dtype)
    assert_same_bits(mp.matmul(x, x, residual=np.full((), 2, dtype)), np.full((), 5, dtype))


def test_scaled_float8_beside_float8_is_dequantized_in_any_layout(isa, rng):
    a, q = (
        values(rng, (8, 32), "float8_e4m3fn"),
        mp.quantize(rng.standard_normal((32, 20)), axis=1, dtype="float8_e4m3fn"),
    )
    expected = mp.matmul(a.astype(np.float32), mp.dequantize(q))
    for left in (a, np.asfortranarray(a)):
        assert_same_bits(mp.matmul(left, mp.pack(q)), expected)


# ---- errors

F = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: mp.matmul(F, F), ValueError, r"received shapes \(2, 3\) and \(2, 3\)"),
        (lambda: mp.matmul(F, np.float32(1)), ValueError, "at least 1 axis"),
        (lambda: mp.matmul(F, F.T, activation="tan"), ValueError, "`activation` must be .*received 'tan'"),
        (lambda: mp.matmul(F, F.T, bias=np.zeros(3)), ValueError, r"`bias` must have shape \(2,\); received \(3,\)"),
        (lambda: mp.matmul(F, F.T, out_dtype="int8"), TypeError, "`out_dtype` must be a float type"),
        (lambda: mp.matmul(F, F.T, out_dtype="int32"), TypeError, "`out_dtype` must be a float type"),
        (lambda: mp.matmul(F, F.T, out=np.zeros((3, 3), np.float32)), ValueError, "`out` must have shape"),
        (lambda: mp.matmul(F, F.T, out=np.zeros((2, 2))), TypeError, "`out` must have dtype float32"),
        (lambda: mp.matmul(F.astype(np.int32), F.T.astype(np.int32)), TypeError, "received int32 and int32"),
        (lambda: mp.matmul(F.astype(np.int8), F.T.astype(np.int8), bias=np.zeros(2)), TypeError, "need a float"),
        (lambda: mp.matmul(np.zeros((2, 2, 3), "f4"), np.zeros((3, 3, 2), "f4")), ValueError, "must broadcast"),
        (lambda: mp.matmul(F.astype("float8_e4m3fn"), F.T.astype("float8_e5m2")), TypeError, "never promote"),
        (lambda: mp.matmul("ab", F), TypeError, "`a` must be an array"),
        (lambda: mp.pack(np.zeros(3, np.float32)), ValueError, "at least 2 axes"),
        (lambda: mp.pack(np.zeros((3, 3))), TypeError, "received float64"),
        (lambda: mp.pack(F, dtype="int8"), TypeError, "quantize it first"),
        (lambda: mp.pack(mp.quantize(F), dtype="int8"), TypeError, "`dtype` must be None"),
        (lambda: mp.pack(mp.quantize(F, axis=0)), ValueError, "one scale or one per column"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()
