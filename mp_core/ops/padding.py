"""Zeros around arrays."""

from collections.abc import Sequence

from mp_core.arrays import Array
from mp_core.core.convert import copy_into, zeros
from mp_core.recorded import recordable

__all__ = ["pad_zeros"]


@recordable
def pad_zeros(x: Array, widths: Sequence[tuple[int, int]]) -> Array:
    """Return `x` with zeros before and behind its elements along each axis.

    Parameters
    ----------
    x : ndarray
        In native byte order.
    widths : sequence of (int, int)
        How many zeros before and behind, for each axis.

    Returns
    -------
    ndarray
        A new array.

    Examples
    --------
    >>> import numpy as np
    >>> pad_zeros(np.array([1.0, 2.0]), [(1, 2)])
    array([0., 1., 2., 0., 0.])
    """
    shape = tuple(before + length + behind for length, (before, behind) in zip(x.shape, widths, strict=True))
    out: Array = zeros(shape, x.dtype)
    inner = tuple(slice(before, before + length) for length, (before, _) in zip(x.shape, widths, strict=True))
    copy_into(out[inner], x)
    return out
