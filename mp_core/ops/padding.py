"""Constant elements around arrays."""

from collections.abc import Sequence

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import copy_into, filled
from mp_core.utilities.arguments import integer, kind_of

__all__ = ["pad", "pad_zeros"]


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

    Raises
    ------
    TypeError
        `x` is no ndarray, or a width no integer.
    ValueError
        `widths` are not two for each axis, from 0 on.

    Examples
    --------
    >>> import numpy as np
    >>> pad_zeros(np.array([1.0, 2.0]), [(1, 2)])
    array([0., 1., 2., 0., 0.])
    """
    return pad(x, widths, 0.0)


@recordable
def pad(x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
    """Return `x` with elements of a constant `value` before and behind its own, as :func:`pad_zeros`.

    Examples
    --------
    >>> import numpy as np
    >>> pad(np.array([1.0, 2.0]), [(1, 0)], -np.inf)
    array([-inf,   1.,   2.])
    """
    if not isinstance(x, np.ndarray):
        raise TypeError(f"`x` must be an ndarray; received {kind_of(x)}")
    pairs = [tuple(integer(width, "widths") for width in pair) for pair in widths]
    if len(pairs) != x.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ValueError(f"`widths` must be two numbers from 0 on for each of {x.ndim} axes; received {widths}")
    shape = tuple(before + length + behind for length, (before, behind) in zip(x.shape, pairs, strict=True))
    out: Array = filled(shape, x.dtype, value)
    inner = tuple(slice(before, before + length) for length, (before, _) in zip(x.shape, pairs, strict=True))
    copy_into(out[inner], x)
    return out
