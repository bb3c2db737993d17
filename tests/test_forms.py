"""How layers store their matrices: products multiply the codes of the file, with the same scales."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest

from mp_core import QuantizedArray, dequantize, layers, ops, quantize
from mp_core.autocast import AutoCastVariable
from mp_core.checkpoint import open_tensors, save_tensors
from mp_core.dtype_policies import Scheme
from mp_core.forms import FORMS, Codes, Form, Inputs, KerasInt8, Variable, add_form

OUTPUTS, INPUTS = 24, 64
SCHEMES = [
    "int8", "int8/tensor", "int8/fixed", "int8/fixed/tensor", "int8/weight_only", "int8/weight_only/16",
    "int8/weight_only/tensor", "int4/16", "int4/64", "int4/-1",
    "int4/dynamic/16", "int4/dynamic/-1", "float8_e4m3fn", "float8_e4m3fn/16", "float8_e5m2",
    "float8_e4m3fn/tensor", "float8_e4m3fn/fixed/tensor",
]  # fmt: skip


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def inputs_of(scheme):
    if Scheme.parse(scheme).inputs != "fixed":
        return None
    if scheme.startswith("float8"):
        return Inputs(np.float32(0.01))
    return Inputs(np.linspace(0.01, 0.02, INPUTS, dtype=np.float32), np.arange(INPUTS, dtype=np.int8) - 32)


def filed(scheme, folder):
    """Return the codes of a matrix as they come from a file, which is mapped, and what quantizes the inputs."""
    inputs, path = inputs_of(scheme), folder / "model.safetensors"
    tensors = {"w": Scheme.parse(scheme).quantize(normal(OUTPUTS, INPUTS))}
    if inputs is not None:
        tensors["w.inputs_scale"] = np.asarray(inputs.scale)
        if inputs.zero_point is not None:
            tensors["w.inputs_zero_point"] = inputs.zero_point
    save_tensors(path, tensors, policy=f"{scheme}_from_float32")
    opened = open_tensors(path)
    if inputs is not None:
        inputs = Inputs(opened["w.inputs_scale"], opened.get("w.inputs_zero_point"))
    return opened["w"], inputs


def dense(scheme, **kwargs):
    layer = layers.Dense(OUTPUTS, dtype=f"{scheme}_from_float32", name="dense", **kwargs)
    layer.build((None, INPUTS))
    return layer


def with_matrix(scheme, folder):
    layer = dense(scheme)
    layer.set_matrix(*filed(scheme, folder))
    layer.bias.assign(normal(OUTPUTS))
    return layer


def codes_of(q):
    """Return the codes of a lines-major matrix, one to an element, by ml_dtypes for those of 4 bits."""
    if q.dtype.name != "int4":
        return q.values
    low, high = (part.astype(np.int8).astype(ml_dtypes.int4).astype(np.int8) for part in (q.values & 15, q.values >> 4))
    return np.stack([low, high], axis=-1).reshape(len(q.values), -1)[:, : q.shape[1]]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_packed_codes_and_scales_are_those_of_the_file(scheme, tmp_path, monkeypatch):
    q, inputs = filed(scheme, tmp_path)
    layer, packed = dense(scheme), []
    pack = ops.pack
    monkeypatch.setattr(ops, "pack", lambda b, **kwargs: packed.append(pack(b, **kwargs)) or packed[-1])
    layer.set_matrix(q, inputs)
    layer(normal(5, INPUTS))
    layer(normal(7, INPUTS))
    (matrix,) = packed  # once
    codes, groups = codes_of(q), q.scale.shape[1]
    assert matrix.dtype == q.dtype
    np.testing.assert_array_equal(matrix.unpack().astype(codes.dtype), codes.T)
    if q.zero_point is not None:
        np.testing.assert_array_equal(matrix.zero_point.reshape(q.zero_point.T.shape), q.zero_point.T)
    scale = np.broadcast_to(q.scale, (OUTPUTS, groups)).T
    np.testing.assert_array_equal(matrix.scale.reshape(scale.shape), scale)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_codes_of_a_file_are_not_copied(scheme, tmp_path):
    q, inputs = filed(scheme, tmp_path)
    layer = dense(scheme)
    layer.set_matrix(q, inputs)
    assert np.shares_memory(layer.codes.numpy(), q.values)
    assert isinstance(layer.form, Codes)
    assert str(Scheme.of(layer.matrix, Scheme.parse(scheme).inputs)) == scheme


@pytest.mark.parametrize("scheme", SCHEMES)
def test_products_are_those_of_the_numbers_that_codes_stand_for(scheme, tmp_path):
    layer, x = with_matrix(scheme, tmp_path), 0.1 * normal(50, INPUTS)
    weights, inputs = dequantize(layer.matrix).astype(np.float64), layer.inputs
    rows, bias = x.astype(np.float64), layer.bias.numpy()
    if inputs is not None and inputs.zero_point is not None:
        rows = np.clip(np.rint(x / inputs.scale) + inputs.zero_point, -128, 127) - inputs.zero_point
    elif inputs is not None:
        rows = (x / inputs.scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * float(inputs.scale)
        weights, bias = weights / float(inputs.scale), bias.astype(ml_dtypes.bfloat16)  # as Keras' float8 layers
    elif Scheme.parse(scheme).inputs == "dynamic":
        rows = dequantize(quantize(x, axis=0)).astype(np.float64)
    expected = rows @ weights.T + bias
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "same",
    [
        copy.deepcopy,
        lambda layer: pickle.loads(pickle.dumps(layer)),
        lambda layer: loaded(layers.Sequential.from_config(stack(layer).get_config()).layers[0], layer),
    ],
    ids=["deepcopy", "pickle", "configuration and weights"],
)
def test_a_copy_of_a_layer_has_the_same_bits(scheme, same, tmp_path):
    layer, x = with_matrix(scheme, tmp_path), normal(9, INPUTS)
    expected = layer(x)
    other = same(layer)
    np.testing.assert_array_equal(other(x), expected)
    assert [(v.name, v.shape, v.true_dtype) for v in other.weights] == [
        (v.name, v.shape, v.true_dtype) for v in layer.weights
    ]


def stack(layer):
    return layers.Sequential([layer], name="stack")


def loaded(other, layer):
    other.build((None, INPUTS))
    other.set_weights(layer.get_weights())
    return other


@pytest.mark.parametrize("scheme", ["int8", "int8/tensor", "int8/weight_only/16", "int4/16", "float8_e4m3fn"])
def test_rows_of_a_table_are_those_of_its_codes(scheme, tmp_path):
    q, _ = filed(scheme, tmp_path)
    table = layers.Embedding(OUTPUTS, INPUTS, dtype=f"{scheme}_from_float32")
    table.build()
    table.set_matrix(q)
    indices = np.array([[0, 23, 5], [5, 1, 1]])
    np.testing.assert_array_equal(table(indices), dequantize(q)[indices])
    assert np.shares_memory(table.codes.numpy(), q.values)


@pytest.mark.parametrize("scheme", ["int8", "int4/16", "float8_e4m3fn"])
def test_an_equation_holds_codes_as_a_dense_layer_does(scheme, tmp_path):
    plain = with_matrix(scheme, tmp_path)
    heads = layers.EinsumDense("abc,cde->abde", (None, 4, 6), bias_axes="de", dtype=f"{scheme}_from_float32")
    heads.build((None, 3, INPUTS))
    heads.set_matrix(plain.matrix)
    heads.bias.assign(plain.bias.numpy().reshape(4, 6))
    x = normal(2, 3, INPUTS)
    np.testing.assert_array_equal(heads(x).reshape(2, 3, OUTPUTS), plain(x))


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if Scheme.parse(s).inputs != "fixed"])
def test_floats_become_the_codes_that_files_get(scheme):
    layer, w = dense(scheme), normal(OUTPUTS, INPUTS)
    layer.set_matrix(w)
    expected = Scheme.parse(scheme).quantize(w)
    np.testing.assert_array_equal(layer.matrix.values, expected.values)
    np.testing.assert_array_equal(layer.matrix.scale, expected.scale)


def test_keras_doors_make_keras_variables_and_ours_make_codes():
    layer = layers.Dense(OUTPUTS, dtype="float32")
    layer.build((None, INPUTS))
    ours = layer.with_policy("int8_from_float32")
    layer.quantize("int8")
    assert isinstance(layer.form, KerasInt8)
    assert isinstance(ours.form, Codes)
    assert [v.name for v in layer.weights] == ["bias", "kernel", "kernel_scale"]
    assert [v.name for v in ours.weights] == ["bias", "codes", "scale"]
    x = normal(3, INPUTS)
    np.testing.assert_allclose(layer(x), ours(x), rtol=0, atol=0.1)


def test_a_policy_beside_codes_is_that_of_the_layer_from_then_on():
    layer, other = dense("int8"), dense("int8/weight_only/16")
    layer.set_matrix(other.matrix, policy=other.dtype_policy)
    assert layer.dtype_policy == other.dtype_policy
    other.set_matrix(other.matrix)
    np.testing.assert_array_equal(layer(np.eye(INPUTS)), other(np.eye(INPUTS)))
    with pytest.raises(ValueError, match="`policy` goes with codes"):
        layer.set_matrix(normal(OUTPUTS, INPUTS), policy=other.dtype_policy)


def bad_scale(value):
    q = quantize(normal(OUTPUTS, INPUTS), axis=0)
    scale = q.scale.copy()
    scale[3] = value
    return QuantizedArray(q.values, scale, None, 0)


CODES_OF_KERNEL = quantize(normal(OUTPUTS, INPUTS), axis=0)


@pytest.mark.parametrize(
    ("value", "inputs", "message"),
    [
        (bad_scale(np.nan), None, "'dense' cannot be set: `scale` must be positive and finite"),
        (bad_scale(0), None, "`scale` must be positive and finite"),
        (bad_scale(-1), None, "`scale` must be positive and finite"),
        (quantize(normal(INPUTS, OUTPUTS), axis=0), None, r"matrix of shape \(24, 64\); received .*\(64, 24\)"),
        (quantize(normal(OUTPUTS, INPUTS)), None, "policy names 'int8'; received codes of int8, axis=()"),
        (quantize(normal(OUTPUTS, INPUTS), axis=0, dtype="int4"), None, "policy names 'int8'; received codes of int4"),
        (quantize(normal(OUTPUTS, INPUTS), axis=0), Inputs(np.ones(3), np.ones(3)), r"shape \(64,\); received \(3,\)"),
        (CODES_OF_KERNEL, Inputs(np.ones(INPUTS), np.full(INPUTS, 300)), "integers from -128 to 127"),
        (CODES_OF_KERNEL, Inputs(np.ones(INPUTS), np.ones(3, np.int8)), r"`inputs.zero_point` must have shape \(64,\)"),
        (CODES_OF_KERNEL, (1, 2, 3), "`inputs` must be Inputs, a scale and a zero point"),
        (normal(OUTPUTS, INPUTS), Inputs(np.ones(INPUTS)), "`inputs` go with codes"),
        (normal(OUTPUTS, 3), None, r"shape \(24, 64\); received \(24, 3\)"),
        (np.full((OUTPUTS, INPUTS), np.inf, np.float32), None, "must be finite"),
    ],
)
def test_a_matrix_that_does_not_fit_is_refused_and_changes_nothing(value, inputs, message):
    layer, x = dense("int8", kernel_initializer="ones"), normal(2, INPUTS)
    before, weights = layer(x), [weight.name for weight in layer.weights]
    with pytest.raises((TypeError, ValueError), match=message):
        layer.set_matrix(value, inputs)
    np.testing.assert_array_equal(layer(x), before)
    assert [weight.name for weight in layer.weights] == weights


def test_codes_need_a_policy_that_names_them():
    layer = layers.Dense(OUTPUTS, dtype="float32")
    layer.build((None, INPUTS))
    with pytest.raises(ValueError, match="its policy 'float32' names no codes; received codes of int8"):
        layer.set_matrix(quantize(normal(OUTPUTS, INPUTS), axis=0))


def test_a_form_needs_the_name_of_a_mode():
    with pytest.raises(ValueError, match=r"`name` of a form must be one of int8, .*; received 'mine'"):
        add_form(type("Mine", (Codes,), {"name": "mine"}))
    assert "mine" not in FORMS
    for form in (type("Mine", (), {"name": "int8"}), 5):
        with pytest.raises(TypeError, match="`form` must be a subclass of Form"):
            add_form(form)


def test_a_form_that_fails_leaves_a_layer_as_it_was(monkeypatch):
    class Failing(Form):
        name = "ternary"

        def variables_of(self):
            return {"codes": Variable((1,), "int8", "zeros"), "scale": Variable((1,), "float32", "ones")}

        def encoded(self, floats, dtype):
            return {"codes": np.zeros(1, np.int8), "scale": np.ones(2, np.float32)}

    monkeypatch.setitem(FORMS, "ternary", Failing)
    layer, x = layers.Dense(OUTPUTS), normal(2, INPUTS)
    before = layer(x)
    with pytest.raises(ValueError, match="shape"):
        layer.quantize("ternary")
    assert [weight.name for weight in layer.weights] == ["kernel", "bias"]
    np.testing.assert_array_equal(layer(x), before)


def test_a_scale_that_was_assigned_and_is_none_is_named_with_its_layer(tmp_path):
    layer = with_matrix("int8", tmp_path)
    layer.scale.assign(np.full(layer.scale.shape, np.nan))
    with pytest.raises(ValueError, match=f"`scale` of layer '{layer.name}' must be positive and finite"):
        layer(normal(2, INPUTS))


def test_assigned_codes_multiply_at_the_next_call(tmp_path):
    layer, x = with_matrix("int8", tmp_path), normal(2, INPUTS)
    layer(x)
    scale: AutoCastVariable = layer.scale
    scale.assign(2 * scale.numpy())
    layer.bias.assign(np.zeros(OUTPUTS))
    doubled = layer(x)
    scale.assign(scale.numpy() / 2)
    np.testing.assert_array_equal(doubled, 2 * layer(x))
