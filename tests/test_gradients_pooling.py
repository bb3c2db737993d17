"""Gradients of ragged pooling, rotary positions, concatenation and padding."""

import numpy as np
import pytest
from gradients import by_rules, check_rule
from oracles import assert_same_bits

from mp_core import ops
from mp_core.dtypes import parse
from mp_core.ops.elementwise import concatenated
from mp_core.ops.gradients.pooling import pooling_gradient
from mp_core.ops.gradients.registry import rule_of

OFFSETS = np.array([2, 5, 7, 12], np.int32)  # two rows before, and two behind


def shares(name, x, offsets, skipped):
    """How much of each row's element is in the pooled one: (tokens, width) for each sequence, in float64."""
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        share, rows = np.zeros(x.shape), range(begin + skipped, end)
        places = np.arange(skipped + 1, end - begin + 1)
        if name == "max":
            share[begin + skipped + x[begin + skipped : end].argmax(0), np.arange(x.shape[1])] = 1
        elif name in ("cls", "lasttoken"):
            share[rows[0] if name == "cls" else rows[-1]] = 1
        else:
            each = {"mean": 1 / len(rows), "mean_sqrt_len_tokens": len(rows) ** -0.5}
            share[begin + skipped : end] = each[name] if name in each else (places / places.sum())[:, None]
        yield share


@pytest.mark.parametrize("name", ["mean", "mean_sqrt_len_tokens", "weightedmean", "cls", "lasttoken", "max"])
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_of_pooling_are_the_shares_of_rows(name, skipped, dtype, rng):
    x, d = rng.integers(-3, 4, (14, 19)).astype(parse(dtype)), rng.standard_normal((3, 25)).astype(np.float32)
    found = pooling_gradient(d, x, OFFSETS, name, skipped, 4)
    wide = x.astype(np.float64)
    expected = sum(s * row[4:23] for s, row in zip(shares(name, wide, OFFSETS, skipped), d, strict=True))
    assert found.dtype == parse(dtype)
    u = {"float32": 2.0**-22, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert np.all(np.abs(found.astype(np.float64) - expected) <= u * np.abs(expected))


def test_several_poolings_add_up(rng):
    x, d = rng.standard_normal((14, 5)).astype(np.float32), rng.standard_normal((3, 10)).astype(np.float32)
    parts = [pooling_gradient(d, x, OFFSETS, name, 1, 5 * i) for i, name in enumerate(("mean", "cls"))]
    found = rule_of(ops.ragged_pool)(d, None, x, OFFSETS, ["mean", "cls"], 1)["x"](parse("float32"))
    assert_same_bits(found, parts[0] + parts[1])


def test_the_first_of_equal_elements_has_the_gradient():
    x = np.array([[1], [3], [3], [np.nan], [2], [np.nan]], np.float32)
    found = pooling_gradient(np.float32([[1], [1]]), x, np.array([0, 3, 6], np.int32), "max", 0, 0)
    np.testing.assert_array_equal(found[:, 0], [0, 1, 0, 1, 0, 0])


def test_rotary_positions_turn_back(rng):
    angle = rng.standard_normal((6, 2))
    angles = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    check_rule(lambda x: ops.rotary(x, angles), rng.standard_normal((2, 5, 3, 4)))
    check_rule(lambda x: ops.ragged_rotary(x, angles, np.array([0, 2, 7], np.int32)), rng.standard_normal((7, 3, 4)))


def test_rotary_positions_of_longer_sequences_turn_back_by_their_own_angles(rng):
    angle, x = rng.standard_normal((7, 2)), rng.standard_normal((8, 3, 4))
    angles = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    offsets = np.array([0, 2, 7, 7, 8], np.int32)

    def turned(x):
        return ops.ragged_rotary(x, angles, offsets, 2)

    check_rule(turned, x)
    narrow, wide = (by_rules(turned, x.astype(dtype))[0] for dtype in (np.float32, np.float64))
    np.testing.assert_allclose(narrow, wide, atol=1e-6)


def test_parts_of_results_have_parts_of_gradients(rng):
    x, y = rng.standard_normal((2, 3)), rng.standard_normal((2, 4))
    check_rule(lambda x, y: concatenated(x, y, axis=-1), x, y)
    check_rule(lambda x: ops.pad_zeros(x, [(1, 0), (2, 3)]), x)
    narrow = [a.astype(np.float32) for a in (x, y)]
    for found, plain in zip(by_rules(lambda x, y: concatenated(x, y, axis=1), *narrow), narrow, strict=True):
        assert found.shape == plain.shape


def test_rows_without_elements_have_gradients_without_elements():
    assert_same_bits(
        pooling_gradient(np.zeros((0, 3), np.float32), np.ones((2, 3), np.float32), OFFSETS[:1], "mean", 0, 0),
        np.zeros((2, 3), np.float32),
    )
