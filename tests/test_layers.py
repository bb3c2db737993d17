"""Layers under policies (checklist F); quantized ones are in test_layers_quantized.py."""

import asyncio
import copy
import itertools
import math
import pickle
import threading

import ml_dtypes
import numpy as np
import pytest

from mp_core import layers, ops
from mp_core.autocast import autocast_scope, scope_dtype
from mp_core.dtype_policies import DTypePolicy, DTypePolicyMap, QuantizedDTypePolicy, policy_scope, serialize

BF16 = np.dtype(ml_dtypes.bfloat16)
POLICIES = ["float32", "float64", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}
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
    assert scope_dtype.get("unset") == "unset"


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
def test_set_weights_checks_before_it_changes(weights, text):
    layer = layers.Dense(2)
    layer.build((None, 3))
    before = layer.get_weights()
    with pytest.raises(ValueError, match=text):
        layer.set_weights(weights)
    assert all(a is b for a, b in zip(layer.get_weights(), before, strict=True))


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


# ---- each layer against float64


def _tolerance(policy, depth, magnitude):
    """Roundings of the operands, of the result, and gamma_depth of the float32 sums (Higham 2002, lemma 3.1)."""
    unit = UNIT[DTypePolicy(policy).compute_dtype]
    return (4 * unit + (depth + 4) * min(unit, UNIT["float32"])) * magnitude


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "activation", [None, "relu", "gelu", "silu", "tanh", "sigmoid", "relu6", "gelu_tanh", np.negative]
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense(policy, activation, use_bias):
    layer, x = layers.Dense(7, activation, use_bias, bias_initializer="ones", dtype=policy), _x(2, 3, 5)
    y = layer(x)
    w = layer.kernel.numpy().astype(float)
    exact = x.astype(float) @ w + use_bias
    magnitude = np.abs(x.astype(float)) @ np.abs(w) + 1
    erf = np.vectorize(math.erf)
    functions = {
        None: lambda v: v,
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: v * (1 + erf(v / np.sqrt(2))) / 2,
        "silu": lambda v: v / (1 + np.exp(-v)),
        "tanh": np.tanh,
        "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
        "relu6": lambda v: np.clip(v, 0, 6),
        "gelu_tanh": lambda v: v / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))),
        np.negative: np.negative,
    }
    assert y.dtype == layer.compute_dtype and y.shape == (2, 3, 7)
    # No function here has a slope above 1.13 (gelu), and each result is rounded once more.
    assert (np.abs(y.astype(float) - functions[activation](exact)) <= 1.13 * _tolerance(policy, 5, magnitude + 1)).all()


EQUATIONS = [  # equation, input shape, output_shape, bias_axes, kernel shape, bias shape
    ("abc,cde->abde", (2, 3, 4), (None, 2, 5), "de", (4, 2, 5), (2, 5)),
    ("abcd,cde->abe", (2, 3, 2, 4), (None, 6), "e", (2, 4, 6), (6,)),
    ("ab,bc->ac", (3, 4), 5, None, (4, 5), None),
    ("...x,xy->...y", (2, 3, 4), (None, 5), "y", (4, 5), (5,)),
    ("abc,cde->abde", (2, 3, 4), (None, 2, 5), "e", (4, 2, 5), (5,)),
    ("abc,cd->adb", (2, 3, 4), (5, None), "d", (4, 5), (5, 1)),
    ("abc,bd->adc", (2, 3, 4), (5, None), None, (3, 5), None),
    ("ab...,bd->ad...", (2, 3, 4, 5), (6, None, None), None, (3, 6), None),
]


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
@pytest.mark.parametrize(("equation", "shape", "output_shape", "bias_axes", "kernel", "bias"), EQUATIONS)
def test_einsum_dense(equation, shape, output_shape, bias_axes, kernel, bias, policy):
    layer = layers.EinsumDense(equation, output_shape, "relu", bias_axes, bias_initializer="ones", dtype=policy)
    x = _x(*shape)
    y = layer(x)
    assert layer.kernel.shape == kernel and (layer.bias is None or layer.bias.shape) == (bias or True)
    w = layer.kernel.numpy().astype(float)
    exact = np.einsum(equation, x.astype(float), w) + (bias is not None)
    magnitude = np.einsum(equation, np.abs(x).astype(float), np.abs(w)) + 1
    assert y.shape == exact.shape and y.dtype == layer.compute_dtype
    assert (np.abs(y.astype(float) - np.maximum(exact, 0)) <= _tolerance(policy, 12, magnitude)).all()


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


