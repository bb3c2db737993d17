"""Sums along rows and what is built on them, by the section "Sums along rows" of docs/numerics.md."""

import numpy as np

from .functions import FLOAT32
from .fused import fma

BLOCK, LANES = 4096, 16
F32 = np.float32


def lanes(terms):
    """Return the 16 lanes of a block; `terms` is the elements, or pairs of factors (2, rows, n)."""
    missing = [(0, 0)] * (terms.ndim - 1) + [(0, -terms.shape[-1] % LANES)]
    terms = np.pad(terms, missing)
    s = np.zeros((terms.shape[-2], LANES), F32)
    for first in range(0, terms.shape[-1], LANES):
        part = terms[..., first : first + LANES]
        s = fma(part[0], part[1], s) if terms.ndim == 3 else s + part
    return s


def tree(blocks):
    """Add the lanes of blocks in a binary tree."""
    if len(blocks) == 1:
        return blocks[0]
    left = 1 << (len(blocks) - 1).bit_length() - 1
    return tree(blocks[:left]) + tree(blocks[left:])


def row_sums(x, y=None):
    """Return the sum of each row of x (rows, n), or of the products x y, added by fused multiply-adds."""
    terms = np.asarray(x, F32) if y is None else np.stack([x, y]).astype(F32)
    n = terms.shape[-1]
    s = tree([lanes(terms[..., at : at + BLOCK]) for at in range(0, max(n, 1), BLOCK)])
    for half in (8, 4, 2, 1):
        s = s[:, :half] + s[:, half : 2 * half]
    return s[:, 0]


def total(x, axes, mean=False):
    """Return the sum (mean) of x along axes, float32, in C order of these axes."""
    axes = sorted(axis % x.ndim for axis in axes)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    row = x.transpose(kept + axes).reshape(int(np.prod(shape)), -1) if x.size else np.zeros((int(np.prod(shape)), 0))
    s = row_sums(row)
    return (s / F32(row.shape[1]) if mean else s).reshape(shape)


def softmax(x, scale=1.0, mask=None):
    """Return the softmax of rows in float32."""
    unmasked = np.ones(x.shape, bool) if mask is None else np.broadcast_to(mask, x.shape)
    y = np.where(unmasked, np.asarray(x, F32) * F32(scale), F32(-np.inf))
    m = y.max(-1, keepdims=True)
    e = FLOAT32["exp"](y - np.where(m == -np.inf, F32(0), m))
    return np.where(unmasked, e * (F32(1) / row_sums(e)[:, None]), F32(0))


def log_softmax(x):
    """Return the logarithm of the softmax of rows in float32."""
    d = x - x.max(-1, keepdims=True)
    return d - FLOAT32["log"](row_sums(FLOAT32["exp"](d)))[:, None]


def scaled(x, epsilon, statistics, root=None):
    """Return statistics(x), epsilon and the factor, after rows whose squares leave the range were multiplied by it.

    `statistics` returns (mean, the sum of squares, ...), each of shape (rows, 1); `root` is the root of epsilon.
    """
    mean, s = statistics(x)[:2]
    large = (s > F32(2.0**126)) | np.isnan(s)
    small = (s < F32(2.0**-100)) & (epsilon < F32(2.0**-100)) & (np.abs(mean) < 1)
    factor = np.where(large, F32(2.0**-96), np.where(small, F32(2.0**100), F32(1)))
    root = (np.sqrt(epsilon) if root is None else root) * factor
    return statistics(x * factor), np.where(large | small, root * root, epsilon), factor


def deviations(y):
    """Return the mean, the sum of squares, and the deviations of rows."""
    mean = row_sums(y)[:, None] / F32(y.shape[1])
    d = y - mean
    return mean, row_sums(d, d)[:, None], d


def about_zero(x):
    """Return 0, the sum of squares, and the elements of rows."""
    return np.zeros((len(x), 1), F32), row_sums(x, x)[:, None], x


def normalized(x, epsilon, statistics):
    """Return the rows of a norm before gamma and beta, and 1 / sqrt(v + epsilon), times the factor of the row."""
    (_, s, d), epsilon, factor = scaled(np.asarray(x, F32), F32(epsilon), statistics)
    r = F32(1) / np.sqrt(s / F32(x.shape[1]) + epsilon)
    return d * r, r * factor


def layer_norm(x, gamma=None, beta=None, residual=None, epsilon=1e-3):
    """Return the layer norm of rows in float32."""
    y, _ = normalized(x if residual is None else x + residual, epsilon, deviations)
    y = y if gamma is None else y * gamma
    return y if beta is None else y + beta


def rms_norm(x, gamma=None, epsilon=1e-6):
    """Return the root mean square norm of rows in float32."""
    y, _ = normalized(x, epsilon, about_zero)
    return y if gamma is None else y * gamma


def squares(x):
    """Return 0, the sum of the rounded squares, and the elements of rows."""
    return np.zeros((len(x), 1), F32), row_sums(x * x)[:, None], x


def normalize(x, epsilon):
    """Return `ops.normalize` of rows in float32."""
    (_, s, x), epsilon, _ = scaled(np.asarray(x, F32), F32(epsilon), squares, F32(np.sqrt(epsilon)))
    return x / np.sqrt(np.maximum(s, epsilon))


def cumsum(x):
    """Return the cumulated sums of rows in float32, by doubling."""
    h = 1
    while h < x.shape[1]:
        x = np.concatenate([x[:, :h] + F32(0), x[:, h:] + x[:, :-h]], 1)
        h *= 2
    return x
