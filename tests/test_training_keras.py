"""Training beside Keras with JAX: the same models, weights and batches."""

import importlib.util

import numpy as np
import pytest
import training_cases as cases
from conftest import run_with_keras

import mp_core as mp


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """Losses of Keras, and the files with the weights from which it began."""
    if importlib.util.find_spec("keras") is None or importlib.util.find_spec("jax") is None:
        pytest.skip("Keras or JAX is not installed")
    path = tmp_path_factory.mktemp("training")
    for name in cases.CASES:
        cases.model(mp, name).save(path / f"{name}.keras")
    run_with_keras("keras_training.py", path, "jax")
    return path


@pytest.mark.parametrize("name", cases.CASES)
def test_the_loss_of_each_of_100_steps_is_that_of_keras(curves, name):
    want = np.load(curves / f"{name}.losses.npy")
    model = mp.load_model(curves / f"{name}.keras")
    np.testing.assert_allclose(cases.losses(mp, model, name), want, rtol=1e-5)
    assert want[-1] < want[0]
