"""Rows of quantized tables: the numbers that dequantize() gives for the whole table."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops
from mp_core.dtypes import parse
from mp_core.ops.lookup import has_rows

TABLES = {
    "int8 rows": {"axis": 0},
    "int8 rows with zeros": {"axis": 0, "symmetric": False},
    "int8, one scale": {},
    "uint8, one scale with a zero": {"dtype": "uint8", "symmetric": False},
    "int8 groups": {"axis": 0, "group_size": 8},
    "int4 rows": {"axis": 0, "dtype": "int4"},
    "int4 groups": {"axis": 0, "dtype": "int4", "group_size": 4},
    "int4 groups that do not divide": {"axis": 0, "dtype": "int4", "group_size": 5},
    "uint4 groups with zeros": {"axis": 0, "dtype": "uint4", "group_size": 16, "symmetric": False},
    "float8 rows": {"axis": 0, "dtype": "float8_e4m3fn"},
    "float8 groups": {"axis": 0, "dtype": "float8_e5m2", "group_size": 8},
    "int16": {"dtype": "int16", "scale": 0.01},
}


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("width", [1, 7, 32, 1030])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_rows_are_those_of_the_numbers(options, width, dtype, isa, rng):
    q = mp.quantize(3 * rng.standard_normal((11, width)).astype(np.float32), **options)
    for indices in (np.array([[0, 10], [3, 3]]), np.array([7], np.int32), np.zeros((0, 2), np.int64)):
        assert_same_bits(ops.take_rows(q, indices, parse(dtype)), mp.dequantize(q, dtype)[indices])


TABLE, PLACES, F32 = np.eye(3, dtype=np.float32), np.array([0, 2]), parse("float32")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((TABLE, [0, 1], F32), TypeError, "`indices` must be an ndarray of integers; received list"),
        ((TABLE, np.ones(2), F32), TypeError, "`indices` must be an ndarray of integers; received float64"),
        ((TABLE, np.ones(2, bool), F32), TypeError, "`indices` must be an ndarray of integers; received bool"),
        ((TABLE.tolist(), PLACES, F32), TypeError, "`table` must be an ndarray of floats or a QuantizedArray"),
        ((TABLE.astype(int), PLACES, F32), TypeError, "`table` must be an ndarray of floats .* received int64"),
        ((TABLE[0], PLACES, F32), ValueError, r"`table` must have shape \(rows, columns\); received \(3,\)"),
        ((TABLE[None], PLACES, F32), ValueError, "`table` must have shape"),
        ((mp.quantize(TABLE[None]), PLACES, F32), ValueError, "`table` must have shape"),
        ((TABLE, PLACES, np.dtype(int)), TypeError, "`dtype` must be a float type"),
        ((TABLE, PLACES, None), TypeError, "`dtype` must be a float type"),
        ((TABLE, np.array([3]), F32), IndexError, "an index is outside of the table, which has 3 rows"),
        ((TABLE, np.array([-1]), F32), IndexError, "an index is outside of the table"),
        ((TABLE[:, ::-1], np.array([-1]), F32), IndexError, "an index is outside of the table, which has 3 rows"),
        ((TABLE.astype(float), np.array([-1]), F32), IndexError, "an index is outside of the table"),
        ((mp.quantize(TABLE, axis=1), np.array([-1]), F32), IndexError, "an index is outside of the table"),
        ((TABLE[:0], np.array([0]), F32), IndexError, "an index is outside of the table"),
        ((TABLE, np.array([2**64 - 1], np.uint64), F32), IndexError, "an index is outside of the table"),
    ],
)
def test_wrong_look_ups_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.take_rows(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([[1]], 1), TypeError, "`ids` must be an ndarray of integers; received list"),
        ((np.ones((2, 2)), 1), TypeError, "`ids` must be an ndarray of integers; received float64"),
        ((np.ones(100_000, int), 1), ValueError, r"`ids` must have shape \(n, length\); received \(100000,\)"),
        ((np.ones((), int), 1), ValueError, r"received \(\)"),
        ((np.ones((1, 2, 3), int), 1), ValueError, "`ids` must have shape"),
        ((np.ones((1, 2), int), 1.0), TypeError, "`padding` must be an integer"),
        ((np.ones((1, 2), int), 2**31 - 2), ValueError, "`padding` and all positions must be int32"),
        ((np.ones((1, 2), int), -(2**31) - 1), ValueError, "`padding` and all positions must be int32"),
        ((np.full((1, 2), 2**32 + 1), 1), ValueError, "`ids` must fit int32"),
    ],
)
def test_wrong_tokens_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ops.token_places(*arguments)


def test_tokens_of_any_type_and_stride_have_their_places():
    ids = np.array([[5, 6, 1], [1, 7, 7]])
    for kind in (np.int8, np.int32, np.uint64, ">i4"):
        np.testing.assert_array_equal(ops.token_places(ids.astype(kind), 1), [[2, 3, 1], [1, 2, 3]])
    np.testing.assert_array_equal(ops.token_places(ids[:, ::-1], 1), [[1, 2, 3], [2, 3, 1]])
    assert ops.token_places(ids[:0], 1).shape == (0, 3)


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
def test_an_index_outside_of_the_table_is_named(options, rng):
    q = mp.quantize(rng.standard_normal((11, 8)).astype(np.float32), **options)
    with pytest.raises(IndexError):
        ops.take_rows(q, np.array([0, 11]), parse("float32"))


@pytest.mark.parametrize("group", [None, 8, 40])
@pytest.mark.parametrize(
    ("dtype", "symmetric"), [("int8", True), ("int4", True), ("int4", False), ("float8_e4m3fn", True)]
)
@pytest.mark.parametrize("rows", [1, 64, 150])
def test_columns_of_a_packed_matrix_are_rows_of_its_transpose(rng, group, dtype, symmetric, rows):
    floats = rng.standard_normal((rows, 92), np.float32)
    table = mp.quantize(floats, axis=0, dtype=dtype, group_size=group, symmetric=symmetric)
    packed, indices = mp.pack(table.T), np.array([[0, rows - 1], [rows // 2, 0]])
    assert has_rows(packed)
    for out in ("float32", "bfloat16", "float16"):
        expected = mp.cast(mp.dequantize(table), out)[indices]
        assert_same_bits(ops.take_rows(packed, indices, parse(out)), expected)
    with pytest.raises(IndexError, match=f"which has {rows} rows"):
        ops.take_rows(packed, np.array([rows]), parse("float32"))


def test_packed_floats_are_not_looked_up():
    packed = mp.pack(np.eye(8, dtype=np.float32))
    assert not has_rows(packed)
    with pytest.raises(TypeError, match="packed codes with scales in float32"):
        ops.take_rows(packed, np.array([0]), parse("float32"))
