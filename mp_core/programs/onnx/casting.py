"""Conversions between types."""

from typing import Any, Literal

import ml_dtypes
import numpy as np

from mp_core import ops
from mp_core.programs.onnx.arguments import dtype_of, is_float
from mp_core.programs.registry import Shaped, operator

__all__ = ["Number"]


Number = Literal[1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16, 17, 18, 19, 20, 21, 22, 23, 24]
"""ONNX' numbers of the types that mp_core has: all but strings, complex numbers and integers of 2 bits."""


@operator("Cast")
def cast(x: Any, *, to: Number, saturate: int = 1) -> Any:
    """Return an array in the type with this number."""
    return cast_like(x, np.empty(0, dtype_of(to)), saturate=saturate)


@operator("CastLike")
def cast_like(x: Any, like: Shaped, *, saturate: int = 1) -> Any:
    """Return an array in the type of another one."""
    dtype = np.dtype(like.dtype)
    if x.dtype == dtype:
        return x
    if dtype == np.bool_:
        return ops.not_equal(x, 0)
    if saturate and dtype.name.startswith("float8") and is_float(x):
        largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        x = ops.clip(x, -largest, largest)
    return ops.cast(x, dtype)
