"""Shapes, and arrays in another shape."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.programs.registry import operator


@operator("Shape", since=15)
@operator("Shape")
def shape(x: Any, *, start: int = 0, end: int | None = None) -> Array:
    """Return the lengths of the axes, a constant of the plan."""
    return np.array(x.shape[start:end], np.int64)


@operator("Transpose")
def transpose(x: Any, *, perm: tuple[int, ...] | None = None) -> Any:
    """Return a view with the axes in another order; default: reversed."""
    return ops.transpose(x, perm)
