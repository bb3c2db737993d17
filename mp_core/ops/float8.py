"""Keras' delayed scaling of float8: the scale, the history of magnitudes that determines it, and the rounding.

Unlike Keras' other scales, a float8 scale multiplies codes: ``x ~ scale * q``.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, asarray, cast, dtypes
from mp_core.arrays.recorded import constant, recordable, with_numbers
from mp_core.core.convert import copied
from mp_core.ops.elementwise import combined
from mp_core.utilities.docstrings import shown


def compute_float8_scale(amax: ArrayLike, scale: ArrayLike, dtype_max: float, margin: int = 0) -> Array:
    """Return the scale of delayed float8 scaling: ``amax * 2**margin / dtype_max``.

    Parameters
    ----------
    amax : array-like
        The largest recent magnitude.
    scale : array-like
        The current scale. It is kept where `amax` or the new scale is not positive and finite.
    dtype_max : float
        The largest finite value of the float8 type.
    margin : int
        Number of powers of two to leave free above `amax`.

    Examples
    --------
    >>> float(compute_float8_scale(896.0, 1.0, 448.0)), float(compute_float8_scale(0.0, 3.0, 448.0))
    (2.0, 3.0)
    """
    largest, kept = (cast(value, "float32") for value in (amax, scale))
    with np.errstate(over="ignore", under="ignore"):
        new = np.ldexp(largest, margin) / np.float32(dtype_max)
    return np.where((new > 0) & np.isfinite(new), new, kept)


@shown("{}([1.0, -5.0], [4.0, 3.0, 2.0]).tolist()", "[5.0, 2.0, 4.0]")
def compute_float8_amax_history(x: ArrayLike, amax_history: ArrayLike) -> Array:
    """Return the history rolled by one place, with ``max|x|`` at index 0, in float32.

    If `x` has a NaN, the maximum is NaN; :func:`compute_float8_scale` then keeps the scale.

    Parameters
    ----------
    x : array-like
        Any shape.
    amax_history : array-like
        Shape (length, ...); the length is at least 1.
    """
    past = cast(amax_history, "float32")
    if past.ndim == 0 or len(past) == 0:
        raise ValueError(f"`amax_history` must have at least one entry; received shape {past.shape}")
    history = np.roll(past, -1, axis=0)
    history[0] = np.abs(cast(x, "float32")).max(initial=0)
    return history


@recordable
@with_numbers
@shown('{}([1.0, 1000.0], 2.0, "float8_e4m3fn", "float32").tolist()', "[1.0, 896.0]")
def quantize_and_dequantize(
    inputs: ArrayLike, scale: ArrayLike, quantized_dtype: DTypeLike, compute_dtype: DTypeLike
) -> Array:
    """Round `inputs` to float8: divide by `scale`, clip, round to float8, multiply by `scale`.

    Parameters
    ----------
    inputs, scale : array-like
        Floats; they are cast to `compute_dtype`.
    quantized_dtype : {"float8_e4m3fn", "float8_e5m2"}
    compute_dtype : dtype
        The dtype of the arithmetic and of the result.

    Notes
    -----
    Infinities are clipped too; NaN stays NaN. The gradient passes straight through, also where inputs are clipped.
    """
    target = dtypes.parse(quantized_dtype, "quantized_dtype")
    if target.name not in ("float8_e4m3fn", "float8_e5m2"):
        raise ValueError(f"`quantized_dtype` must be float8_e4m3fn or float8_e5m2; received {target.name}")
    compute = dtypes.parse(compute_dtype, "compute_dtype")
    if not dtypes.is_float(compute):
        raise TypeError(f"`compute_dtype` must be a float type; received {compute.name}")
    x, factor = (
        cast(x, compute) if isinstance(x, np.ndarray) else constant(np.asarray(asarray(x), compute))
        for x in (inputs, scale)
    )
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        codes = cast(combined("divide", x, factor, compute), target, saturate=True)
        return combined("multiply", cast(codes, compute), factor, compute)


@recordable
@with_numbers
def delayed_float8(x: Array, scale: Array, history: Array, compute_dtype: DTypeLike, training: bool) -> Array:
    """Round an operand of a product to float8_e4m3fn by :func:`quantize_and_dequantize` with the current scale.

    The gradient passes straight through. In training the "gradients" of the float32 scale, shape (), and history, shape
    (length,), are their next values: the scale computed from the old history, and the history with the largest
    magnitude of `x` added.

    Examples
    --------
    >>> delayed_float8(np.float32([1.0, 17.0]), np.float32(1), np.zeros(4, np.float32), "float32", True)
    array([ 1., 16.], dtype=float32)
    """
    return quantize_and_dequantize(x, scale, "float8_e4m3fn", compute_dtype)


@recordable
@with_numbers
@shown("{}(np.float32([1.0, 17.0]), np.float32(1), np.zeros(4, np.float32))", "array([ 1., 17.], dtype=float32)")
def with_float8_gradient(x: Array, scale: Array, history: Array) -> Any:
    """Return `x`; in the backward pass, its gradient is rounded to float8_e5m2 with the current scale.

    The "gradients" of scale and history are their next values, as for :func:`delayed_float8`: the largest magnitude of
    the gradient of `x` is added to the history.
    """
    return copied(x)
