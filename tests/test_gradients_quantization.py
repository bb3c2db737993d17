"""Gradients of rounded values: straight through, within the range."""

import numpy as np
import pytest
from gradients import by_rules, weights_for
from oracles import assert_same_bits

import mp_core as mp
from mp_core.dtypes import parse
from mp_core.quantizers import fake_quant_with_min_max_vars, quantize_and_dequantize

RANGES = [(-1.0, 2.0, 8, False), (-0.1, 3.0, 2, False), (-1.0, 1.0, 4, True), (0.5, 2.0, 8, False)]


def nudged(low, high, bits, narrow):
    """The ends of the range by the formulas of tf.quantization, in float32."""
    first, last = np.float32(narrow), np.float32(2**bits - 1)
    scale = (np.float32(high) - np.float32(low)) / (last - first)
    zero = np.clip(np.rint(first - np.float32(low) / scale), first, last)
    return (first - zero) * scale, (last - zero) * scale


@pytest.mark.parametrize("setting", RANGES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fake_quantization_passes_gradients_within_the_nudged_range(setting, dtype, rng):
    low, high, bits, narrow = setting
    x = (2 * rng.standard_normal((5, 60))).astype(dtype)
    least, most = np.float32(low), np.float32(high)
    arrays = x, least.astype(dtype), most.astype(dtype)
    found = by_rules(lambda *given: fake_quant_with_min_max_vars(*given, bits, narrow), *arrays)
    start, end = nudged(low, high, bits, narrow)
    d = weights_for(x.shape, dtype)
    np.testing.assert_array_equal(found[0], np.where((x >= start) & (x <= end), d, 0))
    np.testing.assert_allclose(found[1], d[x <= start].sum(), rtol=1e-5)
    np.testing.assert_allclose(found[2], d[x >= end].sum(), rtol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_ranges_along_an_axis_have_gradients_along_it(axis, rng):
    x = (2 * rng.standard_normal((3, 4, 5))).astype(np.float32)
    channels = x.shape[axis]
    low, high = -np.ones(channels, np.float32), np.linspace(0.5, 2, channels, dtype=np.float32)
    found = by_rules(lambda *given: fake_quant_with_min_max_vars(*given, axis=axis), x, low, high)
    d = np.moveaxis(weights_for(x.shape, np.float32), axis, -1).reshape(-1, channels)
    rows = np.moveaxis(x, axis, -1).reshape(-1, channels)
    for channel in range(channels):
        start, end = nudged(low[channel], high[channel], 8, False)
        np.testing.assert_allclose(found[1][channel], d[rows[:, channel] <= start, channel].sum(), rtol=1e-5)
        np.testing.assert_allclose(found[2][channel], d[rows[:, channel] >= end, channel].sum(), rtol=1e-5)


@pytest.mark.parametrize("setting", RANGES)
def test_plans_of_fake_quantization_have_its_bits(setting, rng):
    low, high, bits, narrow = setting
    x = (2 * rng.standard_normal((5, 60))).astype(np.float32)
    x[0, :4] = 0.0, -0.0, np.nan, np.inf
    plan = mp.compile(lambda x: fake_quant_with_min_max_vars(x, low, high, bits, narrow), x)
    assert_same_bits(plan(2 * x), fake_quant_with_min_max_vars(2 * x, low, high, bits, narrow))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_float8_passes_gradients_straight_through(name, dtype, rng):
    x = rng.standard_normal((4, 50)).astype(np.float32)
    rounded = quantize_and_dequantize(x, 0.01, name, dtype)
    plan = mp.compile(lambda x: quantize_and_dequantize(x, 0.01, name, dtype), x)
    assert_same_bits(plan(x), rounded)
    (found,) = by_rules(lambda x: mp.cast(quantize_and_dequantize(x, 0.01, name, dtype), "float32"), x)
    assert_same_bits(found, weights_for(x.shape, np.float32).astype(parse(dtype)).astype(np.float32))
