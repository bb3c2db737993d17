"""Quantization whose scale is computed from the largest magnitude, or the range, of the elements that share it.

Conventions are Keras': ``axis`` names the axes that share a scale. Values are ``q / scale``; with zero points they are
``(q - zero_point) * scale``.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, cast, dtypes
from mp_core.utilities.arguments import axes_of, float_of, number, positive_integer
from mp_core.utilities.docstrings import documented

_COMMON = documented(
    last="""
    value_range : tuple of int
    dtype : dtype
    epsilon : float
    to_numpy : bool
        Ignored: results are always NumPy arrays. Keras has this argument.
"""
)


@_COMMON
def abs_max_quantize(
    inputs: ArrayLike,
    axis: int | Sequence[int] | None,
    value_range: tuple[int, int] = (-127, 127),
    dtype: DTypeLike = "int8",
    epsilon: float = 1e-7,
    to_numpy: bool = False,
) -> tuple[Array, Array]:
    """Quantize so that the largest magnitude along `axis` maps to ``value_range[1]``.

    ``scale = value_range[1] / (max|x| + epsilon)``, ``q = clip(round(x * scale))`` with ties to even.

    Parameters
    ----------
    inputs : array-like
        Any float dtype; 16-bit types are computed in float32, so that a row of zeros has a finite scale.
    axis : int, sequence of int or None
        The axes that share one scale; None means all axes.

    Returns
    -------
    values : ndarray of `dtype`
        NaN becomes 0.
    scale : ndarray, float32 (float64 for float64 inputs)
        ``values / scale`` approximates `inputs`. The axes that share a scale have length 1.

    Examples
    --------
    >>> values, scale = abs_max_quantize(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=-1)
    >>> values
    array([[  64, -127],
           [   0,    0]], dtype=int8)
    """
    x, target = _wide(inputs), dtypes.parse(dtype)
    axes = tuple(range(x.ndim)) if axis is None else axes_of(axis)
    low, high = _checked_range(value_range, target, x.dtype)
    epsilon = number(epsilon, "epsilon", 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        largest = np.maximum(x.max(axes, keepdims=True, initial=0), -x.min(axes, keepdims=True, initial=0))
        scale = np.asarray(high / (largest + x.dtype.type(epsilon)))
        codes = np.asarray(x * scale)  # a single copy: a table may be half of the model
        np.clip(np.rint(codes, out=codes), low, high, out=codes)
    codes[np.isnan(codes)] = 0
    return codes.astype(target), scale


@_COMMON
def abs_max_quantize_grouped_with_zero_point(
    inputs: ArrayLike,
    block_size: int,
    value_range: tuple[int, int] = (-8, 7),
    dtype: DTypeLike = "int8",
    epsilon: float = 1e-7,
    to_numpy: bool = False,
) -> tuple[Array, Array, Array]:
    """Quantize blocks of rows, each column separately, so that the range of a block (including 0) uses all codes.

    ``scale = (hi - lo + epsilon) / (qmax - qmin)``, ``zero_point = clip(round(-lo / scale) + qmin)``,
    ``q = clip(round(x / scale) + zero_point)`` with ties to even.

    Parameters
    ----------
    inputs : array-like
        A matrix of any float dtype; 16-bit types are computed in float32.
    block_size : int
        How many consecutive rows share a scale; the last block may have fewer.

    Returns
    -------
    values : ndarray of `dtype`
        Infinities do not widen the range; NaN becomes the zero point.
    scale : ndarray, float32 (float64 for float64 inputs), shape (blocks, columns)
        ``(values - zero_point) * scale`` approximates `inputs`.
    zero_point : ndarray, shape (blocks, columns)
        In `dtype`; int32 if that is a float type.

    Examples
    --------
    >>> x = np.array([[0], [15], [-3], [0]], np.float32)
    >>> values, scale, zero_point = abs_max_quantize_grouped_with_zero_point(x, block_size=2)
    >>> values.ravel(), scale.ravel(), zero_point.ravel()
    (array([-8,  7, -8,  7], dtype=int8), array([1. , 0.2], dtype=float32), array([-8,  7], dtype=int8))
    """
    x = _wide(inputs)
    if x.ndim != 2:
        raise ValueError(f"`inputs` must be a matrix; received shape {x.shape}")
    target = dtypes.parse(dtype)
    qmin, qmax = _checked_range(value_range, target, x.dtype)
    epsilon = number(epsilon, "epsilon", 0.0)
    rows = max(len(x), 1)
    size = positive_integer(rows if isinstance(block_size, int) and block_size > rows else block_size, "block_size")
    starts = np.arange(0, len(x), size)
    finite = x if np.isfinite(x).all() else np.where(np.isfinite(x), x, x.dtype.type(0))
    low = np.minimum(np.minimum.reduceat(finite, starts), 0)
    high = np.maximum(np.maximum.reduceat(finite, starts), 0)
    codes = x.dtype.type(qmax - qmin)
    with np.errstate(over="ignore"):
        scale = (high - low + x.dtype.type(epsilon)) / codes
    scale = np.maximum(np.where(np.isfinite(scale), scale, high / codes - low / codes), np.finfo(x.dtype).tiny)
    zero_point = np.clip(np.rint(-low / scale) + qmin, qmin, qmax)
    block = np.arange(len(x)) // size
    codes = np.clip(np.rint(x / scale[block]) + zero_point[block], qmin, qmax)
    codes = np.where(np.isnan(codes), zero_point[block], codes)
    return codes.astype(target), scale, zero_point.astype(target if dtypes.is_integer(target) else np.int32)


def _wide(inputs: ArrayLike) -> Array:
    """Return the inputs in float32, or in float64 if they have it."""
    x = asarray(inputs, "inputs")
    return x if x.dtype.name in ("float32", "float64") else cast(x, "float32")


def _checked_range(value_range: tuple[int, int], target: np.dtype[Any], compute: np.dtype[Any]) -> tuple[int, int]:
    """Return the lowest and highest code; raise ValueError unless `target` and `compute` represent both exactly."""
    low, high = increasing_range(value_range)
    if dtypes.is_float(target):
        limits: Any = ml_dtypes.finfo(target)  # type: ignore[no-untyped-call]
    else:
        limits = np.iinfo(target) if dtypes.is_integer(target) else np.iinfo(np.uint8)
    exact = all(float(compute.type(end)) == end for end in (low, high))
    if not exact or target.name == "bool" or not float(limits.min) <= low < high <= float(limits.max):
        raise ValueError(
            f"`value_range` must be two increasing numbers within the range of {target.name} that {compute.name} "
            f"represents exactly; received {value_range!r}"
        )
    return low, high


def increasing_range(value_range: Any) -> tuple[int, int]:
    """Return the range as two Python numbers; raise ValueError unless there are two and the second is greater."""
    try:
        low, high = (int(end) if isinstance(end, Integral) else float_of(end) for end in value_range)
    except (TypeError, ValueError):
        low = high = 0
    if not low < high:
        raise ValueError(f"`value_range` must be two increasing numbers; received {value_range!r}")
    return low, high  # type: ignore[return-value]


def abs_max_within(matrix: Array, axis: int, value_range: tuple[int, int], dtype: str) -> tuple[Array, Array]:
    """Return codes and scales, with scales clipped to the range of `dtype`: 127 / 0.001 exceeds float16."""
    codes, scale = abs_max_quantize(matrix, axis, value_range)
    largest = scale.dtype.type(dtypes.finfo(dtype).max)
    beyond = scale > largest
    if beyond.any():
        with np.errstate(over="ignore"):  # elements with smaller scales may overflow; they are not used
            coarse = np.rint(cast(matrix, scale.dtype) * largest)
        codes, scale = np.where(beyond, coarse, codes).astype(codes.dtype), np.where(beyond, largest, scale)
    return codes, scale
