"""sum and mean: the stated order bit for bit, the stated bound, axes, layouts and hostile input."""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest
from oracles import NARROW, assert_same_bits, gamma, stated_sum, values

import mp_core as mp

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPES = [
    ((), None),
    ((5,), 0),
    ((0,), 0),
    ((3, 0, 2), 1),
    ((3, 0, 2), 2),
    ((4097,), None),
    ((3, 70000), 1),
    ((9000, 37), 0),
]
SHAPES += [((5, 300, 7), 1), ((2, 3, 4, 5), (1, 3)), ((2, 3, 4, 5), (1, 2)), ((2, 3, 4, 5), (-1, 0)), ((6, 1, 5), ())]


def bound_of(n):
    """The error of a sum of n numbers, relative to the sum of their magnitudes (docs/numerics.md)."""
    return gamma(min(-(-n // 16), 256) + math.ceil(math.log2(max(-(-n // 4096), 1))) + 4)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", *NARROW])
def test_sums_keep_the_bound(isa, shape, axis, dtype, rng):
    x = values(rng, shape, dtype, 3)
    wide = x.astype(np.float64)
    for keepdims in (False, True):
        exact, size = np.sum(wide, axis, keepdims=keepdims), np.sum(abs(wide), axis, keepdims=keepdims)
        n = x.size // max(exact.size, 1)
        result = mp.sum(x, axis, keepdims=keepdims, out_dtype="float32")
        assert result.shape == exact.shape and result.dtype == np.float32
        assert np.all(abs(result - exact) <= bound_of(n) * size)
        if n:
            means = mp.mean(x, axis, keepdims=keepdims, out_dtype="float32")
            assert np.all(abs(means - exact / n) <= (bound_of(n) + 2.0**-23) * size / n + 2.0**-149)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 4096, 4097, 3 * 4096 + 20, 7 * 4096, 21 * 4096 + 5])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_and_columns_are_summed_in_the_stated_order(n, threads, isa, rng):
    x = rng.standard_normal((3, n), np.float32)
    stated = np.array([stated_sum(row) for row in x])
    with mp.config.num_threads(threads):
        assert_same_bits(mp.sum(x, axis=1), stated)
        assert_same_bits(mp.sum(np.ascontiguousarray(x.T), axis=0), stated)
        assert_same_bits(mp.sum(np.asfortranarray(x), axis=1), stated)
        assert_same_bits(mp.sum(np.repeat(x, 2, axis=1)[:, ::2], axis=-1), stated)
        assert_same_bits(mp.sum(x[:, ::-1], axis=1), np.array([stated_sum(row) for row in x[:, ::-1]]))
        assert_same_bits(mp.mean(x, axis=1), stated / np.float32(n))
        assert_same_bits(mp.sum(x, axis=(0, 1)), stated_sum(x.ravel()))


def test_wide_columns_have_the_bits_of_rows(isa, rng):
    x = rng.standard_normal((2, 5000, 600)).astype(BF16)
    for threads in (1, 4):
        with mp.config.num_threads(threads):
            columns = mp.sum(x, axis=1, out_dtype="float32")
            assert_same_bits(columns, mp.sum(np.ascontiguousarray(np.moveaxis(x, 1, 2)), axis=2, out_dtype="float32"))
            assert_same_bits(columns, mp.sum(np.moveaxis(x, 1, 0), axis=0, out_dtype="float32"))


def test_what_ml_dtypes_loses():
    ones = np.ones(1000, BF16)
    assert float(ones.sum()) == 256 and float(mp.sum(ones)) == 1000
    assert float(mp.mean(ones)) == 1
    assert mp.sum(np.ones(1000, ml_dtypes.float8_e4m3fn)) == np.float32(1000)


def test_results_have_the_stated_types():
    for name, total, average in (
        ("bfloat16", "bfloat16", "bfloat16"), ("float8_e5m2", "float32", "float32"), ("float64", "float64", "float64"),
        ("int8", "int64", "float32"), ("bool", "int64", "float32"), ("uint8", "uint64", "float32"),
    ):  # fmt: skip
        x = np.ones((2, 3), mp.dtypes.parse(name))
        assert mp.sum(x, 1).dtype.name == total and mp.mean(x, 1).dtype.name == average
        assert mp.sum(x, 1).tolist() == [3, 3] and mp.mean(x, 0).tolist() == [1, 1, 1]
    assert mp.sum(np.full(300, 100, np.int8)) == 30000
    assert mp.sum(np.array([2**62, 2**62, -(2**63)])) == 0
    assert mp.sum(np.arange(4, dtype=np.int32), out_dtype="float16").dtype == np.float16
    assert mp.mean([1, 2]) == np.float32(1.5)
    assert mp.sum(np.full(4, 0.1, np.float32), out_dtype="float64") == np.float64(np.float32(0.1) * 4)


def test_empty_sums_nan_and_infinity():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mp.sum(np.zeros((3, 0), np.float32), 1).tolist() == [0, 0, 0]
        assert np.isnan(mp.mean(np.zeros((3, 0), BF16), 1).astype(np.float32)).all()
        assert mp.sum(np.zeros((0, 3), np.float16), 1).shape == (0,)
        assert np.isnan(mp.mean(np.zeros(0)))
        for dtype in (np.float32, BF16):
            x = np.ones((4, 20), dtype)
            x[0, 3], x[1, 17], x[2, 0], x[2, 19] = np.nan, np.inf, np.inf, -np.inf
            for result in (mp.sum(x, 1), mp.sum(x.T.copy(), 0)):
                np.testing.assert_array_equal(result.astype(np.float32), [np.nan, np.inf, np.nan, 20])
    assert not np.signbit(mp.sum(np.array([-0.0], np.float32)))
    assert mp.sum(np.float32(2.5)).shape == ()


def test_no_axes_change_no_value_but_minus_zero(rng):
    x = rng.standard_normal((3, 4)).astype(BF16)
    assert_same_bits(mp.sum(x, ()), x)


def test_out_receives_the_result(rng):
    torch = pytest.importorskip("torch")
    x = rng.standard_normal((6, 6)).astype(BF16)
    expected = mp.sum(x, 0)
    block = np.zeros((6, 6), BF16)
    assert_same_bits(mp.sum(x, 0, out=block[:, 1]), expected)
    assert_same_bits(block[:, 1], expected)
    tensor = torch.zeros(6, dtype=torch.bfloat16)
    assert mp.sum(x, 0, out=tensor) is tensor
    assert_same_bits(mp.cast(tensor, "bfloat16"), expected)
    y = x.copy()
    mp.sum(y, 0, out=y[2])
    assert_same_bits(y[2], expected)
    np.testing.assert_array_equal(np.delete(y, 2, 0), np.delete(x, 2, 0))
    scalar = np.zeros((), np.float32)
    assert mp.sum(np.ones(5, np.float32), out=scalar) is scalar and scalar == 5


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((["a"],), {}, TypeError, "`x` must be an array of"),
        (([1.0], 1), {}, ValueError, r"`axis` must lie in \[-1, 1\)"),
        (([[1.0]], (0, -2)), {}, ValueError, r"`axis` must not name an axis twice; received \(0, -2\)"),
        (([1.0], 0.5), {}, TypeError, "`axis` must be an int, a sequence of int, or None; received 0.5"),
        (([1.0], True), {}, TypeError, "`axis` must be"),
        (([1.0],), {"keepdims": 1}, TypeError, "`keepdims` must be True or False"),
        (([1.0],), {"out_dtype": "int32"}, TypeError, "`out_dtype` must be a float type; received int32"),
        (([1],), {"out_dtype": "int32"}, TypeError, "`out_dtype` must be a float type or int64; received int32"),
        (([1.0],), {"out": np.zeros(1)}, ValueError, r"`out` must have shape \(\)"),
        ((np.ones(1, np.float32),), {"out": np.zeros(())}, TypeError, "`out` must have dtype float32"),
        ((np.ma.masked_array([1.0]),), {}, TypeError, "masked"),
        ((np.ones(2, "int4"),), {}, TypeError, "`x` must be an array of"),
    ],
)
def test_wrong_arguments_are_named(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        mp.sum(*arguments, **keywords)


def test_every_length_and_width_reads_within_the_array(rng):
    for rows in (1, 2, 3, 15, 16, 17, 33):
        for columns in (2, 15, 16, 17, 63, 65, 257):
            x = rng.integers(-8, 8, (rows, columns)).astype(np.float32)  # exact in any order
            for dtype in (np.float32, np.float16, ml_dtypes.float8_e4m3fn):
                y = x.astype(dtype)
                np.testing.assert_array_equal(mp.sum(y, 0, out_dtype="float32"), x.sum(0))
                np.testing.assert_array_equal(mp.sum(y, 1, out_dtype="float32"), x.sum(1))
