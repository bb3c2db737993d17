"""One product, one answer: the same bits from every instruction set, thread count, batch, layout and format."""

import numpy as np
import pytest
from oracles import FLOATS, assert_same_bits, values
from orders import ORDERS, added, sets

import mp_core as mp
from mp_core.core import cpu

WIDE = FLOATS[:3]
ROWS = (1, 2, 3, 4, 7, 26, 64)


def patterns(rng, shape, dtype):
    """Random bits: subnormal numbers, infinities and NaN of every kind are among them."""
    dtype = np.dtype(dtype)
    return rng.integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype)[..., 0]


def operands(rng, dtype, k, n):
    """Numbers of moderate size with a few random patterns in some rows and columns; any int8."""
    if dtype == "int8":
        return patterns(rng, (64, k), dtype), patterns(rng, (k, n), dtype)
    a, b = values(rng, (64, k), dtype, 3), values(rng, (k, n), dtype, 3)
    special = min(9, n)
    a[:5], b[:, :special] = patterns(rng, (5, k), dtype), patterns(rng, (k, special), dtype)
    a[:, k // 2 :: 7] = 0
    return a, b


@pytest.fixture(scope="module", params=ORDERS)
def isas(request):
    """The instruction sets that add in one order, best first: the results of the first are the reference of all."""
    with added(request.param):
        yield sets(request.param)


@pytest.mark.parametrize(("k", "n"), [(2100, 160), (1031, 150), (64, 208)])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_grid(dtype, k, n, rng, isas):
    """Few rows read b in place: rows that end within a vector (150), columns within a group (1031) or a block."""
    a, b = operands(rng, dtype, k, n)
    cpu.set_isa(isas[0])
    expected = mp.matmul(a, b)
    wide = np.zeros((2 * k, 3 * n), b.dtype)
    wide[::2, ::3] = b
    rights = {
        "unpacked": b,
        "packed": mp.pack(b),
        "transposed": np.ascontiguousarray(b.T).T,
        "strided": wide[::2, ::3],
        "rows apart": np.concatenate([b, b], axis=1)[:, :n],
    }
    for isa in isas:
        cpu.set_isa(isa)
        for rows in ROWS if isa != "scalar" else (1, 4):
            for right in rights.values():
                assert_same_bits(mp.matmul(a[:rows], right), expected[:rows])
    for threads in (1, 2, 3, 5):
        with mp.config.num_threads(threads):
            for rows in ROWS:
                for right in rights.values():
                    assert_same_bits(mp.matmul(a[:rows], right), expected[:rows])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("m", [203, 1051])
@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_tall_products_are_their_rows(dtype, m, threads, rng, isas):
    """Runs of tiles, more than one chunk of rows, sums kept between blocks of k, rows of a made wide or contiguous."""
    for k, n in (2100, 208), (77, 64):
        a, b = operands(rng, dtype, k, n)
        a = np.concatenate([a[rng.permutation(64)] for _ in range(-(-m // 64))])[:m]
        gaps = np.concatenate([a, a], axis=1)[:, :k]
        expected = np.concatenate([mp.matmul(a[i : i + 1], mp.pack(b)) for i in range(m)])
        for isa in set(isas) - {"scalar"}:  # which takes minutes
            cpu.set_isa(isa)
            with mp.config.num_threads(threads):
                for right in (mp.pack(b), b, np.asfortranarray(b)):
                    for left in (a, gaps, np.asfortranarray(a)):
                        assert_same_bits(mp.matmul(left, right), expected)
        cpu.set_isa(isas[0])


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
def test_some_rows_of_a_matrix_in_memory(dtype, rng, isas):
    """Short ranges of k, and rows that panels share out to fetch: rows of b side by side, apart, or backwards."""
    a, b = operands(rng, dtype, 1100, 600)
    expected = np.concatenate([mp.matmul(a[i : i + 1], mp.pack(b)) for i in range(49)])
    rights = {
        "packed": mp.pack(b),
        "rows": b,
        "rows apart": np.concatenate([b, b[:, :9]], axis=1)[:, :600],
        "backwards": np.ascontiguousarray(b[::-1])[::-1],
        "alike": np.broadcast_to(b[0], b.shape),
        "columns": np.asfortranarray(b),
    }
    alike = np.concatenate([mp.matmul(a[i : i + 1], mp.pack(rights["alike"])) for i in range(49)])
    for isa in set(isas) - {"scalar"}:  # which takes minutes
        cpu.set_isa(isa)
        for rows in (7, 8, 10, 16, 23, 33, 49):
            for layout, right in rights.items():
                assert_same_bits(mp.matmul(a[:rows], right), (alike if layout == "alike" else expected)[:rows])
    cpu.set_isa(isas[0])


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize(("k", "n"), [(2049, 1500), (1027, 2304), (2110, 1281)])
def test_one_row_of_a_packed_matrix_in_memory(dtype, k, n, rng, isas):
    """Panels in turn: an odd number of groups, an incomplete group, panels that are left, whole ones or not."""
    a, b = operands(rng, dtype, k, n)
    packed, bias = mp.pack(b), rng.standard_normal(n, np.float32)
    how = {} if dtype == "int8" else {"bias": bias, "activation": "gelu"}
    cpu.set_isa(isas[0])
    expected = mp.matmul(a[:2], packed, **how)
    for isa in set(isas) - {"scalar"}:  # which takes minutes
        cpu.set_isa(isa)
        for threads in (1, 3):
            with mp.config.num_threads(threads):
                for row in range(2):
                    assert_same_bits(mp.matmul(a[row : row + 1], packed, **how), expected[row : row + 1])
    cpu.set_isa(isas[0])


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 66, 1024, 1025])
@pytest.mark.parametrize("n", [15, 16, 17, 63, 64, 65, 300])
def test_odd_lengths(dtype, k, n, rng, isas):
    """Where reading in place ends: within a group of k, within a vector of n, after a few rows, at a block of k."""
    a, b = operands(rng, dtype, k, n)
    apart = np.concatenate([b, b[:, :5]], axis=1)[:, :n]
    for isa in isas:
        cpu.set_isa(isa)
        for rows in (1, 5, 6, 7, 20):
            expected = mp.matmul(a[:rows], mp.pack(b))
            for right in (b, apart, b[::-1][::-1], np.asfortranarray(b), np.ascontiguousarray(b[::-1])[::-1]):
                assert_same_bits(mp.matmul(a[:rows], right), expected)


@pytest.mark.parametrize("dtype", [*WIDE, "int8"])
@pytest.mark.parametrize(
    ("k", "n", "apart", "offset"),
    [
        (1300, 75, 2048, 0),
        (1300, 75, 2048, 4),
        (2200, 64, 4096, 12),
        (300, 33, 301, 1),
        (1024, 8300, 1024, 0),
        (1023, 1056, 1025, 3),
    ],
)
def test_columns_in_pieces(dtype, k, n, apart, offset, rng, isas):
    """Contiguous columns, pages apart or not, that begin within a cache line; more of them than caches hold."""
    memory = np.zeros(offset + n * apart, dtype)
    b = memory[offset:].reshape(n, apart)[:, :k].T
    a, b[...] = operands(rng, dtype, k, n)
    expected = mp.matmul(a[:25], mp.pack(b))
    for isa in isas:
        cpu.set_isa(isa)
        for rows in range(1, 26) if n < 100 and isa != "scalar" else (1, 3):
            assert_same_bits(mp.matmul(a[:rows], b), expected[:rows])


@pytest.mark.parametrize(
    ("a_dtype", "b_dtype"), [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float16")]
)
@pytest.mark.parametrize(("k", "n"), [(1023, 1056), (2050, 528), (1024, 560)])
def test_one_row_of_another_type_by_columns_from_memory(a_dtype, b_dtype, k, n, isa, rng):
    a, b = operands(rng, a_dtype, k, n)[0][:1], operands(rng, b_dtype, k, n)[1]
    assert_same_bits(mp.matmul(a, np.asfortranarray(b)), mp.matmul(a, mp.pack(b)))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("k", [1026, 1027, 2047, 2048, 2049, 2051, 3072, 4096, 4101])
@pytest.mark.parametrize("n", [16, 17, 33, 63, 130])
def test_odd_lengths_of_several_blocks(dtype, k, n, rng, isas):
    a, b = operands(rng, dtype, k, n)
    for isa in isas:
        cpu.set_isa(isa)
        for rows in (1, 6, 20) if isa != "scalar" else (2,):
            expected = mp.matmul(a[:rows], mp.pack(b))
            for right in (b, np.asfortranarray(b)):
                assert_same_bits(mp.matmul(a[:rows], right), expected)


@pytest.mark.parametrize("b_dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("a_dtype", WIDE)
def test_mixed_operands_are_widened_where_they_multiply(a_dtype, b_dtype, isa, rng):
    """Exactly what the product of the widened operands gives: in bfloat16 where it holds both, else in float32."""
    k, n = (1100, 100) if isa != "scalar" else (83, 70)
    a, b = operands(rng, a_dtype, k, n)[0], operands(rng, b_dtype, k, n)[1]
    met = "bfloat16" if a_dtype == "bfloat16" and b_dtype not in ("float32", "float16") else "float32"
    expected = mp.matmul(mp.cast(a, met), mp.cast(b, met), out_dtype="float32")
    assert mp.matmul(a, b).dtype == (a.dtype if b_dtype not in WIDE else mp.dtypes.result_type(a.dtype, b.dtype))
    for rows in ROWS:
        for right in (b, mp.pack(b), np.asfortranarray(b)):
            assert_same_bits(mp.matmul(a[:rows], right, out_dtype="float32"), expected[:rows])


@pytest.mark.parametrize("group", [None, 8, 64, 128, 4096])
@pytest.mark.parametrize("q_dtype", ["int4", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("a_dtype", WIDE)
def test_scales_by_groups_of_k(a_dtype, q_dtype, group, isa, rng):
    """Each group is a block of k, its sum scaled: s_0 c_0, then fma(s_g, c_g, ...); one scale per column comes last."""
    k, n = (331, 70) if isa != "scalar" else (83, 20)
    a, w = values(rng, (64, k), a_dtype, 2), rng.standard_normal((k, n))
    q = mp.quantize(w, axis=1, dtype=q_dtype, group_size=group)
    packed = mp.pack(q)
    assert packed.shape == (k, n) and packed.dtype.name == q_dtype
    exact = a.astype(np.float64) @ mp.dequantize(q).astype(np.float64)
    got = mp.matmul(a, packed, out_dtype="float32")
    bound = (k + 4 + k // (group or k)) * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(mp.dequantize(q)))
    assert np.all(np.abs(got - exact) <= 1.01 * bound)
    for rows in ROWS:
        assert_same_bits(mp.matmul(a[:rows], packed, out_dtype="float32"), got[:rows])
    codes = mp.cast(packed.unpack(), "float32")
    sums = (
        [mp.matmul(mp.cast(a[:, i : i + group], "float32"), codes[i : i + group]) for i in range(0, k, group or k)]
        if group
        else [mp.matmul(mp.cast(a, "float32"), codes)]
    )
    if a_dtype != "bfloat16":  # the order within a group is that of float32
        scale = packed.scale if group else packed.scale[None]
        stated = (sums[0] * scale[0]).astype(np.float64)
        for s, row in zip(sums[1:], scale[1:], strict=True):
            stated = (s.astype(np.float64) * row + stated).astype(np.float32).astype(np.float64)
        np.testing.assert_array_max_ulp(got, stated.astype(np.float32), maxulp=1)  # float64 rounds the fma twice


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("m", [2, 5, 300])
def test_one_column_is_the_transposed_row(dtype, m, isa, rng):
    a, b = (x.copy() for x in operands(rng, dtype, 1100 if isa != "scalar" else 77, 3))
    a = np.resize(a, (m, a.shape[1]))
    expected = mp.matmul(a, b)
    assert_same_bits(mp.matmul(a, b[:, :1]), expected[:, :1])
    assert_same_bits(mp.matmul(a, b[:, 1]), expected[:, 1])
    assert_same_bits(mp.matmul(np.asfortranarray(a), b[:, 2].copy()), expected[:, 2])
    assert_same_bits(mp.matmul(np.stack([a, a]), b[:, 1]), np.stack([expected[:, 1]] * 2))


@pytest.mark.parametrize("b_dtype", [*FLOATS, "int8"])
@pytest.mark.parametrize("a_dtype", WIDE)
def test_one_column_of_another_type(a_dtype, b_dtype, isa, rng):
    a, b = operands(rng, a_dtype, 77, 3)[0], operands(rng, b_dtype, 77, 3)[1]
    expected = mp.matmul(a, b)
    assert_same_bits(mp.matmul(a, b[:, :1]), expected[:, :1])
    assert_same_bits(mp.matmul(a, b[:, 1]), expected[:, 1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_residual_is_added_last(dtype, isa, rng):
    a, b, bias = values(rng, (9, 40), "float32"), values(rng, (40, 70), "float32"), values(rng, 70, "float32")
    residual = values(rng, (9, 70), dtype)
    expected = mp.matmul(a, b, bias=bias, activation="silu") + residual.astype(np.float32)
    assert_same_bits(mp.matmul(a, b, bias=bias, activation="silu", residual=residual), expected)
    out = residual.astype(np.float32)
    assert_same_bits(mp.matmul(a, b, bias=bias, activation="silu", residual=out, out=out), expected)
    assert_same_bits(mp.matmul(a[0], b, bias=bias, activation="silu", residual=residual[0]), expected[0])
    a, b, residual = (np.stack([x, x]) for x in (a, b, residual))
    stacked = mp.matmul(a, b, bias=bias, activation="silu", residual=residual)
    assert_same_bits(stacked, np.stack([expected, expected]))


def test_the_callers_floating_point_environment_does_not_count(rng):
    """A process that flushes subnormal numbers, as torch.set_flush_denormal does, gets the same products."""
    libm = pytest.importorskip("ctypes").CDLL(None)
    if not hasattr(libm, "fesetenv") or not hasattr(libm, "fegetenv"):
        pytest.skip("no C library with fesetenv")
    import ctypes

    a, b = (np.float32(2.0**-70) * values(rng, (3, 20), "float32") for _ in "ab")
    b = b.T.copy()
    expected = mp.matmul(a, b)
    assert np.any((expected != 0) & (np.abs(expected) < 2.0**-126))
    saved, changed = (ctypes.create_string_buffer(64) for _ in range(2))
    libm.fegetenv(saved)
    changed.raw = saved.raw
    mxcsr = int.from_bytes(saved.raw[28:32], "little")
    changed[28:32] = (mxcsr | 0x8040 | 0x6000).to_bytes(4, "little")  # FTZ, DAZ, towards zero
    try:
        libm.fesetenv(changed)
        got = mp.matmul(a, b)
    finally:
        libm.fesetenv(saved)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("codes", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("m", [1, 2, 5, 17])
def test_every_code_is_decoded_exactly(isa, dtype, codes, m):
    """A one times a row of all codes, in each place of a group. Oracle: ml_dtypes."""
    every = np.arange(256, dtype=np.uint8)
    for row in range(8):
        b = np.zeros((8, 256), np.uint8)
        b[row] = every
        a = np.zeros((m, 8), dtype)
        a[:, row] = 1
        got = mp.matmul(a, mp.pack(b.view(codes)), out_dtype="float32")
        expected = every.view(codes).astype(np.float32)
        assert np.array_equal(got, np.broadcast_to(expected, got.shape), equal_nan=True)
