"""Layers under policies: inputs, scopes, variables, paths, configurations."""

import asyncio
import copy
import json
import pickle
import re
import threading

import ml_dtypes
import numpy as np
import pytest

from mp_core import layers, tf_keras
from mp_core.autocast import autocast_scope, scope_dtype
from mp_core.core.scopes import innermost
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap, QuantizedDTypePolicy, policy_scope, serialize
from mp_core.metrics import PrecisionAtRecall

BF16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(0)


class Probe(layers.Layer):
    """Records what `call` gets and how its variables read there."""

    def __init__(self, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, input_shape):
        self.cast = self.add_weight((2,), "ones", name="cast")
        self.kept = self.add_weight((2,), "ones", autocast=False, name="kept")

    def call(self, inputs, *args, **kwargs):
        self.seen = (inputs, args, kwargs)
        self.read = (self.cast.dtype.name, self.kept.dtype.name)
        return inputs if self.inner is None else self.inner(inputs)


def _x(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


# ---- inputs


def test_trap_6_every_floating_point_argument_is_cast_and_nothing_else():
    mask, ids, number = np.ones(2, bool), np.arange(2), np.ones(2, np.complex64)
    layer = Probe(dtype="mixed_float16")
    layer(
        [_x(2, dtype=np.float64), ids], {"a": (_x(2), None)}, mask=mask, extra=[number, _x(2)], text="text", scalar=1.5
    )
    (first, second), (tree,), kwargs = layer.seen
    assert (first.dtype, second.dtype, tree["a"][0].dtype) == (np.float16, np.int64, np.float16)
    assert kwargs["mask"].dtype == bool and kwargs["extra"][0].dtype == np.complex64
    assert kwargs["extra"][1].dtype == np.float16
    assert (kwargs["text"], kwargs["scalar"], tree["a"][1]) == ("text", 1.5, None)


def test_autocast_false_keeps_the_inputs():
    layer = Probe(dtype="mixed_float16", autocast=False)
    layer(_x(2))
    assert layer.seen[0].dtype == np.float32


def test_floats_are_cast_to_an_integer_compute_dtype():
    layer = Probe(dtype="int32")
    layer(np.array([1.7, 2.0], np.float32))
    assert layer.seen[0].dtype == np.int32


@pytest.mark.parametrize("argument", [1.5, "text", [1.0, 2.0]])
def test_positional_arguments_must_be_arrays(argument):
    with pytest.raises(ValueError, match="Only input tensors may be passed as positional arguments"):
        Probe()(argument)


def test_training_argument_is_for_layers_that_take_it():
    assert layers.Dense(2)(_x(1, 3), training=False).shape == (1, 2)
    layer = Probe()
    layer(_x(2), training=False)
    assert layer.seen[2] == {}


class Recorder(layers.Layer):
    """Notes with which `training` it was called."""

    def call(self, inputs, training="unset"):
        self.seen = training
        return inputs


class Nest(layers.Layer):
    """A layer whose call says nothing of training."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.told = Recorder(), Recorder()

    def call(self, inputs):
        return self.told(self.inner(inputs), training=False)


def test_training_reaches_the_layers_of_a_layer():
    nest = Nest()
    for given, seen in [({}, "unset"), ({"training": True}, True), ({"training": None}, "unset")]:
        nest(_x(2), **given)
        assert (nest.inner.seen, nest.told.seen) == (seen, False)
    layers.Sequential([Nest(), outer := Nest()])(_x(2), training=True)
    assert outer.inner.seen is True


def test_what_is_run_to_build_does_not_train():
    """A stack builds by running zeros: they must not move the scales of a float8 layer."""
    seen = []
    inner = layers.Sequential([layers.Dense(2), recorder := Recorder()])
    recorder.call = lambda inputs, training=None: seen.append(training) or inputs
    inner(_x(2, 3), training=True)
    assert seen == [None, True]


def test_output_dtype_of_the_policy():
    layer = layers.Dense(2, dtype="params=float32,compute=bfloat16,output=float32")
    assert layer(_x(1, 3)).dtype == np.float32
    assert layers.Dense(2, dtype="c=f16")(_x(1, 3)).dtype == np.float16


# ---- scopes


SCOPES = [  # outer policy, inner kwargs, how the inner layer's variables read
    (None, {"dtype": "mixed_float16"}, "float16"),
    (None, {"dtype": "float32"}, "float32"),
    (None, {"dtype": "mixed_float16", "autocast": False}, "float16"),
    ("mixed_float16", {"dtype": "int"}, "int32"),
    ("mixed_float16", {"dtype": "float32"}, "float32"),
    ("mixed_float16", {"dtype": "mixed_bfloat16"}, "bfloat16"),
    ("mixed_float16", {"dtype": "mixed_float16", "autocast": False}, "float32"),
    ("mixed_float16", {"dtype": "mixed_float16"}, "float16"),
]


@pytest.mark.parametrize(("outer", "kwargs", "expected"), SCOPES)
def test_trap_7_scope_of_nested_layers(outer, kwargs, expected):
    inner = Probe(**kwargs)
    (inner if outer is None else Probe(inner, dtype=outer))(_x(2))
    assert inner.read[0] == expected
    assert inner.read[1] == inner.kept.true_dtype.name
    assert innermost(scope_dtype.get("unset"), "unset") == "unset"


def test_trap_9_layer_dtype_is_the_variable_dtype():
    layer = layers.Dense(2, dtype="mixed_float16")
    layer(_x(1, 3))
    assert (layer.dtype, layer.variable_dtype, layer.compute_dtype, layer.input_dtype) == (
        "float32", "float32", "float16", "float16",
    )  # fmt: skip
    with autocast_scope("float16"):
        assert layer.kernel.dtype == np.float16 and layer.kernel.true_dtype == np.float32


def test_calls_in_threads_and_tasks_use_the_layer_s_own_policy():
    layer, x = layers.Dense(4, dtype="mixed_bfloat16"), _x(2, 3)
    results = []
    threads = [threading.Thread(target=lambda: results.append(layer(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def main():
        return await asyncio.gather(*(asyncio.to_thread(layer, x) for _ in range(3)))

    results += asyncio.run(main())
    assert len(layer.weights) == 2 and len(results) == 7
    assert all((result == results[0]).all() and result.dtype == BF16 for result in results)


# ---- variables


@pytest.mark.parametrize(("dtype", "zeros"), [(None, False), ("float16", False), ("int32", True), ("bool", True)])
def test_default_initializer(dtype, zeros):
    variable = layers.Layer().add_weight((50, 2), dtype=dtype)
    assert variable.true_dtype == (dtype or "float32") and (not variable.numpy().any()) == zeros


def test_add_variable_is_another_name_of_add_weight():
    layer = layers.Layer(dtype="mixed_float16")
    variable = layer.add_variable((2, 3), "ones", trainable=False, name="v")
    assert variable.name == "v" and variable.shape == (2, 3) and layer.non_trainable_weights == [variable]


def test_add_weight_takes_the_name_as_a_keyword():
    with pytest.raises(ValueError, match="`name` must be passed as a keyword argument"):
        layers.Layer().add_weight("kernel", (2, 2))


def test_an_initializer_may_hand_over_an_array():
    array = np.ones((2, 2), np.float32)
    assert np.shares_memory(layers.Layer().add_weight((2, 2), lambda shape, dtype: array).numpy(), array)


def test_weights_are_in_keras_order():
    attention = layers.MultiHeadAttention(2, 4, name="mha")
    model = layers.Sequential([layers.Dense(8), layers.LayerNormalization(), layers.Dense(8)])
    model(_x(1, 3, 8))
    attention.build((None, None, 8))
    assert [w.shape for w in attention.weights] == [(8, 2, 4), (2, 4)] * 3 + [(2, 4, 8), (8,)]
    assert [w.name for w in model.weights] == ["kernel", "bias", "gamma", "beta", "kernel", "bias"]
    model.layers[0].quantize("int8")
    assert [w.name for w in model.weights[:3]] == ["bias", "kernel", "kernel_scale"]
    assert [w.name for w in model.non_trainable_weights] == ["kernel", "kernel_scale"]
    model.trainable = False
    assert model.trainable_weights == [] and len(model.variables) == 7


def test_set_weights_moves_a_model_over():
    source, target = (layers.Sequential([layers.Dense(4, activation="gelu"), layers.Dense(2)]) for _ in range(2))
    x = _x(3, 5)
    expected = source(x)
    target.build((None, 5))
    target.set_weights(source.get_weights())
    np.testing.assert_array_equal(target(x), expected)
    kernel = np.ones((5, 4), np.float32)
    target.layers[0].set_weights([kernel, np.zeros(4, np.float32)], copy=False)
    assert np.shares_memory(target.layers[0].kernel.numpy(), kernel)


@pytest.mark.parametrize(
    ("weights", "text"),
    [([np.ones((3, 2))], "weight list of length 1, but the layer was expecting 2"),
     ([np.ones((3, 2)), np.ones(3)], r"'bias' of shape \(2,\) is not compatible with provided weight shape \(3,\)")],
)  # fmt: skip
def test_set_weights_checks_shapes_before_it_changes(weights, text):
    layer = layers.Dense(2)
    layer.build((None, 3))
    before = layer.get_weights()
    with pytest.raises(ValueError, match=text):
        layer.set_weights(weights)
    assert all(map(np.shares_memory, layer.get_weights(), before))


def test_float8_policies_compute():
    layer = layers.Dense(2, kernel_initializer="ones", dtype=DTypePolicy("float8_e4m3fn"))
    y = layer(np.array([[1.0, 2.0, 3.0]]))
    assert y.dtype == "float8_e4m3fn" and y.astype(float).tolist() == [[6, 6]]


def test_packed_kernels_follow_assignments():
    layer, x = layers.Dense(2, use_bias=False, dtype="mixed_bfloat16"), np.ones((1, 3), np.float32)
    layer(x)
    layer.kernel.assign(np.full((3, 2), 2.0))
    np.testing.assert_array_equal(layer(x).astype(float), [[6, 6]])


def test_weight_bytes_count_what_is_read():
    sizes = {}
    for policy in ("float32", "mixed_bfloat16", "int8_from_mixed_bfloat16"):
        layer = layers.Dense(8, use_bias=False, dtype=policy)
        layer.build((None, 16))
        sizes[policy] = layer.weight_bytes
    assert sizes == {"float32": 512, "mixed_bfloat16": 256, "int8_from_mixed_bfloat16": 128 + 16}


# ---- paths and maps


def test_paths_are_known_once_a_layer_is_built():
    model = layers.Sequential([layers.Dense(4, name="a"), layers.Sequential([layers.Dense(2, name="b")], name="in")],
                              name="model")  # fmt: skip
    assert model.path is None
    model(_x(1, 3))
    assert [layer.path for layer in model.flatten()] == ["model", "model/a", "model/in", "model/in/b"]
    assert [layers.Dense(1).name != layers.Dense(1).name, layers.Conv2D(1, 1).name.startswith("conv2d")] == [True, True]


def test_a_map_gives_each_layer_the_policy_of_its_path():
    policies = DTypePolicyMap("float32", {"mha/query": "mixed_bfloat16", "mha/(key|value)": "mixed_float16"})
    layer = layers.MultiHeadAttention(2, 4, name="mha", dtype=policies)
    assert layer.dtype_policy is policies and layer.compute_dtype == "float32"
    layer.build((None, None, 8))
    parts = (layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense)
    assert [part.compute_dtype for part in parts] == ["bfloat16", "float16", "float16", "float32"]
    layer.query_dense.dtype_policy = "float32"
    assert policies["mha/query"] == DTypePolicy("float32") and layer.query_dense.compute_dtype == "float32"
    layer.output_dense.quantize("int8")
    assert policies["mha/attention_output"] == QuantizedDTypePolicy("int8", "float32")
    assert layer(_x(1, 3, 8), _x(1, 3, 8)).dtype == np.float32


@pytest.mark.parametrize("second", [["a", "b"], [1j, 2], np.ma.array([1.0, 2.0], mask=True)], ids=str)
def test_set_weights_checks_types_before_it_changes(second):
    layer = layers.Dense(2)
    layer.build((None, 3))
    before = layer.get_weights()
    with pytest.raises(TypeError, match="`value` must"):
        layer.set_weights([np.ones((3, 2)), second if isinstance(second, np.ndarray) else np.array(second)])
    assert all(map(np.shares_memory, layer.get_weights(), before))


class Holder(layers.Layer):
    """Builds the layer that it holds."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs)


@pytest.mark.parametrize("mode", [None, "int8", "float8"])
def test_a_layer_keeps_the_weights_it_was_built_with(mode):
    layer, x = layers.Dense(2), _x(1, 3)
    expected = layer(x)
    if mode:
        layer.quantize(mode)
        expected = layer(x)
    for build in (lambda: layer.build((None, 5)), lambda: Holder(layer)(x)):
        with pytest.raises(ValueError, match="already built"):
            build()
        np.testing.assert_array_equal(layer(x), expected)


def test_what_has_no_weights_of_its_own_may_be_built_again():
    for layer in (layers.Activation("relu"), layers.Sequential([layers.Activation("relu")])):
        layer.build((None, 3))
        layer.build((None, 3))


def test_a_layer_keeps_the_layers_it_was_built_with():
    layer, x = layers.MultiHeadAttention(2, 4), _x(1, 3, 8)
    expected, before = layer(x, x), dict(vars(layer))
    with pytest.raises(ValueError, match="already built"):
        layer.build((1, 3, 5), (1, 3, 5))
    np.testing.assert_array_equal(layer(x, x), expected)
    assert vars(layer).keys() == before.keys()


def test_a_build_that_guards_itself_may_run_again():
    class Guarded(layers.Dense):
        def build(self, input_shape):
            if not self.built:
                super().build(input_shape)

    layer, x = Guarded(2), _x(1, 3)
    expected = layer(x)
    layer.build((None, 3))
    np.testing.assert_array_equal(layer(x), expected)


def test_subclasses_build_by_their_base():
    class Early(layers.Dense):
        def build(self, input_shape):
            self.built = True
            super().build(input_shape)

    assert Early(2)(_x(1, 3)).shape == (1, 2)


def test_an_axis_is_named_once():
    with pytest.raises(ValueError, match=r"`axis` must name no axis twice; received axis=\[1, 1\]"):
        layers.Softmax(axis=[1, 1])


@pytest.mark.parametrize("value", ["foo", None, 5])
def test_initializers_are_checked_at_once(value):
    for make in (layers.Dense, lambda n, **kw: layers.EinsumDense("ab,bc->ac", n, **kw)):
        with pytest.raises(ValueError, match="Could not interpret initializer"):
            make(2, kernel_initializer=value)


def test_shapes_of_weights_are_integers():
    with pytest.raises(ValueError, match=r"`shape` must be integers from 0 on; received shape=\(None, 2\)"):
        layers.Dense(2).add_weight((None, 2))


def test_masked_arrays_are_no_inputs():
    masked = np.ma.array(np.ones((1, 2, 2, 3), np.float32), mask=True)
    for layer in (layers.Conv2D(2, 1), layers.Dense(2), layers.Activation("relu")):
        with pytest.raises(TypeError, match="`inputs` must not be a masked array"):
            layer(masked)


@pytest.mark.parametrize(
    "indices", [np.array([2**64 - 1], np.uint64), np.array([3]), np.array([-1]), np.array([np.nan])]
)
def test_indices_beyond_the_table_are_refused(indices):
    with pytest.raises(IndexError, match="must be from 0 to 2"):
        layers.Embedding(3, 2)(indices)


@pytest.mark.parametrize("indices", [np.array(["a"]), np.array([1j]), np.array([0], "datetime64[s]")], ids=str)
def test_indices_are_numbers(indices):
    with pytest.raises(TypeError, match="must be"):
        layers.Embedding(3, 2)(indices)


@pytest.mark.parametrize("make", [layers.Dense, lambda n: layers.EinsumDense("ab,bc->ac", n)])
def test_a_layer_computes_in_the_policy_that_it_is_given_later(make):
    layer, x = make(2), _x(1, 3)
    layer(x)
    layer.dtype_policy = "float16"
    assert layer(x).dtype == np.float16 and layer.kernel.true_dtype == np.float32
    layer.dtype_policy = "float32"
    assert layer(x).dtype == np.float32


def test_setting_the_policy_changes_what_a_layer_computes_in():
    layer, x = layers.Dense(2), _x(1, 3)
    assert layer(x).dtype == np.float32
    layer.dtype_policy = "mixed_bfloat16"
    assert layer(x).dtype == BF16 and layer.kernel.true_dtype == np.float32


def test_new_layers_take_the_default_policy():
    with policy_scope("mixed_bfloat16"):
        layer = layers.Dense(2)
    assert layer.dtype_policy == DTypePolicy("mixed_bfloat16")


# ---- configurations


class MyDense(layers.Dense):
    """A subclass without an own implementation."""


CONFIGURED = [
    layers.Dense(3, activation="gelu", use_bias=False, name="dense"),
    layers.Dense(3, dtype=QuantizedDTypePolicy("int8", "mixed_bfloat16")),
    layers.Dense(3, dtype=DTypePolicyMap("float16", {"a": "mixed_bfloat16"})),
    layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d"),
    layers.Embedding(4, 5, embeddings_initializer="zeros", dtype="mixed_float16"),
    layers.LayerNormalization(axis=[1, 2], epsilon=1e-5, center=False),
    layers.MultiHeadAttention(2, 4, value_dim=3, output_shape=6),
    layers.Conv2D(2, 3, strides=2, padding="same"),
    layers.Activation("silu"),
    layers.Softmax(axis=1),
    layers.Dropout(0.25),
    layers.Sequential([layers.Dense(3), layers.Sequential([layers.Activation("tanh")])]),
]


@pytest.mark.parametrize("layer", CONFIGURED, ids=lambda layer: layer.name)
def test_configurations_round_trip(layer):
    config = layer.get_config()
    before = copy.deepcopy(config)
    again = type(layer).from_config(config)
    assert again.get_config() == config == before
    assert config["dtype"] == serialize(layer.dtype_policy) and again.dtype_policy == layer.dtype_policy


def test_a_switch_of_numpy_is_one_of_python_in_a_configuration():
    config = layers.Identity(trainable=np.bool_(False), autocast=np.bool_(True)).get_config()
    assert json.loads(json.dumps(config))["trainable"] is False


def test_keras_configurations_load():
    config = {
        "name": "dense", "trainable": True, "units": 2, "activation": "relu", "use_bias": True,
        "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_float16"}},
        "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": None}},
        "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}},
        "kernel_regularizer": None, "bias_constraint": None, "quantization_config": None,
    }  # fmt: skip
    assert layers.Dense.from_config(config)(_x(1, 3)).dtype == np.float16
    with pytest.raises(ValueError, match="passed to Dense: sliding_window"):
        layers.Dense.from_config(config | {"sliding_window": None})
    with pytest.raises(ValueError, match="mp_core has no `sliding_window`: it must be None"):
        layers.MultiHeadAttention(2, 3, sliding_window=2)