@pytest.mark.parametrize("policy", POLICIES)
def test_embedding_casts_the_rows_it_reads(policy):
    table = _x(10, 4)
    layer = layers.Embedding(10, 4, weights=table, dtype=policy)
    for ids in (np.array([[1, 2], [9, 0]]), np.array([3.0]), np.array(5, np.uint8)):
        y = layer(ids)
        assert y.dtype == layer.compute_dtype
        np.testing.assert_array_equal(y, ops.cast(table[ids.astype(int)], layer.compute_dtype))


def test_embedding_indices_never_pass_through_the_compute_dtype():
    table = np.arange(70001.0)[:, np.newaxis] % 7
    layer = layers.Embedding(70001, 1, weights=table, dtype="mixed_float16")
    ids = np.array([2049.0, 70000.0])  # float16 holds neither
    np.testing.assert_array_equal(layer(ids), [[2049 % 7], [70000 % 7]])


@pytest.mark.parametrize("ids", [[-1], [3]])
def test_embedding_refuses_indices_outside_the_table(ids):
    with pytest.raises(IndexError):
        layers.Embedding(3, 2)(np.array(ids))


def _normalized(x, axes, epsilon):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("axis", [-1, 1, [1, 2], (-1, 1)])
@pytest.mark.parametrize("residual", [False, True])
def test_layer_normalization(policy, axis, residual):
    layer = layers.LayerNormalization(axis, dtype=policy)
    x = ops.cast(_x(3, 4, 5), layer.compute_dtype)
    r = ops.cast(_x(3, 4, 5), layer.compute_dtype) if residual else None
    y = layer(x, residual=r) if residual else layer(x)
    total = x.astype(float) + (r.astype(float) if residual else 0)
    exact = _normalized(total, tuple(np.atleast_1d(axis)), 1e-3)
    assert y.dtype == layer.compute_dtype and layer.gamma.true_dtype == layer.variable_dtype
    unit = UNIT[layer.compute_dtype]
    assert (np.abs(y.astype(float) - exact) <= unit * np.abs(exact) + 1e-5).all()


def test_layer_normalization_options():
    layer = layers.LayerNormalization(center=False, scale=False)
    np.testing.assert_allclose(layer(np.array([[1.0, 3.0]])), [[-1, 1]], rtol=1e-3)
    assert layer.weights == []
    layer = layers.LayerNormalization(dtype="mixed_float16")
    layer.build((None, 2))
    layer.set_weights([[2, 2], [1, 1]])
    np.testing.assert_allclose(layer(np.array([[1.0, 3.0]])).astype(float), [[-1, 3]], rtol=2e-3)


def _attention(q, k, v, weights, mask):
    """Multi-head attention in float64."""
    q, k, v = (
        np.einsum("abc,cde->abde", x, kernel) + bias
        for x, kernel, bias in zip((q, k, v), weights[0:6:2], weights[1:6:2], strict=True)
    )
    scores = np.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    return np.einsum("bhts,bshd,hde->bte", scores, v, weights[6]) + weights[7], scores


MASKS = {
    "none": ({}, np.ones((2, 1, 4, 5), bool)),
    "attention": ({"attention_mask": np.tri(4, 5) > 0}, np.tri(4, 5) > 0),
    "batched": ({"attention_mask": np.arange(5) < [[[3]], [[5]]]}, np.arange(5) < [[[[3]]], [[[5]]]]),
    "numbers": ({"attention_mask": np.tri(4, 5, dtype=int)[None]}, np.tri(4, 5) > 0),
    "value": ({"value_mask": np.arange(5) < [[2], [5]]}, np.arange(5) < [[[[2]]], [[[5]]]]),
    "causal": ({"use_causal_mask": True}, np.tri(4, 5) > 0),
}  # fmt: skip


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("mask", MASKS)
def test_multi_head_attention(policy, mask):
    layer = layers.MultiHeadAttention(2, 3, value_dim=4, output_shape=7, bias_initializer="uniform", dtype=policy)
    query, value, key = _x(2, 4, 6), _x(2, 5, 8), _x(2, 5, 9)
    kwargs, keep = MASKS[mask]
    y, scores = layer(query, value, key=key, return_attention_scores=True, **kwargs)
    weights = [w.astype(float) for w in layer.get_weights()]
    exact, exact_scores = _attention(*(a.astype(float) for a in (query, key, value)), weights, keep)
    assert y.dtype == scores.dtype == layer.compute_dtype
    unit = max(UNIT[layer.compute_dtype], 2.0**-24)
    np.testing.assert_allclose(scores.astype(float), exact_scores, atol=32 * unit)
    np.testing.assert_allclose(y.astype(float), exact, atol=128 * unit)


