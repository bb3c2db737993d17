"""Pad arrays with constant elements."""

from collections.abc import Sequence

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import copy_into, filled
from mp_core.ops import specs
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import kind_of
from mp_core.utilities.docstrings import shown

__all__ = ["pad", "pad_zeros"]


def pad_zeros(x: Array, widths: int | Sequence[tuple[int, int]]) -> Array:
    """Pad `x` with zeros before and after its elements along each axis.

    Parameters
    ----------
    x : ndarray
        In native byte order.
    widths : int or sequence of (int, int)
        The numbers of zeros before and after, for each axis. An integer or a single pair applies to all axes.

    Examples
    --------
    >>> import numpy as np
    >>> pad_zeros(np.array([1.0, 2.0]), [(1, 2)])
    array([0., 1., 2., 0., 0.])
    """
    return pad(x, widths, 0.0)


@operation(
    specs.padded, "x value", {"pad_width": "widths"}, names={"value": "constant_values"}, fixed={"mode": ("constant",)}
)
@recordable
@shown("{}(np.array([1.0, 2.0]), [(1, 0)], -np.inf)", "array([-inf,   1.,   2.])")
def pad(x: Array, widths: int | Sequence[tuple[int, int]], value: float = 0.0) -> Array:
    """Pad `x` with a constant `value`; see :func:`pad_zeros`."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"`x` must be an ndarray; received {kind_of(x)}")
    pairs = specs.pad_widths(widths, x.ndim)
    shape = tuple(before + length + behind for length, (before, behind) in zip(x.shape, pairs, strict=True))
    out: Array = filled(shape, x.dtype, value)
    inner = tuple(slice(before, before + length) for length, (before, _) in zip(x.shape, pairs, strict=True))
    copy_into(out[inner], x)
    return out
