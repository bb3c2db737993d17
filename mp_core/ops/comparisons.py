"""Elementwise comparisons of two arrays, under NumPy's and Keras' names."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import constant, recordable, with_numbers
from mp_core.ops import elementwise, specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.pairs import ERRORS, OPERANDS, operands
from mp_core.ops.registry import operation
from mp_core.utilities.docstrings import documented, shown

__all__ = ["equal", "greater", "greater_equal", "less", "less_equal", "not_equal"]

_TRUTHS = """
    Returns
    -------
    ndarray of bool
        Of the broadcast shape.
"""
_COMPARISONS = documented(OPERANDS.format(x="x1", y="x2"), _TRUTHS, ERRORS)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
@shown("{}([1.0, 2.0], 2)", "array([False,  True])")
def equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 == x2`` for each element; NaN equals nothing."""
    return _compared("equal", x1, x2)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
@shown("{}([1.0, 2.0, np.nan], [1.0, 3.0, np.nan])", "array([False,  True,  True])")
def not_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 != x2`` for each element; NaN equals nothing."""
    return _compared("not_equal", x1, x2)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
@shown("{}([1.0, 2.0, 3.0], 2)", "array([ True, False, False])")
def less(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 < x2`` for each element."""
    return _compared("less", x1, x2)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
@shown("{}([1.0, 2.0, 3.0], 2)", "array([ True,  True, False])")
def less_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 <= x2`` for each element."""
    return _compared("less_equal", x1, x2)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
def greater(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 > x2`` for each element.

    Examples
    --------
    >>> greater([[1], [2]], [0, 1, 2])  # rows against columns
    array([[ True, False, False],
           [ True,  True, False]])
    """
    return _compared("greater", x1, x2)


@operation(specs.compared, "x1 x2")
@_COMPARISONS
@shown("{}([1.0, 2.0, 3.0], 2)", "array([False,  True,  True])")
def greater_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return ``x1 >= x2`` for each element."""
    return _compared("greater_equal", x1, x2)


@recordable
@with_numbers
def _compared(name: str, x1: Any, x2: Any) -> Array:
    x, y = _as_read(x1, x2), _as_read(x2, x1)
    if is_float(x.dtype) or is_float(y.dtype):
        x, y, dtype = operands(x1, x2)
    else:
        dtype = np.result_type(x.dtype, y.dtype)
    return elementwise.compared(name, x, y, dtype=dtype)


def _as_read(x: Any, other: Any) -> Array:
    """Return an operand as an array; a Python number becomes uint64 if the other operand is, and it can be."""
    if type(x) is int and 0 <= x < 2**64 and getattr(other, "dtype", None) == np.uint64:
        return constant(np.asarray(x, np.uint64))
    return x if isinstance(x, np.ndarray) else constant(array_of(x))
