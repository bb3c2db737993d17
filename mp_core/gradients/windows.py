"""Gradients of arrays of which views with repeated elements were taken: the windows of convolutions, and broadcasts."""

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mp_core.arrays import F32, F64, FORMATS, Array, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import filled
from mp_core.core.pairs import add_windows

__all__ = ["added_windows", "repeats"]


def repeats(x: Array) -> bool:
    """Return whether a view may have an element of its memory several times.

    Examples
    --------
    >>> x = np.zeros((4, 6))
    >>> from numpy.lib.stride_tricks import sliding_window_view
    >>> repeats(x[::2, ::-1]), repeats(sliding_window_view(x, 3, axis=1)), repeats(np.broadcast_to(x, (2, 4, 6)))
    (False, True, True)
    """
    reach = 0
    for stride, length in sorted((abs(s), n) for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (length - 1)
    return False


@recordable
def added_windows(x: Array, elements: int, first: int, strides: tuple[int, ...], dtype: Any) -> Array:
    """Return the gradient of a buffer from that of a view in which elements repeat.

    ``result[first + sum(index * strides)]`` is the sum of ``x[index]`` over all such indices, in C order, in float32.

    Parameters
    ----------
    x : ndarray of float
    elements : int
        How many the buffer has.
    first : int
        The element at which the view begins.
    strides : tuple of int
        In elements.
    dtype : dtype
        That of the result: sums are rounded once.

    Returns
    -------
    ndarray, shape (elements,)

    Examples
    --------
    >>> added_windows(np.ones((3, 2), np.float32), 4, 0, (1, 1), np.dtype(np.float32))
    array([1., 2., 2., 1.], dtype=float32)
    """
    out = filled((elements,), F64 if x.dtype is F64 else F32, 0.0)
    to = as_strided(out[first:], x.shape, [stride * out.itemsize for stride in strides])
    if x.dtype is F64:
        np.add.at(out, first + np.tensordot(strides, np.indices(x.shape), 1), x)
    elif x.size:
        add_windows(FORMATS[x.dtype], contiguous(x), to)
    return out if out.dtype is dtype else cast(out, dtype)
