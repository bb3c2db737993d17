"""Gradients of look-ups: the sums of the gathered rows, in their stated order."""

import numpy as np
import pytest
from oracles import assert_same_bits

from mp_core import ops
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.ops.gradients.lookup import sum_taken_rows
from mp_core.ops.gradients.registry import rule_of

F32 = parse("float32")


def replayed(x, indices, rows):
    """The stated order by NumPy: blocks of 1024 rows of x, each from +0; their sums are added in order."""
    total = np.zeros((rows, x.shape[1]), np.float32)
    for first in range(0, len(x), 1024):
        block = np.zeros_like(total)
        np.add.at(block, indices[first : first + 1024], x[first : first + 1024].astype(np.float32))
        total = total + block
    return total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("taken", "rows", "columns"), [(1, 1, 1), (50, 7, 17), (3000, 2, 33), (2500, 40, 64)])
def test_the_order_of_additions_is_the_stated_one(dtype, taken, rows, columns, isa, rng):
    x = rng.standard_normal((taken, columns)).astype(parse(dtype))
    indices = rng.integers(0, rows, taken)
    expected = replayed(x, indices, rows)
    for kind in (np.int64, np.int32, np.uint8):
        assert_same_bits(sum_taken_rows(x, indices.astype(kind), rows), expected)


def test_passes_of_whole_blocks_have_the_bits_of_the_whole(rng):
    x, indices = rng.standard_normal((3000, 40), np.float32), rng.integers(0, 30, 3000)
    passes = [sum_taken_rows(x[i : i + 1024], indices[i : i + 1024], 30) for i in range(0, 3000, 1024)]
    assert_same_bits(sum_taken_rows(x, indices, 30), passes[0] + passes[1] + passes[2])


def test_threads_and_strides_change_no_bit(rng):
    x, indices = rng.standard_normal((2, 1500, 400), np.float32), rng.integers(0, 50, (2, 1500))
    expected = replayed(x.reshape(-1, 400), indices.reshape(-1), 50)
    turned = np.asfortranarray(x)
    for threads in (1, 2, 4):
        with cpu.num_threads(threads):
            assert_same_bits(sum_taken_rows(x, indices, 50), expected)
            assert_same_bits(sum_taken_rows(turned, indices, 50), expected)


def test_results_are_rounded_once(rng):
    x, indices = rng.standard_normal((300, 8)).astype(parse("bfloat16")), rng.integers(0, 3, 300)
    for dtype in ("float16", "bfloat16"):
        assert_same_bits(sum_taken_rows(x, indices, 3, parse(dtype)), replayed(x, indices, 3).astype(parse(dtype)))


def test_empty_arrays_give_zeros():
    assert not sum_taken_rows(np.zeros((0, 4), np.float32), np.zeros(0, int), 3).any()
    assert sum_taken_rows(np.zeros((2, 0), np.float32), np.zeros(2, int), 3).shape == (3, 0)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_the_table_is_an_error(index):
    with pytest.raises(IndexError, match="an index is outside of the table, which has 3 rows"):
        sum_taken_rows(np.ones((2, 4), np.float32), np.array([0, index]), 3)


def test_float64_and_the_rule_agree_with_difference_quotients(rng):
    table, indices = rng.standard_normal((5, 3)), np.array([[4, 0], [4, 4]])
    d = rng.standard_normal((2, 2, 3))
    out = ops.take_rows(table, indices, parse("float64"))
    found = rule_of(ops.take_rows)(d, out, table, indices, parse("float64"))["table"](parse("float64"))
    for place in np.ndindex(table.shape):
        step = np.zeros_like(table)
        step[place] = 1e-3
        ends = [ops.take_rows(table + sign * step, indices, parse("float64")) for sign in (1, -1)]
        assert found[place] == pytest.approx(((ends[0] - ends[1]) * d).sum() / 2e-3, rel=1e-6, abs=1e-9)