def test_sequential_takes_custom_layers():
    model = layers.Sequential([MyDense(2)])
    assert type(layers.Sequential.from_config(model.get_config(), {"MyDense": MyDense}).layers[0]) is MyDense
    with pytest.raises(ValueError, match="Unknown layer class_name='MyDense'"):
        layers.Sequential.from_config(model.get_config())
    model.add(layers.Dense(3))
    assert model(_x(1, 4)).shape == (1, 3)


@pytest.mark.parametrize("config", [None, [], {}, {"layers": None}])
def test_a_config_without_layers_is_refused(config):
    with pytest.raises(ValueError, match="must have a list of `layers`; received"):
        layers.Sequential.from_config(config)


LAYERS = [
    layers.Dense(2), layers.EinsumDense("ab,bc->ac", 2, bias_axes="c"), layers.Embedding(4, 2), layers.Conv2D(2, 1),
    layers.LayerNormalization(), layers.Activation("relu"), layers.Softmax(), layers.MultiHeadAttention(2, 2),
    layers.Sequential([layers.Dense(2)]), tf_keras.layers.Dense(2),
]  # fmt: skip
EACH_LAYER = pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{type(layer).__module__}.{layer.name}")


@EACH_LAYER
@pytest.mark.parametrize("name", ["compute_dtype", "variable_dtype", "quantization_mode", "dtype", "input_dtype"])
def test_what_the_policy_says_cannot_be_assigned(layer, name):
    before = getattr(layer, name)
    with pytest.raises(AttributeError, match="has no setter"):
        setattr(layer, name, "float16")
    assert getattr(layer, name) == before


