"""Layers under float8 policies: products and delayed scaling compared with their formulas, and errors."""

import copy
import math

import ml_dtypes
import numpy as np
import pytest
from oracles import UNIT, gamma
from quantized_layers import SOURCES, dense, einsum, normal, wide

from mp_core import layers, ops, value_and_grad
from mp_core.dtype_policies import QuantizedFloat8DTypePolicy
from mp_core.loss_scale import SGD, LossScaleOptimizer
from mp_core.quantizers import compute_float8_amax_history, compute_float8_scale
from mp_core.tf_keras import GradientTape

F8 = np.dtype(ml_dtypes.float8_e4m3fn)


def _codes8(x, scale):
    """float32 division, clip, one rounding."""
    with np.errstate(invalid="ignore"):
        return np.clip(x.astype(np.float32) / np.float32(scale), -448, 448).astype(F8).astype(np.float64)


def _float8(layer, x, inputs_scale, kernel_scale):
    kernel = layer.kernel.numpy()
    return (_codes8(x, inputs_scale) @ _codes8(kernel.reshape(x.shape[-1], -1), kernel_scale)) * (
        np.float64(inputs_scale) * np.float64(kernel_scale)
    )


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("make", "tail"), [(dense, (7,)), (einsum, (3, 5))], ids=["dense", "einsum"])
def test_float8_products_are_their_formula(make, tail, source):
    layer = make(source)
    layer.quantize("float8")
    layer.inputs_scale.assign(np.float32(0.013))
    layer.kernel_scale.assign(np.float32(0.0007))
    layer.bias.assign(np.full(layer.bias.shape, 1 + 2.0**-10))
    x = normal(3, 2, 44).astype(layer.compute_dtype)
    y = layer(x.reshape(3, 2, 4, 11) if len(tail) > 1 else x)
    bias = 1.0 if layer.compute_dtype in ("bfloat16", "float32") else 1 + 2.0**-10  # Keras rounds that of float32 too
    exact = _float8(layer, x, 0.013, 0.0007) + bias
    bound = (gamma(60) + (UNIT[layer.compute_dtype])) * (np.abs(x.astype(float)) @ np.ones((44, math.prod(tail))) + 2)
    assert y.dtype == layer.compute_dtype and y.shape == (3, 2, *tail)
    assert (np.abs(wide(y).reshape(exact.shape) - exact) <= bound).all()


def test_trap_14_float8_scales_are_moved_by_the_optimizer_alone():
    layer = layers.Dense(3, dtype=QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=3))
    layer.build((None, 4))
    optimizer = SGD(0.0)
    step = value_and_grad(lambda x: ops.sum(layer(x, training=True)), layer.trainable_variables)
    kernel_max = np.abs(layer.kernel.numpy()).max()
    history, scale, gradients = np.zeros(3, np.float32), np.float32(1), np.zeros(3, np.float32)
    for number in range(6):
        x = normal(2, 4) * np.float32(10.0**number)
        before = [w.copy() for w in layer.get_weights()]
        np.testing.assert_array_equal(layer(x), layer(x, training=True))
        found = step(x)[1]
        for old, new in zip(before, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        optimizer.apply(found, layer.trainable_variables)
        if history.max() > 0:
            scale = history.max() / np.float32(448)
        history = compute_float8_amax_history(x, history)
        np.testing.assert_array_equal(layer.inputs_scale.numpy(), scale)
        np.testing.assert_array_equal(layer.inputs_amax_history.numpy(), history)
        assert layer.kernel_scale.numpy() == (1 if number == 0 else kernel_max / np.float32(448))
        assert layer.kernel_amax_history.numpy()[0] == kernel_max
        gradients = compute_float8_amax_history([1.0], gradients)
        np.testing.assert_array_equal(layer.outputs_grad_amax_history.numpy(), gradients)
    assert layer.outputs_grad_scale.numpy() == 1 / np.float32(57344)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_what_overwrites_delayed_scaling_is_what_the_formulas_give(length):
    """Scales stay where the history is 0, infinite or NaN; a NaN among the inputs is their largest magnitude."""
    layer = layers.Dense(3, dtype=QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=length))
    layer.build((None, 4))
    step = value_and_grad(lambda x: ops.sum(layer(x, training=True)), layer.trainable_variables)
    names = [v.name for v in layer.trainable_variables]
    for largest in (0.0, 3.0, np.inf, np.nan):
        past = np.arange(length, dtype=np.float32)
        past[-1] = largest
        layer.inputs_amax_history.assign(past)
        x = normal(2, 4)
        found = dict(zip(names, step(x)[1], strict=True))
        with np.errstate(invalid="ignore"):
            scale = compute_float8_scale(past.max(), 1.0, 448.0)
        np.testing.assert_array_equal(found["inputs_scale"], scale)
        np.testing.assert_array_equal(found["inputs_amax_history"], compute_float8_amax_history(x, past))


