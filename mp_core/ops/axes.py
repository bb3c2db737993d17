"""Treat several axes as one: move them to the end, merge them, and undo that."""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mp_core.arrays import Array, as_mask, check_out, imported_out
from mp_core.core.convert import copy_into
from mp_core.ops.arrangement import array_of
from mp_core.utilities.arguments import axes_of, axis_of

__all__ = ["as_last", "from_last", "several_axes"]


def as_last(x: Array, axes: Sequence[int]) -> Array:
    """Return `x` with `axes` moved to the end and merged into one."""
    x = np.moveaxis(x, axes, range(-len(axes), 0))
    return x.reshape(*x.shape[: x.ndim - len(axes)], math.prod(x.shape[x.ndim - len(axes) :]))


def from_last(rows: Array, axes: Sequence[int], shape: tuple[int, ...]) -> Array:
    """Undo :func:`as_last`: return an array of `shape` from its `rows`."""
    x = rows.reshape(rows.shape[:-1] + tuple(shape[axis] for axis in axes))
    return np.moveaxis(x, range(-len(axes), 0), axes)


def several_axes(operation: Callable[..., Array]) -> Callable[..., Array]:
    """Let an operation along one axis take several axes. They are merged into one; the first is the outermost."""

    @functools.wraps(operation)
    def along(x: Any, *, axis: Any = -1, **others: Any) -> Array:
        if type(axis) is int or not isinstance(axis, Iterable) or getattr(axis, "ndim", 1) == 0:
            return operation(x, axis=axis, **others)
        axes = axes_of(axis)
        if len(axes) == 1:
            return operation(x, axis=axes[0], **others)
        return _along_all(operation, array_of(x), axes, **others)

    return along


def _along_all(
    operation: Callable[..., Array], x: Array, axes: tuple[int, ...], mask: Any = None, out: Any = None, **others: Any
) -> Array:
    """Call an operation along several axes merged into one; write into `out` if given."""
    places = [axis_of(axis, x.ndim) for axis in axes]
    if not places or len(set(places)) < len(places):
        raise ValueError(f"`axis` must name axes, each once, of an array with {x.ndim} axes; received {axes}")
    if mask is not None:
        others["mask"] = as_last(np.broadcast_to(as_mask(mask, "mask"), x.shape), places)
    found = from_last(operation(as_last(x, places), **others), places, x.shape)
    held = imported_out(out)
    if held is None:
        return found
    copy_into(check_out(held, found.shape, found.dtype), found)
    return out  # type: ignore[no-any-return]
