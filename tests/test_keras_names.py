"""Keras' names: programs find them at the same place as in Keras."""

import importlib
import os

import numpy as np
import pytest

import mp_core as mp
from mp_core import initializers, layers, utils

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of torch

# Module of Keras -> what programs of training take from it.
TAKEN = {
    "": ("Input", "Layer", "Model", "Sequential", "Loss", "Metric", "Optimizer", "Regularizer", "Initializer", "utils"),
    "activations": ("get", "relu", "gelu", "softmax", "sigmoid", "tanh", "swish", "linear", "serialize", "deserialize"),
    "constraints": ("MaxNorm", "max_norm", "non_neg", "unit_norm", "min_max_norm"),
    "initializers": (
        "Constant", "HeNormal", "he_normal", "GlorotUniform", "glorot_uniform", "RandomNormal", "random_normal",
        "Orthogonal", "orthogonal", "Zeros", "zeros", "Ones", "ones", "VarianceScaling", "TruncatedNormal", "get",
    ),
    "layers": (
        "MaxPool1D", "MaxPool2D", "MaxPool3D", "AvgPool2D", "GlobalAvgPool2D", "GlobalMaxPool1D", "Convolution2D",
    ),
    "models": ("Functional", "Model", "Sequential", "clone_model", "load_model", "model_from_json", "save_model"),
    "regularizers": ("L2", "l2", "l1", "l1_l2", "orthogonal_regularizer"),
    "utils": (
        "to_categorical", "pad_sequences", "normalize", "set_random_seed", "PyDataset", "clear_session",
        "register_keras_serializable", "custom_object_scope", "get_custom_objects",
    ),
}  # fmt: skip


@pytest.mark.parametrize("module", TAKEN)
def test_names_are_where_they_are_in_keras(module):
    found = importlib.import_module(f"mp_core.{module}" if module else "mp_core")
    assert [name for name in TAKEN[module] if not hasattr(found, name)] == []


def test_the_models_of_keras_are_those_of_training():
    from mp_core.models import Model, Sequential, load_model, save_model

    assert (Model, Sequential, load_model, save_model) == (mp.Model, mp.Sequential, mp.load_model, mp.saving.save_model)
    assert not issubclass(mp.models.TextNetwork, Model)


def test_modules_under_other_names_list_what_they_have():
    assert "HeNormal" in dir(mp.initializers) and "get" in dir(mp.activations)


# ---- initializers


@pytest.fixture(scope="module")
def keras():
    os.environ.setdefault("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


@pytest.mark.parametrize("name", [name for name in initializers.__all__ if name[0].isupper() and name != "Initializer"])
def test_an_initializer_has_the_configuration_and_the_distribution_of_keras(keras, name):
    shape = (40, 60)
    mine, theirs = getattr(initializers, name)(), getattr(keras.initializers, name)()
    config = theirs.get_config()
    assert mine.get_config().items() <= {"gain": 1.0, **config}.items()
    assert type(mine).from_config(config).get_config() == mine.get_config()
    got, expected = mine(shape, "float32"), keras.ops.convert_to_numpy(theirs(shape))
    assert got.dtype == np.float32 and got.shape == shape
    deviation = expected.std()
    assert (
        abs(got.std() - deviation) <= 0.08 * deviation and abs(got.mean() - expected.mean()) <= 0.1 * deviation + 1e-8
    )
    assert np.abs(got).max() <= 1.6 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["HeNormal", "RandomUniform", "TruncatedNormal", "Orthogonal", "VarianceScaling"])
def test_a_seed_gives_the_same_numbers_and_a_generator_others(name):
    kind = getattr(initializers, name)
    first = kind(seed=3)
    np.testing.assert_array_equal(first((4, 5)), kind(seed=3)((4, 5)))
    np.testing.assert_array_equal(first((4, 5)), first((4, 5)))  # as in Keras
    assert (first((4, 5)) != kind(seed=4)((4, 5))).any()
    drawn = kind()
    np.testing.assert_array_equal(drawn((4, 5)), drawn((4, 5)))
    generated = kind(seed=mp.random.SeedGenerator(1))
    assert (generated((4, 5)) != generated((4, 5))).any()


