"""Random numbers: those of NumPy's Philox, for any threads, shapes and plans."""

import numpy as np
import pytest
from gradients import by_rules
from oracles import assert_same_bits

import mp_core as mp
from mp_core.core import cpu
from mp_core.dtypes import parse
from mp_core.ops.random import dropout, key_after, normal, uniform

KEY = np.array([1234567, 89], np.uint32)


def words(n):
    return np.random.Philox(key=KEY.astype(np.uint64)).random_raw(n)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
@pytest.mark.parametrize("shape", [(), (3,), (7, 300), (2, 3, 5, 1)])
def test_dropout_keeps_what_numbers_of_numpy_say(dtype, rate, shape, isa, rng):
    x = np.asarray(rng.standard_normal(shape)).astype(parse(dtype))
    kept = np.random.Generator(np.random.Philox(key=KEY.astype(np.uint64))).random(shape) >= rate
    factor = 1 / (1 - rate) if dtype == "float64" else np.float32(1 / (1 - rate))
    wide = x if dtype == "float64" else x.astype(np.float32)
    expected = np.asarray(np.where(kept, wide * factor, wide.dtype.type(0))).astype(x.dtype)
    for threads in (1, 2, 4):
        with cpu.num_threads(threads):
            assert_same_bits(dropout(x, KEY, rate), expected)
    assert_same_bits(dropout(x.copy(order="F"), KEY.view(np.int32), rate), expected)


@pytest.mark.parametrize("noise_shape", [(4, 1, 6), (None, 5, 1), (1, 1, 1), (4, 5, 6)])
def test_elements_along_a_shared_axis_are_dropped_together(noise_shape, rng):
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    numbers = [n if own is None else own for own, n in zip(noise_shape, x.shape, strict=True)]
    kept = np.random.Generator(np.random.Philox(key=KEY.astype(np.uint64))).random(numbers) >= 0.5
    assert_same_bits(dropout(x, KEY, 0.5, noise_shape), np.where(kept, 2 * x, np.float32(0)))
    wide = x.astype(np.float64)
    assert_same_bits(dropout(wide, KEY, 0.5, noise_shape), np.where(kept, 2 * wide, 0.0))


def test_all_or_nothing():
    x = np.array([1, np.nan, -np.inf], np.float32)
    assert_same_bits(dropout(x, KEY, 1), np.zeros(3, np.float32))
    assert_same_bits(dropout(x, KEY, 0.0), x)
    assert dropout(x[:0], KEY, 0.5).shape == (0,)


def test_uniform_numbers_are_the_upper_bits_of_words(isa):
    assert_same_bits(uniform(KEY, (7, 100)), ((words(700) >> 40) * 2.0**-24).astype(np.float32).reshape(7, 100))
    assert uniform(KEY, ()).shape == ()


def blocks(number, t):
    """The four words of the Philox block of a counter, by NumPy, which counts up before it draws."""
    counter = np.array([number, t, 0, 1], np.uint64)
    return np.random.Philox(key=KEY.astype(np.uint64), counter=counter).random_raw(4)


def test_normal_numbers_are_those_of_the_polar_method(isa):
    found, numbers = normal(KEY, (400,)), np.zeros((400, 2))
    for i in range(400):
        t = 0
        while True:
            odd = 2 * (blocks(i, t) >> 40).astype(np.int64) + 1 - 2**24
            pairs = (odd * 2.0**-24).reshape(2, 2)
            inside = [pair for pair in pairs if np.float32((pair**2).sum()) < 1]
            if inside:
                break
            t += 1
        numbers[i] = inside[0]
    square = (numbers**2).sum(1).astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(found, numbers[:, 0] * np.sqrt(-2 * np.log(square) / square), rtol=2e-6)


def test_normal_numbers_are_normally_distributed():
    stats = pytest.importorskip("scipy.stats")
    x = normal(KEY, (100, 1000))
    assert stats.kstest(x.reshape(-1), "norm").pvalue > 0.01
    assert_same_bits(x.reshape(-1)[:500], normal(KEY, (500,)))


def test_keys_count_up():
    assert_same_bits(key_after(KEY), np.array([1234567, 90], np.uint32))
    assert_same_bits(key_after(KEY.view(np.int32)), np.array([1234567, 90], np.int32))


def test_the_gradient_of_dropout_has_its_mask(rng):
    x = rng.standard_normal((6, 50)).astype(np.float32)
    dropped = dropout(x, KEY, 0.3)
    (found,) = by_rules(lambda x: dropout(x, KEY, 0.3), x)
    np.testing.assert_array_equal(found != 0, dropped != 0)
    wide = x.astype(np.float64)
    (exact,) = by_rules(lambda x: dropout(x, KEY, 0.3), wide)
    np.testing.assert_allclose(found, exact, rtol=1e-6)


def test_plans_read_the_key_when_they_run(rng):
    x = rng.standard_normal((6, 50)).astype(np.float32)
    plan = mp.compile(lambda x, key: dropout(x, key, 0.4), x, KEY.view(np.int32))
    for key in (KEY, key_after(KEY)):
        assert_same_bits(plan(x, key.view(np.int32)), dropout(x, key, 0.4))


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dropout(X, [1, 2], 0.5), TypeError, "`key` must be an ndarray of uint32; received list"),
        (lambda: dropout(X, np.zeros(2), 0.5), TypeError, "`key` must be an ndarray of uint32; received float64"),
        (lambda: uniform(np.zeros(3, np.uint32), (1,)), ValueError, r"`key` must be \(seed, draw\), of shape \(2,\)"),
        (lambda: dropout(X, KEY, 1.5), ValueError, "`rate` must be a number from 0 to 1"),
        (lambda: dropout(X, KEY, 0.5, (2,)), ValueError, r"`noise_shape` must have the lengths of \(2, 3\)"),
        (lambda: dropout(X, KEY, 0.5, (2, 4)), ValueError, r"`noise_shape` must have the lengths of \(2, 3\)"),
        (lambda: dropout("x", KEY, 0.5), TypeError, "`x`"),
    ],
)
def test_wrong_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
