"""The interface of tf.keras (checklists C, D, E; sources 002 to 004)."""

import copy
import json
import pickle
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import mp_core as mp
from mp_core import config, dtype_policies, dtypes, tf_keras
from mp_core import layers as keras3_layers
from mp_core.autocast import AutoCastVariable, read_dtype
from mp_core.dtype_policies import DTypePolicy, QuantizedDTypePolicy
from mp_core.tf_keras.mixed_precision import (
    Policy,
    create_autocast_variable,
    deserialize,
    enable_auto_cast_variables,
    experimental,
    global_policy,
    policy_scope,
    serialize,
    set_global_policy,
)
from mp_core.tf_keras.mixed_precision.experimental import PolicyV1, tf22

BF16 = np.dtype(ml_dtypes.bfloat16)


class Identity(tf_keras.Layer):
    def build(self, input_shape):
        self.v = self.add_weight("v", (), initializer="ones")

    def call(self, inputs, *args, **kwargs):
        self.seen = (inputs, args, kwargs)
        self.read = self.v.dtype.name
        return inputs


# ---- the examples of source 004; 002 and 003 print nothing


def test_examples_of_the_policy():
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    layer1 = tf_keras.layers.Dense(10)
    assert repr(layer1.dtype_policy) == '<Policy "mixed_float16">'
    layer2 = tf_keras.layers.Dense(10, dtype="float32")
    assert repr(layer2.dtype_policy) == '<Policy "float32">'
    tf_keras.mixed_precision.set_global_policy("float32")

    x = np.ones((4, 4, 4, 4), dtype="float64")
    layer = tf_keras.layers.Conv2D(filters=4, kernel_size=2)
    assert layer.compute_dtype == "float32"
    assert layer(x).dtype == np.float32


def test_example_of_the_first_argument():
    class MyLayer(tf_keras.Layer):
        def call(self, a, b):
            return a + 1.0, b + 1.0

    a = np.array(1.0, dtype="float32")
    b = np.array(1.0, dtype="float32")
    layer = MyLayer(dtype="float64")
    x, y = layer(a, b)
    assert x.dtype == np.float64
    assert y.dtype == np.float32


@pytest.mark.parametrize("matmul", [np.matmul, mp.matmul])
def test_example_of_a_dense_layer(matmul):
    class SimpleDense(tf_keras.Layer):
        def build(self, input_shape):
            self.kernel = self.add_weight("kernel", (input_shape[-1], 10))

        def call(self, inputs):
            return matmul(inputs, self.kernel)

    layer = SimpleDense(dtype="mixed_float16")
    y = layer(np.ones((10, 10)))
    assert y.dtype == np.float16
    assert layer.kernel.dtype == np.float32


def test_example_of_new_arrays():
    class AddRandom(tf_keras.Layer):
        def call(self, inputs):
            rand = np.random.default_rng(0).normal(size=inputs.shape).astype(inputs.dtype)
            return inputs + rand

    layer = AddRandom(dtype="mixed_float16")
    assert layer(np.ones((4, 4, 4, 4))).dtype == np.float16


def test_examples_of_the_global_policy():
    assert repr(tf_keras.mixed_precision.global_policy()) == '<Policy "float32">'
    assert repr(tf_keras.layers.Dense(10).dtype_policy) == '<Policy "float32">'
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    assert repr(tf_keras.mixed_precision.global_policy()) == '<Policy "mixed_float16">'
    assert repr(tf_keras.layers.Dense(10).dtype_policy) == '<Policy "mixed_float16">'
    assert repr(tf_keras.layers.Dense(10, dtype="float64").dtype_policy) == '<Policy "float64">'
    tf_keras.mixed_precision.set_global_policy("float32")


# ---- E: policies

NAMES = [  # name, compute, variable
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("mixed_float16", "float16", "float32"),
    ("mixed_bfloat16", "bfloat16", "float32"),
    ("int32", "int32", "int32"),
    ("bool", "bool", "bool"),
    ("string", "string", "string"),
    ("complex64", "complex64", "complex64"),
    ("_infer", None, None),
]


@pytest.mark.parametrize(("name", "compute", "variable"), NAMES)
def test_policy_has_the_dtypes_of_its_name(name, compute, variable):
    policy = Policy(name)
    assert (policy.name, policy.compute_dtype, policy.variable_dtype) == (name, compute, variable)
    assert repr(policy) == f'<Policy "{name}">'
    assert policy == Policy(name) and hash(policy) == hash(Policy(name)) and policy != DTypePolicy("float32")


