"""No kernel touches a byte outside its operands: each operand ends, or begins, at a protected page."""

import dataclasses
import mmap

import numpy as np
import pytest
from guards import PAGE, Guarded, Places, forbid
from oracles import NARROW, assert_same_bits

import mp_core as mp


@pytest.fixture(scope="module")
def guards():
    return [Guarded(pages=304) for _ in range(8)]


@pytest.fixture(params=[True, False], ids=["against the end", "against the start"])
def place(request, guards):
    return Places(guards, request.param)


@pytest.mark.parametrize("n", [1, 7, 15, 16, 17, 31, 100])
@pytest.mark.parametrize("dtype", NARROW)
def test_casts(isa, place, n, dtype, rng):
    x, out = place(rng.standard_normal(n).astype(np.float32)), place(np.zeros(n, dtype))
    back = place(np.zeros(n, np.float32))
    mp.cast(x, dtype, out=out)
    mp.cast(out, "float32", out=back)


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        *[(1, 1, 1), (7, 3, 17), (2, 5, 15), (6, 17, 65), (5, 30, 49), (13, 7, 64), (3, 77, 18), (14, 200, 33)],
        *[(1, 30, 130), (1, 77, 100), (1, 96, 80), (16, 45, 81)],  # one row reads b in memory's order
        *[
            (1, 77, 64),
            (1, 601, 512),
        ],  # and columns where they lie; 601 x 512 x 2 bytes are more than half of an L2 of 1 MiB
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_products(isa, place, dtype, m, k, n, rng):
    a, b = (place(rng.integers(-9, 9, shape).astype(dtype)) for shape in ((m, k), (k, n)))
    out = place(np.zeros((m, n), "int32" if dtype == "int8" else dtype))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    for right in (b, mp.pack(b)):
        mp.matmul(a, right, out=out)
        if dtype != "bfloat16" and dtype != "float16":
            np.testing.assert_array_equal(out.astype(np.float64), exact)
    if dtype != "int8":
        bias = place(np.zeros(n, np.float32))
        mp.matmul(a, b, out=out, bias=bias, activation="gelu")
    transposed = place(np.ascontiguousarray(b.T)).T
    mp.matmul(a, transposed, out=out)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_rows_before_pages_that_must_not_be_touched(isa, dtype):
    """Products read a few rows of b as they lie, whole vectors at a time."""
    m, k, n = 4, 8, 24
    size, memory = np.dtype(dtype).itemsize, mmap.mmap(-1, 2 * PAGE * (k + 1))
    room = np.frombuffer(memory, np.uint8)
    b = np.ndarray((k, n), dtype, room, PAGE - n * size, (2 * PAGE, size))
    b[...] = 1
    for row in range(k):
        forbid(room.ctypes.data + (2 * row + 1) * PAGE)
    np.testing.assert_array_equal(mp.matmul(np.ones((m, k), dtype), b).astype(int), np.full((m, n), k))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("length", "size"), [(1, 1), (3, 7), (17, 33), (40, 16)])
def test_attention(isa, place, length, size, dtype, rng):
    given = [mp.cast(rng.standard_normal((2, length, 2, size)), dtype) for _ in range(3)]
    bias, mask = rng.standard_normal((length, length)).astype(np.float32), rng.random((length, length)) < 0.7
    expected = mp.dot_product_attention(*given, bias, mask)
    assert_same_bits(mp.dot_product_attention(*map(place, given), place(bias), place(mask)), expected)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
def test_rows_and_quantization(isa, place, n, rng):
    x, out = place(rng.standard_normal((3, n)).astype(np.float32)), place(np.zeros((3, n), np.float32))
    mask, gamma = place(rng.random((3, n)) < 0.5), place(np.ones(n, np.float32))
    mp.softmax(x, mask=mask, out=out)
    mp.layer_norm(x, gamma, gamma, residual=x, out=out)
    mp.gelu(x, out=out)
    for axis in (None, 0, 1):
        q = mp.quantize(x, axis=axis)
        mp.dequantize(q)


TAILS = [1, 15, 16, 17, 33, 63, 64, 65, 130]


