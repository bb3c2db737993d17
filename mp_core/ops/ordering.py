"""The order of elements along an axis, by NumPy or by a step of a plan: both give the same places."""

from typing import Any

import numpy as np

from mp_core.arrays import F32, Array, contiguous
from mp_core.arrays.conversion import STEP_FORMATS, wide_of
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import comes_from_input
from mp_core.core.lookup import find_order

__all__ = ["order_along", "place_of_extreme"]


def order_along(x: Array, axis: int, count: int, *, descending: bool = False) -> Array:
    """Return the places of the first `count` elements in sorted order along an axis, in int32.

    Equal elements keep their order; NaN is larger than any number.

    Examples
    --------
    >>> order_along(np.float32([3, 1, 2]), 0, 2, descending=True)
    array([0, 2], dtype=int32)
    """
    if comes_from_input(x):
        return _by_step(x, axis, count, descending, False)
    before, x = (slice(None),) * axis, _single(x)
    if not descending:
        return np.asarray(np.argsort(x, axis, stable=True)[(*before, slice(count))], np.int32)
    last_first = np.flip(np.argsort(np.flip(x, axis), axis, stable=True), axis)  # keeps the order of equal elements
    return np.asarray(x.shape[axis] - 1 - last_first[(*before, slice(count))], np.int32)


def place_of_extreme(name: str, x: Array, axis: int) -> Array:
    """Return the place of the largest ("argmax") or smallest ("argmin") element along an axis, which keeps length 1.

    It is the first of equal elements, or the first NaN; -0 is smaller than +0.

    Examples
    --------
    >>> place_of_extreme("argmin", np.float32([3, 1, 2]), 0)
    array([1], dtype=int32)
    """
    if comes_from_input(x):
        return _by_step(x, axis, 1, name == "argmax", True)
    if is_float(x.dtype):
        x = _single(x)
        x = np.where((x == 0) & np.signbit(x), -np.finfo(x.dtype).smallest_subnormal, x)
    return np.asarray(getattr(np, name)(x, axis, keepdims=True), np.int32)


def _single(x: Array) -> Array:
    """Return narrow floats in float32: NumPy does not know the NaN of types of ml_dtypes."""
    return x.astype(F32) if is_float(x.dtype) and x.dtype.itemsize < 4 else x


def _by_step(x: Array, axis: int, count: int, descending: bool, extreme: bool) -> Array:
    shape, wide = x.shape, wide_of(x.dtype)
    out = np.empty((*shape[:axis], count, *shape[axis + 1 :]), np.int32)
    if out.size:
        middle: Any = (int(np.prod(shape[:axis])), -1, int(np.prod(shape[axis + 1 :])))
        given, found = contiguous(x).reshape(middle), out.reshape(middle)
        find_order(STEP_FORMATS[x.dtype], wide, given, found, descending, extreme)
    return out
