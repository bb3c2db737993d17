"""Pad arrays with constant elements."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mp_core.arrays import Array, in_order_of, memory_order
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import copy_into, filled
from mp_core.ops import specs
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import kind_of
from mp_core.utilities.docstrings import shown

__all__ = ["folded", "pad", "pad_zeros"]


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
    order = memory_order(x)
    if order is not None:
        return in_order_of(order, pad(x.transpose(order), [pairs[axis] for axis in order], value))
    shape = tuple(before + length + behind for length, (before, behind) in zip(x.shape, pairs, strict=True))
    out: Array = filled(shape, x.dtype, value)
    inner = tuple(slice(before, before + length) for length, (before, _) in zip(x.shape, pairs, strict=True))
    copy_into(out[inner], x)
    return out


def folded(combine: Callable[[Array, Array], Array], x: Array, axes: Iterable[int], fill: float) -> Array:
    """Combine both halves of each axis until one element is left; `fill` extends axes to a power of two.

    Examples
    --------
    >>> folded(np.multiply, np.array([[2.0, 3.0, 4.0]]), (1,), 1.0)
    array([[24.]])
    """
    for axis in axes:
        length, before = 1 << max(x.shape[axis] - 1, 0).bit_length(), (slice(None),) * axis
        if length > x.shape[axis]:
            x = pad(x, [(0, length - n if place == axis else 0) for place, n in enumerate(x.shape)], fill)
        while length > 1:
            length //= 2
            x = combine(x[(*before, slice(length))], x[(*before, slice(length, None))])
    return x