@pytest.mark.parametrize("name", [name for name, _, _ in NAMES])
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_policies_survive_copies(name, clone):
    for policy in (Policy(name), PolicyV1(name, "dynamic"), tf22.Policy(name, None)):
        again = clone(policy)
        assert again == policy and repr(again) == repr(policy)
        assert again.compute_dtype == policy.compute_dtype and again.get_config() == policy.get_config()


@pytest.mark.parametrize(
    ("policy_type", "name", "error", "message"),
    [
        (Policy, np.float16, TypeError, r"not a DType\. Instead, pass DType\.name\. Received: name=float16"),
        (Policy, BF16, TypeError, r"not a DType\. Instead, pass DType\.name\. Received: name=bfloat16"),
        (PolicyV1, np.float16, TypeError, r"not a DType\. Instead, pass DType\.name\. Got: float16"),
        (Policy, 5, TypeError, r"'name' must be a string, but got: 5"),
        (Policy, None, TypeError, r"'name' must be a string, but got: None"),
        (Policy, "abc", ValueError, r"Cannot convert value abc to a mixed precision Policy\. Valid policies include"),
        (Policy, "", ValueError, r"Cannot convert value  to a mixed precision Policy"),
        (
            Policy,
            "infer_with_float32_vars",
            ValueError,
            r"Please use the 'mixed_float16' or 'mixed_bfloat16' policy instead\. Got policy",
        ),
        (
            Policy,
            "infer_float32_vars",
            ValueError,
            r"have been removed .* 'mixed_float16' or 'mixed_bfloat16' policy instead",
        ),
        (Policy, "float16_with_float32_vars", ValueError, r"Please use the 'mixed_float16' policy instead\."),
        (Policy, "bfloat16_with_float32_vars", ValueError, r"Please use the 'mixed_bfloat16' policy instead\."),
        (Policy, "int8_with_float32_vars", ValueError, r"from TensorFlow\. Got policy name: 'int8_with_float32_vars'"),
    ],
)
def test_names_that_are_none(policy_type, name, error, message):
    with pytest.raises(error, match=message):
        policy_type(name)


def test_configuration_ignores_a_loss_scale_and_keeps_its_argument():
    config = {"name": "float16", "loss_scale": 2.0}
    assert Policy.from_config(config) == Policy("float16")
    assert config == {"name": "float16", "loss_scale": 2.0}


# ---- E: the default


def test_trap_11_each_face_has_its_rule_for_the_default():
    policy = Policy("mixed_float16")
    set_global_policy(policy)
    assert global_policy() is policy
    set_global_policy(None)
    dtypes.set_floatx("bfloat16")
    assert global_policy() == Policy("bfloat16")  # unset, it follows floatx
    with pytest.raises(ValueError, match="Invalid `policy` argument"):
        config.set_dtype_policy(None)
    config.set_dtype_policy("int32")
    with pytest.raises(ValueError, match=r'floating-point policies, such as "float32".* but got policy: int32'):
        set_global_policy("int32")
    with pytest.raises(RuntimeError), policy_scope("mixed_float16"):
        raise RuntimeError
    assert global_policy() == Policy("int32")


@pytest.mark.parametrize("name", ["complex64", "bool", "string", "uint8"])
def test_default_must_be_floating_point(name):
    for setter, refused in (("set_global_policy", set_global_policy), ("set_policy", tf22.set_policy)):
        with pytest.raises(ValueError, match=f"^{setter} can only be used .* but got policy: {name}$"):
            refused(name)
    with pytest.raises(ValueError, match="but got policy"), policy_scope(name):
        pass


def test_default_may_be_inferred():
    set_global_policy("_infer")
    assert global_policy() == Policy("_infer")
    layer = Identity()
    layer(np.ones(2, np.float16))
    assert layer.v.dtype == np.float16


def test_both_faces_share_one_default():
    config.set_dtype_policy("mixed_bfloat16")
    assert repr(global_policy()) == '<Policy "mixed_bfloat16">'
    assert repr(tf22.global_policy()) == '<Policy "mixed_bfloat16", loss_scale=None>'
    set_global_policy("mixed_float16")
    assert keras3_layers.Dense(1).compute_dtype == config.dtype_policy().compute_dtype == "float16"
    quantized = QuantizedDTypePolicy("int8", "float32")
    config.set_dtype_policy(quantized)
    assert global_policy() is quantized


