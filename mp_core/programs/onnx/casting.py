"""Conversions between types."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import dtypes
from mp_core.programs.onnx.arguments import dtype_of, is_float
from mp_core.programs.registry import operator

__all__: list[str] = []


@operator("Cast")
def cast(x: Any, *, to: int, saturate: int = 1) -> Any:
    """Return an array in the type with this number."""
    return cast_like(x, np.empty(0, dtype_of(to)), saturate=saturate)


@operator("CastLike")
def cast_like(x: Any, like: Any, *, saturate: int = 1) -> Any:
    """Return an array in the type of another one."""
    dtype = np.dtype(like.dtype)
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return ops.not_equal(x, 0)
    is_clamped = bool(saturate) and dtypes.is_float(dtype) and dtype.itemsize == 1 and is_float(x)
    return ops.cast(x, dtype, saturate=is_clamped)
