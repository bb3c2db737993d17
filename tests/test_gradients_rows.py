"""Gradients of rows and sums: central differences, the stated formula bit for bit, sets, threads, plans, types."""

import numpy as np
import pytest
from oracles import UNIT, assert_same_bits, gamma, values
from rules import assert_follows_differences, fused, gradients, row_sum

import mp_core as mp
from mp_core import ops
from mp_core.core import cpu
from mp_core.ops.gradients.rows import norm_gradient, softmax_gradient
from mp_core.ops.gradients.sums import sum_rows

SHAPES = [(1, 1), (3, 16), (2, 3, 33), (5, 1000), (2, 9000)]
F32 = np.float32


def everywhere(function):
    """The results on every set, with one thread and with three: they must have the same bits."""
    before, found = cpu.isa(), []
    for isa in cpu.available_isas():
        cpu.set_isa(isa)
        for threads in (1, 3):
            with mp.config.num_threads(threads):
                found.append(function())
    cpu.set_isa(before)
    for other in found[1:]:
        for one, first in zip(other, found[0], strict=True):
            assert_same_bits(one, first)
    return found[0]


# ---- rules beside differences


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_follows_differences(axis, rng):
    x, d = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 4, 5))
    assert_follows_differences(ops.softmax, d, x, axis=axis, scale=0.3)
    assert_follows_differences(ops.softmax, d, x, axis=axis, mask=rng.random((3, 4, 5)) < 0.7)
    assert_follows_differences(ops.log_softmax, d, x, axis=axis)


@pytest.mark.parametrize("axis", [-1, 0, (0, 2), (1, 2)])
def test_norms_follow_differences(axis, rng):
    x, r, d = (rng.standard_normal((3, 4, 5)) for _ in range(3))
    lengths = [x.shape[each] for each in np.atleast_1d(axis)]
    scale, offset = rng.standard_normal(lengths), rng.standard_normal(lengths)
    options = {"axis": axis, "epsilon": 1e-3}
    assert_follows_differences(ops.layer_norm, d, x, scale, offset, residual=r, **options)
    assert_follows_differences(ops.layer_norm, d, x, **options)
    assert_follows_differences(ops.rms_norm, d, x, scale, **options)
    assert_follows_differences(ops.rms_norm, d, x, **options)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), [1, -1]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sums_and_means_follow_differences(axis, keepdims, rng):
    x = rng.standard_normal((3, 4, 5))
    for operation in (ops.sum, ops.mean):
        d = rng.standard_normal(operation(x, axis, keepdims=keepdims).shape)
        assert_follows_differences(operation, d, x, axis, keepdims=keepdims)


# ---- formulas, replayed


