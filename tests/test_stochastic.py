"""Stochastic casts: the construction of docs/numerics.md, its probabilities, and the same bits everywhere."""

import gc

import numpy as np
import pytest
import stochastic
from oracles import assert_same_bits

import mp_core as mp
from mp_core.core import cpu

KEY = np.array([1234567, 89], np.uint32)
NARROW = pytest.mark.parametrize("name", stochastic.FORMATS)


def cast(x, name, **options):
    return mp.cast(x, name, rounding="stochastic", **options)


def numbers(rng, n):
    """Return float32 of all bit patterns, and of the magnitudes between which narrow types are dense."""
    x = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    x[: n // 2] = rng.standard_normal(n // 2) * np.exp2(rng.integers(-30, 18, n // 2))
    x[:9] = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, 65519.99, 3.4e38]
    return x


@NARROW
@pytest.mark.parametrize("saturate", [False, True])
def test_casts_are_those_of_the_stated_construction(name, saturate, isa, rng):
    x = numbers(rng, 10007)
    found = cast(x, name, seed=7, draw=3, saturate=saturate)
    expected = stochastic.rounded(x, name, *stochastic.random_bits(x.size, name, 7, 3), saturate)
    assert np.array_equal(np.signbit(found), np.signbit(x))
    assert np.array_equal(found.astype(np.float32), expected.astype(np.float32), equal_nan=True)


@NARROW
def test_exact_values_do_not_change(name, isa):
    x = mp.cast(np.arange(256, dtype=np.uint8).view("float8_e5m2" if "8" in name else "int8"), name)
    for draw in range(20):
        assert_same_bits(cast(x.astype(np.float32), name, seed=1, draw=draw), x)


@pytest.mark.parametrize("x", [1.001, -3.14159, 1e-39, 3.389e38, 0.1])
def test_the_probability_of_bfloat16_is_exactly_the_fraction(x):
    x = np.float32(x)
    up = np.abs(stochastic.rounded(np.full(2**16, x), "bfloat16", np.arange(2.0**16), 16).astype(np.float64))
    low = x.view(np.uint32) & 0xFFFF
    assert np.count_nonzero(up > abs(np.float64(x))) == low


@pytest.mark.parametrize(
    "name, x", [("float16", 1.0001), ("float16", -3e-7), ("float8_e4m3fn", 0.003), ("float8_e5m2", 1000.0)]
)
def test_the_smallest_random_number_that_rounds_up_gives_the_fraction(name, x):
    x, two = np.float32(x), 2.0**32
    mantissa, lowest, *_ = stochastic.FORMATS[name]
    units = abs(float(x)) / 2.0 ** (max(np.frexp(abs(x))[1] - 1, lowest) - mantissa)
    first = two - np.floor((units - np.floor(units)) * two)
    down, up = stochastic.rounded([x, x], name, np.array([first - 1, first]), 32).astype(np.float64)
    assert abs(down) < abs(x) < abs(up)


@NARROW
@pytest.mark.parametrize("x", [1.001, -0.3, 5e-4, 17.3])
def test_the_mean_of_many_draws_is_the_value(name, x, isa):
    n = 2**18
    found = cast(np.full(n, x, np.float32), name, seed=5).astype(np.float64)
    low, high = found.min(), found.max()
    deviation = (high - low) / 2 / np.sqrt(n)  # of the mean, at most
    assert abs(found.mean() - np.float64(np.float32(x))) <= 5 * deviation
    assert len(np.unique(found)) == 2


@NARROW
def test_threads_strides_out_and_shapes_do_not_change_bits(name, isa, rng):
    x = rng.standard_normal((300, 401)).astype(np.float32)
    expected = cast(x, name, seed=1, draw=2)
    for threads in (1, 2, 5):
        with cpu.num_threads(threads):
            assert_same_bits(cast(x, name, seed=1, draw=2), expected)
    assert_same_bits(cast(np.asfortranarray(x), name, seed=1, draw=2), expected)
    assert_same_bits(cast(np.repeat(x, 2, axis=1)[:, ::2], name, seed=1, draw=2), expected)
    assert_same_bits(cast(x.reshape(-1), name, seed=1, draw=2), expected.reshape(-1))
    assert_same_bits(cast(x[:7], name, seed=1, draw=2), expected[:7])
    out = np.zeros((401, 300), expected.dtype).T
    assert cast(x, name, seed=1, draw=2, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), expected)
    memory = np.zeros(x.size, np.float32)
    memory[:] = x.reshape(-1)
    overlapping = memory.view(expected.dtype)[: x.size]
    cast(memory, name, seed=1, draw=2, out=overlapping)
    assert_same_bits(overlapping.reshape(x.shape), expected)
    assert_same_bits(
        cast(x, np.dtype(expected.dtype).newbyteorder(">"), seed=1, draw=2).astype(expected.dtype), expected
    )


