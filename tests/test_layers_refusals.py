"""Errors of layers, and the findings of a hostile review: masks, axes, sizes, empty inputs."""

import json

import numpy as np
import pytest

from mp_core import layers, ops

rng = np.random.default_rng(0)


def _x(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def _built_dense():
    layer = layers.Dense(2)
    layer.build((None, 2))
    return layer


ARGUMENT_ERRORS = [
    (lambda: layers.Sequential.from_config({"name": "x"}), "must have a list of `layers`"),
    (lambda: layers.Sequential.from_config({"layers": ["Dense"]}), "must be a dictionary with a `class_name`"),
    (lambda: layers.Dense.from_config({"units": 2, "quantization_config": []}), "`quantization_config` must be a dict"),
    (
        lambda: layers.Sequential.from_config({"layers": [{"class_name": "Dense", "config": []}]}),
        "The `config` of a layer must be a dictionary",
    ),
    (
        lambda: layers.Dense.from_config({"units": 2, "quantization_config": {"config": []}}),
        "the `config` of a `quantization_config` must be a dict",
    ),
    (lambda: layers.Dense(0), "`units` must be a positive integer"),
    (lambda: layers.Dense(True), "`units` must be a positive integer; received units=True"),
    (lambda: layers.Dense(2.0), "`units` must be a positive integer; received units=2.0"),
    (lambda: layers.Embedding(-3, 2), "`input_dim` must be a positive integer; received input_dim=-3"),
    (lambda: layers.Embedding(3, 0), "`output_dim` must be a positive integer; received output_dim=0"),
    (lambda: layers.MultiHeadAttention(0, 2), "`num_heads` must be a positive integer; received num_heads=0"),
    (lambda: layers.MultiHeadAttention(2, 2).build((1, 2)), "`query` must have at least 3 axes; received 2"),
    (
        lambda: layers.MultiHeadAttention(2, 2).build((1, 2, 4), (2, 4)),
        r"`key` must have shape \(batch, length, width\)",
    ),
    (lambda: layers.MultiHeadAttention(2, 0), "`key_dim` must be a positive integer; received key_dim=0"),
    (lambda: layers.MultiHeadAttention(2, 2, -1), "`value_dim` must be a positive integer; received value_dim=-1"),
    (lambda: layers.Dense(2, activation="nothing"), "Could not interpret activation function: 'nothing'"),
    (lambda: layers.Dense(2, kernel_initializer="nothing")(_x(1, 2)), "Could not interpret initializer: 'nothing'"),
    (lambda: layers.Dense(2).build((None, None)), "last axis of the inputs to Dense must be known"),
    (lambda: layers.Dense(2, dtype="int32")(_x(1, 2)), "drawn in floating-point dtypes only; received dtype int32"),
    (lambda: layers.Embedding(3, 2, dtype="uint8")(np.array([1])), "drawn in floating-point dtypes only"),
    (lambda: layers.Layer(dtype="bool").add_weight((2,), "glorot_uniform"), "drawn in floating-point dtypes only"),
    (lambda: _built_dense().with_policy("int32"), "`with_policy` needs floating-point dtypes; .* would store int32"),
    (lambda: layers.Dropout(2), "`rate` must be a number from 0 to 1"),
    (lambda: layers.Conv2D(2, 3, padding="causal"), "`padding` must be 'valid' or 'same'"),
    (lambda: layers.Conv2D(2, 3, groups=3), "`groups` must divide `filters`"),
    (lambda: layers.Conv2D(2, 3, groups=0), "`groups` must be a positive integer; received groups=0"),
    (lambda: layers.Conv2D(-4, 3), "`filters` must be a positive integer; received filters=-4"),
    (lambda: layers.Conv2D(2, 3.5), "`kernel_size` must be a positive integer; received kernel_size=3.5"),
    (lambda: layers.Conv2D(2, (3, True)), "`kernel_size` must be a positive integer; received kernel_size=True"),
    (lambda: layers.Conv2D(2, 3)(_x(5, 5, 1)), r"expected 4 axes .* but received input with shape \(5, 5, 1\)"),
    (lambda: layers.Conv2D(2, 3, data_format="nchw"), "`data_format` must be"),
    (lambda: layers.Conv2D(2, (1, 2, 3)), "`kernel_size` must be a positive integer or a pair"),
    (lambda: layers.Conv2D(2, 3)(_x(1, 2, 2, 1)), "smaller than the kernel"),
    (lambda: layers.Conv1DTranspose(2, 3, strides=2, output_padding=2), "`output_padding` must be from 0 to `strides`"),
    (lambda: layers.Conv2DTranspose(2, 3, strides=(2, 3), output_padding=(-1, 0)), "`output_padding` must be from 0"),
    (lambda: layers.Conv2DTranspose(2, 3, output_padding=(0, 0, 0)), "`output_padding` must be an integer or a pair"),
    (lambda: layers.Conv2DTranspose(2, 3, strides=2, dilation_rate=(1, 2)), "`strides` or `dilation_rate` must be 1"),
    (lambda: layers.Conv1DTranspose(2, 3, padding="causal"), "`padding` must be 'valid' or 'same'"),
    (lambda: layers.Conv3DTranspose(2, 3)(_x(2, 3, 3, 1)), r"expected 5 axes \(a batch of volumes\)"),
    (lambda: layers.Conv2DTranspose(2, 3).build((None, 3, 3, None)), "channels .* must be known"),
    (lambda: layers.Conv1DTranspose(2, 2, padding="same", output_padding=0)(_x(2, 1, 3)), "would be empty"),
    (lambda: layers.Conv2D(2, 1, groups=2)(_x(1, 2, 2, 3)), "must divide the channels"),
]


@pytest.mark.parametrize(("call", "text"), ARGUMENT_ERRORS)
def test_wrong_arguments_are_named(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.parametrize(
    ("call", "text"),
    [(lambda: layers.Sequential(5), "`layers` must be a sequence of layers or None; received 5"),
     (lambda: layers.EinsumDense(3, 2), "`equation` must be a string; received equation=3"),
     (lambda: layers.EinsumDense("ab,bc->ac", 2, bias_axes=3), "`bias_axes` must be a string; received bias_axes=3")],
)  # fmt: skip
def test_arguments_of_a_wrong_type_are_named_at_construction(call, text):
    with pytest.raises(TypeError, match=text):
        call()


def test_dense_names_itself_when_the_inputs_do_not_fit():
    layer = layers.Dense(2, name="head")
    layer(_x(1, 3))
    with pytest.raises(ValueError, match=r'"head" is incompatible .* expected axis -1 of input shape to have value 3'):
        layer(_x(1, 4))


@pytest.mark.parametrize(
    ("equation", "shape", "output_shape", "text"),
    [("abc", (2, 3, 4), 2, "`equation` must be like"),
     ("abc,cd->abd", (2, 4), 2, "has 3 labels for its first operand of 2 axes"),
     ("abc,cd->abd", (2, 3, None), (None, 2), "lengths of the kernel's axes"),
     ("abc,cd->abd", (2, 3, 4), (5, 2), "Axis 'b' has length 3 in the inputs, but 5")],
)  # fmt: skip
def test_einsum_dense_errors(equation, shape, output_shape, text):
    with pytest.raises(ValueError, match=text):
        layers.EinsumDense(equation, output_shape).build(shape)


def test_a_float_table_is_quantized_under_an_int8_policy():
    table = [[0.1, 0.9], [0.5, -0.7]]
    rows = layers.Embedding(2, 2, weights=table, dtype="int8_from_float32")(np.array([0, 1]))
    np.testing.assert_allclose(rows, table, atol=0.004)


def test_assigning_the_scale_keeps_one_packed_kernel():
    layer = layers.Dense(8, dtype="int8_from_float32")
    x = rng.standard_normal((2, 8)).astype(np.float32)
    layer(x)
    layer.kernel.assign(np.eye(8, dtype=np.int8))
    for factor in (1.0, 2.0, 4.0):
        layer.kernel_scale.assign(np.full(8, factor))
        np.testing.assert_allclose(layer(x), x / factor, atol=0.05 / factor)
    (kept,) = layer.kernel._state[1].values()
    assert len(kept) == 1


def test_attention_masks_of_different_rank_keep_their_axes():
    layer, x = layers.MultiHeadAttention(2, 4), rng.standard_normal((2, 5, 8)).astype(np.float32)
    four, value = rng.random((2, 2, 5, 5)) < 0.7, np.array([[True] * 5, [True, True, True, False, False]])
    four[..., 0] = True
    expected = layer(x, x, attention_mask=four & value[:, None, None, :])
    np.testing.assert_array_equal(layer(x, x, attention_mask=four, value_mask=value), expected)
    np.testing.assert_array_equal(
        layer(x, x, attention_mask=four[0, 0].astype(int)), layer(x, x, attention_mask=four[:1, :1])
    )


MASK_ERRORS = [
    (
        {"attention_mask": np.triu(np.full((5, 5), -1e9), 1)},
        ValueError,
        "`attention_mask` must be 1 .*from -1000000000.0 to 0",
    ),
    ({"attention_mask": np.full((5, 5), 0.5)}, ValueError, "`attention_mask` must be 1 .*received numbers from 0.5 to"),
    ({"attention_mask": np.zeros((5, 5), complex)}, TypeError, "`attention_mask` must be"),
    ({"attention_mask": np.full((5, 5), 2)}, ValueError, "`attention_mask` must be 1 .*received numbers from 2 to 2"),
    ({"attention_mask": np.ones(5, bool)}, ValueError, r"must have 2 or 3 or 4 axes; received shape \(5,\)"),
    ({"attention_mask": np.ones((1, 1, 2, 5, 5), bool)}, ValueError, "`attention_mask` must have 2 or 3 or 4 axes"),
    ({"query_mask": np.ones((2, 5, 1), bool)}, ValueError, "`query_mask` must have 2 axes"),
    ({"value_mask": np.ones(5, bool)}, ValueError, "`value_mask` must have 2 axes"),
    ({"key_mask": np.full((2, 5), np.nan)}, ValueError, "`key_mask` must be 1"),
]


@pytest.mark.parametrize(("mask", "error", "text"), MASK_ERRORS)
def test_attention_refuses_masks_that_it_would_misread(mask, error, text):
    x = np.ones((2, 5, 8), np.float32)
    with pytest.raises(error, match=text):
        layers.MultiHeadAttention(2, 4)(x, x, **mask)


def test_sizes_may_be_numpy_integers():
    dense = layers.Dense(np.int64(3))
    assert dense(_x(1, 2)).shape == (1, 3)
    convolution = layers.Conv2D(np.int64(4), np.int32(3), strides=(np.int64(1), 1), groups=np.int8(2))
    assert convolution(_x(1, 5, 5, 2)).shape == (1, 3, 3, 4)
    for layer in (dense, convolution):
        config = layer.get_config()
        assert layer.from_config(json.loads(json.dumps(config))).get_config() == config


@pytest.mark.parametrize("shape", [(5, 5, 2), (1, 1, 5, 5, 2), (), (1, 5, 5, 3)])
def test_a_built_convolution_refuses_other_inputs(shape):
    layer = layers.Conv2D(2, 3, name="filter")
    layer(_x(1, 5, 5, 2))
    with pytest.raises(ValueError, match=r'layer "filter" is incompatible.* received input with shape \('):
        layer(np.zeros(shape, np.float32))


@pytest.mark.parametrize("indices", [[0, 3], [-1, 2]])
@pytest.mark.parametrize("dtype", ["float32", "int8_from_float32"])
def test_an_embedding_says_which_indices_it_has(indices, dtype):
    text = f"layer 'words' must be from 0 to 2; received {indices[0]} to {indices[1]}"
    with pytest.raises(IndexError, match=text):
        layers.Embedding(3, 2, name="words", dtype=dtype)(np.array(indices))


@pytest.mark.parametrize("axis", [3, -4, [0, 5], [2, -1], []])
def test_layer_normalization_refuses_axes_that_are_not_there(axis):
    with pytest.raises(ValueError, match="`axis` must name different ones of the 3 axes"):
        layers.LayerNormalization(axis=axis)(np.ones((2, 3, 4), np.float32))
    with pytest.raises(ValueError, match=r"of the 0 axes of inputs of shape \(\); received -1"):
        layers.LayerNormalization()(np.float32(3))


def test_layer_normalization_refuses_another_rank():
    layer = layers.LayerNormalization(axis=1)
    layer(np.ones((2, 3), np.float32))
    for shape in ((2, 3, 3), (2, 4), ()):
        with pytest.raises(ValueError, match="expected 2 axes, with lengths"):
            layer(np.ones(shape, np.float32))
    x = np.ones((2, 3, 4), np.float32)
    with pytest.raises(ValueError, match=r"`residual` must have shape \(2, 3, 4\); received \(2, 4, 3\)"):
        layers.LayerNormalization(axis=[1, 2])(x, residual=x.swapaxes(1, 2))


def test_layer_normalization_takes_a_numpy_integer_as_axis():
    assert layers.LayerNormalization(axis=np.int64(1)).get_config()["axis"] == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layer_normalization_widens_gamma_and_beta_once_per_value(dtype, monkeypatch):
    layer, x = layers.LayerNormalization(dtype=dtype), rng.standard_normal((2, 3)).astype(np.float32)
    given = []
    layer_norm = ops.layer_norm
    monkeypatch.setattr(
        ops, "layer_norm", lambda x, *vectors, **kw: given.append(vectors) or layer_norm(x, *vectors, **kw)
    )
    before = layer(x)
    layer(x)
    assert all(first is second for first, second in zip(*given, strict=True))
    assert [vector.dtype for vector in given[0]] == [np.float32] * 2
    layer.beta.assign(np.ones(3))
    np.testing.assert_allclose(layer(x).astype(float), before.astype(float) + 1, atol=0.02)


def test_einsum_dense_refuses_the_right_product_of_wrong_lengths():
    layer = layers.EinsumDense("abcd,cde->abe", (None, 3))
    layer(np.ones((1, 2, 4, 6), np.float32))
    with pytest.raises(ValueError, match=r"lengths \{'c': 4, 'd': 6\}, but received input with shape"):
        layer(np.ones((1, 2, 6, 4), np.float32))
    with pytest.raises(ValueError, match="the axes of 'abcd,cde->abe' to have"):
        layer(np.ones((2, 4, 6), np.float32))
    elided = layers.EinsumDense("...b,bc->...c", 2)
    elided(np.ones((1, 3), np.float32))
    assert elided(np.ones((2, 1, 3), np.float32)).shape == (2, 1, 2)
    transposed = layers.EinsumDense("ab,cb->ac", 2)
    transposed(np.ones((1, 3), np.float32))
    for shape in ((2, 1), (2, 4), (3,)):  # a length of 1 would broadcast
        with pytest.raises(ValueError, match=r"lengths \{'b': 3\}, but received input with shape"):
            transposed(np.ones(shape, np.float32))


def test_einsum_dense_refuses_bias_axes_that_are_not_there():
    layer = layers.EinsumDense("ab,bc->ac", 3, bias_axes="z")
    with pytest.raises(ValueError, match="`bias_axes` must be axes of the output of 'ab,bc->ac'; received 'z'"):
        layer.build((None, 2))
    assert not layer.weights


def test_empty_inputs_give_empty_outputs_or_the_bias():
    assert layers.Dense(3)(np.zeros((2, 0), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert layers.Dense(3, dtype="int8_from_float32")(np.zeros((2, 0), np.float32)).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert layers.Conv2D(2, 3)(np.zeros((0, 5, 5, 1), np.float32)).shape == (0, 3, 3, 2)
    assert layers.Conv2DTranspose(2, 3)(np.zeros((0, 5, 5, 1), np.float32)).shape == (0, 7, 7, 2)
    grouped = layers.Conv2D(4, 3, groups=2, padding="same", data_format="channels_first")
    assert grouped(np.zeros((0, 2, 5, 5), np.float32)).shape == (0, 4, 5, 5)
    x = np.zeros((0, 5, 8), np.float32)
    assert layers.MultiHeadAttention(2, 4)(x, x, value_mask=np.ones((0, 5), bool)).shape == x.shape
    assert layers.LayerNormalization(axis=[1, 2])(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 4)


def test_set_weights_refuses_fractions_for_an_int8_kernel_before_it_changes_anything():
    layer = layers.Dense(2, dtype="int8_from_float32")
    layer(np.ones((1, 2), np.float32))
    before = layer.get_weights()
    replacement = {"bias": np.ones(2), "kernel": np.full((2, 2), 0.5), "kernel_scale": np.ones(2)}
    with pytest.raises(TypeError, match="variable 'kernel' must be integers from -128 to 127; received float64"):
        layer.set_weights([replacement[variable.name] for variable in layer.weights])
    for kept, array in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(kept, array)
    replacement["kernel"] = np.full((2, 2), 3.0)
    layer.set_weights([replacement[variable.name] for variable in layer.weights])
    assert layer.kernel.numpy().tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    "layer",
    [
        layers.Dense(2),
        layers.EinsumDense("ab,bc->ac", 2),
        layers.Embedding(3, 2),
        layers.LayerNormalization(),
        layers.Conv2D(2, 1),
    ],
    ids=lambda layer: type(layer).__name__,
)
@pytest.mark.parametrize("inputs", [None, {"a": np.ones((1, 2))}], ids=["None", "dict"])
def test_what_is_no_array(layer, inputs):
    for arguments, keywords in (((inputs,), {}), ((), {"inputs": inputs})):
        with pytest.raises(TypeError, match=f"`inputs` of layer '{layer.name}' must be an array; received"):
            layer(*arguments, **keywords)
    with pytest.raises(ValueError, match="`config` must be a dict"):
        type(layer).from_config(inputs and [inputs])


def test_a_subclass_with_its_own_call_takes_what_it_likes():
    class Named(layers.Dense):
        def call(self, inputs):
            return super().call(inputs["x"])

        def build(self, input_shape):
            super().build(input_shape["x"])

    assert Named(2)({"x": np.ones((1, 3), np.float32)}).shape == (1, 2)
    assert layers.Sequential(None).layers == []