def test_scopes_nest_and_stay_in_their_thread():
    seen = []
    with policy_scope("mixed_float16"):
        with policy_scope(None):
            assert global_policy() == Policy("float32")
        assert tf_keras.layers.Dense(1).dtype_policy == Policy("mixed_float16")
        thread = threading.Thread(target=lambda: seen.append(global_policy()))
        thread.start()
        thread.join()
    assert seen == [Policy("float32")] and global_policy() == Policy("float32")


# ---- E: what a layer accepts, and configurations


@pytest.mark.parametrize(
    ("identifier", "name"),
    [
        (Policy("_infer"), "_infer"),
        (DTypePolicy("mixed_float16"), "mixed_float16"),
        ("mixed_bfloat16", "mixed_bfloat16"),
        ("params=float32,compute=bfloat16,output=float32", "params=float32,compute=bfloat16,output=float32"),
        ({"class_name": "Policy", "config": {"name": "mixed_float16"}}, "mixed_float16"),
        (np.float16, "float16"),
        (BF16, "bfloat16"),
        (np.dtype("int32"), "int32"),
        (None, "float64"),
        ("", "float64"),
        ({}, "float64"),
    ],
)
def test_layer_dtype_argument(identifier, name):
    set_global_policy("float64")
    assert tf_keras.Layer(dtype=identifier).dtype_policy.name == name


@pytest.mark.parametrize("identifier", ["_infer", "int8_from_abc", "abc", 5])
def test_layer_refuses(identifier):
    with pytest.raises(ValueError, match=r"Cannot convert|Invalid dtype"):
        tf_keras.Layer(dtype=identifier)


@pytest.mark.parametrize(("name", "dtype"), [("half", "float16"), ("float", "float32"), ("double", "float64")])
def test_names_of_tensorflow(name, dtype):
    policy = Policy(name)
    assert (policy.name, policy.compute_dtype, policy.variable_dtype) == (name, dtype, dtype)
    assert repr(policy) == f'<Policy "{name}">' and pickle.loads(pickle.dumps(policy)) == policy
    assert serialize(policy) == name and deserialize(name) == policy
    assert PolicyV1(name).compute_dtype == dtype
    assert tf_keras.Layer(dtype=name).dtype_policy == Policy(dtype)
    assert tf_keras.Layer().add_weight("v", (), name).dtype == np.dtype(dtype)
    set_global_policy(name)
    assert global_policy() == policy and dtype_policies.dtype_policy() == DTypePolicy(dtype)
    with pytest.raises(ValueError, match="Cannot convert"):
        DTypePolicy(name)


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        (lambda: deserialize(""), ValueError, "Cannot convert value  to a mixed precision Policy"),
        (lambda: tf22.deserialize(""), ValueError, "Cannot convert value  to a mixed precision Policy"),
        (lambda: serialize("float32"), TypeError, "`policy` must be a policy, .* received 'float32'"),
        (lambda: experimental.serialize("float32"), TypeError, "`policy` must be a policy, .* received 'float32'"),
        (lambda: dtype_policies.serialize("float32"), TypeError, "`policy` must be a policy, .* received 'float32'"),
        (lambda: Policy.from_config("float32"), TypeError, "must be a dictionary; received 'float32'"),
        (lambda: PolicyV1.from_config(5), TypeError, "must be a dictionary; received 5"),
    ],
)
def test_configurations_that_are_none(refused, error, message):
    with pytest.raises(error, match=message):
        refused()


def test_policies_take_custom_objects_with_their_configuration():
    for policy in (Policy("half"), PolicyV1("float16", 2), tf22.Policy("float32")):
        assert type(policy).from_config(policy.get_config(), custom_objects={"X": int}) == policy


class MyPolicy(Policy):
    __slots__ = ()


def _dict(class_name, name, module="keras.mixed_precision", registered_name=None, **config):
    return {
        "module": module,
        "class_name": class_name,
        "config": {"name": name, **config},
        "registered_name": registered_name,
    }


@pytest.mark.parametrize(
    ("policy", "config"),
    [
        (Policy("float32"), "float32"),
        (Policy("int8"), "int8"),
        (Policy("_infer"), None),
        (Policy("mixed_float16"), _dict("Policy", "mixed_float16")),
        (MyPolicy("float32"), _dict("MyPolicy", "float32", None, "MyPolicy")),
    ],
)
def test_trap_12_serialization_by_exact_type(policy, config):
    assert serialize(policy) == config
    assert json.loads(json.dumps(config)) == config
    assert deserialize(config, {"MyPolicy": MyPolicy}) == policy


