"""Floats rounded as integers of few bits would hold them: Keras' function, with Keras' words."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import dtypes
from mp_core.arrays import Array, asarray, cast
from mp_core.utilities.arguments import axis_of, integer


def fake_quant_with_min_max_vars(
    inputs: ArrayLike,
    min_vals: ArrayLike,
    max_vals: ArrayLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Array:
    """Return `inputs` as integers of `num_bits` bits hold them that cover the range from `min_vals` to `max_vals`.

    The range is nudged so that 0 is one of the integers. In float32 (float64 for float64 inputs)::

        low, high = (1 if narrow_range else 0), 2**num_bits - 1
        scale, inverse = (max - min) / (high - low), (high - low) / (max - min)
        zero = clip(round(low - min / scale), low, high)
        least, most = (low - zero) * scale, (high - zero) * scale
        result = floor((clip(x, least, most) - least) * inverse - floor(-least * inverse + 0.5) + 0.5) * scale

    Parameters
    ----------
    inputs : array-like
        Integers become Keras' floatx.
    min_vals, max_vals : array-like
        One number each or, with `axis`, one for each index along it.
    num_bits : int
        From 2 to 16.
    narrow_range : bool
        Leave out the lowest integer.
    axis : int, optional
        The axis along which the range varies.

    Returns
    -------
    ndarray
        In the type of `inputs`; 0 where ``min_vals == max_vals``. NaN stays NaN.

    Raises
    ------
    TypeError
        An argument is of another type.
    ValueError
        `num_bits` or `axis` is out of range, ``min_vals > max_vals``, a range is too wide or narrow for the type of the
        computation, or there is not one for each index.

    Examples
    --------
    >>> fake_quant_with_min_max_vars([-1.0, 0.3, 9.0], 0.0, 3.0, num_bits=2).tolist()
    [0.0, 0.0, 3.0]
    """
    num_bits = integer(num_bits, "num_bits")
    if not 2 <= num_bits <= 16:
        raise ValueError(f"`num_bits` should be in the range [2, 16]. Received: num_bits={num_bits}")
    given = asarray(inputs, "inputs")
    if not dtypes.is_float(given.dtype):
        given = cast(given, dtypes.floatx())
    compute = given.dtype if given.dtype.name == "float64" else dtypes.parse("float32")
    shape = [1] * given.ndim
    if axis is not None:
        axis = axis_of(axis, given.ndim)
        shape[axis] = given.shape[axis]
    x = cast(given, compute)
    least, most = (
        _bounds(value, compute, shape, name) for name, value in (("min_vals", min_vals), ("max_vals", max_vals))
    )
    if not np.all(least <= most):
        raise ValueError(f"`min_vals` must not be greater than `max_vals`; received {least} and {most}")
    low, high = compute.type(bool(narrow_range)), compute.type(2**num_bits - 1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scale, inverse = (most - least) / (high - low), (high - low) / (most - least)
        if not np.all((least == most) | (inverse > 0) & (inverse < np.inf)):
            raise ValueError(
                f"`max_vals` - `min_vals` must be finite and have a reciprocal in {compute}; received {most - least}"
            )
        zero = np.clip(np.rint(low - least / scale), low, high)
        start, end = (low - zero) * scale, (high - zero) * scale
        steps = (np.clip(x, start, end) - start) * inverse - np.floor(-start * inverse + compute.type(0.5))
        result = np.where(most > least, np.floor(steps + compute.type(0.5)) * scale, np.where(np.isnan(x), x, 0))
    return cast(result, given.dtype)


def _bounds(value: ArrayLike, dtype: np.dtype[Any], shape: list[int], argument: str) -> Array:
    """Return one number, or one for each index along the only long axis of `shape`, in a shape that broadcasts."""
    bounds = cast(asarray(value, argument), dtype)
    if bounds.size == 1:
        return bounds.reshape([1] * len(shape))
    if bounds.shape != (prod(shape),):
        raise ValueError(f"`{argument}` must be one number, or with `axis` one for each index; received {bounds.shape}")
    return bounds.reshape(shape)
