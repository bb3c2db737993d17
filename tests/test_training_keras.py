"""Training, compared with Keras on JAX: the same models, weights and batches."""

import numpy as np
import pytest
import training_cases as cases
from conftest import run_with_keras

import mp_core as mp


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """Losses of Keras, and the files with the weights from which it began."""
    path = tmp_path_factory.mktemp("training")
    for name in cases.CASES:
        cases.model(mp, name).save(path / f"{name}.keras")
        for seed in cases.SEEDS:
            mp.random.set_seed(seed)
            cases.model(mp, name).save_weights(path / f"{name}.{seed}.weights.h5")
    mp.random.set_seed(None)
    run_with_keras("keras_training.py", path, "jax")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", cases.CASES)
def test_the_loss_of_each_of_100_steps_is_that_of_keras(curves, name):
    want = np.load(curves / f"{name}.losses.npy")
    model = mp.load_model(curves / f"{name}.keras")
    np.testing.assert_allclose(cases.losses(mp, model, name), want, rtol=1e-5)
    assert want[-1] < want[0]


POLICIES = [
    "float32",
    "mixed_bfloat16",
    "mixed_float16",
    "float8_from_float32",
    "float8_from_mixed_bfloat16",
    "float64",
]


# Keras 3.15 itself loses 0.56 points of wine (one of 180 answers) and 0.9 of diabetes by float8: 27 November 2026.
LOSES = dict.fromkeys(POLICIES, 0.005) | {policy: 0.009 for policy in POLICIES if "float8" in policy}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", cases.CASES)
def test_the_mean_score_of_5_seeds_is_that_of_keras_in_float32(curves, name, policy):
    scores = []
    for seed in cases.SEEDS:
        plain, model = cases.model(mp, name), cases.compiled(mp, cases.model(mp, name, policy), name)
        plain.load_weights(curves / f"{name}.{seed}.weights.h5")
        for mine, read in zip(model.layers, plain.layers, strict=True):
            mine.kernel.assign(read.kernel)
            mine.bias.assign(read.bias)
        scores.append(cases.score(model, name))
    assert np.mean(scores) == pytest.approx(np.load(curves / f"{name}.scores.npy").mean(), abs=LOSES[policy])