@pytest.mark.parametrize("shape", [(3, 3, 2, 5), (7, 7), (4, 30)])
def test_orthogonal_matrices_are(shape):
    q = initializers.Orthogonal(gain=2.0, seed=1)(shape, "float64").reshape(-1, shape[-1])
    product = q @ q.T if q.shape[0] < q.shape[1] else q.T @ q
    np.testing.assert_allclose(product, 4.0 * np.eye(len(product)), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: initializers.VarianceScaling(0.0), "`scale` must be above 0; received 0.0"),
        (lambda: initializers.VarianceScaling(mode="in"), "`mode` must be one of"),
        (lambda: initializers.VarianceScaling(distribution="x"), "`distribution` must be one of"),
        (lambda: initializers.Identity()((3,)), "`shape` must be that of a matrix"),
        (lambda: initializers.Orthogonal()((3,)), "`shape` must have at least two axes"),
        (lambda: initializers.RandomNormal()((3,), "int32"), "floating-point dtypes only"),
        (lambda: initializers.get("he_norml"), "Could not interpret initializer: 'he_norml'"),
    ],
)
def test_initializers_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_layers_take_and_keep_initializers():
    layer = layers.Dense(
        4, kernel_initializer=initializers.HeNormal(seed=1), bias_initializer=initializers.Constant(2.0)
    )
    layer.build((None, 3))
    np.testing.assert_array_equal(layer.kernel.numpy(), initializers.HeNormal(seed=1)((3, 4)))
    again = layers.Dense.from_config(layer.get_config())
    again.build((None, 3))
    np.testing.assert_array_equal(again.kernel.numpy(), layer.kernel.numpy())
    np.testing.assert_array_equal(again.bias.numpy(), np.full(4, 2, np.float32))


# ---- utils


def test_sequences_are_padded_as_in_keras(keras):
    sequences = [[1, 2, 3], [4], [], [5, 6, 7, 8, 9]]
    for options in ({}, {"maxlen": 3}, {"padding": "post", "value": -1}, {"maxlen": 2, "truncating": "post"}):
        np.testing.assert_array_equal(
            utils.pad_sequences(sequences, **options), keras.utils.pad_sequences(sequences, **options)
        )
    pairs = [[[1, 2], [3, 4]], [[5, 6]]]
    np.testing.assert_array_equal(utils.pad_sequences(pairs), keras.utils.pad_sequences(pairs))
    with pytest.raises(ValueError, match="`padding` must be 'pre' or 'post'; received 'mid'"):
        utils.pad_sequences(sequences, padding="mid")


def test_vectors_are_normalized_as_in_keras(keras):
    x = np.random.default_rng(0).standard_normal((4, 5))
    x[2] = 0
    for options in ({}, {"axis": 1}, {"order": 1}):
        np.testing.assert_allclose(utils.normalize(x, **options), keras.utils.normalize(x, **options), rtol=1e-12)
    assert utils.normalize(x.astype(np.float32)).dtype == np.float32


def test_names_of_layers_begin_anew():
    utils.clear_session()
    assert [layers.Dense(1).name, layers.Dense(1).name] == ["dense", "dense_1"]
    utils.clear_session()
    assert layers.Dense(1).name == "dense"


# ---- activations


@pytest.mark.parametrize("name, arguments", [
    ("relu", {"negative_slope": 0.25}), ("relu", {"max_value": 1.0}), ("relu", {"max_value": 6.0}),
    ("relu", {"threshold": 0.5, "negative_slope": 0.25, "max_value": 2.0}), ("softmax", {"axis": 0}),
    ("threshold", {"threshold": 0.5, "default_value": -3.0}),
])  # fmt: skip
def test_activations_take_the_arguments_of_keras(keras, rng, name, arguments):
    x = 3 * rng.standard_normal((5, 4), np.float32)
    x[0] = 0.5  # a threshold itself
    theirs = keras.ops.convert_to_numpy(getattr(keras.activations, name)(keras.ops.convert_to_tensor(x), **arguments))
    np.testing.assert_allclose(getattr(mp.activations, name)(x, **arguments), theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("arguments", [{"max_value": 4.0}, {"threshold": 5.0}, {"max_value": 4.0, "threshold": 0.5}])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_relu_of_minus_infinity_is_zero(arguments, dtype):
    x = mp.cast(np.array([-np.inf, -1e4, np.inf, np.nan]), dtype)
    expected = [0, 0, arguments.get("max_value", np.inf), np.nan]
    for function in (lambda x: mp.activations.relu(x, **arguments), mp.layers.ReLU(dtype=dtype, **arguments)):
        np.testing.assert_array_equal(function(x).astype(np.float64), expected)


def test_relu_of_either_module_is_fused_and_has_its_name(rng):
    x = rng.standard_normal((3, 5), np.float32)
    layers = [mp.layers.Dense(4, activation=each) for each in (mp.relu, mp.activations.relu, "relu")]
    for layer in layers:
        layer(x)
        layer.set_weights(layers[0].get_weights())
        assert layer.get_config()["activation"] == "relu"
        np.testing.assert_array_equal(layer(x), layers[0](x))
        assert mp.layers.activations.FUSED[layer.activation] == "relu"
