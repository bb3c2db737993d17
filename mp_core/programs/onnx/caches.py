"""Attention of decoders as exporters write it: heads that share keys, with a cache that has room for more tokens."""

from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.programs.onnx.arguments import value_of
from mp_core.programs.onnx.attention import join_heads, rotated, split_heads, visible
from mp_core.programs.registry import Static, operator

__all__: list[str] = []


@operator("com.microsoft.GroupQueryAttention")
def group_query_attention(
    query: Any,
    key: Any,
    value: Any,
    past_key: Any,
    past_value: Any,
    last: Any,
    total: Static,
    cos: Any = None,
    sin: Any = None,
    positions: Any = None,
    bias: Any = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    scale: float = 0.0,
    softcap: float = 0.0,
    local_window_size: int = -1,
    do_rotary: int = 0,
    rotary_interleaved: int = 0,
    causal: Literal[0, 1] = 1,
    smooth_softmax: Literal[-1, 0] = -1,
) -> tuple[Any, ...]:
    """Return causal attention of heads that share keys and values, and the caches with the new keys and values.

    Query, key and value have the shape (n, length, heads * size), or are side by side in `query`. Caches have the shape
    (n, heads, room, size); `last` is the place of the last token of each sequence, `total` the length of the longest.
    """
    del smooth_softmax
    if key is None:
        whole = split_heads(query, num_heads + 2 * kv_num_heads)
        q, k, v = (whole[:, :, a:b] for a, b in ((0, num_heads), (num_heads, -kv_num_heads), (-kv_num_heads, None)))
    else:
        q, k, v = split_heads(query, num_heads), split_heads(key, kv_num_heads), split_heads(value, kv_num_heads)
    count, targets = q.shape[:2]
    longest = int(value_of(total))
    if count == 1 or longest == targets:  # the longest sequence is the only one, or none has a past
        before: Any = np.full((count, 1), longest - targets)
    else:
        before = ops.reshape(ops.subtract(last, targets - 1), (count, 1))
    if do_rotary:
        places = ops.add(before, np.arange(targets)) if positions is None else positions
        angles = ops.take(cos, places, 0), ops.take(sin, places, 0)
        q, k = (rotated(x, *angles, rotary_interleaved, 2 * cos.shape[1]) for x in (q, k))
    keys, values = (_extended(past, x, before, longest) for past, x in ((past_key, k), (past_value, v)))
    keep = _window(before, targets, keys.shape[2], local_window_size) if causal else None
    if not causal:
        keep = ops.less(np.arange(keys.shape[2]), ops.reshape(ops.add(before, targets), (count, 1, 1, 1)))
    if bias is not None and bias.shape[-1] < keys.shape[2]:
        bias = ops.pad(bias, [(0, 0)] * 3 + [(0, keys.shape[2] - bias.shape[-1])])
    k, v = (ops.swapaxes(x, 1, 2) for x in (keys, values))
    y = ops.dot_product_attention(q, k, v, bias, keep, scale or None, softcap=softcap or None)
    return join_heads(y), keys, values


def _extended(past: Any, x: Any, before: Any, longest: int) -> Any:
    """Return a cache, shape (n, heads, room, size), in which (n, length, heads, size) is behind `before` places."""
    new = ops.swapaxes(x, 1, 2)
    if past is None or past.shape[2] == 0:
        return new
    room, length = past.shape[2], new.shape[2]
    places = np.arange(max(room, longest))
    shifted = ops.subtract(places, before)  # the place among the new ones
    is_new = ops.logical_and(ops.greater_equal(shifted, 0), ops.less(shifted, length))
    source = ops.where(is_new, ops.add(shifted, room), np.minimum(places, room - 1))
    return ops.take_along_axis(ops.concatenate([past, new], 2), ops.reshape(source, (before.shape[0], 1, -1, 1)), 2)


def _window(before: Any, targets: int, sources: int, size: int) -> Any:
    """Return which sources a target may attend to: the last `size` up to its own place, or all of these."""
    first = ops.reshape(before, (-1, 1, 1, 1))
    keep = visible(first, targets, sources)
    if size <= 0:
        return keep
    return ops.logical_and(keep, ops.logical_not(visible(ops.subtract(first, size), targets, sources)))