def test_trap_12_an_experimental_policy_reloads_without_its_loss_scale():
    for saved in (serialize(PolicyV1("float16", 2.0)), experimental.serialize(PolicyV1("float16", 2.0))):
        assert saved["class_name"] == "PolicyV1" and "loss_scale" in saved["config"]
        again = experimental.deserialize(saved)
        assert type(again) is Policy and again == Policy("float16")
    layer = tf_keras.layers.Dense(1, dtype=PolicyV1("mixed_float16"))
    assert tf_keras.layers.Dense.from_config(layer.get_config()).dtype_policy == Policy("mixed_float16")


def test_policies_of_the_other_face_keep_their_configuration():
    quantized = QuantizedDTypePolicy("int8", "float32")
    assert deserialize(serialize(quantized)) == quantized
    assert dtype_policies.deserialize(dtype_policies.serialize(Policy("float16"))) == Policy("float16")


@pytest.mark.parametrize("layer_type", [Identity, tf_keras.layers.Softmax])
def test_a_layer_saved_with_infer_reloads_with_the_default(layer_type):
    config = layer_type(dtype=Policy("_infer")).get_config()
    assert config["dtype"] is None
    set_global_policy("mixed_bfloat16")
    assert layer_type.from_config(config).dtype_policy == Policy("mixed_bfloat16")


@pytest.mark.parametrize("name", ["float32", "mixed_float16"])
def test_policies_of_tf_keras_do_not_leak_into_keras_layers(name):
    policies = [Policy(name), tf_keras.mixed_precision.experimental.Policy(name, loss_scale=None)]
    for policy in policies:
        with tf_keras.mixed_precision.policy_scope(policy):
            layer = keras3_layers.Dense(2)
            assert type(layer.dtype_policy) is DTypePolicy and layer.dtype_policy.name == name
            assert type(dtype_policies.dtype_policy()) is DTypePolicy
            assert tf_keras.mixed_precision.global_policy().name == name
            assert isinstance(tf_keras.layers.Dense(2).dtype_policy, Policy)
        assert type(keras3_layers.Dense(2, dtype=policy).dtype_policy) is DTypePolicy
        policy_map = dtype_policies.DTypePolicyMap(policy, {"a": policy})
        assert {type(policy_map["a"]), type(policy_map.default_policy)} == {DTypePolicy}
        assert policy_map.get_config()["default_policy"] == DTypePolicy(name)
    with tf_keras.mixed_precision.policy_scope(Policy("_infer")):
        assert keras3_layers.Dense(2).dtype_policy == DTypePolicy("float32")


@pytest.mark.parametrize(
    "config",
    [
        {"module": "keras.mixed_precision", "class_name": "Policy", "config": {"name": "mixed_float16"}},
        {"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale": None}},
        {"class_name": "Policy", "config": {"name": "mixed_float16", "loss_scale": {"class_name": "DynamicLossScale"}}},
    ],
)
def test_policies_of_tf_keras_in_files_are_those_of_the_face_that_loads_them(config):
    assert dtype_policies.deserialize(config) == DTypePolicy("mixed_float16")
    assert keras3_layers.Dense.from_config({"units": 2, "dtype": config}).dtype_policy == DTypePolicy("mixed_float16")
    assert tf_keras.layers.Dense.from_config({"units": 2, "dtype": config}).dtype_policy == Policy("mixed_float16")


# ---- E: calls


def test_trap_6_only_the_first_argument_is_cast():
    layer = Identity(dtype="mixed_float16")
    mask, ids, phase = np.ones(2, bool), np.arange(2), np.ones(2, np.complex64)
    layer([np.ones(2), {"a": [ids, phase, mask]}, 1.5, 1], np.ones(2), other=np.ones(2), number=1.5)
    (x, nested, number, integer), (second,), kwargs = layer.seen
    assert (x.dtype, number.dtype, integer.dtype) == (np.float16, np.float16, np.int32)
    assert [leaf.dtype for leaf in nested["a"]] == [np.int64, np.complex64, bool]
    assert second.dtype == kwargs["other"].dtype == np.float64 and kwargs["number"] == 1.5


