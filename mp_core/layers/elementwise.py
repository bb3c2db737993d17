"""Functions that NumPy computes for layers: in float32 (float64 where an array is), rounded once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, F64, Array
from mp_core.arrays.floats import as_float

__all__ = ["floating", "rounded"]


def rounded(function: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``function(*arrays)`` of the widened arrays, rounded to `dtype`, by default that of the first array.

    The function must not write to its arguments, which may be `arrays` themselves. A plan sees what it computes by
    operators, and by the functions of NumPy in :data:`mp_core.arrays.recorded.BIT_EQUAL_FUNCTIONS`: it is called with
    float32 arrays.
    """
    arrays = tuple(x if hasattr(x, "dtype") else as_float(x) for x in arrays)
    target = arrays[0].dtype if dtype is None else dtype
    wide = F64 if any(x.dtype == F64 for x in arrays) else F32
    with np.errstate(all="ignore"):  # infinities and NaN are results here
        return _cast(function(*(_cast(x, wide) for x in arrays)), target)


def _cast(x: Array, dtype: Any) -> Array:
    """Return an array of a type as it is, recorded or not, and everything else as such an array."""
    return x if x.__class__ is np.ndarray and x.dtype == dtype else ops.cast(x, dtype)


def floating(x: Array, dtype: Any) -> Array:
    """Return integers and booleans in `dtype`, floats as they are."""
    return x if dtypes.is_float(x.dtype) else ops.cast(x, dtype)
