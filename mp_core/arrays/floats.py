"""Convert arguments to float arrays, vectors and masks."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays.casting import cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.received import F32, Array, asarray, contiguous, refuse_masked
from mp_core.arrays.recorded import comes_from_input, is_recorded

__all__ = ["as_float", "as_mask", "as_vector"]


def as_float(x: Any, argument: str = "x") -> Array:
    """Return `x` as an array of a float type; integers and booleans become float32."""
    x = asarray(x, argument)
    return x if is_float(x.dtype) else cast(x, F32)


def as_vector(x: ArrayLike, n: int, argument: str, dtype: np.dtype[Any] = F32) -> Array:
    """Return a contiguous, aligned vector of n elements of type `dtype`."""
    if type(x) is np.ndarray and x.dtype is dtype and x.shape == (n,) and x.flags.c_contiguous and x.flags.aligned:
        return x
    array = as_float(x, argument)
    if array.shape != (n,):
        raise ValueError(f"`{argument}` must have shape {(n,)}; received {array.shape}")
    return np.require(contiguous(array), requirements="A") if array.dtype is dtype else cast(array, dtype)


def as_mask(mask: ArrayLike, argument: str = "mask", kinds: str = "biu") -> Array:
    """Return a mask as a bool array: True or 1 where an element counts. `kinds` are the allowed dtype kinds.

    In a plan, numbers other than 0 and 1 count too, since elements of inputs are not known.
    """
    if isinstance(mask, np.ndarray) and mask.dtype.kind in kinds and (is_recorded(mask) or comes_from_input(mask)):
        return mask if mask.dtype == np.bool_ else cast(mask, np.bool_)
    refuse_masked(mask, argument)
    given = np.asarray(mask)
    if given.dtype.kind not in kinds:
        raise TypeError(f"`{argument}` must be bool or integer, true where an element counts; received {given.dtype}")
    keep: Array = given.astype(bool, copy=False)
    if given.dtype != np.bool_ and not np.array_equal(keep, given):
        raise ValueError(
            f"`{argument}` must be 1 (True) where an element counts and 0 elsewhere; "
            f"received numbers from {given.min()} to {given.max()}"
        )
    return keep