@NARROW
def test_other_types_are_widened_first(name, rng):
    x = rng.standard_normal(5000).astype(np.float16)
    assert_same_bits(cast(x, name, seed=9), cast(x.astype(np.float32), name, seed=9))
    assert_same_bits(cast(np.int8([3, -17, 127]), name, seed=9), cast(np.float32([3, -17, 127]), name, seed=9))
    assert cast(np.float32(1.001), name, seed=9).shape == ()
    assert cast(np.zeros((0, 3), np.float32), name, seed=9).shape == (0, 3)


def test_float64_is_rounded_to_odd_in_float32_first(rng):
    x = rng.standard_normal(5000)
    odd = x.astype(np.float32)
    inexact = (odd != x) & (odd.view(np.uint32) & 1 == 0)
    away = np.abs(odd) < np.abs(x)
    bits = np.where(inexact, odd.view(np.uint32) + np.where(away, 1, -1).astype(np.uint32), odd.view(np.uint32))
    assert_same_bits(cast(x, "bfloat16", seed=9), cast(bits.view(np.float32), "bfloat16", seed=9))


def test_a_key_is_seed_and_draw():
    x = np.linspace(-2, 2, 99, dtype=np.float32)
    expected = cast(x, "bfloat16", seed=1234567, draw=89)
    assert_same_bits(cast(x, "bfloat16", seed=KEY), expected)
    assert_same_bits(cast(x, "bfloat16", seed=1), cast(x, "bfloat16", seed=1, draw=0))
    assert not np.array_equal(cast(x, "bfloat16", seed=1, draw=1), cast(x, "bfloat16", seed=1))


@NARROW
def test_plans_read_the_key_when_they_run(name, rng):
    x = rng.standard_normal((8, 33)).astype(np.float32)
    plan = mp.compile(lambda x, key: mp.cast(cast(x, name, seed=key), "float32"), x, KEY.view(np.int32))
    for key in (KEY, KEY + 1):
        assert_same_bits(plan(x, key.view(np.int32)), cast(x, name, seed=key).astype(np.float32))
    fixed = mp.compile(lambda x: mp.cast(cast(x, name, seed=4, draw=2), "float32"), x)
    gc.collect()
    assert_same_bits(fixed(x), cast(x, name, seed=4, draw=2).astype(np.float32))


def test_the_gradient_passes_straight_through():
    variable = mp.AutoCastVariable(np.linspace(-2, 2, 6, dtype=np.float32))
    factors = np.arange(6, dtype=np.float32)
    find = mp.grad(lambda x: mp.sum(mp.cast(cast(variable, "bfloat16", seed=1), "float32") * x), [variable])
    assert_same_bits(find(factors)[0], factors)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"rounding": "up"}, ValueError, "`rounding` must be 'nearest' or 'stochastic'; received 'up'"),
        ({"rounding": None}, ValueError, "`rounding` must be"),
        ({"seed": 1}, ValueError, "need `rounding='stochastic'`"),
        ({"rounding": "stochastic"}, ValueError, "needs a `seed`"),
        ({"rounding": "stochastic", "seed": -1}, ValueError, "`seed` must be an integer from 0 to 4294967295"),
        ({"rounding": "stochastic", "seed": 1.5}, TypeError, "`seed`"),
        ({"rounding": "stochastic", "seed": 1, "draw": 2**32}, ValueError, "`draw` must be an integer from 0"),
        ({"rounding": "stochastic", "seed": KEY, "draw": 1}, ValueError, "`draw` must be None"),
        ({"rounding": "stochastic", "seed": KEY.astype(np.int64)}, TypeError, "`seed` must be an ndarray of uint32"),
        ({"rounding": "stochastic", "seed": KEY[:1]}, ValueError, "of shape"),
        ({"rounding": "stochastic", "seed": 1, "saturate": 1}, TypeError, "`saturate`"),
        ({"rounding": "stochastic", "seed": 1, "dtype": "float32"}, ValueError, "received float32"),
        ({"rounding": "stochastic", "seed": 1, "dtype": "int8"}, ValueError, "received int8"),
        ({"rounding": "stochastic", "seed": 1, "out": np.zeros(2, np.float32)}, TypeError, "`out`"),
    ],
)
def test_contradicting_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message.replace("(", r"\(")):
        mp.cast(np.ones(2, np.float32), **({"dtype": "bfloat16"} | options))
