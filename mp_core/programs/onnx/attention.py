"""Attention and rotary positions of ONNX, of Microsoft, and of the patterns that exporters write."""

import math
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.programs.registry import operator

# ---- heads, and caches of keys and values


def split_heads(x: Any, heads: int) -> Any:
    """Return (n, length, heads * size) as (n, length, heads, size)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads)


def join_heads(x: Any) -> Any:
    """Undo :func:`split_heads`."""
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def by_heads(x: Any, heads: int) -> Any:
    """Return (n, length, heads * size) as caches of keys and values are: (n, heads, length, size)."""
    return ops.swapaxes(split_heads(x, heads), 1, 2)


def present(past: Any, x: Any) -> Any:
    """Return keys or values, shape (n, heads, length, size), behind those of the past."""
    return x if past is None else ops.concatenate([past, x], 2)


def visible(before: Any, targets: int, sources: int) -> Any:
    """Return which sources a target may attend to; `before`, shape (n, 1, 1, 1), counts those before the first one."""
    return ops.greater_equal(ops.add(before, np.arange(targets)[:, np.newaxis]), np.arange(sources))


@operator("mp_core.attention", keeps_type=True)
def attention(q: Any, k: Any, v: Any, bias: Any = None, *, scale: float) -> Any:
    """Return ``softmax(scale * q @ k + bias) @ v``; k has the shape (..., size, sources).

    Arrays with axes (n, heads, length, size), or without heads, are computed by one operation.
    """
    if q.ndim not in (3, 4) or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        scores = ops.matmul(q, k) * scale
        return ops.matmul(ops.softmax(scores if bias is None else ops.add(scores, bias)), v)
    if q.ndim == 3:
        q, k, v = (ops.expand_dims(x, 1) for x in (q, k, v))
        bias = ops.expand_dims(bias, 1) if bias is not None and bias.ndim == 3 else bias
        return attention(q, k, v, bias, scale=scale)[:, 0]
    q, k, v = ops.transpose(q, (0, 2, 1, 3)), ops.transpose(k, (0, 3, 1, 2)), ops.transpose(v, (0, 2, 1, 3))
    return ops.transpose(ops.dot_product_attention(q, k, v, bias, scale=scale), (0, 2, 1, 3))


# ---- operator sets


@operator("Attention", since=23)
def attention23(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    lengths: Any = None,
    *,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int = 1,
) -> Any:
    """Return attention, and keys and values behind those of the past; a row without any source gives zeros.

    `lengths` says how many sources of each sequence count, if a cache outside has room for more.
    """
    del softmax_precision  # the softmax is computed in float32
    has_heads = q.ndim == 4
    if not has_heads:
        q, k, v = (by_heads(x, heads) for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    k, v = present(past_key, k), present(past_value, v)
    targets, sources = q.shape[2], k.shape[2]
    keep = None
    if lengths is not None:
        before = ops.reshape(ops.subtract(lengths, targets), (-1, 1, 1, 1))
        keep = ops.less(np.arange(sources), ops.reshape(lengths, (-1, 1, 1, 1)))
        keep = ops.logical_and(keep, visible(before, targets, sources)) if is_causal else keep
    elif past_key is not None and is_causal:
        keep = visible(np.full((1, 1, 1, 1), past_key.shape[2]), targets, sources)
    if mask is not None:
        rest = sources - mask.shape[-1]
        is_keep = mask.dtype == np.bool_
        if rest > 0:
            mask = ops.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, rest)], False if is_keep else -np.inf)
        if is_keep:
            keep, mask = mask if keep is None else ops.logical_and(keep, mask), None
    is_first = lengths is None and past_key is None
    rows, keys, values = (ops.swapaxes(x, 1, 2) for x in (q, k, v))
    y = ops.dot_product_attention(
        rows, keys, values, mask, keep, scale, bool(is_causal) and is_first, softcap=softcap or None
    )
    return ops.swapaxes(y, 1, 2) if has_heads else join_heads(y), k, v


@operator("RotaryEmbedding", since=23)
def rotary23(
    x: Any,
    cos: Any,
    sin: Any,
    positions: Any = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:
    """Return vectors that are rotated by the angles of their positions; only the first ones of partial rotations."""
    if positions is not None:
        cos, sin = ops.take(cos, positions, 0), ops.take(sin, positions, 0)
    if x.ndim == 4:
        y = rotated(ops.transpose(x, (0, 2, 1, 3)), cos, sin, interleaved, rotary_embedding_dim)
        return ops.transpose(y, (0, 2, 1, 3))
    return join_heads(rotated(split_heads(x, num_heads), cos, sin, interleaved, rotary_embedding_dim))


def rotated(x: Any, cos: Any, sin: Any, interleaved: int, size: int) -> Any:
    """Return (n, length, heads, size) rotated; `cos` and `sin` have the shape (n or 1, length, size / 2)."""
    part, rest = (x[..., :size], x[..., size:]) if size else (x, None)
    cos, sin = ops.expand_dims(cos, 2), ops.expand_dims(sin, 2)
    half = part.shape[-1] // 2
    a, b = (part[..., ::2], part[..., 1::2]) if interleaved else (part[..., :half], part[..., half:])
    a, b = a * cos - b * sin, a * sin + b * cos
    y = ops.stack([a, b], -1).reshape(part.shape) if interleaved else ops.concatenate([a, b], -1)
    return y if rest is None else ops.concatenate([y, rest], -1)


@operator("com.microsoft.RotaryEmbedding")
def rotary(
    x: Any,
    positions: Any,
    cos: Any,
    sin: Any,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Any:
    """Return rotary positions; one number as `positions` is the first position of all sequences."""
    if positions.size == 1:
        length = x.shape[-2]
        positions = np.asarray(positions).reshape(1, 1) + np.arange(length)
    y = rotary23(x, cos, sin, positions, interleaved=interleaved, num_heads=num_heads,
                 rotary_embedding_dim=rotary_embedding_dim)  # fmt: skip
    return y if scale == 1 else y * scale


@operator("com.microsoft.MultiHeadAttention")
def multi_head_attention(
    query: Any,
    key: Any = None,
    value: Any = None,
    bias: Any = None,
    key_mask: Any = None,
    attention_bias: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    *,
    num_heads: int,
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    """Return attention, and keys and values behind those of the past.

    Query, key and value have the shape (n, length, hidden), or are packed as (n, length, heads, 3, size). `key_mask`
    says which sources count, shape (n, sources) or (n, targets, sources), or how many, shape (n,).
    """
    if query.ndim == 5:
        q, k, v = (ops.swapaxes(query[:, :, :, i], 1, 2) for i in range(3))
    else:
        parts = [query, key, value]
        if bias is not None:
            sizes = np.cumsum([0, *(x.shape[-1] if x.ndim == 3 else x.shape[1] * x.shape[3] for x in parts)])
            parts = [ops.add(x, bias[sizes[i] : sizes[i + 1]]) if x.ndim == 3 else x for i, x in enumerate(parts)]
        q, k, v = (by_heads(x, num_heads) if x.ndim == 3 else x for x in parts)
    k, v = present(past_key, k), present(past_value, v)
    return _filtered(q, k, v, key_mask, attention_bias, scale, mask_filter_value, unidirectional), k, v


@operator("mp_core.attention_of_product")
def attention_of_product(
    qkv: Any,
    mask: Any = None,
    past: Any = None,
    attention_bias: Any = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: tuple[int, ...] = (),
    mask_filter_value: float = -10000.0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> Any:
    """Return attention of queries, keys and values that are side by side along the last axis; keys and values, stacked.

    `past` has those of earlier positions, shape (2, n, heads, length, size).
    """
    sizes = qkv_hidden_sizes or (qkv.shape[-1] // 3,) * 3
    ends = np.cumsum([0, *sizes])
    q, k, v = (by_heads(qkv[..., ends[i] : ends[i + 1]], num_heads) for i in range(3))
    k, v = (x if past is None else present(past[i], x) for i, x in enumerate((k, v)))
    y = _filtered(q, k, v, mask, attention_bias, scale, mask_filter_value, unidirectional)
    return y, lambda: ops.stack([k, v])


def _filtered(q: Any, k: Any, v: Any, mask: Any, bias: Any, scale: float, filter_value: float, causal: int) -> Any:
    """Return attention, its heads joined, in which masked scores get `filter_value` added."""
    scale = scale or 1 / math.sqrt(q.shape[-1])
    targets, sources = q.shape[2], k.shape[2]
    if mask is not None:
        added = (1.0 - ops.cast(_key_mask(mask, sources), q.dtype)) * filter_value
        bias = added if bias is None else ops.add(bias, added)
    is_later = causal and sources != targets
    keep = visible(np.full((1, 1, 1, 1), sources - targets), targets, sources) if is_later else None
    q, k, v = (ops.swapaxes(x, 1, 2) for x in (q, k, v))
    return join_heads(ops.dot_product_attention(q, k, v, bias, keep, scale, bool(causal) and not is_later))


def _key_mask(mask: Any, sources: int) -> Any:
    """Return which sources count, in a shape that broadcasts to (n, heads, targets, sources)."""
    if mask.ndim == 1:
        return ops.cast(ops.less(np.arange(sources), mask[:, np.newaxis]), "int32")[:, np.newaxis, np.newaxis]
    return mask[:, np.newaxis, np.newaxis] if mask.ndim == 2 else mask[:, np.newaxis] if mask.ndim == 3 else mask
