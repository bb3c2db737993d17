"""Functions that NumPy computes for layers: in float32 (float64 where an array is), rounded once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import dtypes, ops
from mp_core.arrays import F32, F64, Array

__all__ = ["floating", "rounded"]


def rounded(function: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``function(*arrays)`` of the widened arrays, rounded to `dtype`, by default that of the first array."""
    target = arrays[0].dtype if dtype is None else dtype
    wide = F64 if any(x.dtype == F64 for x in arrays) else F32
    with np.errstate(all="ignore"):  # infinities and NaN are results here
        return ops.cast(function(*(ops.cast(x, wide) for x in arrays)), target)


def floating(x: Array, dtype: Any) -> Array:
    """Return integers and booleans in `dtype`, floats as they are."""
    return x if dtypes.is_float(x.dtype) else ops.cast(x, dtype)
