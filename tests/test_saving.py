"""Objects to configurations and back, and the classes that users register for that."""

import json

import numpy as np
import pytest

import mp_core as mp
from mp_core import config, dtype_policies, layers, quantizers, saving, tf_keras
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap
from mp_core.loss_scale import SGD, LossScaleOptimizer, deserialize_optimizer, serialize_optimizer


@pytest.fixture(autouse=True)
def _nothing_registered():
    yield
    saving.get_custom_objects().clear()


def _my_attention():
    """The example of Keras' documentation of DTypePolicyMap."""

    @saving.register_keras_serializable("MyPackage")
    class MyMultiHeadAttention(layers.MultiHeadAttention):
        def get_config(self):
            config = super().get_config()
            dtype_policy_map = dtype_policies.DTypePolicyMap()
            for layer in self._flatten_layers():
                if layer.dtype_policy.quantization_mode is not None:
                    dtype_policy_map[layer.path] = layer.dtype_policy
            if len(dtype_policy_map) > 0:
                config.update({"dtype": dtype_policy_map})
            return config

    return MyMultiHeadAttention


def test_the_example_of_a_policy_map_in_a_configuration_runs(rng):
    x = rng.standard_normal((1, 3, 8), np.float32)
    layer = _my_attention()(2, 4, name="mha")
    layer(x, x)
    layer.quantize("int8")
    written = json.loads(json.dumps(layers.Sequential([layer]).get_config()))
    (entry,) = written["layers"]
    assert (entry["class_name"], entry["registered_name"]) == ("MyMultiHeadAttention", "MyPackage>MyMultiHeadAttention")
    assert list(entry["config"]["dtype"]["config"]["policy_map"]) == [
        "mha", "mha/query", "mha/key", "mha/value", "mha/attention_output",
    ]  # fmt: skip
    (loaded,) = layers.Sequential.from_config(written).layers
    assert type(loaded) is type(layer)
    loaded(x, x)
    loaded.set_weights(layer.get_weights())
    np.testing.assert_array_equal(loaded(x, x), layer(x, x))


def test_the_example_keeps_the_policy_of_a_layer_that_is_not_built(rng):
    layer = _my_attention()(2, 4, name="mha", dtype="int8_from_float32")
    written = json.loads(json.dumps(layers.Sequential([layer]).get_config()))
    (loaded,) = layers.Sequential.from_config(written).layers
    x = rng.standard_normal((1, 3, 8), np.float32)
    loaded(x, x)
    assert {part.quantization_mode for part in loaded.flatten()} == {"int8"}


def test_none_is_the_path_of_the_default_of_a_policy_map():
    policies = DTypePolicyMap()
    policies[None] = "int8_from_float32"
    assert policies[None] == policies["any"] == dtype_policies.get("int8_from_float32") and len(policies) == 0
    policies[None] = "int8_from_float32"
    for own in (policies, DTypePolicyMap("float32")):
        with pytest.raises(ValueError, match=r"the default policy \(the key None\) is .* already"):
            own[None] = "mixed_float16"
    with pytest.raises(ValueError, match="cannot be a `DTypePolicyMap`"):
        DTypePolicyMap()[None] = DTypePolicyMap()


def test_the_names_of_policies_at_the_top():
    assert mp.DTypePolicy is config.DTypePolicy is dtype_policies.DTypePolicy
    assert mp.FloatDTypePolicy is dtype_policies.FloatDTypePolicy and mp.saving is saving


class Double(layers.Dense):
    pass


def test_registered_classes_load_by_name():
    assert saving.register_keras_serializable("p", "other")(Double) is Double
    assert saving.get_registered_name(Double) == "p>other" and saving.get_registered_name(layers.Dense) == "Dense"
    assert saving.get_registered_object("p>other") is Double is saving.get_custom_objects()["p>other"]
    written = saving.serialize_keras_object(Double(3))
    assert written["registered_name"] == "p>other"
    assert type(saving.deserialize_keras_object(written)) is Double
    for good in ({"class_name": "Double", "config": {"units": 3}}, written | {"registered_name": "Double"}):
        saving.get_custom_objects().clear()
        for custom in ({"Double": Double}, None):
            with saving.CustomObjectScope(None if custom else {"Double": Double}):
                assert type(saving.deserialize_keras_object(good, custom)) is Double
                assert type(layers.Sequential.from_config({"layers": [good]}, custom).layers[0]) is Double
        with pytest.raises(ValueError, match="Unknown layer class_name='Double'"):
            layers.Sequential.from_config({"layers": [good]})
    assert saving.get_registered_object("Double") is None