def test_first_argument_may_be_passed_by_name():
    layer = Identity(dtype="float16")
    layer(other=np.ones(2), inputs=np.ones(2))
    inputs, _, kwargs = layer.seen
    assert inputs.dtype == np.float16 and kwargs["other"].dtype == np.float64
    with pytest.raises(ValueError, match=r"The first argument of Identity\.call, `inputs`, must be passed\."):
        layer(other=np.ones(2))


@pytest.mark.parametrize("dtype", ["int32", "bool", "complex64"])
def test_floats_stay_where_the_compute_dtype_is_none(dtype):
    layer = tf_keras.layers.Dropout(0.5, dtype=dtype)
    assert layer(np.ones(2)).dtype == np.float64


def test_autocast_false_keeps_the_inputs():
    layer = Identity(dtype="mixed_float16", autocast=False)
    assert layer(np.ones(2)).dtype == np.float64
    assert layer.read == "float16"


def test_training_argument_is_for_layers_that_take_it():
    assert tf_keras.layers.Dropout(0.5)(np.ones(2, np.float32), training=False).dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "float64", BF16])
def test_infer_takes_the_dtype_of_the_first_input(dtype):
    layer = Identity(dtype=Policy("_infer"))
    assert layer.dtype is None and layer.compute_dtype is None
    layer([np.ones(2, dtype), np.ones(2, np.float32)])
    assert layer.dtype == layer.compute_dtype == np.dtype(dtype).name
    assert layer.v.dtype == np.dtype(dtype) and layer.seen[0][1].dtype == np.dtype(dtype)


def test_infer_takes_the_dtype_of_the_first_variable():
    layer = tf_keras.Layer(dtype=Policy("_infer"))
    assert layer.add_weight("a", (2,), "float16").dtype == np.float16
    assert layer.dtype_policy == Policy("float16")
    layer = tf_keras.Layer(dtype=Policy("_infer"))
    assert layer.add_weight("a").dtype == np.float32


def test_trap_7_scopes_of_nested_layers():
    class Outer(tf_keras.Layer):
        def build(self, input_shape):
            self.v = self.add_weight("v")
            self.children_ = [Identity(dtype=dtype) for dtype in ("float32", "int32", "float64", "mixed_bfloat16")]

        def call(self, inputs):
            for child in self.children_:
                child(inputs)
            return self.v.dtype.name

    outer = Outer(dtype="mixed_float16")
    assert outer(np.ones(2)) == "float16"
    assert [child.read for child in outer.children_] == ["float32", "int32", "float64", "bfloat16"]
    assert read_dtype() is None
    assert Identity(dtype="mixed_float16", autocast=False)(np.ones(1)).dtype == np.float64


def test_trap_9_dtype_of_a_layer_is_that_of_its_variables():
    layer = Identity(dtype="mixed_float16")
    layer(np.ones(2))
    assert (layer.dtype, layer.variable_dtype, layer.compute_dtype) == ("float32", "float32", "float16")
    assert layer.v.dtype == layer.v.true_dtype == np.dtype("float32")  # a dtype, not a name
    with enable_auto_cast_variables("float16"):
        assert (layer.v.dtype, layer.v.true_dtype) == (np.dtype("float16"), np.dtype("float32"))


# ---- E: variables


@pytest.mark.parametrize(
    ("policy", "arguments", "follows"),
    [
        ("mixed_float16", {}, True),
        ("float16", {}, False),
        ("float32", {}, False),
        ("mixed_float16", {"dtype": "int32"}, False),
        ("mixed_float16", {"dtype": "float64"}, True),
        ("mixed_float16", {"autocast": False}, False),
        ("mixed_float16", {"experimental_autocast": False}, False),
        ("mixed_float16", {"experimental_autocast": False, "autocast": True}, True),
        ("mixed_float16", {"experimental_autocast": True, "autocast": False}, False),
    ],
)
def test_which_variables_follow_the_compute_dtype(policy, arguments, follows):
    variable = tf_keras.Layer(dtype=policy).add_weight("v", (2,), **arguments)
    assert variable.autocast is follows
    with enable_auto_cast_variables("bfloat16"):
        assert variable.dtype == (BF16 if follows else variable.true_dtype)


