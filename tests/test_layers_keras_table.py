"""Layers beside those of Keras on its NumPy backend, by one table of cases (`keras_cases.py`)."""

import importlib.util

import numpy as np
import pytest
from conftest import run_with_keras
from keras_cases import INPUTS, name_of

from mp_core.interop.keras import load_keras

ROUNDING = {"float64": 1e-12, "float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""By which share outputs of a type may be apart: Keras rounds after each step of a layer, mp_core once."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    path = tmp_path_factory.mktemp("keras_layers")
    run_with_keras("keras_layers.py", path, "numpy")
    return path


def _check(got, want, dtype):
    assert got.dtype.name == dtype
    largest = np.abs(want[np.isfinite(want)], dtype=np.float64).max(initial=1e-30)
    bound = ROUNDING.get(dtype, 0) * largest
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=bound)


@pytest.mark.parametrize("case", INPUTS, ids=name_of)
def test_inputs_are_cast_to_the_dtype_of_their_input_and_nothing_else(folder, case):
    arrays = np.load(folder / f"{name_of(case)}.npz")
    x, want, dtype = arrays["x"], arrays["want"], str(arrays["dtype"])
    model = load_keras(folder / f"{name_of(case)}.keras")
    _check(model(x), want, dtype)
    _check(arrays["got"].astype(str(arrays["got_dtype"])), want, dtype)
    again = type(model).from_config(model.get_config())
    again.build()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(x).astype(np.float64), model(x).astype(np.float64))