def test_scopes_of_custom_objects_add_up():
    with saving.custom_object_scope({"Double": Double}), saving.custom_object_scope({"other": int}):
        assert saving.get_registered_object("Double") is Double
        assert saving.get_registered_object("x", {"x": 1}, {"x": 2}) == 1
        assert saving.get_registered_object("x", None, {"x": 2}) == 2
        assert saving.get_custom_objects() == {}
    assert saving.get_registered_object("Double") is None


def test_registered_policies_and_functions_load_by_name():
    @saving.register_keras_serializable()
    class MyPolicy(DTypePolicy):
        pass

    @saving.register_keras_serializable("p")
    def twice(x):
        return x * 2

    @saving.register_keras_serializable("p")
    def halves(shape, dtype):
        return np.full(shape, 0.5, dtype)

    layer = layers.Dense(2, dtype=MyPolicy("mixed_float16"), activation=twice, kernel_initializer=halves)
    written = json.loads(json.dumps(saving.serialize_keras_object(layer)))
    # As Keras 3.15 writes it.
    function = {"module": "builtins", "class_name": "function", "config": "p>twice", "registered_name": "function"}
    assert written["config"]["activation"] == function
    loaded = saving.deserialize_keras_object(written)
    assert type(loaded.dtype_policy) is MyPolicy and loaded.activation is twice
    loaded.build((None, 3))
    assert (loaded.kernel.numpy() == 0.5).all() and layers.Dense(2, activation="p>twice").activation is twice
    with pytest.raises(ValueError, match="Could not interpret activation function: '<lambda>'"):
        layers.Sequential.from_config(layers.Sequential([layers.Dense(2, lambda x: x)]).get_config())
    assert saving.deserialize_keras_object(function) is twice
    with pytest.raises(ValueError, match="Unknown function 'nobody'"):
        saving.deserialize_keras_object(function | {"config": "nobody"})


def test_modules_are_those_under_which_keras_finds_the_classes():
    stack = layers.Sequential([layers.Sequential(), layers.Dense(3), Double(3)])
    assert saving.serialize_keras_object(stack)["module"] == "keras"
    modules = [entry["module"] for entry in stack.get_config()["layers"]]
    assert modules == ["keras", "keras.layers", Double.__module__]
    assert saving.serialize_keras_object(DTypePolicy("float32"))["module"] == "keras"


def test_plain_values_are_their_own_configuration():
    values = {"a": [1, (2.0, None)], "b": np.float32(1.5), "c": True}
    assert saving.serialize_keras_object(values) == {"a": [1, (2.0, None)], "b": 1.5, "c": True}
    assert saving.deserialize_keras_object(values) == values
    quantizer = quantizers.AbsMaxQuantizer(axis=0)
    written = json.loads(json.dumps([saving.serialize_keras_object(quantizer)]))
    assert written[0]["module"] == "keras.quantizers" and saving.deserialize_keras_object(written) == [quantizer]
    policies = [DTypePolicy("mixed_float16"), DTypePolicyMap("float32", {"a": "int8_from_float32"})]
    assert saving.deserialize_keras_object(saving.serialize_keras_object(policies)) == policies
    with pytest.raises(TypeError, match="Cannot serialize"):
        saving.serialize_keras_object(object())


@pytest.mark.parametrize(
    ("register", "error"),
    [
        (lambda: saving.register_keras_serializable(3), TypeError),
        (lambda: saving.register_keras_serializable("p", 3), TypeError),
        (lambda: saving.register_keras_serializable("p")(3), TypeError),
        (lambda: saving.register_keras_serializable("p")(type("NoConfig", (), {})), ValueError),
    ],
)
def test_what_cannot_be_registered(register, error):
    with pytest.raises(error):
        register()


