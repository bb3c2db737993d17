"""What users of Keras bring along: nested layers, subclasses, configurations, arguments without use here."""

import numpy as np
import pytest

from mp_core import layers, ops
from mp_core.autocast import AutoCastVariable


def test_layers_are_found_however_nested():
    class Blocks(layers.Layer):
        def __init__(self):
            super().__init__()
            self.blocks = [{"a": (layers.Dense(2),)}, [layers.Dense(3)]]
            self.offset = AutoCastVariable(np.ones(3, np.float32), name="offset")

        def call(self, inputs):
            return self.blocks[1][0](self.blocks[0]["a"][0](inputs)) + self.offset

    model, x = Blocks(), np.ones((1, 4), np.float32)
    expected = model(x)
    assert [w.shape for w in model.weights] == [(3,), (4, 2), (2,), (2, 3), (3,)]
    assert model.count_params() == 3 + 8 + 2 + 6 + 3
    assert model.trainable_variables == model.weights and model.non_trainable_variables == []
    small = model.with_policy("bfloat16")
    assert {w.true_dtype.name for w in small.weights} == {"bfloat16"}
    np.testing.assert_allclose(small(x).astype(float), expected, rtol=0.05, atol=0.05)
    model.quantize("int8")
    assert all(layer.quantized for layer in model.children())
    del model.offset
    assert len(model.weights) == 6


def test_a_deleted_weight_is_gone():
    layer = layers.Layer()
    layer.x, layer.y = layer.add_weight(name="x"), layer.add_weight(None, "ones", name="y")
    del layer.x
    assert layer.weights == [layer.y] and layer.y.shape == ()


def test_configurations_pass_through_the_classes_between():
    class Narrow(layers.Dense):
        def __init__(self, units, **kwargs):
            super().__init__(units, **kwargs)

    class Few(Narrow):
        def __init__(self, few, units=3):
            super().__init__(units)
            self.few = few

    assert not Narrow.from_config({"units": 3, "use_bias": False}).use_bias
    assert Narrow.from_config(Narrow(3, activation="relu").get_config()).activation is ops.relu
    assert Few.from_config({"few": 1, "units": 4}).units == 4
    with pytest.raises(ValueError, match="Few has no argument `activation`"):
        Few.from_config({"few": 1, "activation": "relu"})


KERAS_QUANTIZER = {
    "class_name": "AbsMaxQuantizer",
    "config": {"value_range": [-127, 127], "epsilon": 1e-07, "output_dtype": "int8"},
}


def test_configurations_of_quantized_keras_layers():
    def config(mode, kind, **quantizers):
        policy = {"class_name": "QuantizedDTypePolicy", "config": {"mode": mode, "source_name": "float32"}}
        return {"units": 3, "dtype": policy, "quantization_config": {"class_name": kind, "config": quantizers}}

    int8 = config("int8", "Int8QuantizationConfig", weight_quantizer=None, activation_quantizer=KERAS_QUANTIZER)
    assert layers.Dense.from_config(int8 | {"batch_input_shape": [None, 4]}).quantization_mode == "int8"
    float8 = config("float8", "Float8QuantizationConfig")
    assert layers.Dense.from_config(float8 | {"quantization_config": None}).quantization_mode == "float8"
    for changed in ({"activation_quantizer": None}, {"weight_quantizer": KERAS_QUANTIZER}):
        with pytest.raises(ValueError, match=f"mp_core quantizes with `{next(iter(changed))}`"):
            layers.Dense.from_config(config("int8", "Int8QuantizationConfig", **changed))


