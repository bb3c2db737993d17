"""The layers of the tf.keras interface: built in, quantized, stacked, and as configurations."""

import json
import pickle

import numpy as np
import pytest

from mp_core import config, dtype_policies, saving, tf_keras
from mp_core import layers as keras3_layers
from mp_core.dtype_policies import DTypePolicy
from mp_core.layers import registry
from mp_core.tf_keras.mixed_precision import Policy, deserialize
from mp_core.tf_keras.mixed_precision.experimental import PolicyV1


class Identity(tf_keras.Layer):
    def call(self, inputs):
        return inputs


LAYERS = [
    (tf_keras.layers.Activation("relu"), (2, 3)),
    (tf_keras.layers.Conv2D(2, 2), (1, 3, 3, 1)),
    (tf_keras.layers.Dense(2), (2, 3)),
    (tf_keras.layers.Dropout(0.1), (2, 3)),
    (tf_keras.layers.EinsumDense("ab,bc->ac", output_shape=(2,), bias_axes="c"), (2, 3)),
    (tf_keras.layers.Embedding(4, 2), (2, 3)),
    (tf_keras.layers.LayerNormalization(), (2, 3)),
    (tf_keras.layers.Softmax(), (2, 3)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: getattr(value, "name", None))
@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
def test_built_in_layers_compute_what_those_of_the_other_face_do(layer, shape, policy):
    arguments = {**layer.get_config(), "dtype": policy}
    ours = type(layer).from_config(arguments)
    theirs = getattr(keras3_layers, type(layer).__name__).from_config(arguments)
    x = np.arange(np.prod(shape)).reshape(shape) % 4
    x = x if isinstance(layer, tf_keras.layers.Embedding) else x.astype(np.float32)
    ours(x)
    theirs.build(shape)
    theirs.set_weights(ours.get_weights())
    y = ours(x)
    assert isinstance(ours, tf_keras.Layer) and ours.dtype_policy == Policy(policy)
    assert y.dtype == np.dtype(ours.compute_dtype)
    np.testing.assert_array_equal(y, theirs(x))
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again(x), y)


# ---- faces do not leak


@pytest.mark.parametrize("name", ["float32", "mixed_float16", "params=float32,compute=bfloat16,output=float32"])
def test_plain_policies_of_keras_become_policies_in_layers_of_tf_keras(name):
    config.set_dtype_policy(name)
    given = (
        None,
        DTypePolicy(name),
        dtype_policies.FloatDTypePolicy(name),
        dtype_policies.serialize(DTypePolicy(name)),
    )
    for identifier in given:
        assert type(tf_keras.layers.Dense(1, dtype=identifier).dtype_policy) is Policy
    assert type(deserialize(given[-1])) is Policy


def test_a_copy_under_a_quantized_policy_keeps_the_policies_of_the_face():
    class Block(tf_keras.Layer):
        def build(self, input_shape):
            self.parts = [tf_keras.layers.LayerNormalization(), tf_keras.layers.Dense(2)]

        def call(self, inputs):
            return self.parts[1](self.parts[0](inputs))

    block = Block()
    block(np.ones((2, 4), np.float32))
    copied = block.with_policy("int8_from_float32")
    assert type(copied.dtype_policy) is type(copied.parts[0].dtype_policy) is Policy
    assert copied.parts[1].quantized


# ---- integer policies, and switches that are none

WEIGHTED = [layer for layer, _ in LAYERS if layer.name.startswith(("conv", "dense", "einsum", "emb", "layer"))]
NOT_FLOATING = ["int8", "uint8", "int16", "int32", "int64", "uint32", "bool", "complex64", "string"]


@pytest.mark.parametrize("dtype", NOT_FLOATING)
@pytest.mark.parametrize("layer", WEIGHTED, ids=lambda layer: layer.name)
def test_layers_with_weights_are_built_in_floating_point_dtypes_only(layer, dtype):
    shape = {other.name: shape for other, shape in LAYERS}[layer.name]
    layer = type(layer).from_config(layer.get_config() | {"dtype": dtype})
    with pytest.raises(TypeError, match=rf"layer can only be built with a floating-point dtype\. .*dtype={dtype}$"):
        layer(np.ones(shape, np.float32))
    assert not layer.built and layer.weights == []