def test_constructors_get_what_keras_hands_them():
    seen = []

    class Recorded(layers.Dense):
        def __init__(self, units, flag=True, **kwargs):
            self.flag = kwargs.pop("other", flag)
            seen.append(kwargs.get("dtype"))
            super().__init__(units, **kwargs)

    policy_map = DTypePolicyMap("float32", {"a": "float16"})
    for policy in ("mixed_bfloat16", "int8_from_float32", policy_map, "int4/8_from_float32"):
        written = layers.Dense(3, dtype=policy).get_config()
        assert Recorded.from_config(written).dtype_policy == dtype_policies.get(policy)
        assert seen.pop() == (policy if policy == "mixed_bfloat16" else dtype_policies.get(policy))
    uint8 = layers.Activation("relu", dtype=DTypePolicy("uint8"))
    assert type(uint8).from_config(uint8.get_config()).dtype_policy == DTypePolicy("uint8")
    assert Recorded.from_config({"units": 3, "flag": False}).flag is False
    assert Recorded.from_config({"units": 3, "other": False}).flag is False
    with pytest.raises(ValueError, match="Unrecognized keyword arguments passed to Dense: another"):
        layers.Dense.from_config({"units": 3, "another": False})


def test_layers_tell_what_they_are():
    layer = layers.Dense(3, dtype="mixed_bfloat16", name="d")
    assert repr(layer) == "<Dense name=d, units=3, policy=mixed_bfloat16, built=False>"
    layer.build((None, 4))
    layer.quantize("int8")
    assert repr(layer) == "<Dense name=d, units=3, policy=int8_from_mixed_bfloat16, built=True>"
    stack = layers.Sequential([layer, layers.Embedding(2, 3)], name="s")
    assert repr(stack) == "<Sequential name=s, layers=2, policy=float32, built=False>"
    any_layer = layers.Layer(name="l", dtype=DTypePolicyMap("float16"))
    assert repr(any_layer) == "<Layer name=l, policy=map_float16, built=False>"


# ---- configurations with wrong parts, at every door

CYCLE = {}
CYCLE["config"] = CYCLE["layers"] = [CYCLE, CYCLE]
DEEP = []
for _ in range(10_000):
    DEEP = [DEEP]
WRONG = [None, 5, "x", [1], {"a": 1}, np.ones(2), 10**400, CYCLE, DEEP]


def _doors():
    """Yield a function that takes a configuration, and one that it takes."""
    kinds = ["Dense", "Conv2D", "EinsumDense", "LayerNormalization", "Dropout"]
    arguments = [(2,), (2, 3), ("ab,bc->ac", 2), (), (0.5,)]
    for face in (layers, tf_keras.layers):
        for kind, values in zip(kinds, arguments, strict=True):
            layer = getattr(face, kind)(*values)
            yield type(layer).from_config, layer.get_config()
        stack = face.Sequential([face.Dense(2, "relu"), face.Sequential([face.Embedding(3, 2)])])
        yield type(stack).from_config, stack.get_config()
    yield layers.MultiHeadAttention.from_config, layers.MultiHeadAttention(2, 2).get_config()
    yield saving.deserialize_keras_object, saving.serialize_keras_object(stack)
    names = ["int8", "int4/32", "gptq/4/128", "float8"]
    policies = [DTypePolicyMap("float32", {"a": "float16"})]
    policies += [dtype_policies.get(f"{name}_from_float32") for name in names]
    for policy in policies:
        yield dtype_policies.deserialize, dtype_policies.serialize(policy)
        yield type(policy).from_config, policy.get_config()
    mixed_precision = tf_keras.mixed_precision
    experimental = mixed_precision.experimental
    for policy in (mixed_precision.Policy("mixed_float16"), experimental.PolicyV1("float16", "dynamic")):
        yield mixed_precision.deserialize, experimental.serialize(policy)
        yield experimental.tf22.deserialize, experimental.serialize(policy)
        yield type(policy).from_config, policy.get_config()
    for optimizer in (mixed_precision.LossScaleOptimizer(SGD()), LossScaleOptimizer(SGD())):
        yield type(optimizer).from_config, optimizer.get_config()
    yield deserialize_optimizer, serialize_optimizer(SGD())
    for scale in (experimental.FixedLossScale(2), experimental.DynamicLossScale(4)):
        yield type(scale).from_config, scale.get_config()


