"""Comparisons of the elements of two arrays, by NumPy's and Keras' names."""

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import Array
from mp_core.arrays.recorded import recordable, takes_symbols, with_numbers
from mp_core.dtypes import is_float
from mp_core.ops import elementwise
from mp_core.ops.arrangement import array_of
from mp_core.ops.pairs import operands

__all__ = ["equal", "greater", "greater_equal", "less", "less_equal", "not_equal"]


@takes_symbols
def equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 == x2``; NaN is unequal to all.

    Parameters
    ----------
    x1, x2 : array-like
        As in :func:`mp_core.add`.

    Returns
    -------
    ndarray of bool
        Of the shape against which they broadcast.

    Raises
    ------
    TypeError, ValueError
        As :func:`mp_core.add`.

    Examples
    --------
    >>> equal([1.0, 2.0], 2)
    array([False,  True])
    """
    return _compared("equal", x1, x2)


@takes_symbols
def not_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 != x2``: see :func:`equal`.

    Examples
    --------
    >>> not_equal([1.0, 2.0, np.nan], [1.0, 3.0, np.nan])
    array([False,  True,  True])
    """
    return _compared("not_equal", x1, x2)


@takes_symbols
def less(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 < x2``: see :func:`equal`.

    Examples
    --------
    >>> less([1.0, 2.0, 3.0], 2)
    array([ True, False, False])
    """
    return _compared("less", x1, x2)


@takes_symbols
def less_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 <= x2``: see :func:`equal`.

    Examples
    --------
    >>> less_equal([1.0, 2.0, 3.0], 2)
    array([ True,  True, False])
    """
    return _compared("less_equal", x1, x2)


@takes_symbols
def greater(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 > x2``: see :func:`equal`.

    Examples
    --------
    >>> greater([[1], [2]], [0, 1, 2])  # rows against columns
    array([[ True, False, False],
           [ True,  True, False]])
    """
    return _compared("greater", x1, x2)


@takes_symbols
def greater_equal(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return where ``x1 >= x2``: see :func:`equal`.

    Examples
    --------
    >>> greater_equal([1.0, 2.0, 3.0], 2)
    array([False,  True,  True])
    """
    return _compared("greater_equal", x1, x2)


@recordable
@with_numbers
def _compared(name: str, x1: ArrayLike, x2: ArrayLike) -> Array:
    if not any(is_float(array_of(x).dtype) for x in (x1, x2)):  # which float32 would round
        return np.asarray(getattr(np, name)(array_of(x1), array_of(x2)))
    x, y, dtype = operands(x1, x2)
    return elementwise.compared(name, x, y, dtype=dtype)