def test_layers_that_infer_an_integer_are_not_built():
    with pytest.raises(TypeError, match="A Dense layer can only be built with a floating-point dtype"):
        tf_keras.layers.Dense(2, dtype=Policy("_infer"))(np.ones((2, 3), np.int32))


@pytest.mark.parametrize("value", ["x", None, 1])
def test_switches_must_be_bools(value):
    for layer_type in (tf_keras.layers.Dense, keras3_layers.Dense):
        with pytest.raises(TypeError, match="`autocast` must be True or False; received autocast="):
            layer_type(3, autocast=value)
        with pytest.raises(TypeError, match="`use_bias` must be True or False"):
            layer_type(3, use_bias=value)
    for name in ("experimental_autocast", "autocast"):
        if value is not None:
            with pytest.raises(TypeError, match="`autocast` must be True or False"):
                tf_keras.Layer().add_weight("v", **{name: value})
    assert tf_keras.Layer().add_weight("v", trainable=None).trainable


# ---- quantization: every way, and as in the other face


def _quantized_by_policy(layer, policy):
    layer.dtype_policy = policy
    return layer


QUANTIZE = [
    lambda layer, mode: layer.quantize(mode) or layer,
    lambda layer, mode: _quantized_by_policy(layer, f"{mode}_from_float32"),
    lambda layer, mode: _quantized_by_policy(layer, dtype_policies.get(f"{mode}_from_float32")),
    lambda layer, mode: layer.with_policy(f"{mode}_from_float32"),
]


MODES = [(i, mode) for i in (2, 4, 5) for mode in ("int8", "int8/weight_only", "int4/32", "float8")]


@pytest.mark.parametrize(("index", "mode"), [pair for pair in MODES if pair != (5, "float8")])
def test_every_way_quantizes_as_the_other_face_does(index, mode):
    layer, shape = LAYERS[index]
    arguments = {**layer.get_config(), "dtype": "float32"}
    x = np.arange(np.prod(shape)).reshape(shape) % 4
    x = x if index == 5 else x.astype(np.float32)
    theirs = getattr(keras3_layers, type(layer).__name__).from_config(arguments)
    theirs(x)
    weights = theirs.get_weights()
    theirs.quantize(mode)
    for quantize in QUANTIZE:
        ours = type(layer).from_config(arguments)
        ours(x)
        ours.set_weights(weights)
        ours = quantize(ours, mode)
        assert ours.quantized and ours.dtype_policy == theirs.dtype_policy and isinstance(ours, tf_keras.Layer)
        bound = 0.0 if quantize is not QUANTIZE[-1] else (0.01 if "8" in mode else 0.2) * np.abs(theirs(x)).max()
        np.testing.assert_allclose(ours(x), theirs(x), rtol=0, atol=bound)  # our formulas are not quite Keras'
    again = type(layer).from_config(ours.get_config())
    again(x)
    again.set_weights(ours.get_weights())
    np.testing.assert_array_equal(again(x), ours(x))


# ---- Sequential, models, backend, utils


def _stack():
    return tf_keras.Sequential(
        [
            tf_keras.layers.Dense(3, "relu", dtype="mixed_float16"),
            tf_keras.Sequential([tf_keras.layers.LayerNormalization(), tf_keras.layers.Dense(2)], name="inner"),
            tf_keras.layers.Softmax(dtype=PolicyV1("float32", None)),
        ]
    )


def _all_layers(stack):
    return [layer for layer in stack.flatten() if isinstance(layer, keras3_layers.Layer)]


def test_names_of_tf_keras():
    assert tf_keras.models.Sequential is tf_keras.Sequential
    tf_keras.backend.set_floatx("bfloat16")
    assert tf_keras.backend.floatx() == "bfloat16" == tf_keras.layers.Dense(1).dtype
    assert issubclass(tf_keras.Sequential, tf_keras.Layer)