def test_add_weight_takes_the_name_first():
    layer = tf_keras.Layer(dtype="float64")
    layer.add_weight("kernel", (2, 3), None, "ones", None, False)
    (kernel,) = layer.non_trainable_weights
    assert (kernel.name, kernel.shape, kernel.dtype) == ("kernel", (2, 3), np.float64)
    assert layer.add_weight().shape == () and not layer.add_weight("n", (2,), "int32").numpy().any()
    for refused in ({"foo": 1}, {"foo": None}, {"getter": print}):
        with pytest.raises(TypeError, match=f"Unknown keyword argument: {next(iter(refused))}"):
            layer.add_weight("v", **refused)


def test_add_weight_takes_the_arguments_of_tensorflow_that_change_nothing():
    layer = tf_keras.Layer()
    layer.add_weight("v", constraint=None, use_resource=True, synchronization="auto", aggregation="mean", getter=None)
    assert layer.add_weight("v", constraint=abs).constraint is abs


def test_the_shape_of_the_inputs_may_be_given():
    for face in (tf_keras.layers, keras3_layers):
        for shape in ({"input_shape": (3,)}, {"input_dim": 3}, {"batch_input_shape": (None, 3)}, {"batch_size": 2}):
            layer = face.Dense(2, **shape)
            assert layer(np.ones((2, 3), np.float32)).shape == (2, 2)
            assert type(layer).from_config(layer.get_config() | shape).units == 2
    assert tf_keras.Sequential(tf_keras.layers.Dense(2, input_shape=(3,))).layers[0].units == 2


def test_regularizers_compute_in_the_variable_dtype():
    class Inner(tf_keras.Layer):
        def build(self, input_shape):
            self.v = self.add_weight("v", (2,), regularizer=lambda v: np.sum(v * v), initializer="ones")
            self.inner = tf_keras.layers.Dense(1)

        def call(self, inputs):
            return self.losses

    layer = Inner(dtype="mixed_float16")
    (loss,) = layer(np.ones(2))  # even inside the scope of a call
    assert loss.dtype == np.float32 and loss == 2.0 and layer.losses == [loss]


def test_create_autocast_variable():
    variable = create_autocast_variable(AutoCastVariable([1.0], autocast=False, name="x"))
    with enable_auto_cast_variables("float16"):
        assert variable.dtype == np.float16 and variable.name == "x"
        assert variable.scatter_add([0], [2.0]).numpy() == [3.0]
    with enable_auto_cast_variables("int32"):
        assert variable.dtype == np.float32
    with pytest.raises(ValueError, match="variable must be of type AutoCastVariable"):
        create_autocast_variable(np.ones(2))
    with pytest.raises(ValueError, match="must be a floating point variable but has type: int64"):
        create_autocast_variable(AutoCastVariable(np.arange(2)))


def test_layers_make_variables_with_tf_keras_methods():
    layer = tf_keras.layers.Dense(2, kernel_initializer="ones", dtype="mixed_float16")
    layer(np.ones((1, 3)))
    assert all(type(weight) is tf_keras.mixed_precision.AutoCastVariable for weight in layer.weights)
    layer.kernel.scatter_add([0], [[1, 1]])
    np.testing.assert_array_equal(layer(np.ones((1, 3))), [[4, 4]])


# What tf.keras' AutoCastVariable defines, private names and operators left out.
VARIABLE_NAMES = [
    "aggregation", "assign", "assign_add", "assign_sub", "batch_scatter_update", "constraint", "device",
    "dtype", "eval", "from_proto", "gather_nd", "get_shape", "graph", "initial_value", "initialized_value",
    "initializer", "load", "name", "op", "read_value", "scatter_add", "scatter_div", "scatter_max",
    "scatter_min", "scatter_mul", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_sub",
    "scatter_update", "set_shape", "shape", "sparse_read", "synchronization", "to_proto", "trainable",
    "true_dtype", "value",
]  # fmt: skip


@pytest.mark.parametrize("name", VARIABLE_NAMES)
def test_a_name_of_tf_keras_variable_is_there_or_listed_as_left_out(name):
    page = (Path(__file__).parents[1] / "docs" / "policies_tf_keras.md").read_text()
    listed = f"`{name}`" in page.partition("## Left out")[2]
    assert hasattr(tf_keras.mixed_precision.AutoCastVariable([1.0]), name) != listed


def test_variables_have_tf_keras_shape_and_no_modulus():
    variable = tf_keras.mixed_precision.AutoCastVariable([2.0, 3.0])
    assert variable.get_shape() == variable.shape == (2,)
    np.testing.assert_array_equal(pow(variable, 2), [4, 9])
    with pytest.raises(TypeError):
        pow(variable, 2, 5)