def test_autocast_can_be_switched_off_later():
    inner = Probe(dtype="mixed_float16")
    inner.autocast = False
    Probe(inner, dtype="mixed_float16")(_x(2))
    assert inner.read[0] == "float32"
    inner.autocast = True
    Probe(inner, dtype="mixed_float16")(_x(2))
    assert inner.read[0] == "float16"
    with pytest.raises(TypeError, match="`autocast` must be True or False; received autocast='no'"):
        inner.autocast = "no"


@EACH_LAYER
def test_layers_pickle_before_they_are_built(layer):
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


DAMAGES = [  # what is changed in a Dense's state, the error, what it says
    ({"name": None}, TypeError, "a pickled Dense is damaged: `name` must be str; it is None"),
    ({"_dtype_policy": "float32"}, TypeError, "`_dtype_policy` must be DTypePolicy; it is 'float32'"),
    ({"built": 1}, TypeError, "`built` must be bool; it is 1"),
    ({"_variables": {}}, TypeError, "`_variables` must be list; it is {}"),
    ({"_variables": [1]}, TypeError, "`_variables` of a pickled Dense must be variables; it has 1"),
    ({"autocast": ...}, ValueError, "a pickled Dense is damaged: it has no `autocast`"),
    ({"units": ...}, ValueError, "a pickled Dense is damaged: it has no `units`"),
    ({"form": ...}, ValueError, "a pickled Dense is damaged: it has no `form`"),
    ({"bias": np.ones(2)}, TypeError, "`bias` must be AutoCastVariable; it is array([1., 1.])"),
    ({"types of the attributes": 3}, TypeError, "the attributes' types of a pickled Dense must be a dictionary"),
]


