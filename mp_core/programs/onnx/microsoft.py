"""Operators of Microsoft that exporters write: norms, activations and products."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import dtypes
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.programs.expansions import Making, expansion
from mp_core.programs.registry import operator
from mp_core.programs.weights import CODES

# ---- norms


@operator("mp_core.residual_norm", keeps_type=True)
def residual_norm(
    x: Any,
    residual: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Any:
    """Return the layer norm of a sum."""
    del stash_type
    axes = tuple(range(axis % x.ndim, x.ndim)) if axis != -1 else -1
    if x.shape != residual.shape:
        x, residual = ops.add(x, residual), None
    return ops.layer_norm(x, gamma, beta, axis=axes, epsilon=epsilon, residual=residual)


@operator("com.microsoft.SkipLayerNormalization")
def skip_layer_norm(
    x: Any, skip: Any, gamma: Any, beta: Any = None, bias: Any = None, *, epsilon: float = 1e-12
) -> tuple[Any, ...]:
    """Return the layer norm of ``x + skip + bias``, two absent results, and the sum."""
    total = _sum(x, skip, bias)
    return ops.layer_norm(total, gamma, beta, epsilon=epsilon), None, None, total


@operator("com.microsoft.SkipSimplifiedLayerNormalization")
def skip_rms_norm(x: Any, skip: Any, gamma: Any, bias: Any = None, *, epsilon: float = 1e-12) -> tuple[Any, ...]:
    """Return the RMS norm of ``x + skip + bias``, two absent results, and the sum."""
    total = _sum(x, skip, bias)
    return ops.rms_norm(total, gamma, epsilon=epsilon), None, None, total


def _sum(x: Any, skip: Any, bias: Any) -> Any:
    total = ops.add(x, skip)
    return total if bias is None else ops.add(total, bias)


@operator("SimplifiedLayerNormalization", "com.microsoft.SimplifiedLayerNormalization")
def simplified_layer_norm(x: Any, gamma: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    """Return the RMS norm along `axis` and the axes after it."""
    del stash_type
    return ops.rms_norm(x, gamma, axis=tuple(range(axis % x.ndim, x.ndim)), epsilon=epsilon)


@operator("com.microsoft.EmbedLayerNormalization")
def embed_layer_norm(
    ids: Any,
    segments: Any,
    words: Any,
    positions: Any,
    kinds: Any = None,
    gamma: Any = None,
    beta: Any = None,
    mask: Any = None,
    places: Any = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 0,
) -> tuple[Any, ...]:
    """Return the layer norm of embeddings of words, positions and segments, the lengths of texts, and the sum."""
    del mask_index_type
    places = np.arange(ids.shape[1]) if places is None else places
    total = ops.add(ops.take(words, ids, 0), ops.take(positions, places, 0))
    if kinds is not None and segments is not None:
        total = ops.add(total, ops.take(kinds, segments, 0))
    lengths = np.zeros(len(ids), np.int32) if mask is None else ops.sum(mask, axis=1)
    return ops.layer_norm(total, gamma, beta, epsilon=epsilon), lengths, total


# ---- activations and products


@operator("Swish", keeps_type=True)
def swish(x: Any, *, alpha: float = 1.0) -> Any:
    """Return ``x * sigmoid(alpha * x)``."""
    return ops.silu(x) if alpha == 1 else ops.gate(x * alpha, x, "sigmoid")


@expansion("com.microsoft.FusedMatMul")
def fused_matmul(
    make: Making,
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> None:
    """Return ``alpha * a @ b`` of matrices that may be transposed."""
    a, b = (
        make("mp_core.moved", x, batch=batch, last=last) if batch or last else x
        for x, batch, last in ((a, transBatchA, transA), (b, transBatchB, transB))
    )
    product = make("MatMul", a, b)
    if alpha != 1:
        make("Mul", product, make.constant(np.float32(alpha)))


@operator("mp_core.moved")
def moved(x: Any, *, batch: int, last: int) -> Any:
    """Return an array with its first axis behind the other leading axes, and with its last axes exchanged."""
    x = ops.moveaxis(x, 0, -2) if batch else x
    return ops.swapaxes(x, -2, -1) if last else x


@expansion("com.microsoft.MatMulNBits")
def matmul_n_bits(
    make: Making,
    x: Any,
    codes: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: None = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    bits: Literal[4] = 4,
    block_size: int = 32,
    accuracy_level: int = 0,
    weight_prepacked: Literal[0] = 0,
) -> None:
    """Return the product with a matrix of 4-bit codes, which stay 4 bits. Inputs stay floats."""
    matrix = make("mp_core.matrix_of_blocks", codes, scales, zero_points, k=K, n=N, block=block_size)
    product = make("MatMul", x, matrix)
    if bias is not None:
        make("Add", product, bias)


@operator("mp_core.matrix_of_blocks")
def matrix_of_blocks(codes: Any, scales: Any, zero_points: Any = None, *, k: int, n: int, block: int) -> Any:
    """Return the matrix (k, n) of a MatMulNBits as floats."""
    return dequantize(codes_of_blocks(codes, scales, zero_points, k=k, n=n, block=block))


def codes_of_blocks(codes: Any, scales: Any, zero_points: Any = None, *, k: int, n: int, block: int) -> QuantizedArray:
    """Return the matrix (k, n) of a MatMulNBits."""
    blocks = -(-k // block)
    q = _nibbles(codes.reshape(n, -1))[:, :k] - 8
    zero = None
    if zero_points is not None and zero_points.dtype == np.uint8:
        zero = _nibbles(zero_points.reshape(n, -1))[:, :blocks].astype(np.int32) - 8
    elif zero_points is not None:
        raise ValueError(f"`zero_points` must be packed in uint8; received {zero_points.dtype}")
    int4 = dtypes.dtype_of("int4")
    return QuantizedArray(q.astype(int4), np.float32(scales.reshape(n, blocks)), zero, 0, block).T


CODES["mp_core.matrix_of_blocks"] = codes_of_blocks


def _nibbles(packed: Any) -> Any:
    """Return the two numbers of each byte as int8, the low half first."""
    return np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1).astype(np.int8)


@expansion("com.microsoft.BiasGelu")
def bias_gelu(make: Making, x: Any, bias: Any) -> None:
    """Return the gelu of a sum."""
    make("Gelu", make("Add", x, bias))


@expansion("com.microsoft.Gelu")
def gelu(make: Making, x: Any) -> None:
    """Return the exact gelu."""
    make("Gelu", x)


@expansion("com.microsoft.FastGelu")
def fast_gelu(make: Making, x: Any, bias: Any = None) -> None:
    """Return the gelu by tanh."""
    make("Gelu", x if bias is None else make("Add", x, bias), approximate="tanh")


@expansion("com.microsoft.QuickGelu")
def quick_gelu(make: Making, x: Any, *, alpha: float = 1.702) -> None:
    """Return ``x * sigmoid(alpha * x)``."""
    make("Swish", x, alpha=alpha)


@expansion("com.microsoft.FusedConv")
def fused_conv(
    make: Making,
    x: Any,
    w: Any,
    bias: Any = None,
    residual: Any = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    **options: Any,
) -> None:
    """Return ``activation(conv(x, w) + bias + residual)``."""
    y = make("Conv", x, w, bias, **options)
    y = y if residual is None else make("Add", y, residual)
    _activate(make, y, activation, activation_params)


@expansion("com.microsoft.FusedGemm")
def fused_gemm(
    make: Making,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.01,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    **options: Any,
) -> None:
    """Return the activation of a Gemm."""
    del activation_gamma
    _activate(make, make("Gemm", a, b, c, **options), activation, (activation_alpha, activation_beta))


def _activate(make: Making, x: Any, name: str, numbers: tuple[float, ...]) -> None:
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    if name == "Clip":
        make(name, x, *(make.constant(np.float32(number)) for number in numbers))
    elif name:
        make(name, x, **dict(zip(names, numbers, strict=False)))


@expansion("com.microsoft.Attention")
def attention_of_inputs(
    make: Making,
    x: Any,
    weights: Any,
    bias: Any = None,
    mask: Any = None,
    past: Any = None,
    attention_bias: Any = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] = (),
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> None:
    """Return attention of the products of inputs and one matrix of queries, keys and values, and keys and values."""
    product = make("MatMul", x, weights)
    make(
        "mp_core.attention_of_product", product if bias is None else make("Add", product, bias), mask, past,
        attention_bias, num_heads=num_heads, qkv_hidden_sizes=qkv_hidden_sizes, mask_filter_value=mask_filter_value,
        scale=scale, unidirectional=unidirectional,
    )  # fmt: skip


@expansion("com.microsoft.QAttention")
def quantized_attention(
    make: Making,
    x: Any,
    weights: Any,
    bias: Any,
    x_scale: Any,
    scale_of_weights: Any,
    mask: Any = None,
    x_zero: Any = None,
    weights_zero: Any = None,
    past: Any = None,
    **options: Any,
) -> None:
    """Return attention of the products of codes."""
    rows = make("DequantizeLinear", x, x_scale, x_zero)
    matrix = make("DequantizeLinear", weights, scale_of_weights, weights_zero)
    make("com.microsoft.Attention", rows, matrix, bias, mask, past, **options)