@pytest.mark.parametrize("n", TAILS)
@pytest.mark.parametrize("dtype", mp.dtypes.ALLOWED)
def test_casts_of_every_type(isa, place, dtype, n, rng):
    """Each source by each target, contiguous, from every other element and into every other one."""
    x = place(rng.integers(0, 2, n).astype(dtype))
    apart = place(np.repeat(x, 2)[:-1])[::2]
    for target in (*NARROW, "float32", "float64", "int8"):
        expected = np.asarray(x).astype(target)
        out = place(np.zeros(n, target))
        assert_same_bits(mp.cast(x, target, out=out), expected)
        assert_same_bits(mp.cast(apart, target, out=out, saturate=True), expected)
        place.back(1)
        spread = place(np.zeros(2 * n - 1, target))[::2]
        assert_same_bits(mp.cast(x, target, out=spread), expected)
        place.back(1)


PAIRS = [
    *(
        (a, b)
        for a in ("float32", "float16", "bfloat16")
        for b in ("float32", "float16", "bfloat16", *NARROW[2:], "int8")
    ),
    ("float8_e4m3fn", "float8_e4m3fn"),
    ("int8", "int8"),
    ("uint8", "int8"),
]


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 9, 17), (1, 33, 65), (3, 1, 63), (7, 31, 65), (15, 17, 16), (17, 66, 130)]
)
@pytest.mark.parametrize("types", PAIRS, ids=" by ".join)
def test_products_of_every_pair_of_types(isa, place, types, m, k, n, rng):
    """Unpacked, transposed and packed right operands, all parts of the epilogue, in every type of the result."""
    a, b = (
        place(rng.integers(0, 3, shape).astype(dtype)) for shape, dtype in zip(((m, k), (k, n)), types, strict=True)
    )
    columns = place(np.ascontiguousarray(b.T)).T
    bias, residual = place(np.ones(n, np.float32)), place(np.ones((m, n), np.float32))
    packed, exact = mp.pack(b), a.astype(np.float64) @ b.astype(np.float64)
    room = (mp.PackedMatrix(packed.shape, packed.dtype, place(packed.data), packed.column_sums), b, columns)
    for right in room:
        if "int" in types[0]:
            assert_same_bits(mp.matmul(a, right), exact.astype(np.int32))
            continue
        for out_dtype in ("float32", "bfloat16"):
            result = mp.matmul(a, right, out_dtype=out_dtype, bias=bias, residual=residual, activation="relu")
            assert_same_bits(result, mp.cast(exact + 2, out_dtype))


KINDS = [
    {"axis": 1},
    {"axis": 1, "dtype": "uint8", "symmetric": False},
    {"axis": 1, "dtype": "int8", "symmetric": False},
    {"axis": 1, "dtype": "float8_e4m3fn"},
    {"axis": 1, "dtype": "int4"},
    {"axis": 1, "dtype": "int4", "group_size": 8},
    {"axis": 1, "dtype": "int8", "group_size": 16},
    {"axis": 1, "dtype": "float8_e5m2", "group_size": 24},
    {"axis": 0, "dtype": "int4", "group_size": 5},
    {"axis": 0, "dtype": "uint8", "symmetric": False, "group_size": 7},
    {"dtype": "int4"},
]


@pytest.mark.parametrize(("k", "n"), [(1, 1), (9, 17), (17, 63), (33, 65), (65, 130)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_quantization_of_every_kind(isa, place, kind, k, n, rng):
    """Numbers, codes, scales and zero points, each at a page; then products by them, dynamic ones too."""
    w = rng.standard_normal((k, n)).astype(np.float32)
    expected = mp.quantize(w, **kind)
    parts = {"values": place(expected.values), "scale": place(expected.scale)}
    parts |= {} if expected.zero_point is None else {"zero_point": place(expected.zero_point)}
    q = dataclasses.replace(expected, **parts)
    x = place(w)
    q.values[...] = 0
    mp.quantize(x, out=q, **kind)
    assert_same_bits(q.values, expected.values)
    assert_same_bits(mp.dequantize(q, out=x), mp.dequantize(expected))
    for dtype in ("float16", "bfloat16"):
        assert_same_bits(mp.dequantize(q, dtype), mp.dequantize(expected, dtype))
    for m in (1, 7):
        a = np.ones((m, k), np.float32)
        assert_same_bits(mp.matmul(a, q), mp.matmul(a, expected))
        assert_same_bits(mp.matmul(mp.quantize(a, axis=0), q), mp.matmul(mp.quantize(a, axis=0), expected))
        if kind == {"axis": 1}:
            assert_same_bits(mp.ops.dynamic_matmul(a, mp.pack(q)), mp.ops.dynamic_matmul(a, mp.pack(expected)))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (1, 9, 17), (7, 24, 63), (17, 40, 65), (40, 65, 130)])
