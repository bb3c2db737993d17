"""The poolings of sentence-transformers: from the token vectors of a text to one vector."""

from collections.abc import Callable, Sequence

import numpy as np

from mp_core import ops
from mp_core.arrays import Array

__all__ = ["LONGEST", "POOLINGS", "SHORTEST", "pool", "unit"]


def pool(names: Sequence[str], hidden: Array, mask: Array, kept: Array) -> Array:
    """Return the pooled vectors of texts in float32; the results of the poolings `names` are concatenated.

    `hidden` has the shape (n, length, width); each row of `mask` and `kept`, the tokens to pool, needs at least one
    True.
    """
    places = np.arange(1, mask.shape[1] + 1) - mask.argmax(axis=1)[:, np.newaxis]
    pooled = [POOLINGS[name](hidden, kept, places) for name in names]
    return pooled[0] if len(pooled) == 1 else np.concatenate(pooled, axis=1)


def unit(rows: Array) -> Array:
    """Scale each row to length 1; rows of zeros stay zeros.

    A row whose squares would overflow or underflow is first divided by its largest magnitude.
    """
    with np.errstate(over="ignore", under="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    lost = ~((lengths >= SHORTEST) & (lengths <= LONGEST))[:, 0]
    if lost.any():
        largest = np.abs(rows[lost]).max(axis=1, initial=0, keepdims=True)
        rows = np.array(rows)
        rows[lost] /= np.where((largest > 0) & (largest < np.inf), largest, 1)
        lengths[lost] = np.linalg.norm(rows[lost], axis=1, keepdims=True)
    scaled: Array = rows / np.maximum(lengths, np.finfo(np.float32).tiny)
    return scaled


SHORTEST, LONGEST = 2.0**-50, 2.0**63
"""The range of lengths of float32 rows for which sums of squares neither overflow nor lose precision."""


def _sum(hidden: Array, weights: Array) -> Array:
    totals: Array = ops.matmul(weights[:, np.newaxis, :], hidden, out_dtype="float32")
    return totals[:, 0]


def _count(kept: Array) -> Array:
    count: Array = kept.sum(axis=1, keepdims=True, dtype=np.float32)
    return count


def _mean(hidden: Array, kept: Array, places: Array) -> Array:
    means: Array = _sum(hidden, kept.astype(hidden.dtype)) / _count(kept)
    return means


def _mean_by_root(hidden: Array, kept: Array, places: Array) -> Array:
    means: Array = _sum(hidden, kept.astype(hidden.dtype)) / np.sqrt(_count(kept))
    return means


def _weighted_mean(hidden: Array, kept: Array, places: Array) -> Array:
    weights = np.where(kept, places, 0)  # in integers: bfloat16 cannot represent 257
    sums = _sum(ops.cast(hidden, "float32"), weights.astype(np.float32))
    means: Array = sums / weights.sum(axis=1, keepdims=True).astype(np.float32)
    return means


def _maximum(hidden: Array, kept: Array, places: Array) -> Array:
    masked = np.where(kept[:, :, np.newaxis], ops.cast(hidden, "float32"), np.float32(-np.inf))
    maxima: Array = masked.max(axis=1) + np.float32(0)  # turns -0 into +0
    return maxima


def _first(hidden: Array, kept: Array, places: Array) -> Array:
    return ops.cast(hidden[np.arange(len(kept)), kept.argmax(axis=1)], "float32")


def _last(hidden: Array, kept: Array, places: Array) -> Array:
    return ops.cast(hidden[np.arange(len(kept)), kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)], "float32")


POOLINGS: dict[str, Callable[[Array, Array, Array], Array]] = {
    "cls": _first,
    "max": _maximum,
    "mean": _mean,
    "mean_sqrt_len_tokens": _mean_by_root,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}
"""Name of a pooling -> its function of the vectors, the mask of tokens to pool, and the positions, counted from 1."""
