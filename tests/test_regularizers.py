"""Regularizers and constraints, compared with Keras', alone and as arguments of layers."""

import os
import pickle

import numpy as np
import pytest

import mp_core as mp
from mp_core import constraints, layers, optimizers, regularizers

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras

REGULARIZERS = [
    ("L1", {}), ("L2", {"l2": 0.3}), ("L1L2", {}), ("L1L2", {"l1": 0.1, "l2": 0.2}), ("OrthogonalRegularizer", {}),
    ("OrthogonalRegularizer", {"factor": 0.5, "mode": "columns"}),
]  # fmt: skip
CONSTRAINTS = [
    ("NonNeg", {}), ("MaxNorm", {}), ("MaxNorm", {"max_value": 0.5, "axis": 1}), ("MaxNorm", {"axis": [0, 1]}),
    ("UnitNorm", {}), ("MinMaxNorm", {}), ("MinMaxNorm", {"min_value": 1.0, "max_value": 1.5, "rate": 0.3}),
]  # fmt: skip


def exact(config):
    """Return a configuration whose numbers may be those of float32."""
    return {key: pytest.approx(value) if isinstance(value, float) else value for key, value in config.items()}


def both(module, name, own):
    return getattr(getattr(mp, module), name)(**own), getattr(getattr(keras, module), name)(**own)


@pytest.mark.parametrize(("name", "own"), REGULARIZERS)
def test_costs_are_those_of_keras(name, own, rng):
    x = rng.standard_normal((5, 4)).astype(np.float32)
    mine, other = both("regularizers", name, own)
    expected = keras.ops.convert_to_numpy(other(keras.ops.convert_to_tensor(x)))
    np.testing.assert_allclose(mine(x), expected, rtol=1e-5)
    np.testing.assert_array_equal(mine(mp.AutoCastVariable(x)), mine(x))
    assert mine(x.astype(np.float64)).dtype == np.float64


@pytest.mark.parametrize(("name", "own"), CONSTRAINTS)
def test_constraints_are_those_of_keras(name, own, rng):
    w = rng.standard_normal((5, 4)).astype(np.float32)
    mine, other = both("constraints", name, own)
    expected = keras.ops.convert_to_numpy(other(keras.ops.convert_to_tensor(w)))
    np.testing.assert_allclose(mine(w), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("module", "name", "own"),
    [("regularizers", *row) for row in REGULARIZERS] + [("constraints", *row) for row in CONSTRAINTS],
)
def test_configurations_load_in_both(module, name, own):
    mine, other = both(module, name, own)
    assert mine.get_config() == exact(other.get_config())
    home, theirs = getattr(mp, module), getattr(keras, module)
    assert home.deserialize(home.serialize(mine)).get_config() == mine.get_config()
    assert theirs.deserialize(home.serialize(mine)).get_config() == exact(other.get_config())
    assert home.deserialize(theirs.serialize(other)).get_config() == exact(mine.get_config())


@pytest.mark.parametrize("name", ["L1", "L2", "OrthogonalRegularizer"])
def test_costs_have_gradients(name, rng):
    x = rng.standard_normal((4, 3))
    variable = mp.AutoCastVariable(x.astype(np.float32))
    cost = getattr(regularizers, name)(0.5)
    _, (gradient,) = mp.value_and_grad(lambda: cost(variable), [variable])()
    for index in [(0, 0), (3, 2)]:
        step = np.zeros_like(x)
        step[index] = 1e-6
        assert gradient[index] == pytest.approx((cost(x + step) - cost(x - step)) / 2e-6, rel=1e-3, abs=1e-4)


LAYERS = [
    (layers.Dense, {"units": 3}, (2, 4), ("kernel", "bias")),
    (layers.EinsumDense, {"equation": "ab,bc->ac", "output_shape": 3, "bias_axes": "c"}, (2, 4), ("kernel", "bias")),
    (layers.Embedding, {"input_dim": 5, "output_dim": 3}, (2, 4), ("embeddings",)),
    (layers.Conv1D, {"filters": 3, "kernel_size": 2}, (2, 6, 4), ("kernel", "bias")),
    (layers.Conv2D, {"filters": 3, "kernel_size": 2}, (2, 6, 6, 4), ("kernel", "bias")),
    (layers.Conv3D, {"filters": 3, "kernel_size": 2}, (2, 3, 3, 3, 4), ("kernel", "bias")),
    (layers.Conv1DTranspose, {"filters": 3, "kernel_size": 2}, (2, 6, 4), ("kernel", "bias")),
    (layers.Conv2DTranspose, {"filters": 3, "kernel_size": 2}, (2, 6, 6, 4), ("kernel", "bias")),
    (layers.Conv3DTranspose, {"filters": 3, "kernel_size": 2}, (2, 3, 3, 3, 4), ("kernel", "bias")),
    (layers.DepthwiseConv2D, {"kernel_size": 2}, (2, 6, 6, 4), ("depthwise", "bias")),
    (layers.DepthwiseConv1D, {"kernel_size": 2}, (2, 6, 4), ("depthwise", "bias")),
    (layers.SeparableConv1D, {"filters": 3, "kernel_size": 2}, (2, 6, 4), ("depthwise", "pointwise", "bias")),
    (layers.SeparableConv2D, {"filters": 3, "kernel_size": 2}, (2, 6, 6, 4), ("depthwise", "pointwise", "bias")),
    (layers.BatchNormalization, {}, (2, 4), ("gamma", "beta")),
    (layers.LayerNormalization, {}, (2, 4), ("gamma", "beta")),
    (layers.GroupNormalization, {"groups": 2}, (2, 4), ("gamma", "beta")),
    (layers.PReLU, {}, (2, 4), ("alpha",)),
]