def per_row(function, *arrays):
    flat = [None if a is None else a.reshape(-1, a.shape[-1]) for a in arrays]
    rows = [function(*(None if a is None else a[i] for a in flat)) for i in range(len(flat[0]))]
    return np.array(rows, F32).reshape(arrays[0].shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_is_its_formula(shape, rng):
    x, d = values(rng, shape, "float32", 1), values(rng, shape, "float32", 1)
    y = mp.softmax(x)
    (found,) = everywhere(lambda: [softmax_gradient(d, y, F32, -1, 0.7)])
    assert_same_bits(found, per_row(lambda y, d: (y * (d - row_sum(d, y))) * F32(0.7), y, d))


@pytest.mark.parametrize("shape", SHAPES)
def test_log_softmax_is_its_formula(shape, rng):
    x, d = values(rng, shape, "float32", 1), values(rng, shape, "float32", 1)
    y = ops.log_softmax(x)
    (found,) = everywhere(lambda: [softmax_gradient(d, y, F32, is_log=True)])

    assert_same_bits(found, per_row(lambda y, d: fused(ops.exp(y), -row_sum(d), d), y, d))


def replayed_norm(x, d, scale, epsilon, is_centred):
    n = F32(len(x))
    centred = x - (row_sum(x) / n if is_centred else F32(0))
    factor = F32(1) / np.sqrt(row_sum(centred, centred) / n + F32(epsilon))
    normal, g = centred * factor, d if scale is None else d * scale
    slope, middle = -(row_sum(g, normal) / n), row_sum(g) / n if is_centred else F32(0)
    return fused(normal, slope, g - middle) * factor, d * normal


@pytest.mark.parametrize("shape", [(3, 16), (2, 3, 33), (5, 1000)])
@pytest.mark.parametrize("is_centred", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_norms_are_their_formula(shape, is_centred, scaled, rng):
    x, d = values(rng, shape, "float32", 1), values(rng, shape, "float32", 1)
    scale = rng.standard_normal(shape[-1]).astype(F32) if scaled else None
    options = {"is_centred": is_centred, "axes": (len(shape) - 1,), "epsilon": 1e-3}
    found = everywhere(lambda: [a for a in norm_gradient(d, x, None, scale, **options) if a is not None])
    parts = zip(x.reshape(-1, shape[-1]), d.reshape(-1, shape[-1]), strict=True)
    expected = [replayed_norm(a, b, scale, 1e-3, is_centred) for a, b in parts]
    assert_same_bits(found[0], np.array([row[0] for row in expected]).reshape(shape))
    if scaled:
        assert_same_bits(found[1], np.array([row[1] for row in expected]))
    assert len(found) == 1 + scaled


def test_passes_of_whole_blocks_have_the_bits_of_the_whole(rng):
    x = rng.standard_normal((5000, 70)).astype(F32)
    whole = sum_rows(x)
    for size in (1024, 2048, 4096):
        total = None
        for first in range(0, 5000, size):
            total = sum_rows(x[first : first + size], before=total)
        assert_same_bits(total, whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("shape", [(1, 1), (1024, 3), (1025, 17), (3000, 1), (1200, 90), (2500, 1100), (7, 5, 33)])
def test_sums_over_rows_are_in_their_order(dtype, shape, rng):
    x = values(rng, shape, dtype, 1)
    (found,) = everywhere(lambda: [sum_rows(x)])
    rows = x.reshape(-1, shape[-1]).astype(F32)
    total = None
    for first in range(0, len(rows), 1024):
        block = np.zeros(shape[-1], F32)
        for row in rows[first : first + 1024]:
            block = block + row
        total = block if total is None else total + block
    assert_same_bits(found, total)
    assert_same_bits(sum_rows(x, dtype=np.dtype("bfloat16")), mp.cast(total, "bfloat16"))


def test_sums_over_rows_keep_any_axes(rng):
    x = rng.standard_normal((3, 4, 5)).astype(F32)
    np.testing.assert_allclose(sum_rows(x, (0, 2)), x.sum(1), rtol=1e-6)
    np.testing.assert_allclose(sum_rows(x, (0, 1)), x.sum(2), rtol=1e-6)
    np.testing.assert_array_equal(sum_rows(np.zeros((0, 3), F32)), np.zeros(3))
    np.testing.assert_array_equal(sum_rows(np.zeros((0, 3), F32), before=np.ones(3, F32)), np.ones(3))


# ---- types, plans


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients_of_rows_are_near_float64(dtype, rng):
    """Within gamma of the sums, relative to the magnitudes that are added, and half a step of the type."""
    x, d, r = (rng.standard_normal((6, 300)).astype(dtype) for _ in range(3))
    scale, offset = rng.standard_normal((2, 300)).astype(F32)
    wide = [part.astype(np.float64) for part in (x, d, r, scale, offset)]
    unit = UNIT[dtype] if dtype != "float32" else 0
    cases = [
        (ops.softmax, (), {"scale": 0.3}), (ops.log_softmax, (), {}), (ops.rms_norm, (scale,), {}),
        (ops.layer_norm, (scale, offset), {"residual": r}),
    ]  # fmt: skip
    for operation, more, options in cases:
        found = gradients(operation, d, x, *more, **options)
        exactly = {key: wide[2] if value is r else value for key, value in options.items()}
        more64 = tuple(part.astype(np.float64) for part in more)
        exact = gradients(operation, wide[1], wide[0], *more64, **exactly)
        for name, gradient in found.items():
            largest = np.abs(exact[name]).max()
            error = np.abs(gradient.astype(np.float64) - exact[name])
            results = 4 * UNIT[dtype] if operation is ops.softmax or operation is ops.log_softmax else 0
            bound = unit * np.abs(exact[name]) + (gamma(40) + results) * max(largest, 1)
            assert np.all(error <= bound), (operation.__name__, name, (error / bound).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrow_types_round_once_and_plans_have_the_same_bits(dtype, rng):
    x, d, r = (values(rng, (2, 7, 130), dtype, 1) for _ in range(3))
    scale = rng.standard_normal(130).astype(F32)
    options = {"is_centred": True, "axes": (2,), "epsilon": 1e-3}

    def all_of(d, x, r):
        y = ops.softmax(x)
        first, shares = norm_gradient(d, x, r, scale, **options)
        return (softmax_gradient(d, y, x.dtype), softmax_gradient(d, y, x.dtype, 1), first, sum_rows(shares),
                sum_rows(d), sum_rows(d, (1, 2)), ops.log_softmax(x), ops.log_softmax(x, axis=0))  # fmt: skip

    plan = mp.compile(all_of, d, x, r)
    other = [np.flip(part, 0).copy() for part in (d, x, r)]
    for one, two in zip(plan(*other), all_of(*other), strict=True):
        assert_same_bits(one, two)
    wide = [mp.cast(part, "float32") for part in (d, x, r)]
    y = mp.softmax(x)
    assert_same_bits(
        softmax_gradient(d, y, x.dtype), mp.cast(softmax_gradient(wide[0], mp.cast(y, "float32"), F32), dtype)
    )
    total = mp.cast(mp.add(wide[1], wide[2]), "float32")
    narrow, shares = norm_gradient(d, x, r, scale, **options)
    exact, same = norm_gradient(wide[0], total, None, scale, **options)
    assert_same_bits(narrow, mp.cast(exact, dtype))
    assert_same_bits(shares, same)


def test_log_softmax_is_near_float64(isa, rng):
    for shape in ((3, 5), (4, 1000), (2, 9000)):
        x = (4 * rng.standard_normal(shape)).astype(F32)
        wide = x.astype(np.float64)
        exact = wide - wide.max(-1, keepdims=True)
        exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
        np.testing.assert_allclose(ops.log_softmax(x), exact, rtol=3e-7, atol=2e-7)
    x = F32([[0, -np.inf, 0], [np.nan, 0, 0], [np.inf, 0, 0], [-np.inf] * 3])
    y = ops.log_softmax(x)
    np.testing.assert_allclose(y[0], [-np.log(2), -np.inf, -np.log(2)], rtol=1e-6)
    assert np.isnan(y[1:]).all()
