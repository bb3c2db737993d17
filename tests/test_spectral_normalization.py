"""SpectralNormalization, compared with Keras on JAX, and with the formula of the paper in float64."""

import numpy as np
import pytest
from conftest import run_with_keras
from oracles import assert_same_bits

import mp_core as mp
from mp_core import layers
from mp_core.layers import SpectralNormalization


@pytest.mark.slow
def test_training_and_files_are_those_of_keras_on_jax(tmp_path):
    run_with_keras("keras_spectral_normalization.py", tmp_path, "jax")


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
def test_many_iterations_find_the_largest_singular_value(policy, rng):
    layer = SpectralNormalization(layers.Conv1D(4, 2, use_bias=False, dtype=policy), 200, dtype=policy)
    x = rng.standard_normal((2, 5, 3))
    layer.build(x.shape)
    layer.layer.kernel.assign(rng.standard_normal((2, 3, 4)) * [4, 1, 1, 1])
    before = layer(x)
    kernel = layer.layer.kernel.numpy().astype(np.float64)
    largest = np.linalg.svd(kernel.reshape(-1, 4), compute_uv=False)[0]
    bound = {"float32": 1e-5, "float64": 1e-12, "mixed_bfloat16": 2**-6}[policy]
    outputs = layer(x, training=True).astype(np.float64)
    np.testing.assert_allclose(outputs, before.astype(np.float64) / largest, rtol=bound, atol=bound)
    np.testing.assert_allclose(np.linalg.norm(layer.vector_u.numpy()), 1, rtol=1e-5)
    assert layer(x).tobytes() == before.tobytes()  # the variable is what it was
    np.testing.assert_array_equal(layer.layer.kernel.numpy(), kernel)


def test_a_kernel_of_zeros_stays_and_is_trained():
    layer = SpectralNormalization(layers.Dense(2, kernel_initializer="zeros"))
    x = np.ones((3, 4), np.float32)
    layer.build(x.shape)
    vector = layer.vector_u.numpy().copy()
    step = mp.value_and_grad(lambda: mp.sum(layer(x, training=True)).reshape(1, 1), layer.trainable_variables)
    for gradient in step()[1]:
        np.testing.assert_array_equal(gradient, np.full(gradient.shape, 3))
    assert_same_bits(layer.vector_u.numpy(), vector)


def test_integers_of_an_embedding_give_floats():
    layer = SpectralNormalization(layers.Embedding(5, 3))
    assert layer(np.array([[0, 4]])).dtype == layer(np.array([[0, 4]]), training=True).dtype == np.float32


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_codes_run_and_are_saved_but_not_trained(mode, tmp_path, rng):
    model, x = mp.Sequential([layers.Input((5,)), SpectralNormalization(layers.Dense(8))]), rng.standard_normal((3, 5))
    model.quantize(mode)
    model.save(tmp_path / "model.keras")
    assert_same_bits(mp.load_model(tmp_path / "model.keras")(x), model(x))
    with pytest.raises(ValueError, match="must have a variable `kernel` or `embeddings` of floats"):
        model(x, training=True)


def test_refusals_name_the_layer():
    for power in (0, -1, 1.5):
        with pytest.raises(ValueError, match="`power_iterations` must be a positive integer"):
            SpectralNormalization(layers.Dense(2), power)
    with pytest.raises(ValueError, match="`layer` must be a Layer"):
        SpectralNormalization("dense")
    with pytest.raises(ValueError, match="must have a variable `kernel` or `embeddings`"):
        SpectralNormalization(layers.ReLU())(np.ones((4, 2), np.float32))
    adapted = SpectralNormalization(layers.Dense(2))
    adapted.build((None, 3))
    adapted.layer.enable_lora(1)
    with pytest.raises(ValueError, match="without LoRA"):
        adapted(np.ones((4, 3), np.float32), training=True)
