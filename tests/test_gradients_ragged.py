"""Gradients through concatenated sequences, with one plan of the step for all lengths."""

import itertools

import numpy as np
import pytest

import mp_core as mp
from mp_core import layers, ops

ANGLE = np.random.default_rng(1).standard_normal((12, 2))
ANGLES = np.concatenate([np.cos(ANGLE), np.sin(ANGLE)], axis=1).astype(np.float32)


def step_of(dense, pooling):
    def value(x, offsets, weights):
        rows = dense(x).reshape(len(x), 3, 2, 4)
        q, k, v = (rows[:, i] for i in range(3))
        context = ops.ragged_attention(ops.ragged_rotary(q, ANGLES, offsets), k, v, offsets)
        pooled = ops.ragged_pool(context.reshape(len(x), 8), offsets, pooling)
        return mp.matmul(pooled.reshape(1, -1), weights)

    return mp.value_and_grad(value, dense.trainable_variables)


def by_sequences(dense, x, offsets, weights, pooling):
    """The same, in float64, of each sequence alone."""
    copy = dense.with_policy("float64")
    size = len(weights) // (len(offsets) - 1)

    def value(*parts):
        total = None
        for i, part in enumerate(parts):
            q, k, v = (copy(part).reshape(1, len(part), 3, 2, 4)[:, :, j] for j in range(3))
            context = ops.dot_product_attention(ops.rotary(q, ANGLES.astype(np.float64)), k, v).reshape(len(part), 8)
            pooled = context[:1] if pooling == "cls" else mp.mean(context, 0, keepdims=True)
            own = mp.matmul(pooled, weights[i * size : (i + 1) * size].astype(np.float64))
            total = own if total is None else total + own
        return total

    parts = [x[begin:end].astype(np.float64) for begin, end in itertools.pairwise(offsets)]
    return mp.value_and_grad(value, copy.trainable_variables)(*parts)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_one_plan_serves_sequences_of_any_lengths(pooling, rng):
    dense = layers.Dense(24)
    x, weights = rng.standard_normal((12, 5)).astype(np.float32), rng.standard_normal((24, 1)).astype(np.float32)
    dense(x)
    step = step_of(dense, pooling)
    for offsets in ([0, 5, 6, 12], [0, 1, 11, 12], [0, 4, 8, 12]):
        value, found = step(x, np.array(offsets, np.int32), weights)
        exact, expected = by_sequences(dense, x, offsets, weights, pooling)
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=1e-5)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-5)
    assert len(step._plans) == 1


@pytest.mark.parametrize("offsets", [[0, 5, 3, 12], [0, 5, 6, 13], [-1, 5, 6, 12]])
def test_a_run_checks_its_offsets(offsets, rng):
    dense = layers.Dense(24)
    x, weights = rng.standard_normal((12, 5)).astype(np.float32), np.ones((24, 1), np.float32)
    dense(x)
    step = step_of(dense, "mean")
    step(x, np.array([0, 5, 6, 12], np.int32), weights)
    with pytest.raises(ValueError, match="offsets"):
        step(x, np.array(offsets, np.int32), weights)


def test_plans_of_a_forward_pass_check_offsets_too(rng):
    x = rng.standard_normal((6, 2, 4)).astype(np.float32)
    offsets = np.array([0, 2, 6], np.int32)
    plan = mp.compile(lambda x, offsets: ops.ragged_attention(x, x, x, offsets), x, offsets)
    other = np.array([0, 5, 6], np.int32)
    np.testing.assert_array_equal(plan(x, other), ops.ragged_attention(x, x, x, other))
    with pytest.raises(ValueError, match="`offsets` must ascend"):
        plan(x, np.array([0, 7, 6], np.int32))