def _replaced(saved, value):
    """Yield copies of a configuration, of which each has `value` in the place of one part."""
    yield value
    for key, part in saved.items() if isinstance(saved, dict) else enumerate(saved):
        for other in _replaced(part, value) if isinstance(part, dict | list) else [value]:
            copied = saved.copy()
            copied[key] = other
            yield copied


@pytest.mark.parametrize("value", WRONG, ids=["None", "5", "x", "list", "dict", "array", "huge", "cycle", "deep"])
def test_wrong_parts_of_configurations_are_type_or_value_errors(value):
    refused = 0
    for load, saved in _doors():
        load(saved)
        for other in _replaced(saved, value):
            try:
                load(other)
            except (TypeError, ValueError, NotImplementedError):
                refused += 1
    assert refused > 50


def test_configurations_that_hold_themselves_are_refused():
    for saved in (CYCLE, {"class_name": "Sequential", "config": CYCLE}, DEEP, {"a": DEEP}):
        for load in (saving.deserialize_keras_object, tf_keras.utils.deserialize_keras_object):
            with pytest.raises(ValueError, match="must not contain itself, nor be nested deeper than 100 levels"):
                load(saved)
    with pytest.raises(ValueError, match="must not contain itself"):
        dtype_policies.get(DEEP)
    nested = layers.Dense(1)
    for _ in range(20):
        nested = layers.Sequential([nested])
    assert layers.Sequential.from_config(nested.get_config()).get_config() == nested.get_config()


@pytest.mark.parametrize(
    "config",
    [
        {"class_name": []},
        {"class_name": None},
        {"class_name": "Dense", "config": 3},
        {"class_name": "Dense", "config": {"units": 3, "quantization_config": {"config": 3}}},
        {"class_name": "Dense", "config": {"units": 3, "quantization_config": [3]}},
        {"class_name": "Dense", "config": {"units": 3, "activation": {"class_name": "function", "config": []}}},
        {"class_name": "Number"},
        {"class_name": "function"},
    ],
)
def test_configurations_that_are_wrong_say_so(config):
    text = r"must|Unknown|has no|Could"
    with saving.custom_object_scope({"Number": int}), pytest.raises((TypeError, ValueError), match=text):
        saving.deserialize_keras_object(config)


@pytest.mark.parametrize("name", ["get", "serialize", "deserialize"])
def test_helpers_are_no_functions_of_a_configuration(name):
    config = {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}
    with pytest.raises(ValueError, match=f"Unknown function '{name}'"):
        mp.saving.deserialize_keras_object(config)


@pytest.mark.parametrize("module", ["keras.layers", None])
def test_a_registered_class_that_is_missing_is_no_layer_of_its_name(module):
    config = {"class_name": "Dense", "module": module, "registered_name": "mine>Dense", "config": {"units": 1}}
    with pytest.raises(ValueError, match="'mine>Dense' is not registered"):
        saving.deserialize_keras_object(config)
    for name in (None, "", "Dense"):
        assert saving.deserialize_keras_object(config | {"registered_name": name}).units == 1


def test_a_registered_function_that_is_missing_is_no_function_of_its_name():
    config = {"class_name": "function", "module": "builtins", "registered_name": "mine>relu", "config": "relu"}
    with pytest.raises(ValueError, match="'mine>relu' is not registered"):
        saving.deserialize_keras_object(config)
    assert saving.deserialize_keras_object(config | {"registered_name": "function"}).__name__ == "relu"


def test_a_layer_that_is_an_activation_comes_back():
    layer = layers.Dense(4, activation=layers.LeakyReLU(0.15, name="leaky"))
    again = saving.deserialize_keras_object(json.loads(json.dumps(saving.serialize_keras_object(layer))))
    assert again.activation.name == "leaky" and again.activation.negative_slope == 0.15
