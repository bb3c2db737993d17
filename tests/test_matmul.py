import ml_dtypes
import numpy as np
import pytest
from oracles import ACTIVATIONS, FLOATS, assert_same_bits, integers, nearest, product_bound, values

import mp_core as mp
from mp_core.arrays.products.operands import multiply_normal

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


def test_products_of_float64_have_an_epilogue_in_float64():
    one, bias, residual = np.ones((1, 1)), np.array([2.0**-40]), np.array([[2.0**-50]])
    for other in (one, one.astype("bfloat16")):
        assert mp.matmul(one, other, bias=bias, activation="relu", residual=residual) == 1 + 2.0**-40 + 2.0**-50
        assert mp.matmul(one, other, bias=bias, residual=-one, out_dtype="float32") == np.float32(2.0**-40)


@pytest.mark.parametrize("layout", OUT)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_out(isa, layout, dtype, rng):
    a, b = values(rng, (7, 20), dtype), values(rng, (20, 33), dtype)
    out = OUT[layout]((7, 33), dtype)
    assert mp.matmul(a, b, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), mp.matmul(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("m", [1, 30])
def test_plain_uint8_on_the_right_is_a_number_and_no_code(isa, dtype, m, rng):
    a, b = values(rng, (m, 9), dtype, 1), rng.integers(0, 256, (9, 16)).astype(np.uint8)
    assert_same_bits(mp.matmul(a, b), mp.matmul(a, mp.cast(b, "float32"), out_dtype=mp.matmul(a, b).dtype))
    for kind in (np.int16, bool):
        with pytest.raises(TypeError, match=r"`b` int8 or a matrix of uint8; received \w+ and uint8"):
            mp.matmul(np.ones((2, 9), kind), b)


@pytest.mark.parametrize("start", [0, 1, 4, 16, 60])
@pytest.mark.parametrize(("m", "k"), [(1, 640), (1, 1023), (2, 704), (5, 300), (7, 1024), (12, 600)])
def test_columns_of_int8_may_begin_anywhere_in_a_cache_line(isa, start, m, k, rng):
    a, ld = rng.integers(-128, 128, (m, k), np.int8), -(-k // 64) * 64
    memory = rng.integers(-128, 128, 21 * ld + 128, np.int8)
    first = -memory.ctypes.data % 64 + start
    b = memory[first : first + 21 * ld].reshape(21, ld)[:, :k].T
    np.testing.assert_array_equal(mp.matmul(a, b), a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("m", "k", "n"), [(30, 32, 128), (128, 33, 32), (192, 1040, 48), (193, 64, 64), (128, 64, 50)])
def test_small_matrices_are_read_in_place_with_the_same_bits(isa, dtype, m, k, n, rng):
    a, b = values(rng, (3, m, k), dtype), values(rng, (3, k, n), dtype)
    expected = mp.matmul(a, mp.pack(b))
    assert_same_bits(mp.matmul(a, b), expected)
    assert_same_bits(mp.matmul(a[1], b[1], bias=np.ones(n)), mp.matmul(a[1], mp.pack(b[1]), bias=np.ones(n)))
    slice_of_more = np.concatenate([b[1]] * 5, axis=1)[:, n : 2 * n]
    assert_same_bits(mp.matmul(a[1], slice_of_more), expected[1])


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
        error = (np.abs(c - expected) / np.maximum(np.abs(expected), 1)).max()
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
        (lambda: mp.pack(mp.quantize(F, axis=0)), ValueError, "one number, one per column"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_more_axes_than_broadcast_shapes_knows():
    a, b = np.ones((1,) * 36 + (4, 3), np.float32), np.ones((1,) * 35 + (3, 2), np.float32)
    np.testing.assert_array_equal(mp.matmul(a[..., ::2, :], b), a[..., ::2, :] @ b)
    with pytest.raises(ValueError, match="leading axes of `a` and `b` must broadcast"):
        mp.matmul(np.ones((2, 1, 3)), np.ones((3, 3, 1)))


@pytest.mark.parametrize("wrong", ["a", "b", "out"])
def test_the_core_indexes_no_table_by_an_unknown_type(wrong):
    operands = {name: np.ones((2, 2), np.int64 if name == wrong else np.float32) for name in ("a", "b", "out")}
    a, b, out = operands.values()
    rest = (None, None, None), (None, None)
    if wrong == "out":
        result = multiply_normal(a, b, np.dtype(np.float32), out, *rest)
        assert result is not out and result.dtype == np.float32
    else:
        with pytest.raises(AssertionError, match="no ndarray of a type that kernels read"):
            multiply_normal(a, b, np.dtype(np.float32), out, *rest)


def test_activations_of_any_kind_of_str():
    x = np.float32([[-1, 2]])
    for name in (np.str_("relu"), type("Name", (str,), {})("relu")):
        np.testing.assert_array_equal(mp.matmul(x, np.eye(2, dtype=np.float32), activation=name), [[0, 2]])


def unaligned(x):
    """Return a copy of `x` whose first byte lies one behind a multiple of its item size."""
    copy = np.frombuffer(b" " + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
    assert not copy.flags.aligned
    return copy


@pytest.mark.parametrize("name", ["a", "b", "bias", "residual"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_unaligned_arguments_give_the_bits_of_aligned_ones(name, packed, dtype, rng):
    arguments = {
        "a": values(rng, (5, 7), dtype),
        "b": values(rng, (7, 9), dtype),
        "bias": values(rng, (9,), "float32"),
        "residual": values(rng, (5, 9), dtype),
    }

    def product():
        b = mp.pack(arguments["b"]) if packed else arguments["b"]
        return mp.matmul(arguments["a"], b, bias=arguments["bias"], residual=arguments["residual"])

    wanted = product()
    assert np.all(np.isfinite(wanted))
    arguments[name] = unaligned(arguments[name])
    assert_same_bits(product(), wanted)


def test_a_float64_vector_by_a_vector_with_bias_has_no_axes():
    x = np.arange(3.0)
    assert mp.matmul(x, x, bias=[1.0]).shape == ()
    assert mp.matmul(x, x, bias=[1.0]) == 6.0
