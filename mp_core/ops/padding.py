"""Pad arrays with a constant, or with their own elements."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mp_core.arrays import Array, in_order_of, memory_order
from mp_core.arrays.recorded import recordable
from mp_core.core.convert import copy_into, filled
from mp_core.ops import specs
from mp_core.ops.arrangement import broadcast_to
from mp_core.ops.elementwise import concatenated
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import kind_of
from mp_core.utilities.docstrings import shown

__all__ = ["filled_around", "folded", "pad", "pad_zeros"]


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


@operation(specs.padded, "x value", {"pad_width": "widths", "mode": "mode"}, names={"value": "constant_values"})
@shown(
    '{}(np.array([1.0, 2.0]), [(1, 0)], -np.inf), pad(np.array([1.0, 2.0, 3.0]), 1, mode="reflect")',
    "(array([-inf,   1.,   2.]), array([2., 1., 2., 3., 2.]))",
)
def pad(x: Array, widths: int | Sequence[tuple[int, int]], value: float | None = None, mode: str = "constant") -> Array:
    """Pad `x` with a constant `value`, or with its own elements.

    Parameters
    ----------
    x : ndarray
        In native byte order.
    widths : int or sequence of (int, int)
        The numbers of elements before and after, for each axis. An integer or a single pair applies to all axes.
    value : float, optional
        For the mode "constant". Default: 0.
    mode : {"constant", "edge", "reflect", "symmetric", "wrap"}
        "constant": with `value`. The others are those of :func:`numpy.pad`: the element at the end; the elements before
        it, mirrored without or with that at the end; or those of the other end.

    Raises
    ------
    ValueError
        `mode` is another one, or an axis has no elements to repeat; or a `value` is given that `mode` does not use.
    """
    if mode == "constant":
        return filled_around(x, widths, 0.0 if value is None else value)
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"`mode` must be 'constant', 'edge', 'reflect', 'symmetric' or 'wrap'; received {mode!r}")
    if value is not None:
        raise ValueError(f"`value` must not be given with the mode {mode!r}; received {value!r}")
    padded: Callable[..., Array] = np.pad  # its stub allows no str as the mode
    for axis, pair in enumerate(specs.pad_widths(widths, x.ndim)):
        if any(pair):
            if x.shape[axis] == 0:
                raise ValueError(f"`x` must have elements along axis {axis}, which mode {mode!r} repeats")
            runs = _runs(padded(np.arange(x.shape[axis]), pair, mode).tolist())
            x = concatenated(*(_part(x, axis, *run) for run in runs), axis=axis)
    return x


def _runs(places: list[int]) -> list[tuple[int, int, int]]:
    """Divide places into runs: (the first place; the step to the next one, -1, 0 or 1; their number)."""
    runs: list[tuple[int, int, int]] = []
    for place in places:
        first, step, count = runs[-1] if runs else (place, 0, 0)
        if count == 1 and abs(place - first) <= 1:
            runs[-1] = first, place - first, 2
        elif count > 1 and place == first + count * step:
            runs[-1] = first, step, count + 1
        else:
            runs.append((place, 1, 1))
    return runs


def _part(x: Array, axis: int, first: int, step: int, count: int) -> Array:
    """Return a view of places along an axis; the step is -1, 0 or 1."""
    before, end = (slice(None),) * axis, first + step * count
    if step == 0:
        shape = tuple(count if place == axis else n for place, n in enumerate(x.shape))
        return broadcast_to(x[(*before, slice(first, first + 1))], shape)
    return x[(*before, slice(first, end if end >= 0 else None, step))]


@recordable
@shown("{}(np.array([1.0, 2.0]), [(1, 0)], -np.inf)", "array([-inf,   1.,   2.])")
def filled_around(x: Array, widths: int | Sequence[tuple[int, int]], value: float) -> Array:
    """Return `x` with a constant around it: see :func:`pad`."""
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