def test_a_stack_casts_nothing_itself():
    class Seen(tf_keras.Layer):
        def call(self, inputs):
            self.seen = inputs.dtype
            return inputs

    first = Seen(dtype="float64", autocast=False)
    tf_keras.Sequential([first], "stack")(np.ones(2, np.float16))
    assert first.seen == np.float16


def test_a_stack_keeps_its_face_through_a_configuration():
    stack, x = _stack(), np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    y = stack(x)
    config = json.loads(json.dumps(stack.get_config()))
    for again in (tf_keras.Sequential.from_config(config), tf_keras.Sequential.from_config(config["layers"])):
        assert all(isinstance(layer, tf_keras.Layer) for layer in _all_layers(again))
        assert [layer.compute_dtype for layer in _all_layers(again)] == [s.compute_dtype for s in _all_layers(stack)]
        again(x)
        again.set_weights(stack.get_weights())
        np.testing.assert_array_equal(again(x), y)


def test_a_stack_of_keras_keeps_the_face_of_every_layer():
    stack = keras3_layers.Sequential([tf_keras.layers.Dense(3), keras3_layers.Dense(2), _stack()])
    again = keras3_layers.Sequential.from_config(json.loads(json.dumps(stack.get_config())))
    assert [type(layer) for layer in _all_layers(again)] == [type(layer) for layer in _all_layers(stack)]


def test_a_face_that_is_not_imported_is_named(monkeypatch):
    config = keras3_layers.Sequential([tf_keras.layers.Dense(3)]).get_config()
    monkeypatch.delitem(registry._faces, "tf_keras.layers")
    with pytest.raises(ValueError, match=r"layers of tf_keras: import mp_core\.tf_keras to load it"):
        keras3_layers.Sequential.from_config(config)


def test_a_stack_takes_layers_of_its_face_only():
    with pytest.raises(TypeError, match=r"The added layer must be an instance of class mp_core\.tf_keras\.Layer"):
        tf_keras.Sequential([keras3_layers.Dense(2)])


def test_configurations_of_tensorflow_load_in_this_face():
    dense = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2, "dtype": "float64"}}
    inputs = {"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_input_shape": [None, 3]}}
    config = {"name": "s", "layers": [inputs, dense], "build_input_shape": [None, 3]}
    (layer,) = tf_keras.Sequential.from_config(config).layers
    assert type(layer) is tf_keras.layers.Dense and layer.dtype_policy == Policy("float64")
    (layer,) = keras3_layers.Sequential.from_config(config).layers
    assert type(layer) is keras3_layers.Dense


def test_custom_layers_in_a_stack():
    config = tf_keras.Sequential([Identity(name="i")]).get_config()
    with pytest.raises(ValueError, match="Unknown layer class_name='Identity'"):
        tf_keras.Sequential.from_config(config)
    assert type(tf_keras.Sequential.from_config(config, {"Identity": Identity}).layers[0]) is Identity
    with tf_keras.utils.custom_object_scope({"Identity": Identity}):
        assert type(tf_keras.Sequential.from_config(config).layers[0]) is Identity


@pytest.mark.parametrize(
    "instance",
    [Policy("float32"), Policy("mixed_float16"), Policy("_infer"), dtype_policies.get("int8_from_float32")],
    ids=repr,
)
def test_policies_pass_through_the_serialization_of_objects(instance):
    config = tf_keras.utils.serialize_keras_object(instance)
    assert json.loads(json.dumps(config)) == config and set(config) >= {"module", "class_name", "config"}
    again = tf_keras.utils.deserialize_keras_object({"a": [config]})["a"][0]
    assert again == instance and type(again) is type(instance)


def test_layers_pass_through_the_serialization_of_objects():
    config = json.loads(json.dumps(tf_keras.utils.serialize_keras_object(_stack())))
    assert config["module"] == "tf_keras.layers"
    for deserialize_object in (tf_keras.utils.deserialize_keras_object, saving.deserialize_keras_object):
        again = deserialize_object(config)
        assert all(isinstance(layer, tf_keras.Layer) for layer in _all_layers(again))
    config = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 2}}
    assert type(tf_keras.utils.deserialize_keras_object(config)) is tf_keras.layers.Dense
    assert type(saving.deserialize_keras_object(config)) is keras3_layers.Dense
