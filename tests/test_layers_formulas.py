"""Each layer, compared with its formula in float64; quantized ones are in test_layers_quantized.py."""

import itertools

import numpy as np
import pytest
from oracles import ACTIVATIONS, UNIT, assert_same_bits

import mp_core as mp
from mp_core import layers, ops
from mp_core.dtype_policies import DTypePolicy

POLICIES = ["float32", "float64", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16"]
FUNCTIONS = {None: np.asarray, np.negative: np.negative} | ACTIVATIONS
rng = np.random.default_rng(0)


def _x(*shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def _tolerance(policy, depth, magnitude):
    """Roundings of the operands, of the result, and gamma_depth of the float32 sums (Higham 2002, lemma 3.1)."""
    unit = UNIT[DTypePolicy(policy).compute_dtype]
    return (4 * unit + (depth + 4) * min(unit, UNIT["float32"])) * magnitude


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense(policy, activation, use_bias):
    layer, x = layers.Dense(7, activation, use_bias, bias_initializer="ones", dtype=policy), _x(2, 3, 5)
    y = layer(x)
    w = layer.kernel.numpy().astype(float)
    exact = x.astype(float) @ w + use_bias
    magnitude = np.abs(x.astype(float)) @ np.abs(w) + 1
    expected = FUNCTIONS[activation](exact)
    assert y.dtype == layer.compute_dtype and y.shape == (2, 3, 7)
    # No other function has a slope above 1.13 (gelu), and each result is rounded once more.
    slope = 1.13 + (1.1 * expected if activation == "exponential" else 0)
    assert (np.abs(y.astype(float) - expected) <= slope * _tolerance(policy, 5, magnitude + 1)).all()


EQUATIONS = [  # equation, input shape, output_shape, bias_axes, kernel shape, bias shape
    ("abc,cde->abde", (2, 3, 4), (None, 2, 5), "de", (4, 2, 5), (2, 5)),
    ("abcd,cde->abe", (2, 3, 2, 4), (None, 6), "e", (2, 4, 6), (6,)),
    ("ab,bc->ac", (3, 4), 5, None, (4, 5), None),
    ("...x,xy->...y", (2, 3, 4), (None, 5), "y", (4, 5), (5,)),
    ("abc,cde->abde", (2, 3, 4), (None, 2, 5), "e", (4, 2, 5), (5,)),
    ("abc,cd->adb", (2, 3, 4), (5, None), "d", (4, 5), (5, 1)),
    ("abc,bd->adc", (2, 3, 4), (5, None), None, (3, 5), None),
    ("ab...,bd->ad...", (2, 3, 4, 5), (6, None, None), None, (3, 6), None),
    ("abc,dce->abde", (2, 3, 4), (None, 5, 6), "de", (5, 4, 6), (5, 6)),
    ("abcd,edc->eba", (2, 3, 4, 5), (6, 3, 2), "e", (6, 5, 4), (6, 1, 1)),
    ("abc,cde->aedb", (2, 3, 4), (6, 5, None), "de", (4, 5, 6), (6, 5, 1)),
    ("abc,acd->abd", (2, 3, 4), (None, 5), "d", (2, 4, 5), (5,)),
    ("ab,c->abc", (2, 3), (None, 5), "c", (5,), (5,)),
]


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16"])
@pytest.mark.parametrize(("equation", "shape", "output_shape", "bias_axes", "kernel", "bias"), EQUATIONS)
def test_einsum_dense_is_its_equation(equation, shape, output_shape, bias_axes, kernel, bias, policy):
    layer = layers.EinsumDense(equation, output_shape, "relu", bias_axes, bias_initializer="ones", dtype=policy)
    x = _x(*shape)
    y = layer(x)
    assert layer.kernel.shape == kernel and (layer.bias is None or layer.bias.shape) == (bias or True)
    w = layer.kernel.numpy().astype(float)
    exact = np.einsum(equation, x.astype(float), w) + (bias is not None)
    magnitude = np.einsum(equation, np.abs(x).astype(float), np.abs(w)) + 1
    assert y.shape == exact.shape and y.dtype == layer.compute_dtype
    assert (np.abs(y.astype(float) - np.maximum(exact, 0)) <= _tolerance(policy, 12, magnitude)).all()


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize(
    ("equation", "output_shape", "bias_axes"),
    [("a...b,bc->a...c", 5, "c"), ("...b,bc->...c", 5, None), ("a...b,bc->ca...", (5, None), None)],
)
def test_a_built_einsum_dense_takes_other_ranks(equation, output_shape, bias_axes, quantized):
    layer = layers.EinsumDense(equation, output_shape, bias_axes=bias_axes)
    layer.build((2, 3, 4))
    if quantized:
        layer.quantize("int8")
    for shape in ((2, 4), (2, 3, 4), (2, 3, 2, 4)):
        x = _x(*shape)
        scale = layer.kernel_scale.numpy().reshape(-1) if quantized else 1
        exact = np.einsum(equation, x, layer.kernel.numpy() / scale)
        np.testing.assert_allclose(layer(x), exact, atol=0.05 if quantized else 1e-5)
    fixed = layers.EinsumDense("a...b,bc->a...c", 5, bias_axes="a")
    fixed.build((2, 3, 4))
    with pytest.raises(ValueError, match="incompatible with the layer"):
        fixed(_x(2, 3, 3, 4))


def test_an_einsum_dense_may_sum_every_axis():
    layer = layers.EinsumDense("b,b->", ())
    x = _x(4)
    np.testing.assert_allclose(layer(x), x @ layer.kernel.numpy(), rtol=0, atol=3e-6)


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


def _normalized(x, axes, epsilon):
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16", "float16"])
@pytest.mark.parametrize("axis", [-1, 1, [1, 2], (-1, 1)])
@pytest.mark.parametrize("residual", [False, True])
def test_layer_normalization_is_its_formula_within_its_rounding(policy, axis, residual):
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


def test_attention_scores_beyond_float16_before_their_scale():
    layer = layers.MultiHeadAttention(1, 64, use_bias=False, dtype="mixed_float16")
    layer.build((1, 2, 64), (1, 2, 64))
    layer.set_weights([np.eye(64).reshape(w.shape) for w in layer.get_weights()])
    x = np.repeat(np.float32([[[40], [39]]]), 64, axis=2)  # 64 * 40 * 40 = 102400
    np.testing.assert_array_equal(layer(x, x), np.full((1, 2, 64), 40.0))


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


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_float16"])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 2, 1), (1, 1, 1)), ((1, 1, 1), (2, 1, 1))])
def test_conv3d(strides, dilation, policy):
    layer = layers.Conv3D(3, (2, 3, 2), strides=strides, dilation_rate=dilation, dtype=policy)
    x = _x(2, 4, 5, 3, 2)
    y, w = layer(x), layer.kernel.numpy().astype(float)
    exact, magnitude = np.zeros(y.shape), np.zeros(y.shape)
    for place in np.ndindex(*y.shape[:-1]):
        for offset in np.ndindex(*w.shape[:3]):
            at = (i * s + o * d for i, s, o, d in zip(place[1:], strides, offset, dilation, strict=True))
            part = x[place[0], *at].astype(float)
            exact[place] += part @ w[offset]
            magnitude[place] += np.abs(part) @ np.abs(w[offset])
    assert y.dtype == layer.compute_dtype
    assert (np.abs(y.astype(float) - exact) <= _tolerance(policy, 24, magnitude)).all()


def _transposed(x, w, strides, dilation):
    """Every product of a place and a place of the kernel, added where it belongs, in the order of numerics.md."""
    ends = [
        (n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[1:-1], strides, dilation, w.shape, strict=False)
    ]
    out = np.zeros((len(x), *ends, w.shape[2]), x.dtype)
    for place in np.ndindex(*x.shape[:-1]):
        for offset in np.ndindex(*w.shape[:2]):
            at = (i * s + o * d for i, s, o, d in zip(place[1:], strides, offset, dilation, strict=True))
            out[place[0], *at] += w[offset] @ x[place]
    return out


@pytest.mark.parametrize("policy", ["float32", "float64", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize(("strides", "dilation"), [((1, 1), (1, 1)), ((2, 3), (1, 1)), ((1, 1), (2, 1))])
def test_conv2d_transpose(strides, dilation, policy):
    layer = layers.Conv2DTranspose(
        6, (3, 3), strides=strides, dilation_rate=dilation, bias_initializer="ones", activation="relu", dtype=policy
    )
    x = _x(2, 4, 3, 5)
    y, w = layer(x), layer.kernel.numpy().astype(float)
    exact = _transposed(x.astype(float), w, strides, dilation) + 1
    magnitude = _transposed(np.abs(x).astype(float), np.abs(w), strides, dilation) + 1
    assert y.dtype == layer.compute_dtype and y.shape == exact.shape
    assert (np.abs(y.astype(float) - np.maximum(exact, 0)) <= _tolerance(policy, 45, magnitude)).all()


def test_sums_of_a_transposed_convolution_have_their_order():
    layer, x = layers.Conv2DTranspose(4, (3, 3), strides=2), _x(2, 4, 3, 1)  # of one channel: products are exact here
    layer.build(x.shape)
    layer.kernel.assign(layer.kernel.numpy().astype(np.float16))
    x = x.astype(np.float16).astype(np.float32)
    assert_same_bits(layer(x), _transposed(x, layer.kernel.numpy(), (2, 2), (1, 1)))


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_layers_without_variables(policy):
    x = _x(3, 4)
    assert layers.Dropout(0.5, dtype=policy)(x).dtype == DTypePolicy(policy).compute_dtype
    np.testing.assert_array_equal(layers.Dropout(0.5)(x), x)
    y = layers.Softmax(axis=0, dtype=policy)(x, mask=np.arange(3)[:, None] < 2)
    assert (y[2] == 0).all()
    np.testing.assert_allclose(y.astype(float).sum(0), 1, atol=4 * UNIT[DTypePolicy(policy).compute_dtype])
    assert (layers.Activation("softmax", dtype=policy)(x) == layers.Softmax(dtype=policy)(x)).all()


_OLD = {
    "hard_silu": lambda x: x * np.minimum(np.maximum(x / 6 + 0.5, 0), 1),
    "squareplus": lambda x: (x + np.sqrt(np.square(x) + x.dtype.type(4))) / 2,
}


@pytest.mark.parametrize("name", _OLD)
def test_activations_have_their_limits_at_infinities_and_other_bits_of_the_formula(name):
    limits = {"hard_silu": (-0.0, np.inf), "squareplus": (0, np.inf)}
    function = getattr(mp.activations, name)
    for dtype in (np.float16, np.float32, np.float64):
        np.testing.assert_array_equal(function(np.array([-np.inf, np.inf], dtype)), np.array(limits[name], dtype))
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves) | np.isnan(halves)].astype(np.float32)
    many = np.concatenate([finite, rng.standard_normal(20000, np.float32) * 4, np.float32([-3, 3, -3e38, 3e38])])
    with np.errstate(all="ignore"):
        want = _OLD[name](many)
    got = function(many)
    is_number = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), ~is_number)
    np.testing.assert_array_equal(got.view(np.uint32)[is_number], want.view(np.uint32)[is_number])


def test_activations_take_lists():
    for function, want in (
        (lambda x: mp.activations.relu(x, 0.5), [-0.5, 2]), (mp.activations.leaky_relu, [-0.2, 2]),
        (mp.activations.softsign, [-0.5, 2 / 3]), (mp.activations.glu, [-1 / (1 + np.exp(-2))]),
    ):  # fmt: skip
        np.testing.assert_allclose(function([-1.0, 2.0]), want, rtol=1e-6)
        np.testing.assert_allclose(function([-1, 2]), want, rtol=1e-6)
