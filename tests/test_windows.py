"""Pooling of windows: maxima, sums and their gradients equal those of NumPy, window by window, bit for bit."""

import itertools

import numpy as np
import pytest
from gradients import check_rule
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers, ops
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.ops.gradients.windows import maxima_gradient, sums_gradient

# places, size of a window, strides, channels: apart, overlapping, with gaps; one to three axes; whole vectors and not
CASES = {
    "one axis": ((7,), (2,), (2,), 3),
    "one axis, overlapping": ((7,), (3,), (1,), 1),
    "two axes": ((6, 8), (2, 2), (2, 2), 16),
    "two axes, overlapping": ((7, 6), (3, 2), (2, 1), 19),
    "two axes, gaps": ((7, 6), (1, 2), (3, 4), 33),
    "three axes": ((4, 5, 3), (2, 1, 3), (2, 1, 1), 17),
}


def drawn(rng, shape, dtype):
    """Few different numbers, so that many are equal, zeros of both signs among them; infinities and a NaN."""
    x = rng.integers(-2, 3, shape) * np.float32(0.37)
    x.flat[3], x.flat[4] = np.inf, -np.inf
    x.flat[x.size // 2] = np.nan
    return x.astype(parse(dtype))


def places(shape, size, strides):
    """The index of each place in x of each window: [(index of the window, [indices of its places in C order])]."""
    counts = [(n - k) // s + 1 for n, k, s in zip(shape, size, strides, strict=True)]
    for window in itertools.product(*map(range, counts)):
        starts = [w * s for w, s in zip(window, strides, strict=True)]
        yield (
            window,
            [tuple(a + b for a, b in zip(starts, k, strict=True)) for k in itertools.product(*map(range, size))],
        )


def larger(x, y):
    """The larger of two, NaN where one is NaN, +0 of two zeros."""
    both = np.where(x > y, x, np.where(x < y, y, np.where(x == y, x + y if np.all(x == 0) else x, np.float32(np.nan))))
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x) & np.signbit(y), np.float32(-0.0), 0), both)


def pooled(x, size, strides, combine):
    found = {}
    for window, at in places(x.shape[1:-1], size, strides):
        total = x[:, *at[0]]
        for place in at[1:]:
            total = combine(total, x[:, *place])
        found[window] = total
    last = max(found)
    out = np.empty((len(x), *(n + 1 for n in last), x.shape[-1]), np.float32)
    for window, total in found.items():
        out[:, *window] = total
    return out


def spread(d, x, size, strides, is_maximum):
    """The gradient of x in float32, window by window: gradients are written, or added if windows overlap."""
    adds = any(k > s for k, s in zip(size, strides, strict=True))
    out = np.zeros(x.shape, np.float32)
    for window, at in places(x.shape[1:-1], size, strides):
        shares, left = {}, d[:, *window].astype(np.float32)
        if is_maximum:
            maxima = [x[:, *at[0]]]
            for place in at[1:]:
                maxima.append(larger(maxima[-1], x[:, *place]))
            for place, before in zip(at[:0:-1], maxima[-2::-1], strict=True):
                here = x[:, *place]
                half = np.where(before == here, left * np.float32(0.5), np.float32(0))
                shares[place] = np.where(here > before, left, half)
                left = np.where(before > here, left, half)
            shares[at[0]] = left
        else:
            shares = dict.fromkeys(at, left)
        for place, share in shares.items():
            out[:, *place] = out[:, *place] + share if adds else share
    return out


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize(("shape", "size", "strides", "channels"), CASES.values(), ids=CASES)
def test_maxima_and_sums_are_those_of_the_places_in_order(shape, size, strides, channels, dtype, isa, rng):
    x = drawn(rng, (3, *shape, channels), dtype)
    wide = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        sums, maxima = pooled(wide, size, strides, np.add), pooled(wide, size, strides, larger)
    for threads in (1, 3):
        with cpu.num_threads(threads):
            assert_same_bits(ops.window_maxima(x, size, strides), maxima.astype(x.dtype))
            assert_same_bits(ops.window_sums(x, size, strides), sums)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "size", "strides", "channels"), CASES.values(), ids=CASES)
def test_gradients_are_added_in_the_order_of_windows(shape, size, strides, channels, dtype, isa, rng):
    x = drawn(rng, (3, *shape, channels), dtype)
    d = rng.standard_normal(ops.window_sums(x, size, strides).shape).astype(parse(dtype))
    d[rng.random(d.shape) < 0.2] = -0.0
    wide = x.astype(np.float32)
    maxima, sums = (spread(d, wide, size, strides, is_maximum) for is_maximum in (True, False))
    for to in (dtype, "float32"):
        to = parse(to)
        for threads in (1, 3):
            with cpu.num_threads(threads):
                assert_same_bits(maxima_gradient(d, x, size, strides, to), maxima.astype(to))
                assert_same_bits(sums_gradient(d, x.shape, size, strides, to), sums.astype(to))


@pytest.mark.parametrize(("shape", "size", "strides", "channels"), CASES.values(), ids=CASES)
def test_float64_is_what_difference_quotients_are(shape, size, strides, channels, rng):
    x = rng.standard_normal((2, *shape, channels))
    check_rule(lambda x: ops.window_maxima(x, size, strides), x)
    check_rule(lambda x: ops.window_sums(x, size, strides), x)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_plan_of_pooling_layers_has_one_step_for_each(policy, rng):
    x = rng.standard_normal((4, 8, 8, 16)).astype(np.float32)
    model = layers.Sequential([layers.MaxPooling2D(2, dtype=policy), layers.MaxPooling2D(2, dtype=policy)])
    plan = mp.compile(model, x)
    assert [step.name for step in plan.profile(repeat=1)].count("maxima") == 2
    assert len(plan.profile(repeat=1)) <= 3  # the inputs are cast to 16 bits
    assert_same_bits(plan(x), model(x))


def test_padding_of_float8_counts_for_nothing():
    x = np.float32([-2, -1, -3]).reshape(1, 3, 1).astype(parse("float8_e4m3fn"))
    layer = layers.MaxPooling1D(2, padding="same", dtype="float32", autocast=False)
    assert layer(x).astype(np.float32).ravel().tolist() == [-1, -3]


def test_empty_batches_and_channels_have_no_maxima():
    assert ops.window_maxima(np.zeros((0, 4, 4, 2), np.float32), (2, 2), (2, 2)).shape == (0, 2, 2, 2)
    assert (
        maxima_gradient(np.zeros((1, 2, 0), np.float32), np.zeros((1, 4, 0), np.float32), (2,), (2,), "float32").size
        == 0
    )


@pytest.mark.parametrize(("shape", "size", "strides", "message"), [
    ((2, 4), (2,), (2,), "one to three spatial lengths"),
    ((2, 4, 3), (2, 2), (2, 2), "one to three spatial lengths"),
    ((2, 4, 3), (5,), (1,), "at most the spatial lengths"),
    ((2, 4, 3), (0,), (1,), "`size` must be a positive integer"),
    ((2, 4, 3), (2,), (-1,), "`strides` must be a positive integer"),
])  # fmt: skip
def test_windows_that_do_not_fit_are_refused(shape, size, strides, message):
    for function in (ops.window_maxima, ops.window_sums):
        with pytest.raises(ValueError, match=message):
            function(np.zeros(shape, np.float32), size, strides)
