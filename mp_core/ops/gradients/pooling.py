"""Gradient rules of ragged pooling, rotary positions, concatenation and padding."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import constant, recordable
from mp_core.core import pooling as _pooling
from mp_core.core.convert import filled
from mp_core.ops.elementwise import concatenated
from mp_core.ops.gradients.registry import gradient_of
from mp_core.ops.padding import filled_around
from mp_core.ops.pairs import ragged_rotary, rotary
from mp_core.ops.pooling import ragged_pool
from mp_core.ops.specs import pad_widths

__all__ = ["pooling_gradient"]


@recordable
def pooling_gradient(d: Array, x: Array, offsets: Array, pooling: str, skipped: int, column: int) -> Array:
    """Return the gradient of the rows of ragged sequences that were pooled.

    Parameters
    ----------
    d : ndarray of float32, shape (sequences, columns)
        The gradient of the result. The columns of this pooling begin at `column`.
    x : ndarray, shape (tokens, width)
    offsets : ndarray of int32
    pooling : str
    skipped : int
        As in :func:`mp_core.ops.ragged_pool`.
    column : int

    Returns
    -------
    ndarray
        The shape and type of `x`, with zeros in rows that are skipped or belong to no sequence.

    Examples
    --------
    >>> x, offsets = np.array([[1], [4], [2]], np.float32), np.array([0, 1, 3], np.int32)
    >>> pooling_gradient(np.float32([[1], [1]]), x, offsets, "mean", 0, 0)
    array([[1. ],
           [0.5],
           [0.5]], dtype=float32)
    """
    x = contiguous(x)
    if x.size == 0 or len(offsets) == 1:
        return filled(x.shape, x.dtype, 0.0)
    out = np.empty(x.shape, x.dtype)
    how = _pooling.POOLINGS[pooling]
    _pooling.pooling_gradient(
        FORMATS[x.dtype], how, contiguous(d), contiguous(offsets), x, skipped, out, column
    )  # fmt: skip
    return out


@gradient_of(ragged_pool)
def _(
    d: Array, out: Array, x: Array, offsets: Array, pooling: str | Sequence[str] = "mean", skipped: int = 0,
    longest: Any = None,
) -> dict[str, Any]:  # fmt: skip
    names, width = [pooling] if isinstance(pooling, str) else list(pooling), x.shape[1]

    def of_rows(dtype: Any) -> Array:
        total = pooling_gradient(d, x, offsets, names[0], skipped, 0)
        for place, name in enumerate(names[1:], 1):
            total = ops.add(total, pooling_gradient(d, x, offsets, name, skipped, place * width))
        return cast(total, dtype)

    return {"x": of_rows}


# ---- rotary positions


def _negated_angles(angles: Any) -> Array:
    """Return the table for negative angles: the same cosines, and negated sines."""
    angles = np.asarray(angles)
    signs = np.repeat(np.array([1.0, -1.0], angles.dtype), angles.shape[1] // 2)
    return constant(angles * signs)


@gradient_of(rotary)
def _(d: Array, out: Array, x: Array, angles: Any) -> dict[str, Any]:
    return {"x": lambda dtype: cast(rotary(d, _negated_angles(angles)), dtype)}


@gradient_of(ragged_rotary)
def _(
    d: Array, out: Array, x: Array, angles: Any, offsets: Array, few: int = 0, past: Array | None = None
) -> dict[str, Any]:
    return {"x": lambda dtype: cast(ragged_rotary(d, _negated_angles(angles), offsets, few, past), dtype)}


# ---- parts of results


@gradient_of(concatenated)
def _(d: Array, out: Array, *arrays: Array, axis: int) -> dict[str, Any]:
    axis, ends = axis % d.ndim, np.cumsum([x.shape[axis] for x in arrays]).tolist()
    spans = [slice(end - x.shape[axis], end) for x, end in zip(arrays, ends, strict=True)]
    return {"arrays": tuple(d[(*[slice(None)] * axis, span)] for span in spans)}


@gradient_of(filled_around)
def _(d: Array, out: Array, x: Array, widths: Any, value: Any = 0.0) -> dict[str, Any]:
    pairs = pad_widths(widths, x.ndim)
    inner = tuple(slice(before, before + length) for length, (before, _) in zip(x.shape, pairs, strict=True))
    return {"x": d[inner]}
