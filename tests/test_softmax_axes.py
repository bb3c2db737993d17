"""Softmax and its logarithm along several axes, compared with their formulas in float64."""

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp

AXES = [(1, 2), (-1, 1), [0, 3], (0, 1, 2, 3), (2,)]


def exact(x, axis, is_log=False, keep=True):
    places = tuple(a % x.ndim for a in axis)
    x = np.where(keep, x.astype(np.float64), -np.inf)
    shifted = x - x.max(places, keepdims=True)
    total = np.exp(shifted).sum(places, keepdims=True)
    return shifted - np.log(total) if is_log else np.exp(shifted) / total


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("axis", AXES)
def test_values_are_those_of_all_axes_together(rng, axis, dtype):
    x = (rng.standard_normal((2, 3, 4, 5)) * 3).astype(dtype)
    step = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1e-2, "float64": 1e-14}[np.dtype(dtype).name]
    for function, is_log in [(mp.softmax, False), (mp.ops.log_softmax, True)]:
        found = function(x, axis=axis)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float64), exact(x, axis, is_log), rtol=step, atol=step * 0.3)


def test_masks_broadcast_and_outputs_are_filled(rng):
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    keep = rng.random((3, 4)) < 0.7
    want = exact(x, (1, 2), keep=keep)
    out = np.empty_like(x)
    assert mp.softmax(x, axis=(1, 2), mask=keep, out=out) is out
    np.testing.assert_allclose(out, want, rtol=1e-6)
    np.testing.assert_array_equal(mp.layers.Softmax((1, 2))(x, mask=keep), out)


@pytest.mark.parametrize("axis", [(1, -1), (0, 2)])
def test_gradients_are_those_of_the_formula(rng, axis):
    x, d = rng.standard_normal((2, 2, 3, 4)).astype(np.float32)
    places, w = tuple(a % 3 for a in axis), mp.AutoCastVariable(x)
    s = exact(x, axis)
    wanted = {
        mp.softmax: s * (d - (d * s).sum(places, keepdims=True)),
        mp.ops.log_softmax: d - s * d.sum(places, keepdims=True),
    }
    for function, want in wanted.items():
        _, (found,) = mp.value_and_grad(lambda f=function: mp.ops.sum(f(w, axis=axis) * d), [w])()
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


def test_functional_models_have_and_save_it(tmp_path):
    x = mp.Input((3, 4))
    model = mp.Model(x, mp.ops.softmax(x, axis=(1, 2)) + mp.ops.log_softmax(x, axis=(1, 2)))
    model.save(tmp_path / "model.keras")
    for each in (model, mp.load_model(tmp_path / "model.keras")):
        np.testing.assert_allclose(each(np.ones((2, 3, 4))), 1 / 12 - np.log(12), rtol=1e-6)


@pytest.mark.parametrize(
    ("axis", "error"),
    [((), ValueError), ((0, 0), ValueError), ((0, -2), ValueError), ((0, 5), ValueError), ((0, True), TypeError)],
)
def test_other_axes_are_refused(axis, error):
    for function in (mp.softmax, mp.ops.log_softmax):
        with pytest.raises(error, match="axis"):
            function(np.zeros((2, 2), np.float32), axis=axis)


def test_no_elements_are_no_error():
    assert mp.softmax(np.zeros((2, 2, 0), np.float32), axis=(0, 1)).shape == (2, 2, 0)
    assert mp.ops.log_softmax(np.zeros((0, 2, 3), np.float32), axis=(1, 2)).shape == (0, 2, 3)