@pytest.mark.parametrize(("kind", "own", "shape", "names"), LAYERS, ids=lambda x: getattr(x, "__name__", None))
def test_layers_take_regularizers_and_constraints_of_their_variables(kind, own, shape, names):
    given = {f"{name}_regularizer": regularizers.L2(0.5) for name in names}
    given |= {f"{name}_constraint": "non_neg" for name in names}
    layer = kind(**own, **given)
    layer.build(shape)
    assert len(layer.losses) == len(names)
    expected = sum(0.5 * np.sum(np.square(v.numpy(), dtype=np.float64)) for v in layer.trainable_variables)
    assert float(sum(layer.losses)) == pytest.approx(expected, rel=1e-5)
    assert all(isinstance(v.constraint, constraints.NonNeg) for v in layer.trainable_variables)
    config = layer.get_config()
    again = kind.from_config(config)
    assert again.get_config() == config
    theirs = getattr(keras.layers, kind.__name__)(**own, **{f"{name}_regularizer": "l2" for name in names})
    mine = kind.from_config(theirs.get_config())
    assert set(mine._penalties) == {f"{name}_regularizer" for name in names}
    copied = pickle.loads(pickle.dumps(layer))
    assert float(sum(copied.losses)) == float(sum(layer.losses))


def test_attention_hands_them_to_its_projections():
    layer = layers.MultiHeadAttention(2, 3, kernel_regularizer="l2")
    layer(np.ones((1, 4, 6), np.float32), np.ones((1, 4, 6), np.float32))
    assert len(layer.losses) == 4


def test_costs_are_computed_in_the_dtype_of_the_variable():
    layer = layers.Dense(2, kernel_regularizer=regularizers.L2(1.0), kernel_initializer="ones", dtype="mixed_float16")
    layer.build((None, 70_000))  # 140,000 is beyond float16
    assert layer.losses == [140_000.0] and layer.losses[0].dtype == np.float32


def test_the_loss_of_a_model_has_the_costs_of_weights_and_outputs(rng):
    x, y = rng.standard_normal((8, 3)).astype(np.float32), rng.standard_normal((8, 2)).astype(np.float32)
    own = {"kernel_regularizer": "l2", "activity_regularizer": regularizers.L1(0.25)}
    model = mp.Sequential([mp.Input((3,)), layers.Dense(2, **own)])
    model.compile("sgd", "mse")
    kernel = model.layers[-1].kernel.numpy()
    outputs = x.astype(np.float64) @ kernel
    expected = np.mean((outputs - y) ** 2) + 0.01 * np.sum(kernel.astype(np.float64) ** 2)
    expected += 0.25 * np.abs(outputs).sum() / len(x)
    assert model.evaluate(x, y, verbose=0) == pytest.approx(expected, rel=1e-5)
    assert model.train_on_batch(x, y) == pytest.approx(expected, rel=1e-5)
    gradient = 2 * x.T @ (outputs - y) / y.size + 0.02 * kernel + 0.25 * x.T @ np.sign(outputs) / len(x)
    np.testing.assert_allclose(model.layers[-1].kernel.numpy(), kernel - 0.01 * gradient, rtol=1e-4, atol=1e-6)


def test_activity_regularization_adds_to_the_loss_of_training(rng):
    x = rng.standard_normal((4, 3)).astype(np.float32)
    model = mp.Sequential([mp.Input((3,)), layers.Dense(2), layers.ActivityRegularization(l1=0.5, l2=0.25)])
    model.compile("sgd", "mse")
    outputs = model.predict(x, verbose=0).astype(np.float64)
    expected = np.mean(outputs**2) + (0.5 * np.abs(outputs).sum() + 0.25 * np.square(outputs).sum()) / len(x)
    assert model.evaluate(x, np.zeros((4, 2)), verbose=0) == pytest.approx(expected, rel=1e-5)
    config = model.layers[-1].get_config()
    assert layers.ActivityRegularization.from_config(config).get_config() == config


def test_frozen_layers_cost_nothing():
    layer = layers.Dense(2, kernel_regularizer="l2")
    layer.build((None, 3))
    layer.trainable = False
    assert layer.losses == []


def test_an_update_ends_with_the_constraint():
    layer = layers.Dense(2, kernel_constraint="non_neg", kernel_initializer="ones")
    layer.build((None, 3))
    for optimizer in (optimizers.SGD(5.0), optimizers.LossScaleOptimizer(optimizers.Adam(5.0), initial_scale=1.0)):
        optimizer.apply([np.ones((3, 2), np.float32), None], layer.trainable_variables)
        np.testing.assert_array_equal(layer.kernel.numpy(), np.zeros((3, 2)))


def test_other_layers_and_other_names_refuse_them():
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        layers.Dense(2, alpha_regularizer="l2")
    with pytest.raises(ValueError, match="Unknown regularizer class_name='l3'"):
        layers.Dense(2, kernel_regularizer="l3")
    with pytest.raises(ValueError, match="Could not interpret constraint identifier: 3"):
        layers.Dense(2, kernel_constraint=3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: regularizers.L1(-1.0), "`l1` must be a number of at least 0"),
        (lambda: regularizers.OrthogonalRegularizer(mode="x"), '`mode` must be "rows" or "columns"'),
        (lambda: regularizers.OrthogonalRegularizer()(np.ones(3)), "must have two axes"),
        (lambda: constraints.MaxNorm(-1.0), "`max_value` must be a number of at least 0"),
        (lambda: constraints.MinMaxNorm(rate=2.0), "`rate` must be a number from 0 to 1"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