@pytest.mark.parametrize("group", [None, 8, 16])
@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_int4_of_every_shape(isa, place, m, k, n, group, symmetric, rng):
    """Rows, panels, scales and zero points, each at a page, beside floats and beside rows that become int8."""
    w = rng.standard_normal((k, n)).astype(np.float32)
    packed = mp.pack(mp.quantize(w, axis=1, dtype="int4", group_size=group, symmetric=symmetric))
    zero = None if packed.zero_point is None else place(packed.zero_point)
    size = packed.group_size
    placed = mp.PackedMatrix(packed.shape, packed.dtype, place(packed.data), None, place(packed.scale), zero, size)
    for dtype in ("float32", "bfloat16"):
        x = place(mp.cast(rng.standard_normal((m, k)), dtype))
        out = place(np.zeros((m, n), dtype))
        assert_same_bits(mp.matmul(x, placed, out=out), mp.matmul(x.copy(), packed))
        assert_same_bits(mp.dynamic_matmul(x, placed, out=out), mp.dynamic_matmul(x.copy(), packed))
        place.back(2)


@pytest.mark.parametrize("n", TAILS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_rows_of_every_type(isa, place, dtype, n, rng):
    x, out = place(rng.standard_normal((3, n)).astype(dtype)), place(np.zeros((3, n), dtype))
    mask, gamma = place(rng.random((3, n)) < 0.5), place(np.ones(n, np.float32))
    residual = place(np.zeros((3, n), dtype))
    plain = x.copy()
    assert_same_bits(mp.softmax(x, mask=mask, out=out), mp.softmax(plain, mask=mask.copy()))
    assert_same_bits(mp.softmax(x, axis=0, out=out), mp.softmax(plain, axis=0))
    assert_same_bits(mp.layer_norm(x, gamma, gamma, residual=residual, out=out), mp.layer_norm(plain, gamma, gamma))
    for axis in (0, 1, None):
        assert_same_bits(mp.sum(x, axis), mp.sum(plain, axis))
    for name in ("relu", "relu6", "gelu", "silu", "sigmoid", "tanh"):
        activate = getattr(mp.ops, name)
        assert_same_bits(activate(x, out=out), activate(plain))


LAYOUTS = {
    "columns": lambda x, place: place(np.ascontiguousarray(x.T)).T,
    "backwards": lambda x, place: place(np.ascontiguousarray(x[::-1]))[::-1],
    "columns backwards": lambda x, place: place(np.ascontiguousarray(x[:, ::-1]))[:, ::-1],
    "every other row": lambda x, place: place(np.repeat(x, 2, 0)[:-1])[::2],
    "every other column": lambda x, place: place(np.repeat(x, 2, 1)[:, :-1])[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "kind",
    [
        *({"dtype": dtype, "axis": axis} for dtype in ("int8", "uint8", "int4", "float8_e4m3fn") for axis in (0, 1)),
        *({"dtype": dtype, "axis": 1, "symmetric": False} for dtype in ("int8", "uint8", "int4", "uint4")),
        {"dtype": "int16", "axis": 1, "scale": 1e-3},
        *({"dtype": dtype, "axis": 1, "group_size": 8} for dtype in ("int8", "int4", "float8_e5m2")),
        {"dtype": "int4", "axis": 1, "group_size": 5},
        {"dtype": "int4", "axis": 0, "group_size": 5},
    ],
    ids=str,
)
def test_strided_codes(isa, place, layout, kind, rng):
    """Codes may lie in any order: of every kind, on either side of a product, in what they stand for."""
    w = rng.standard_normal((33, 21)).astype(np.float32)
    q, rows = mp.quantize(w, **kind), mp.quantize(rng.standard_normal((4, 33)), axis=0)
    x = rng.standard_normal((4, 33)).astype(np.float32)
    strided = dataclasses.replace(q, values=LAYOUTS[layout](q.values, place))
    assert not strided.values.flags.c_contiguous
    assert_same_bits(mp.dequantize(strided), mp.dequantize(q))
    assert_same_bits(mp.dequantize(strided, out=place(np.zeros_like(w))), mp.dequantize(q))
    for left in (x, x.astype(np.float16), rows):
        assert_same_bits(mp.matmul(left, strided), mp.matmul(left, q))
        assert_same_bits(mp.einsum("mk,kn->mn", left, strided), mp.matmul(left, q))
    right = rng.standard_normal((21, 9)).astype(np.float32)
    for b in (right, mp.quantize(right, axis=1), mp.pack(mp.quantize(right, axis=1))):
        assert_same_bits(mp.matmul(strided, b), mp.matmul(q, b))
