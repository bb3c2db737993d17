"""Attention and pooling, by the section "Sums along rows" of docs/numerics.md."""

import itertools

import numpy as np

from .formats import rounded
from .functions import FLOAT32
from .products import arithmetic, matmul, sums
from .random import dropped, words
from .rows import softmax

F32 = np.float32
BAND = 128


def weights(q, k, kind, scale=None, bias=None, mask=None, softcap=None):
    """Return the softmax of the scores of one head in float32, and their tanh with softcap."""
    scale = 1 / np.sqrt(q.shape[1]) if scale is None else scale
    scores = sums(q, k.T, arithmetic(kind, kind))
    if bias is not None:
        return softmax(scores * F32(scale) + bias, 1.0, mask), None
    if softcap is not None:
        y = FLOAT32["tanh"](scores * F32(scale / softcap))
        return softmax(y, softcap, mask), y
    return softmax(scores, scale, mask), None


def bands(n, keys, reach=None, causal=False):
    """Yield the rows, the keys and the mask of each band of queries."""
    for first in range(0, n, BAND):
        rows = np.arange(first, min(first + BAND, n))
        low = 0 if reach is None else max(0, first - reach)
        high = keys if reach is None else min(keys, first + BAND + reach)
        high = min(high, first + BAND) if causal and reach is not None else high
        within = np.arange(low, high)
        distance = within[None] - rows[:, None]
        mask = np.ones(distance.shape, bool) if reach is None else np.abs(distance) <= reach
        yield rows, within, mask & (distance <= 0) if causal else mask


def attention(q, k, v, kind, bias=None, mask=None, reach=None, causal=False, dropout=None, **steps):
    """Return the attention of one head, (queries, size); `dropout` is (rate, a function of the row of words)."""
    result = np.zeros((len(q), v.shape[1]), F32)
    for rows, keys, allowed in bands(len(q), len(k), reach, causal):
        square = np.ix_(rows, keys)
        part = None if bias is None else bias[square]
        p, _ = weights(
            q[rows], k[keys], kind, bias=part, mask=allowed if mask is None else allowed & mask[square], **steps
        )
        if dropout is not None:
            p = dropped(p, dropout[0], np.stack([dropout[1](row)[keys] for row in rows]))
        result[rows] = matmul(rounded(p, kind), v[keys], kind, kind, kind)
    return result


def ragged_attention(q, k, v, offsets, kind, bias=None, rate=0.0, key=None, **steps):
    """Return the attention of each sequence alone, (tokens, heads, size)."""
    result = np.zeros((len(q), q.shape[1], v.shape[2]), F32)
    for start, end in itertools.pairwise(offsets):
        n = end - start
        for head in range(q.shape[1]):
            shared = head // (q.shape[1] // k.shape[1])
            part = None if bias is None else bias[head, :n, :n]

            def row_words(row, start=start, head=head, n=n):
                return words(key, -(-n // 4), 0, (head, start + row, 2))[:n]

            result[start:end, head] = attention(
                q[start:end, head], k[start:end, shared], v[start:end, shared], kind, part,
                dropout=(rate, row_words) if rate else None, **steps,
            )  # fmt: skip
    return result


def pool(x, pooling, kind):
    """Return the float32 row of a sequence (rows, width)."""
    n = len(x)
    if pooling == "max":
        return np.max(x, 0) + F32(0)  # a zero is +0
    if pooling in ("cls", "lasttoken"):
        return x[0 if pooling == "cls" else -1]
    weighted = pooling == "weightedmean"
    place = np.arange(1, n + 1) if weighted else np.ones(n)
    total = sums(place[None].astype(F32), x, arithmetic("float32" if weighted else kind, kind))[0]
    divisor = {"mean": n, "mean_sqrt_len_tokens": np.sqrt(F32(n)), "weightedmean": place.sum()}[pooling]
    return total / F32(divisor)