@pytest.mark.parametrize("by_policy", [True, False])
@pytest.mark.parametrize("make", [dense, einsum])
def test_optimizers_overwrite_what_delayed_scaling_keeps(make, by_policy):
    """Keras 3.15.1 marks these six of its eight variables, and neither scales nor subtracts their gradients."""
    layer = make("float8_from_float32" if by_policy else "float32")
    if not by_policy:
        layer.quantize("float8")
    parts = [f"{part}_{kept}" for part in ("inputs", "kernel", "outputs_grad") for kept in ("scale", "amax_history")]
    variables = layer.trainable_variables
    for some in (variables, copy.deepcopy(layer).trainable_variables):
        assert [v.name for v in some if v.overwrite_with_gradient] == parts and len(some) == 8
    expected = {v.name: v.numpy() for v in variables}
    for optimizer in (SGD(0.5, loss_scale_factor=4.0), LossScaleOptimizer(SGD(0.5), initial_scale=4.0)):
        optimizer.apply([np.full(v.shape, 8, np.float32) for v in variables], variables)
        for v in variables:
            expected[v.name] = np.full(v.shape, 8) if v.name in parts else expected[v.name] - np.float32(0.5 * 8 / 4)
            np.testing.assert_array_equal(v.numpy(), expected[v.name])
    optimizer.apply([np.full(v.shape, np.inf, np.float32) for v in variables], variables)
    assert layer.inputs_scale.numpy() == 8 and optimizer.dynamic_scale == 2.0  # a step that is skipped


def test_training_reaches_the_layers_of_a_stack():
    model = layers.Sequential([layers.Dense(3, dtype="float8_from_float32"), layers.Activation("relu")])
    x, history = normal(2, 4), None
    model(x)
    for training in (True, False):
        with GradientTape() as tape:
            value = ops.sum(model(x, training=training))
        history = tape.gradient(value, model.layers[0].inputs_amax_history)
        assert (history is None) is not training
        assert history is None or history[0] == np.abs(x).max()


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("name", ["inputs_scale", "kernel_scale"])
def test_float8_scales_must_be_positive(name, scale):
    layer = dense("float8_from_float32")
    getattr(layer, name).assign(np.float32(scale))
    with pytest.raises(ValueError, match="`scale` must be positive and finite"):
        layer(normal(1, 44))


@pytest.mark.parametrize("length", [0, -1])
def test_a_history_without_a_length_is_refused(length):
    with pytest.raises(ValueError, match=f"`amax_history_length` must be positive; received {length}"):
        dense(QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=length))


def test_a_float8_layer_keeps_the_length_of_its_histories():
    layer = dense("float32")
    layer.quantize("float8")
    layer.dtype_policy = QuantizedFloat8DTypePolicy("float8", "mixed_bfloat16")
    with pytest.raises(ValueError, match="is already quantized with dtype_policy='float8_from_mixed_bfloat16'"):
        layer.dtype_policy = QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=4)
    loaded = layers.Dense.from_config(layer.get_config())
    loaded.build((None, layer.depth))
    loaded.set_weights(layer.get_weights())


def test_float8_keeps_the_history_of_its_policy():
    layer = dense("float32")
    layer.dtype_policy = QuantizedFloat8DTypePolicy("float8", "float32", amax_history_length=5)
    assert layer.inputs_amax_history.shape == (5,)
    layer = dense("float32")
    layer.quantize("float8")
    assert layer.inputs_amax_history.shape == (1024,)
    assert layer.dtype_policy == QuantizedFloat8DTypePolicy("float8", "float32")
