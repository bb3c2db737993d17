"""Keras' quantizers. Their scale is the reciprocal of :mod:`mp_core.quantization`'s: ``q = x * scale``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core import dtypes
from mp_core.arrays import asarray, cast

__all__ = ["abs_max_quantize", "compute_float8_amax_history", "compute_float8_scale", "quantize_and_dequantize"]

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


def compute_float8_scale(amax: ArrayLike, scale: ArrayLike, dtype_max: float, margin: int = 0) -> Array:
    """Return the step of delayed float8 scaling: ``amax * 2**margin / dtype_max``.

    Parameters
    ----------
    amax : array-like
        The largest magnitude lately seen.
    scale : array-like
        The step until now, kept where `amax` is not positive or not finite.
    dtype_max : float
        The largest finite value of the float8 type.
    margin : int
        Powers of two to leave free above `amax`.

    Examples
    --------
    >>> float(compute_float8_scale(896.0, 1.0, 448.0)), float(compute_float8_scale(0.0, 3.0, 448.0))
    (2.0, 3.0)
    """
    largest, kept = (cast(value, "float32") for value in (amax, scale))
    usable = (largest > 0) & np.isfinite(largest)
    return np.where(usable, largest * np.float32(2.0**margin) / np.float32(dtype_max), kept)


def compute_float8_amax_history(x: ArrayLike, amax_history: ArrayLike) -> Array:
    """Return the history rolled by one place, with ``max|x|`` at index 0.

    Examples
    --------
    >>> compute_float8_amax_history([1.0, -5.0], [4.0, 3.0, 2.0]).tolist()
    [5.0, 2.0, 4.0]
    """
    history = np.roll(cast(amax_history, "float32"), -1)
    history[0] = np.abs(cast(x, "float32")).max(initial=0)
    return history


def quantize_and_dequantize(
    inputs: ArrayLike, scale: ArrayLike, quantized_dtype: DTypeLike, compute_dtype: DTypeLike
) -> Array:
    """Return `inputs` as float8 holds them: divided by `scale`, clipped, rounded to float8, multiplied by `scale`.

    Parameters
    ----------
    inputs, scale : array-like
        Float; computed with in `compute_dtype`.
    quantized_dtype : {"float8_e4m3fn", "float8_e5m2"}
    compute_dtype : dtype
        The type of the arithmetic and of the result.

    Examples
    --------
    >>> quantize_and_dequantize([1.0, 1000.0], 2.0, "float8_e4m3fn", "float32").tolist()
    [1.0, 896.0]
    """
    step = cast(scale, compute_dtype)
    codes = cast(cast(inputs, compute_dtype) / step, quantized_dtype, saturate=True)
    result: Array = cast(codes, compute_dtype) * step
    return result
