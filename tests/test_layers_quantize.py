"""`quantize` of layers: their variables afterwards, and errors."""

import re

import ml_dtypes
import numpy as np
import pytest
from oracles import UNIT

from mp_core import layers
from mp_core.dtype_policies import (
    DTypePolicy,
    DTypePolicyMap,
    QuantizedDTypePolicy,
)
from mp_core.quantizers import abs_max_quantize

BF16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(0)


def _x(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def _quantized(make, how, policy, x):
    """Return a float layer's outputs and weights, and the same layer made int8 in one of three ways."""
    layer = make(policy)
    expected = layer(x)
    weights = layer.get_weights()
    if how == "quantize":
        layer.quantize("int8")
    elif how == "setter":
        layer.dtype_policy = f"int8_from_{policy}"
    else:
        layer.quantize("int8")
        built = make(f"int8_from_{policy}")
        built.build(x.shape)
        built.set_weights(layer.get_weights())
        layer = built
    return layer, expected, weights


@pytest.mark.parametrize("policy", ["float32", "bfloat16", "mixed_bfloat16"])
@pytest.mark.parametrize("how", ["quantize", "setter", "built"])
@pytest.mark.parametrize(
    ("make", "scale_shape"),
    [(lambda p: layers.Dense(6, "relu", bias_initializer="ones", dtype=p), (6,)),
     (lambda p: layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", dtype=p), (1, 1, 2, 3))],
    ids=["dense", "einsum"],
)  # fmt: skip
def test_int8_kernels_are_keras_codes_and_products_stay_close(make, scale_shape, how, policy):
    x = _x(2, 3, 16)
    layer, expected, weights = _quantized(make, how, policy, x)
    kernel, scale = abs_max_quantize(weights[0], 0)
    assert layer.dtype_policy == QuantizedDTypePolicy("int8", policy) and layer.quantization_mode == "int8"
    assert (layer.kernel.true_dtype, layer.kernel_scale.shape) == (np.int8, scale_shape)
    np.testing.assert_array_equal(layer.kernel.numpy(), kernel)
    np.testing.assert_allclose(
        layer.kernel_scale.numpy().astype(float).ravel(), scale.ravel(), rtol=UNIT[layer.variable_dtype]
    )
    assert [w.name for w in layer.weights] == ["bias", "kernel", "kernel_scale"]
    assert [w.name for w in layer.trainable_weights] == ["bias"]
    y = layer(x)
    assert y.dtype == expected.dtype == layer.compute_dtype
    # Each operand is off by at most half its scale; so is the sum of 16 products, plus the roundings of the types.
    bound = 16 * np.abs(x).max() * np.abs(weights[0].astype(float)).max() / 127 + 8 * UNIT[layer.compute_dtype] * 4
    assert np.abs(y.astype(float) - expected.astype(float)).max() <= bound


@pytest.mark.parametrize("how", ["quantize", "setter", "built"])
def test_rows_of_an_int8_table_are_off_by_half_their_scale_at_most(how):
    ids = np.array([[0, 3], [9, 9]])
    layer, expected, weights = _quantized(lambda p: layers.Embedding(10, 8, dtype=p), how, "mixed_bfloat16", ids)
    assert (layer.embeddings.true_dtype, layer.embeddings_scale.shape) == (np.int8, (10,))
    y = layer(ids)
    assert y.dtype == BF16 and y.shape == (2, 2, 8)
    scales = np.abs(weights[0]).max(axis=1)[ids] / 127
    error = np.abs(y.astype(float) - expected.astype(float))
    assert (error <= scales[..., None] / 2 + 2.0**-7 * np.abs(expected.astype(float))).all()


def test_composite_layers_quantize_what_is_below_them():
    layer, x = layers.MultiHeadAttention(2, 8, dtype="mixed_bfloat16"), _x(1, 4, 16)
    expected = layer(x, x)
    layer.quantize("int8")
    assert all(part.kernel.true_dtype == np.int8 for part in layer.children())
    assert {part.dtype_policy.name for part in layer.children()} == {"int8_from_mixed_bfloat16"}
    np.testing.assert_allclose(layer(x, x).astype(float), expected.astype(float), atol=0.1)


def _built(**kwargs):
    layer = layers.Dense(2, **kwargs)
    layer.build((None, 3))
    return layer


def _twice():
    layer = _built()
    layer.quantize("int8")
    layer.quantize("int8")


class MyDense(layers.Dense):
    """A subclass without an own implementation."""


def _composite_twice():
    layer = layers.MultiHeadAttention(2, 4, dtype="int8_from_float32")
    layer.build((None, None, 8))
    layer.quantize("int8")


def _subclass():
    layer = MyDense(2)
    layer.build((None, 3))
    layer.quantize("int8")


def _stored_otherwise():
    layer = _built(dtype="int8_from_float32")
    layer.dtype_policy = "int4/64_from_float32"


def _embedding(dtype="float32"):
    layer = layers.Embedding(2, 3, dtype=dtype)
    layer.build()
    return layer


def _norm():
    layer = layers.LayerNormalization()
    layer.build((None, 3))
    return layer


OF_TABLES = r"Invalid quantization mode. Expected one of \('int8', 'int4', 'ternary'\). Received: "
QUANTIZE_ERRORS = [
    (lambda: layers.Dense(2).quantize("int8"), ValueError, "Cannot quantize a layer that isn't yet built."),
    (_twice, ValueError, "is already quantized with dtype_policy='int8_from_float32'. Received: mode=int8"),
    (_composite_twice, ValueError, "is already quantized with dtype_policy='int8_from_float32'"),
    (_stored_otherwise, ValueError, "is already quantized with dtype_policy='int8_from_float32'.*int4/64_from_float32"),
    (lambda: _built().quantize("int7"), ValueError, r"Invalid quantization mode. Expected one of \('int8', 'float8'"),
    (lambda: _built().quantize(None), ValueError, "Invalid quantization mode.*mode=None"),
    (lambda: _built().quantize("int4/0"), ValueError, "Invalid block_size in mode"),
    (lambda: _built().quantize("int8/4"), ValueError, "int8/weight_only, .* received 'int8/4'"),
    (lambda: _built().quantize("float8/4"), ValueError, "Invalid quantization mode"),
    (lambda: _built().quantize("int8_from_float32"), ValueError, "valid pair"),
    (lambda: _built(dtype="mixed_float16").quantize("int8"), ValueError,
     "Quantization mode='int8' doesn't work well with compute_dtype='float16'."),
    (_subclass, NotImplementedError, "MyDense cannot be quantized"),
    (lambda: _norm().quantize("int8"), NotImplementedError, "LayerNormalization cannot be quantized"),
    (lambda: setattr(_built(), "dtype_policy", "gptq/4/128_from_float32"), ValueError, "Implicitly enabling GPTQ"),
    (lambda: _built().quantize("awq"), ValueError, "Expected 'awq/<weight_bits>/<group_size>'"),
    (lambda: _built().quantize("gptq/5/128"), ValueError, "only supports 2 or 3 or 4 or 8-bit"),
    (lambda: _embedding().quantize("float8"), NotImplementedError, OF_TABLES + "mode=float8"),
    (lambda: _embedding("float8_from_float32"), NotImplementedError, OF_TABLES + "quantization_mode=float8"),
    (lambda: _embedding("awq/4/64_from_float32"), NotImplementedError, OF_TABLES + "quantization_mode=awq"),
    (lambda: layers.EinsumDense("abc,acd->abd", (None, 5), dtype="int8_from_float32").build((1, 2, 3)),
     NotImplementedError, "A quantized EinsumDense needs an equation"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), QUANTIZE_ERRORS)
def test_what_cannot_be_quantized_is_refused_with_keras_words(call, error, text):
    with pytest.raises(error, match=text):
        call()


@pytest.mark.parametrize("mode", ["int7", "int4/x", "awq"])
def test_failed_quantization_changes_nothing(mode):
    layer = _built()
    kernel = layer.kernel
    with pytest.raises((ValueError, NotImplementedError)):
        layer.quantize(mode)
    assert layer.kernel is kernel and layer.dtype_policy == DTypePolicy("float32") and not layer.quantized


def test_a_stack_quantizes_every_layer_that_can_or_none():
    stack = layers.Sequential([layers.Embedding(9, 6), layers.Dense(4), layers.LayerNormalization()])
    ids = np.array([[1, 2]])
    stack(ids)
    refusing = layers.Sequential([*stack.layers, layers.EinsumDense("abc,acd->abd", (None, 5))])
    refusing(ids)
    with pytest.raises(NotImplementedError, match="needs an equation"):
        refusing.quantize("int8")
    assert not any(layer.quantized for layer in refusing.flatten())
    stack.quantize("float8")
    assert [layer.quantized for layer in stack.layers] == [False, True, False]
    assert stack(ids).shape == (1, 2, 4)


def test_subclasses_quantize_without_the_type_check():
    layer = MyDense(2)
    layer.build((None, 3))
    layer.quantize("int8", type_check=False)
    assert layer.kernel.true_dtype == np.int8


def test_packed_kernels_follow_assignments():
    layer, x = layers.Dense(2, use_bias=False, dtype="mixed_bfloat16"), np.ones((1, 3), np.float32)
    layer(x)
    layer.kernel.assign(np.full((3, 2), 2.0))
    layer.quantize("int8")
    np.testing.assert_allclose(layer(x).astype(float), [[6, 6]], rtol=0.02)
    layer.kernel_scale.assign(layer.kernel_scale.numpy() / 2)
    np.testing.assert_allclose(layer(x).astype(float), [[12, 12]], rtol=0.02)


def test_a_quantized_layer_keeps_a_policy_that_says_so():
    layer = layers.Dense(8)
    layer.build((None, 32))
    layer.quantize("int8")
    with pytest.raises(ValueError, match="already quantized"):
        layer.dtype_policy = "mixed_bfloat16"
    layer.dtype_policy = "int8_from_mixed_bfloat16"
    assert layer(np.ones((1, 32), np.float32)).dtype.name == "bfloat16"


def test_a_path_in_a_map_need_be_no_regular_expression():
    layer = layers.Dense(3, name="q(1", dtype=DTypePolicyMap("float32", {"a": "float16"}))
    layer.build((None, 6))
    layer.quantize("int8")
    assert layer.quantized and layer.quantization_mode == "int8"


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("mode", ["int8", "int8/weight_only", "int4", "int4/8", "int4/-1", "float8"])
def test_weights_that_are_not_finite_are_not_quantized(mode, dtype, number):
    table = [] if mode == "float8" else [layers.Embedding(5, 16, name="table", dtype=dtype)]
    einsum = layers.EinsumDense("abc,cde->abde", (None, 2, 4), name="last", dtype=dtype)
    model = layers.Sequential([*table, layers.Dense(16, name="first", dtype=dtype), einsum], name="model", dtype=dtype)
    model.build((None, 3, 16) if mode == "float8" else (None, 3))
    for layer in model.layers:
        variable = layer.weights[0]
        good = variable.numpy()
        index = tuple(length - 1 for length in variable.shape)
        bad = good.copy()
        bad[index] = number
        variable.assign(bad)
        message = (
            rf"{variable.name} of layer 'model/{layer.name}' must be finite to be quantized; received {number} at "
        )
        before = model.get_weights()
        with pytest.raises(ValueError, match=message + re.escape(str(index))):
            model.quantize(mode)
        with pytest.raises(ValueError, match=message):
            model.with_policy(f"{mode}_from_{dtype}")
        assert not any(part.quantized for part in model.flatten())
        for weight, old in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight.astype(float), old.astype(float))
        variable.assign(good)
    model.quantize(mode)


def test_tables_that_are_not_finite_are_not_quantized():
    table = np.array([[1, 2], [3, np.nan]])
    with pytest.raises(ValueError, match=r"embeddings of layer 'e' must be finite .* received nan at \(1, 1\)"):
        layers.Embedding(2, 2, weights=table, name="e", dtype="int8_from_float32")


def test_float8_kernels_that_are_assigned_later_must_be_finite():
    layer = layers.Dense(2, name="d")
    layer.build((None, 3))
    layer.quantize("float8")
    layer.kernel.assign(np.array([[1, 2], [3, 4], [np.inf, 5]]))
    with pytest.raises(
        ValueError, match=r"kernel of layer 'd' must be finite to be quantized; received inf at \(2, 0\)"
    ):
        layer(np.ones((1, 3), np.float32))
