"""Functions that NumPy computes for layers: in float32 (float64 where an array is), rounded once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, F64, Array
from mp_core.arrays.floats import as_float
from mp_core.arrays.recorded import is_recorded

__all__ = ["accumulate", "floating", "rounded"]


def rounded(function: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``function(*arrays)`` of the widened arrays, rounded to `dtype`, by default that of the first array.

    A plan sees what the function computes by operators and by functions of NumPy that
    :data:`mp_core.arrays.recorded.SEEN` has: it is called with float32 arrays.
    """
    arrays = tuple(x if hasattr(x, "dtype") else as_float(x) for x in arrays)
    target = arrays[0].dtype if dtype is None else dtype
    wide = F64 if any(x.dtype == F64 for x in arrays) else F32
    with np.errstate(all="ignore"):  # infinities and NaN are results here
        return _cast(function(*(_cast(x, wide) for x in arrays)), target)


def _cast(x: Array, dtype: Any) -> Array:
    """Return `x` in a type: as a copy, but itself in a recording, where nobody can write to it."""
    return x if is_recorded(x) and x.dtype == dtype else ops.cast(x, dtype)


def accumulate(total: Array, x: Array) -> Array:
    """Return ``total + x``, in place if `total` is no array of a recording."""
    if is_recorded(total, x):
        return total + x
    total += x
    return total


def floating(x: Array, dtype: Any) -> Array:
    """Return integers and booleans in `dtype`, floats as they are."""
    return x if dtypes.is_float(x.dtype) else ops.cast(x, dtype)
