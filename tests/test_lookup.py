"""Rows of tables of codes: the numbers that dequantize() gives for all of the table."""

import numpy as np
import pytest
from oracles import assert_same_bits

import mp_core as mp
from mp_core import ops
from mp_core.dtypes import parse

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


@pytest.mark.parametrize("options", TABLES.values(), ids=TABLES)
def test_an_index_outside_of_the_table_is_named(options, rng):
    q = mp.quantize(rng.standard_normal((11, 8)).astype(np.float32), **options)
    with pytest.raises(IndexError):
        ops.take_rows(q, np.array([0, 11]), parse("float32"))
