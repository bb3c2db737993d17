"""Code that users of Keras have: nested layers, subclasses, configurations, arguments without effect here."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import mp_core
from mp_core import dtype_policies, layers
from mp_core.autocast import AutoCastVariable
from mp_core.layers import registry


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
    assert Narrow.from_config(Narrow(3, activation="relu").get_config()).activation is layers.activations.relu
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
    changes = [
        {"weight_quantizer": KERAS_QUANTIZER},  # its axis is the last one
        {"weight_quantizer": _quantizer(axis=[0], value_range=[-8, 7])},
        {"activation_quantizer": _quantizer(epsilon=1e-3)},
    ]
    for changed in changes:
        with pytest.raises(ValueError, match=f"mp_core quantizes with `{next(iter(changed))}`"):
            layers.Dense.from_config(config("int8", "Int8QuantizationConfig", **changed))
    with pytest.raises(ValueError, match="mp_core quantizes with `activation_quantizer` None"):
        layers.Dense.from_config(config("int4", "Int4QuantizationConfig", activation_quantizer=KERAS_QUANTIZER))


def _quantizer(**settings):
    return KERAS_QUANTIZER | {"config": KERAS_QUANTIZER["config"] | settings}


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        (lambda dtype: layers.Dense(4, dtype=dtype), (0,)),
        (lambda dtype: layers.EinsumDense("abc,cde->abde", (None, 2, 2), dtype=dtype), (0,)),
        (lambda dtype: layers.EinsumDense("abcd,cde->abe", (None, 4), dtype=dtype), (1, 0)),
        (lambda dtype: layers.Embedding(6, 4, dtype=dtype), (-1,)),
    ],
)
def test_settings_of_keras_quantizers_that_are_the_default_ones_load(make, axis):
    def loaded(policy, kind, **quantizers):
        config = make(policy).get_config() | {"quantization_config": {"class_name": kind, "config": quantizers}}
        return type(make(policy)).from_config(config).dtype_policy

    weights = {"weight_quantizer": _quantizer(axis=list(axis))}
    table = axis == (-1,)
    for given in (None, KERAS_QUANTIZER, _quantizer(axis=[-1])):
        for policy in (
            "int8_from_mixed_bfloat16",
            dtype_policies.DTypePolicyMap("float32", {"a": "int8_from_float32"}),
        ):
            expected = dtype_policies.get(policy)
            if given is None and not table:
                found = "int8/weight_only_from_mixed_bfloat16"
                policy_map = dtype_policies.DTypePolicyMap("float32", {"a": "int8/weight_only_from_float32"})
                expected = dtype_policies.get(found) if isinstance(policy, str) else policy_map
            for own in ({}, weights):
                assert loaded(policy, "Int8QuantizationConfig", activation_quantizer=given, **own) == expected
    weights = {"weight_quantizer": _quantizer(axis=list(axis), value_range=[-8, 7])}
    for own in ({}, weights):
        found = loaded(
            "int4/-1_from_float32", "Int4QuantizationConfig", activation_quantizer=None, block_size=-1, **own
        )
        assert found == dtype_policies.get("int4/-1_from_float32")


def test_arguments_of_keras_that_are_off():
    layers.Dense(2, kernel_regularizer=None, bias_constraint=None, lora_rank=None)
    layers.Embedding(2, 3, mask_zero=False, embeddings_regularizer=None)
    for arguments in ({"sliding_window": 2}, {"units_": 2}, {"trainable": "False"}, {"name": 3}):
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
    with pytest.raises(ValueError, match="`attention_axes` must be axes from 1 to 1 of queries with 3 axes"):
        layers.MultiHeadAttention(2, 4, attention_axes=2)(x, x)


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
    assert layer.add_weight((2,), "ones", regularizer="l2").regularizer.l2 == 0.01
    with pytest.raises(ValueError, match=r"`initializer` must make an array of shape \(2, 3\); received one of \(3,\)"):
        layer.add_weight((2, 3), lambda shape, dtype: np.ones(3, dtype))


@pytest.mark.parametrize(("axis", "given"), [(-1, [-1]), ([1, -1], [-1, 1]), ((1, 2), [1, 2]), (-2, [-2])])
def test_the_axis_of_layer_normalization_is_a_sorted_list_from_the_front_once_built(axis, given):
    x = np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)
    layer = layers.LayerNormalization(axis=axis)
    assert layer.axis == (axis if isinstance(axis, int) else list(axis))
    layer.build(x.shape)
    assert layer.axis == sorted(place % 3 for place in given) and layer.get_config()["axis"] == given
    again = layers.LayerNormalization.from_config(layer.get_config())
    np.testing.assert_array_equal(again(x), layer(x))


def test_the_last_axis_stays_that_of_inputs_with_any_number_of_axes(rng):
    layer = layers.LayerNormalization()
    layer(rng.standard_normal((2, 3, 4), np.float32))
    same = pickle.loads(pickle.dumps(layer))
    for shape in ((5, 4), (4,), (1, 2, 3, 4)):
        x = rng.standard_normal(shape, np.float32)
        np.testing.assert_array_equal(layer(x), layers.LayerNormalization.from_config(layer.get_config())(x))
        np.testing.assert_array_equal(layer(x), same(x))


# What Keras 3.15 gives for the same calls.
IDS = np.array([[1, 2, 0], [3, 0, 0]])
PADDING = [[True, True, False], [True, False, False]]


class Seen(layers.Layer):
    def __init__(self, supports_masking=True):
        super().__init__()
        self.supports_masking = supports_masking

    def call(self, inputs, mask=None):
        self.mask = mask
        return inputs


def test_which_layers_support_masking():
    made = [
        layers.Dense(3), layers.Activation("relu"), layers.Dropout(0.5), layers.LayerNormalization(), layers.Softmax(),
        layers.MultiHeadAttention(2, 3), layers.Embedding(3, 2, mask_zero=True),
    ]  # fmt: skip
    assert all(layer.supports_masking for layer in made)
    others = [layers.Embedding(3, 2), layers.EinsumDense("ab,bc->ac", 3), layers.Conv2D(3, 1), layers.Layer()]
    assert not any(layer.supports_masking for layer in others)
    assert layers.Dense(3).compute_mask(np.ones((2, 3)), PADDING) is PADDING
    assert layers.Embedding(3, 2).compute_mask(IDS) is None
    table = layers.Embedding(5, 4, mask_zero=True)
    assert table.compute_mask(IDS).tolist() == PADDING
    assert layers.Embedding.from_config(table.get_config()).mask_zero is True


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_stack_hands_the_mask_of_a_table_on(policy):
    seen = [Seen(), Seen()]
    inner = layers.Sequential([layers.Dense(3, dtype=policy), layers.LayerNormalization(dtype=policy)])
    table = layers.Embedding(5, 4, mask_zero=True, dtype=policy)
    model = layers.Sequential([table, layers.Dropout(0.5), seen[0], inner, layers.Activation("relu"), seen[1]])
    model(IDS)
    assert all(layer.mask.tolist() == PADDING for layer in seen)
    assert model.compute_mask(IDS).tolist() == PADDING
    nested = layers.Sequential([layers.Sequential([table]), seen[0]])
    nested(IDS)
    assert seen[0].mask.tolist() == PADDING
    # Softmax takes a mask that broadcasts: here that of the tokens is one of the features, as in Keras.
    stack = layers.Sequential([layers.Embedding(5, 3, mask_zero=True, dtype=policy), layers.Softmax(dtype=policy)])
    assert (stack(IDS[:1])[..., 2] == 0).all()


def test_a_mask_that_is_given_goes_through_a_stack():
    seen = Seen()
    model = layers.Sequential([layers.Dense(2), seen])
    mask = np.array([[True, False, True]])
    model(np.ones((1, 3, 2), np.float32), mask=mask)
    np.testing.assert_array_equal(seen.mask, mask)
    model(np.ones((1, 3, 2), np.float32))
    assert seen.mask is None


def test_a_layer_that_does_not_support_masking_drops_the_mask_with_a_warning():
    for broken in (Seen(supports_masking=False), layers.EinsumDense("abc,cd->abd", (None, 2))):
        seen = Seen()
        model = layers.Sequential([layers.Embedding(5, 4, mask_zero=True), broken, seen])
        with pytest.warns(UserWarning, match=f"Layer '{broken.name}' .* does not support masking and will therefore"):
            model(IDS)
        assert seen.mask is None


@pytest.mark.parametrize("policy", ["float32", "float16", "mixed_bfloat16"])
@pytest.mark.parametrize("kind", ["bool", "int64", "float32", "float64", "float16", "bfloat16"])
def test_masks_may_be_numbers_of_any_type(kind, policy, rng):
    x = rng.standard_normal((2, 3, 4), np.float32)
    layer = layers.MultiHeadAttention(2, 3, dtype=policy)
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else kind
    masks = {
        "query_mask": np.array(PADDING),
        "value_mask": np.array(PADDING),
        "key_mask": np.array(PADDING),
        "attention_mask": np.array([[[True, True, False]] * 3] * 2),
    }
    for name, mask in masks.items():
        expected = layer(x, x, **{name: mask})
        np.testing.assert_array_equal(layer(x, x, **{name: mask.astype(dtype)}), expected)
    softmax, keep = layers.Softmax(dtype=policy), np.array([[True, True, False]])
    outputs = softmax(np.array([[1.0, 2.0, 3.0]], np.float32), mask=keep.astype(dtype))
    np.testing.assert_allclose(outputs.astype(float), [[0.26894143, 0.7310586, 0]], rtol=4e-3)


# The configurations that Keras 3.15 writes for layers with default arguments.
KERAS_CONFIGS = {
    "Dense": {
        "units": 3, "activation": "linear", "use_bias": True, "kernel_regularizer": None, "bias_regularizer": None,
        "kernel_constraint": None, "bias_constraint": None, "quantization_config": None,
    },
    "EinsumDense": {
        "output_shape": (3,), "equation": "ab,bc->ac", "activation": "linear", "bias_axes": None,
        "kernel_regularizer": None, "bias_regularizer": None, "activity_regularizer": None, "kernel_constraint": None,
        "bias_constraint": None, "quantization_config": None,
    },
    "Embedding": {
        "input_dim": 3, "output_dim": 4, "embeddings_regularizer": None, "activity_regularizer": None,
        "embeddings_constraint": None, "mask_zero": False, "quantization_config": None,
        "embeddings_initializer": {"class_name": "RandomUniform", "config": {"seed": None, "minval": -1}},
    },
    "LayerNormalization": {
        "axis": -1, "epsilon": 0.001, "center": True, "scale": True, "rms_scaling": False, "beta_regularizer": None,
        "gamma_regularizer": None, "beta_constraint": None, "gamma_constraint": None,
    },
    "MultiHeadAttention": {
        "num_heads": 2, "key_dim": 3, "value_dim": 3, "dropout": 0.0, "use_bias": True, "use_gate": False,
        "output_shape": None, "attention_axes": None, "sliding_window": None, "kernel_regularizer": None,
        "bias_regularizer": None, "activity_regularizer": None, "kernel_constraint": None, "bias_constraint": None,
        "seed": None,
    },
    "Softmax": {"axis": -1},
    "Activation": {"activation": "relu"},
    "Dropout": {"rate": 0.5, "seed": None, "noise_shape": None},
    "Conv2D": {
        "filters": 3, "kernel_size": (3, 3), "strides": (1, 1), "padding": "valid", "data_format": "channels_last",
        "dilation_rate": (1, 1), "groups": 1, "activation": "linear", "use_bias": True, "kernel_regularizer": None,
        "bias_regularizer": None, "activity_regularizer": None, "kernel_constraint": None, "bias_constraint": None,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KERAS_CONFIGS)
def test_configurations_of_keras_with_default_arguments_load(name):
    policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": None}
    config = {"name": "layer", "trainable": True, "dtype": policy} | KERAS_CONFIGS[name]
    layer = getattr(layers, name).from_config(config)
    written = layer.get_config()
    for key in config.keys() & written.keys() - {"embeddings_initializer", "output_shape"}:
        assert written[key] == config[key] or (key == "dtype" and written[key] == policy)


def test_configurations_name_the_public_layers_and_no_other_class_without_registration():
    class Dense(layers.Dense):  # has the name and the face of one of ours
        pass

    named = {layers.GroupedQueryAttention.exported_as, "Operation", *layers.__all__}
    named -= {name for name in layers.__all__ if name in ("Layer", "Input") or name.islower()}
    assert registry.layer_classes(None).keys() == named
    assert registry.layer_classes(None)["Dense"] is layers.Dense
    for found in (Dense, layers.Layer, mp_core.models.TextNetwork, layers.merging.Merge, layers.pooling._Pooling):
        assert not registry.is_registered(found)
        config = {"layers": [{"class_name": found.__name__, "config": {}}]}
        if found is not Dense:
            with pytest.raises(ValueError, match=f"Unknown layer class_name='{found.__name__}'"):
                layers.Sequential.from_config(config)
