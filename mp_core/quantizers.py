"""Keras' quantizers. Their scale is the reciprocal of :mod:`mp_core.quantization`'s: ``q = x * scale``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core import dtypes
from mp_core.arrays import asarray, cast

__all__ = ["abs_max_quantize"]

Array = np.ndarray[Any, Any]


def abs_max_quantize(
    inputs: ArrayLike,
    axis: int | Sequence[int],
    value_range: tuple[int, int] = (-127, 127),
    dtype: DTypeLike = "int8",
    epsilon: float = 1e-7,
) -> tuple[Array, Array]:
    """Quantize so that the largest magnitude along `axis` becomes the end of the range.

    ``scale = value_range[1] / (max|x| + epsilon)``, ``q = clip(round(x * scale))`` with ties to even.

    Parameters
    ----------
    inputs : array-like
        Any float dtype; 16-bit types are computed in float32, so that a row of zeros has a finite scale.
    axis : int or sequence of int
        The axes that share one scale.
    value_range : tuple of int
    dtype : dtype
    epsilon : float

    Returns
    -------
    values : ndarray of `dtype`
        NaN becomes 0.
    scale : ndarray, float32 (float64 for float64 inputs)
        A multiplier: ``values / scale`` is approximately `inputs`. The axes of `axis` have length 1.

    Examples
    --------
    >>> values, scale = abs_max_quantize(np.array([[1.0, -2.0], [0.0, 0.0]], np.float32), axis=-1)
    >>> values
    array([[  64, -127],
           [   0,    0]], dtype=int8)
    """
    x = asarray(inputs, "inputs")
    if x.dtype.name not in ("float32", "float64"):
        x = cast(x, "float32")
    axis = axis if isinstance(axis, int) else tuple(axis)
    with np.errstate(invalid="ignore"):
        largest = np.maximum(x.max(axis, keepdims=True, initial=0), -x.min(axis, keepdims=True, initial=0))
        scale = value_range[1] / (largest + x.dtype.type(epsilon))
        codes = x * scale  # one copy: this may be a table of half the model
        np.clip(np.rint(codes, out=codes), *value_range, out=codes)
    codes[np.isnan(codes)] = 0
    return codes.astype(dtypes.parse(dtype)), scale
