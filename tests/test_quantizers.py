"""Keras' quantizers against their formulas."""

import ml_dtypes
import numpy as np
import pytest

from mp_core.quantizers import (
    abs_max_quantize,
    compute_float8_amax_history,
    compute_float8_scale,
    quantize_and_dequantize,
)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_abs_max_quantize_is_its_formula(axis, dtype, rng):
    x = (rng.standard_normal((7, 9)) * 10).astype(dtype)
    codes, scale = abs_max_quantize(x, axis)
    expected = 127 / (np.abs(x).max(axis=axis, keepdims=True) + x.dtype.type(1e-7))
    np.testing.assert_array_equal(scale, expected)
    np.testing.assert_array_equal(codes, np.clip(np.rint(x * expected), -127, 127))


def test_trap_14_float8_delayed_scaling():
    """The old scale rounds; the new one comes from the old history; the newest amax is at index 0 after roll(-1)."""
    history, scale = np.array([6.0, 2.0, 4.0], np.float32), np.float32(0.5)
    x = np.array([1.0, -9.0, 0.3], np.float32)
    rounded = quantize_and_dequantize(x, scale, "float8_e4m3fn", "float32")
    np.testing.assert_array_equal(rounded, (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale)
    new_scale = compute_float8_scale(history.max(), scale, 448.0)
    assert new_scale == np.float32(6.0) / np.float32(448.0)
    np.testing.assert_array_equal(compute_float8_amax_history(x, history), [9.0, 4.0, 6.0])
    for amax in (0.0, -1.0, np.inf, np.nan):
        assert compute_float8_scale(amax, scale, 448.0) == scale
    assert compute_float8_scale(3.0, 1.0, 448.0, margin=1) == np.float32(6.0) / np.float32(448.0)


@pytest.mark.parametrize(("dtype", "largest"), [("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)])
@pytest.mark.parametrize("compute", ["float32", "bfloat16", "float16"])
def test_quantize_and_dequantize_clips(dtype, largest, compute):
    result = quantize_and_dequantize([largest * 1.5 if compute != "float16" else largest, 1.0], 1.0, dtype, compute)
    assert result.dtype == compute and result.astype(np.float32).tolist() == [largest, 1.0]
