"""Arguments of ONNX nodes: numbers of shapes and axes, types, and what follows from them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import dtypes
from mp_core.files.onnx.tensors import type_name

__all__ = [
    "axes_of", "cast_to", "dtype_of", "flattened", "integers", "is_float", "pairs_of", "value_of",
]  # fmt: skip


def integers(x: Any) -> tuple[int, ...]:
    """Return the numbers of a constant, such as a shape or a list of axes."""
    return tuple(int(n) for n in np.ravel(x))


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Return axes, counted from the first; an empty tuple for None."""
    found = () if axes is None else integers(axes)
    if any(not -rank <= axis < rank for axis in found):
        raise ValueError(f"`axes` must be from {-rank} to {rank - 1}; received {found}")
    return tuple(axis % rank for axis in found)


def value_of(x: Any) -> Any:
    """Return the Python number in an array of one element."""
    return x.item() if isinstance(x, np.ndarray | np.generic) else x


def is_float(x: Any) -> bool:
    """Return whether an array has floats."""
    return dtypes.is_float(x.dtype)


def dtype_of(number: int) -> np.dtype[Any]:
    """Return the dtype with a number of ONNX."""
    name = type_name(number)
    if name not in dtypes.ALLOWED and name not in dtypes.STORED:
        raise ValueError(f"{name} is not a type of numbers that mp_core has")
    return dtypes.dtype_of(name)


def cast_to(x: Any, dtype: Any) -> Any:
    """Return an array in another type; itself if it has this type."""
    return x if x.dtype == dtype else ops.cast(x, dtype)


def flattened(x: Any, axis: int) -> Any:
    """Return a matrix: the axes before `axis` are its rows."""
    return ops.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def pairs_of(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Return (before, after) for each axis from ONNX' list: all befores, then all afters."""
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:], strict=True))