@pytest.mark.parametrize(("changes", "error", "message"), DAMAGES)
def test_a_damaged_pickle_says_what_is_damaged(changes, error, message):
    layer = layers.Dense(2)
    layer.build((None, 3))
    state = {key: value for key, value in (layer.__getstate__() | changes).items() if value is not ...}
    with pytest.raises(error, match=re.escape(message)):
        layers.Dense.__new__(layers.Dense).__setstate__(state)
    with pytest.raises(TypeError, match="The state of a pickled Dense must be a dictionary; received list"):
        layers.Dense.__new__(layers.Dense).__setstate__([])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_copies_compute_the_same(clone, policy):
    model, x = layers.Sequential([layers.Dense(4, "relu", dtype=policy), layers.Dense(2, dtype=policy)]), _x(2, 3)
    expected = model(x)
    np.testing.assert_array_equal(clone(model)(x), expected)


def test_the_base_layer_needs_a_call():
    layer = layers.Layer(name="base")
    assert repr(layer) == "<Layer name=base, policy=float32, built=False>"
    with pytest.raises(NotImplementedError, match="Layer does not have a `call` method implemented"):
        layer(_x(1))


def test_a_failed_build_can_be_tried_again():
    layer = layers.Dense(2)
    with pytest.raises(ValueError, match="must be known"):
        layer.build((None, None))
    assert not layer.built and layer.path is None
    assert layer(_x(1, 3)).shape == (1, 2)


def test_stacks_that_shorten_unknown_lengths_are_built():
    convolutions = [layers.Conv1D(4, 3, strides=2, name=f"c{index}") for index in range(6)]
    stack = layers.Sequential([layers.InputLayer((None, None, 2)), *convolutions], name="s")
    stack.build()
    assert [weight.path for weight in stack.weights] == [
        f"s/c{i}/{name}" for i in range(6) for name in ("kernel", "bias")
    ]
    assert stack(_x(1, 200, 2)).shape == (1, 2, 4)


@pytest.mark.parametrize("base", [layers.Conv2D, layers.DepthwiseConv2D, layers.SeparableConv1D, PrecisionAtRecall])
def test_the_docstring_of_a_users_subclass_is_the_users(base):
    class Own(base):
        """Mine."""

    assert Own.__doc__ == "Mine."
