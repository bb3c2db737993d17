"""Operators of Microsoft that exporters write: norms, activations and products."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import dtypes
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.program import Node
from mp_core.layers import activations
from mp_core.programs.patterns import Match, pattern
from mp_core.programs.registry import operator
from mp_core.programs.weights import is_matrix

# ---- norms


@operator("mp_core.residual_norm")
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


# ---- activations


@operator("com.microsoft.Gelu")
def gelu(x: Any) -> Any:
    """Return the exact gelu."""
    return ops.gelu(x)


@operator("com.microsoft.FastGelu")
def fast_gelu(x: Any, bias: Any = None) -> Any:
    """Return the gelu by tanh."""
    return ops.gelu(x if bias is None else ops.add(x, bias), True)


@operator("com.microsoft.BiasGelu")
def bias_gelu(x: Any, bias: Any) -> Any:
    """Return the gelu of a sum."""
    return ops.gelu(ops.add(x, bias))


@operator("com.microsoft.QuickGelu")
def quick_gelu(x: Any, *, alpha: float = 1.702) -> Any:
    """Return ``x * sigmoid(alpha * x)``."""
    return swish(x, alpha=alpha)


@operator("Swish")
def swish(x: Any, *, alpha: float = 1.0) -> Any:
    """Return ``x * sigmoid(alpha * x)``."""
    return ops.silu(x) if alpha == 1 else ops.gate(x * alpha, x, "sigmoid")


# ---- products


@operator("com.microsoft.FusedMatMul")
def fused_matmul(
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    """Return ``alpha * a @ b`` of matrices that may be transposed."""
    a, b = _moved(a, transBatchA, transA), _moved(b, transBatchB, transB)
    found = ops.matmul(a, b)
    return found if alpha == 1 else found * alpha


def _moved(x: Any, batch: int, last: int) -> Any:
    """Return an array with its first axis behind the other leading axes, and with its last axes exchanged."""
    x = ops.moveaxis(x, 0, -2) if batch else x
    return ops.swapaxes(x, -2, -1) if last else x


@operator("com.microsoft.FusedGemm")
def fused_gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    activation: str = "",
    activation_alpha: float = 0.01,
) -> Any:
    """Return ``activation(alpha * a @ b + beta * c)``."""
    found = ops.matmul(a.T if transA else a, b.T if transB else b) * alpha
    found = found if c is None else ops.add(found, c * beta)
    return activated(found, activation, activation_alpha)


def activated(x: Any, name: str, alpha: float) -> Any:
    """Return an activation by its ONNX name."""
    if name == "LeakyRelu":
        return activations.leaky_relu(x, alpha)
    return activations.get(name.lower())(x) if name else x


@operator("com.microsoft.MatMulNBits")
def matmul_n_bits(
    x: Any,
    codes: Any,
    scales: Any,
    zero_points: Any = None,
    g_idx: None = None,
    bias: Any = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int = 32,
    accuracy_level: int = 0,
) -> Any:
    """Return the product with a matrix of 4-bit codes in blocks along k. Float inputs stay floats."""
    del g_idx, accuracy_level
    lines = _lines(codes, scales, zero_points, K, N, bits, block_size)
    return ops.matmul(x, ops.pack(lines.T), bias=bias)


def _lines(codes: Any, scales: Any, zero_points: Any, k: int, n: int, bits: int, block: int) -> QuantizedArray:
    """Return the matrix (n, k) of a MatMulNBits."""
    if bits != 4:
        raise ValueError(f"`bits` must be 4; received {bits}")
    blocks = -(-k // block)
    q = np.stack([codes & 15, codes >> 4], -1).reshape(n, blocks * block)[:, :k].astype(np.int16) - 8
    if zero_points is None:
        zero = None
    elif zero_points.dtype == np.uint8:
        packed = zero_points.reshape(n, -1)
        zero = np.stack([packed & 15, packed >> 4], -1).reshape(n, -1)[:, :blocks].astype(np.int32) - 8
    else:
        raise ValueError(f"`zero_points` must be packed uint8; received {zero_points.dtype}")
    return QuantizedArray(q.astype(dtypes.dtype_of("int4")), np.float32(scales.reshape(n, blocks)), zero, 0, block)


@pattern("com.microsoft.MatMulNBits(x, CODES, SCALES)")
def packed_product(m: Match) -> Node | None:
    """Multiply by a constant matrix of 4-bit codes, which stay 4 bits."""
    _, _, _, zero, g_idx, bias = (*m.last.arguments, None, None, None)[:6]
    options = m.last.options
    if g_idx is not None or (zero is not None and m.graph.constant(zero) is None):
        return None
    lines = _lines(m["CODES"], m["SCALES"], m.graph.constant(zero), options["K"], options["N"],
                   options.get("bits", 4), options.get("block_size", 32))  # fmt: skip
    matrix = m.graph.add_constant(f"{m.last.outputs[0]}.matrix", lines.T)
    return m.instead("mp_core.dense", m["x"], matrix, bias)


@pattern("com.microsoft.FusedMatMul(x, W)")
def fused_product(m: Match) -> Node | None:
    """Multiply by a constant matrix."""
    return m.instead("mp_core.dense", m["x"], m.last.arguments[1]) if is_matrix(m["W"]) and not m.last.options else None


@pattern("com.microsoft.Attention(x, W)")
def attention_of_dense(m: Match) -> list[Node] | None:
    """Multiply by the constant matrix of an attention by a layer."""
    _, weights, bias, *rest = (*m.last.arguments, None, None)
    if not is_matrix(m["W"]) or (bias is not None and m.graph.constant(bias) is None):
        return None
    qkv = m.before("mp_core.dense", m["x"], weights, bias)
    mask, past, more = (*rest, None, None, None)[:3]
    assert past is None
    return [qkv, m.instead("mp_core.attention_of_product", m.value(qkv), mask, more, **m.last.options)]


@pattern("com.microsoft.BiasGelu(x, BIAS)", "com.microsoft.FastGelu(x, BIAS)")
def biased_gelu(m: Match) -> list[Node]:
    """Add the bias of a gelu first: a product before it takes it."""
    total = m.before("Add", m["x"], m.last.arguments[1])
    how = "none" if m.last.operator.endswith("BiasGelu") else "tanh"
    return [total, m.instead("Gelu", m.value(total), approximate=how)]
