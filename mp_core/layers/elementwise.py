"""Compute NumPy functions for layers: in float32 (float64 if an array has it), rounded once."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, dtypes
from mp_core.arrays.floats import as_float

__all__ = ["floating", "rounded"]


def rounded(function: Callable[..., Any], *arrays: Array, dtype: Any = None) -> Array:
    """Return ``function(*arrays)``, computed on widened arrays and rounded to `dtype` (default: the first array's).

    The function must not write to its arguments, which may be `arrays` themselves. A plan records its operators, and
    the NumPy functions that are in :data:`mp_core.arrays.recorded.BIT_EQUAL_FUNCTIONS`; these are called with float32
    arrays.
    """
    arrays = tuple(x if hasattr(x, "dtype") else as_float(x) for x in arrays)
    target = arrays[0].dtype if dtype is None else dtype
    wide = F64 if any(x.dtype == F64 for x in arrays) else F32
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        return _cast(function(*(_cast(x, wide) for x in arrays)), target)


def _cast(x: Array, dtype: Any) -> Array:
    """Return an array in a dtype; an ndarray that has the dtype is returned unchanged."""
    return x if x.__class__ is np.ndarray and x.dtype == dtype else ops.cast(x, dtype)


def floating(x: Array, dtype: Any) -> Array:
    """Cast integers and booleans to `dtype`; return floats unchanged."""
    return x if dtypes.is_float(x.dtype) else ops.cast(x, dtype)