def test_arguments_of_keras_that_are_off():
    layers.Dense(2, kernel_regularizer=None, bias_constraint=None, lora_rank=None)
    layers.Embedding(2, 3, mask_zero=False, embeddings_regularizer=None)
    for arguments in ({"kernel_regularizer": "l2"}, {"units_": 2}, {"trainable": "False"}, {"name": 3}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            layers.Dense(2, **arguments)


@pytest.mark.parametrize(
    ("equation", "given", "shape", "expected"),
    [
        ("bc...,cd->bd...", 4, (2, 1, 2, 3), (2, 4, 2, 3)),
        ("ab...,bc->ac...", (4,), (2, 1, 3), (2, 4, 3)),
        ("...x,xy->...y", 4, (2, 2, 3), (2, 2, 4)),
        ("bc...,cd->bd...", (4, None, None), (2, 1, 2, 3), (2, 4, 2, 3)),
    ],
)
def test_output_shapes_leave_the_ellipsis_out(equation, given, shape, expected):
    assert layers.EinsumDense(equation, given)(np.ones(shape, np.float32)).shape == expected


def test_an_activation_of_none_is_linear():
    layer = layers.Dense(2, activation="relu")
    layer.activation = None
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(layer(x), x @ layer.kernel.numpy())


def test_a_table_in_a_list():
    table = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(layers.Embedding(3, 4, weights=[table]).embeddings.numpy(), table)


def test_settings_of_initializers():
    def draw(config):
        layer = layers.Dense(2, kernel_initializer={"class_name": "RandomUniform", "config": config})
        layer.build((None, 3))
        return layer.kernel.numpy()

    assert draw({"minval": 5, "maxval": 6, "seed": None}).min() >= 5
    with pytest.raises(ValueError, match="no such settings"):
        draw({"scale": 2})


def test_configurations_of_built_keras_attention_load():
    config = {"num_heads": 2, "key_dim": 4, "attention_axes": [1], "output_shape": (3,)}
    layer = layers.MultiHeadAttention.from_config(config)
    x = np.ones((2, 3, 6), np.float32)
    assert layer(x, x).shape == (2, 3, 3)
    assert layers.MultiHeadAttention(2, 4, attention_axes=None, output_shape=[5]).output_shape == 5
    with pytest.raises(ValueError, match="`attention_axes` must be 1 or None; received attention_axes=2"):
        layers.MultiHeadAttention(2, 4, attention_axes=2)


class Double(layers.Layer):
    def call(self, inputs):
        return inputs * 2


def test_configurations_of_stacks_load():
    start = {"class_name": "InputLayer", "config": {"batch_shape": (None, 3)}}
    inner = {"class_name": "Sequential", "config": {"layers": [{"class_name": "Double", "config": {}}]}}
    stack = layers.Sequential.from_config({"layers": [start, inner]}, custom_objects={"Double": Double})
    np.testing.assert_array_equal(stack(np.ones((1, 3), np.float32)), 2)


def test_the_axes_of_layer_normalization_are_in_the_order_of_the_inputs(rng):
    x = rng.standard_normal((2, 3, 5), np.float32)
    layer, same = layers.LayerNormalization(axis=[2, 1]), layers.LayerNormalization(axis=[1, 2])
    layer.build(x.shape)
    same.build(x.shape)
    assert layer.gamma.shape == (3, 5)
    gamma = rng.standard_normal((3, 5), np.float32)
    layer.gamma.assign(gamma)
    same.gamma.assign(gamma)
    np.testing.assert_array_equal(layer(x), same(x))


def test_add_weight_takes_what_keras_passes():
    layer = layers.Layer()
    weight = layer.add_weight((2,), "ones", regularizer=None, constraint=None, aggregation="none")
    assert weight.shape == (2,) and not weight.overwrite_with_gradient
    assert layer.add_weight((2,), "ones", overwrite_with_gradient=True).overwrite_with_gradient
    with pytest.raises(ValueError, match="`regularizer` and `constraint` must be None"):
        layer.add_weight((2,), "ones", regularizer="l2")
    with pytest.raises(ValueError, match=r"`initializer` must make an array of shape \(2, 3\); received one of \(3,\)"):
        layer.add_weight((2, 3), lambda shape, dtype: np.ones(3, dtype))


def test_the_axis_of_layer_normalization_is_a_sorted_list_once_built():
    for axis, shape, built in ((-1, (2, 3, 4), [-1]), ([1, -1], (2, 3, 4), [-1, 1]), ((1, 2), (2, 3, 4), [1, 2])):
        layer = layers.LayerNormalization(axis=axis)
        assert layer.axis == (axis if axis == -1 else list(axis))
        layer.build(shape)
        assert layer.axis == layer.get_config()["axis"] == built
        layer(np.ones(shape, np.float32))