def _convolution(x, w, strides, dilation, groups, padding):
    """A convolution in float64, element by element of the kernel."""
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[:2], strict=True)]
    if padding == "same":
        totals = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[1:3], strides, spans, strict=True)]
        x = np.pad(x, [(0, 0), *[(t // 2, t - t // 2) for t in totals], (0, 0)])
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(x.shape[1:3], spans, strides, strict=True))
    y = np.zeros((len(x), rows, columns, w.shape[3]))
    for i, j in itertools.product(range(w.shape[0]), range(w.shape[1])):
        top, left = i * dilation[0], j * dilation[1]
        part = x[:, top : top + strides[0] * rows : strides[0], left : left + strides[1] * columns : strides[1]]
        for g in range(groups):
            channels = slice(g * w.shape[2], (g + 1) * w.shape[2])
            filters = slice(g * w.shape[3] // groups, (g + 1) * w.shape[3] // groups)
            y[..., filters] += part[:, :rows, :columns, channels] @ w[i, j][:, filters]
    return y


CONVOLUTIONS = [
    {"kernel_size": 3},
    {"kernel_size": (3, 2), "padding": "same", "strides": (2, 1)},
    {"kernel_size": 2, "dilation_rate": (2, 3)},
    {"kernel_size": 3, "groups": 2, "padding": "same"},
    {"kernel_size": 3, "data_format": "channels_first", "strides": 2},
]


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
@pytest.mark.parametrize("kwargs", CONVOLUTIONS)
def test_conv2d(kwargs, policy):
    first = kwargs.get("data_format") == "channels_first"
    layer, x = layers.Conv2D(6, **kwargs, activation="relu", dtype=policy), _x(2, 8, 9, 4)
    y = layer(np.moveaxis(x, -1, 1) if first else x)
    y = np.moveaxis(y, 1, -1) if first else y
    arguments = (layer.strides, layer.dilation_rate, layer.groups, layer.padding)
    w = layer.kernel.numpy().astype(float)
    exact = _convolution(x.astype(float), w, *arguments)
    magnitude = _convolution(np.abs(x).astype(float), np.abs(w), *arguments)
    assert y.dtype == layer.compute_dtype and y.shape == exact.shape
    assert (np.abs(y.astype(float) - np.maximum(exact, 0)) <= _tolerance(policy, 36, magnitude)).all()


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_layers_without_variables(policy):
    x = _x(3, 4)
    assert layers.Dropout(0.5, dtype=policy)(x).dtype == DTypePolicy(policy).compute_dtype
    np.testing.assert_array_equal(layers.Dropout(0.5)(x), x)
    y = layers.Softmax(axis=0, dtype=policy)(x, mask=np.arange(3)[:, None] < 2)
    assert (y[2] == 0).all()
    np.testing.assert_allclose(y.astype(float).sum(0), 1, atol=4 * UNIT[DTypePolicy(policy).compute_dtype])
    assert (layers.Activation("softmax", dtype=policy)(x) == layers.Softmax(dtype=policy)(x)).all()


ARGUMENT_ERRORS = [
    (lambda: layers.Dense(0), "`units` must be a positive integer"),
    (lambda: layers.Dense(True), "`units` must be a positive integer; received units=True"),
    (lambda: layers.Dense(2.0), "`units` must be a positive integer; received units=2.0"),
    (lambda: layers.Embedding(-3, 2), "`input_dim` must be a positive integer; received input_dim=-3"),
    (lambda: layers.Embedding(3, 0), "`output_dim` must be a positive integer; received output_dim=0"),
    (lambda: layers.MultiHeadAttention(0, 2), "`num_heads` must be a positive integer; received num_heads=0"),
    (lambda: layers.MultiHeadAttention(2, 0), "`key_dim` must be a positive integer; received key_dim=0"),
    (lambda: layers.MultiHeadAttention(2, 2, -1), "`value_dim` must be a positive integer; received value_dim=-1"),
    (lambda: layers.Dense(2, activation="nothing"), "Could not interpret activation function: 'nothing'"),
    (lambda: layers.Dense(2, kernel_initializer="nothing")(_x(1, 2)), "Could not interpret initializer: 'nothing'"),
    (lambda: layers.Dense(2).build((None, None)), "last axis of the inputs to Dense must be known"),
    (lambda: layers.Dropout(2), "`rate` must be from 0 to 1"),
    (lambda: layers.Conv2D(2, 3, padding="causal"), "`padding` must be 'valid' or 'same'"),
    (lambda: layers.Conv2D(2, 3, groups=3), "`groups` must divide `filters`"),
    (lambda: layers.Conv2D(2, 3, groups=0), "`groups` must be a positive integer; received groups=0"),
    (lambda: layers.Conv2D(-4, 3), "`filters` must be a positive integer; received filters=-4"),
    (lambda: layers.Conv2D(2, 3.5), "`kernel_size` must be a positive integer; received kernel_size=3.5"),
    (lambda: layers.Conv2D(2, (3, True)), "`kernel_size` must be a positive integer; received kernel_size=True"),
    (lambda: layers.Conv2D(2, 3)(_x(5, 5, 1)), r"expected 4 axes .* but received input with shape \(5, 5, 1\)"),
    (lambda: layers.Conv2D(2, 3, data_format="nchw"), "`data_format` must be"),
    (lambda: layers.Conv2D(2, (1, 2, 3)), "`kernel_size` must be a positive integer or a pair"),
    (lambda: layers.Conv2D(2, 3)(_x(1, 2, 2, 1)), "smaller than its kernel's span"),
    (lambda: layers.Conv2D(2, 1, groups=2)(_x(1, 2, 2, 3)), "must divide the channels"),
]


@pytest.mark.parametrize(("call", "text"), ARGUMENT_ERRORS)
def test_argument_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call()


def test_dense_names_itself_when_the_inputs_do_not_fit():
    layer = layers.Dense(2, name="head")
    layer(_x(1, 3))
    with pytest.raises(ValueError, match=r'"head" is incompatible .* expected axis -1 of input shape to have value 3'):
        layer(_x(1, 4))


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


def test_setting_the_policy_changes_what_a_layer_computes_in():
    layer, x = layers.Dense(2), _x(1, 3)
    assert layer(x).dtype == np.float32
    layer.dtype_policy = "mixed_bfloat16"
    assert layer(x).dtype == BF16 and layer.kernel.true_dtype == np.float32


def test_new_layers_take_the_default_policy():
    with policy_scope("mixed_bfloat16"):
        layer = layers.Dense(2)
    assert layer.dtype_policy == DTypePolicy("mixed_bfloat16")


# ---- the same layer under another policy


def _models():
    """Return models of every kind of layer, as a function of their policy, and inputs."""

    def stack(dtype):
        return layers.Sequential(
            [
                layers.Embedding(7, 8, name="table", dtype=dtype),
                layers.LayerNormalization(name="norm", dtype=dtype),
                layers.Dense(6, "gelu", name="dense", dtype=dtype),
                layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de", name="einsum", dtype=dtype),
            ],
            name="stack",
            dtype=dtype,
        )

    return [
        (stack, (np.arange(6).reshape(2, 3),)),
        (lambda dtype: layers.MultiHeadAttention(2, 4, name="attention", dtype=dtype), (_x(2, 3, 8), _x(2, 5, 8))),
        (lambda dtype: layers.Conv2D(4, 3, groups=2, name="image", dtype=dtype), (_x(2, 5, 5, 4),)),
    ]


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "policy",
    [
        *POLICIES,
        DTypePolicyMap("bfloat16", {"stack/dense": "float16", "attention/(query|value)": "float32"}),
        DTypePolicyMap("mixed_float16", {"stack/(norm|table)": "bfloat16"}, match="search"),
    ],
    ids=str,
)
def test_a_copy_under_another_policy_is_as_if_it_had_been_made_so(index, policy):
    make, inputs = _models()[index]
    layer = make("float32")
    before = layer(*inputs)
    received, made = layer.with_policy(policy), make(policy)
    made(*inputs)
    made.set_weights(layer.get_weights())
    np.testing.assert_array_equal(received(*inputs), made(*inputs), strict=True)
    for mine, other in zip(received.weights, made.weights, strict=True):
        assert (mine.true_dtype, mine.autocast, mine.trainable, mine.name) == (
            other.true_dtype, other.autocast, other.trainable, other.name,
        )  # fmt: skip
    assert received.weight_bytes == made.weight_bytes
    np.testing.assert_array_equal(layer(*inputs), before, strict=True)


@pytest.mark.parametrize("source", ["float32", "mixed_bfloat16", "bfloat16"])
def test_a_copy_under_a_quantized_policy_is_as_if_it_had_been_quantized(source):
    make, inputs = _models()[0]
    layer = make("float32")
    layer(*inputs)
    received, made = layer.with_policy(f"int8_from_{source}"), layer.with_policy(source)
    made.quantize("int8")
    np.testing.assert_array_equal(received(*inputs), made(*inputs), strict=True)
    one = layer.with_policy(DTypePolicyMap("float32", {"stack/dense": f"int8_from_{source}"}))
    assert [part.quantized for part in one.layers] == [False, False, True, False]
    assert one.layers[2].dtype_policy["stack/dense"].name == f"int8_from_{source}"


def test_a_copy_shares_what_it_stores_alike_and_changes_alone():
    layer = layers.Dense(3)
    layer(_x(2, 4))
    copied = layer.with_policy("mixed_bfloat16")
    assert all(a is not b and a.numpy().base is not None for a, b in zip(copied.weights, layer.weights, strict=True))
    assert all(np.shares_memory(a.numpy(), b.numpy()) for a, b in zip(copied.weights, layer.weights, strict=True))
    copied.kernel.assign(np.zeros((4, 3)))
    assert layer.kernel.numpy().any()


def test_a_copy_needs_weights_that_are_there_and_unquantized():
    with pytest.raises(ValueError, match="needs a built layer with unquantized weights; 'new' is not built"):
        layers.Dense(3, name="new").with_policy("float16")
    layer = layers.Dense(3, name="coarse")
    layer(_x(2, 4))
    layer.quantize("int8")
    with pytest.raises(ValueError, match="needs a built layer with unquantized weights; 'coarse' is quantized"):
        layer.with_policy("float16")


@pytest.mark.parametrize(("query", "value"), [("float16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")])
def test_projections_of_attention_may_differ_in_type(query, value):
    policy = DTypePolicyMap("float32", {"attention/query": query, "attention/value": value})
    layer = layers.MultiHeadAttention(2, 4, name="attention")
    x = _x(2, 3, 8)
    expected = layer(x, x)
    received = layer.with_policy(policy)(x, x)
    assert received.dtype == np.float32
    np.testing.assert_allclose(received, expected, atol=8 * UNIT["bfloat16"] * np.abs(expected).max())


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


def test_keras_configurations_load():
    config = {
        "name": "dense", "trainable": True, "units": 2, "activation": "relu", "use_bias": True,
        "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_float16"}},
        "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": None}},
        "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}},
        "kernel_regularizer": None, "bias_constraint": None, "quantization_config": None,
    }  # fmt: skip
    assert layers.Dense.from_config(config)(_x(1, 3)).dtype == np.float16
    with pytest.raises(ValueError, match="Dense has no argument `kernel_regularizer`"):
        layers.Dense.from_config(config | {"kernel_regularizer": "l2"})


def test_sequential_takes_custom_layers():
    model = layers.Sequential([MyDense(2)])
    assert type(layers.Sequential.from_config(model.get_config(), {"MyDense": MyDense}).layers[0]) is MyDense
    with pytest.raises(ValueError, match="Unknown layer class_name='MyDense'"):
        layers.Sequential.from_config(model.get_config())
    model.add(layers.Dense(3))
    assert model(_x(1, 4)).shape == (1, 3)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_copies_compute_the_same(clone, policy):
    model, x = layers.Sequential([layers.Dense(4, "relu", dtype=policy), layers.Dense(2, dtype=policy)]), _x(2, 3)
    expected = model(x)
    np.testing.assert_array_equal(clone(model)(x), expected)


def test_the_base_layer_needs_a_call():
    layer = layers.Layer(name="base")
    assert repr(layer) == "<Layer name=base, built=False>"
    with pytest.raises(NotImplementedError, match="Layer does not define `call`"):
        layer(_x(1))


def test_a_failed_build_can_be_tried_again():
    layer = layers.Dense(2)
    with pytest.raises(ValueError, match="must be known"):
        layer.build((None, None))
    assert not layer.built and layer.path is None
    assert layer(_x(1, 3)).shape == (1, 2)
