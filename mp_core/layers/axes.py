"""Axes that a layer treats as one: moved to the end, joined, and back."""

import math
from collections.abc import Sequence

import numpy as np

from mp_core.arrays import Array

__all__ = ["as_last", "from_last"]


def as_last(x: Array, axes: Sequence[int]) -> Array:
    """Return `x` with `axes` moved to the end and joined to one."""
    x = np.moveaxis(x, axes, range(-len(axes), 0))
    return x.reshape(*x.shape[: x.ndim - len(axes)], math.prod(x.shape[x.ndim - len(axes) :]))


def from_last(rows: Array, axes: Sequence[int], shape: tuple[int, ...]) -> Array:
    """Return an array of this shape, of which :func:`as_last` makes `rows`."""
    x = rows.reshape(rows.shape[:-1] + tuple(shape[axis] for axis in axes))
    return np.moveaxis(x, range(-len(axes), 0), axes)
