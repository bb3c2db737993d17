"""Functions of rows: softmax, log softmax, layer norm and RMS norm."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import (
    F32,
    F64,
    FORMATS,
    Array,
    as_float,
    as_mask,
    as_vector,
    asarray,
    cast,
    check_out,
    contiguous,
    imported_all,
    imported_out,
    may_overlap,
)
from mp_core.arrays.products import float64
from mp_core.arrays.recorded import recordable
from mp_core.core import pointwise as _pointwise
from mp_core.core.convert import copied, copy_into
from mp_core.ops import specs
from mp_core.ops.axes import several_axes
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axes_of, axis_of, integer, number
from mp_core.utilities.docstrings import shown

__all__ = [
    "checked_scale",
    "contiguous_rows",
    "layer_norm",
    "log_softmax",
    "rms_norm",
    "softmax",
]

_LARGEST = (float(np.finfo(F32).max), float(np.finfo(F64).max))


@operation(specs.rows, options="axis", home="nn")
@several_axes
@recordable
@shown("{}(np.zeros(4, np.float32), mask=[True, True, False, False])", "array([0.5, 0.5, 0. , 0. ], dtype=float32)")
def softmax(
    x: ArrayLike,
    *,
    axis: int | Sequence[int] = -1,
    scale: float = 1.0,
    mask: ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Return ``exp(scale * x)`` divided by its sum along `axis`, computed in float32.

    Parameters
    ----------
    x : array-like
        Float, any shape with at least one axis.
    axis : int or sequence of int
        The axis along which the result sums to 1. Several axes are treated as one.
    scale : float
        A factor for `x` (in attention ``1 / sqrt(key_dim)``).
    mask : array-like of bool or integers 0 and 1, optional
        Broadcastable against `x`. Elements where it is False (0) are left out: the result is 0 there, whatever `x` is.
        A row without any True gives zeros, as in Keras.
    out : ndarray or tensor, optional
        Where to put the result: the shape and type of `x`. It may be `x` itself.

    Returns
    -------
    ndarray
        The shape and type of `x`. A row is NaN if it has NaN or +Inf, or only -Inf, not counting masked elements.

    Raises
    ------
    ValueError
        `mask` has numbers other than 0 and 1, or the shapes do not fit.
    """
    axis, scale = integer(axis, "axis"), number(scale, "scale")
    held = imported_out(out)
    x, mask = imported_all(("x", "mask"), x, mask)
    x = as_float(x)
    axis = axis_of(axis, x.ndim)
    checked_scale(scale, x.dtype is F64)
    keep = None if mask is None else _mask(mask, x.shape)
    result = np.empty(x.shape, x.dtype) if held is None else check_out(held, x.shape, x.dtype)
    if x.size == 0:
        return result if out is None else out
    if x.dtype is F64:
        np.copyto(result, float64.softmax(x, axis, scale, keep))
        return result if out is None else out
    if axis != x.ndim - 1:
        x = np.moveaxis(x, axis, -1)
        keep = None if keep is None else np.moveaxis(keep, axis, -1)
    if keep is not None and (keep.strides[-1] != 1 or (out is not None and np.may_share_memory(keep, result))):
        keep = copied(keep)
    view = np.moveaxis(result, axis, -1) if axis != result.ndim - 1 else result
    x, work = contiguous_rows(x, view)
    fmt = FORMATS[x.dtype]
    _pointwise.softmax(fmt, x, work, scale, keep)
    if work is not view:
        copy_into(view, work)
    return result if out is None else out


@operation(specs.rows, options="axis", home="nn")
@several_axes
@recordable
def log_softmax(x: ArrayLike, *, axis: int | Sequence[int] = -1) -> Array:
    """Return the logarithm of the softmax: ``y - log(sum(exp(y)))`` with ``y = x - max(x)``.

    Parameters
    ----------
    x : array-like
        Float, any shape with at least one axis.
    axis : int or sequence of int
        The axis along which the exponentials of the result sum to 1. Several axes are treated as one.

    Returns
    -------
    ndarray
        The shape and type of `x`, computed in float32. A row with NaN or +Inf, or with only -Inf, gives NaN.

    Examples
    --------
    >>> log_softmax(np.array([0.0, 0.0, -1000.0], np.float32))
    array([-6.9314718e-01, -6.9314718e-01, -1.0006932e+03], dtype=float32)
    """
    x = as_float(x)
    axis = axis_of(integer(axis, "axis"), x.ndim)
    if x.size == 0 or x.dtype is F64:
        return x.copy() if x.size == 0 else float64.log_softmax(x, axis)
    rows = contiguous(np.moveaxis(x, axis, -1))
    out = np.empty(rows.shape, x.dtype)
    _pointwise.log_softmax(FORMATS[x.dtype], rows, out)
    return out if axis == x.ndim - 1 else contiguous(np.moveaxis(out, -1, axis))


@recordable
def layer_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-3,
    residual: ArrayLike | None = None,
    out: Array | None = None,
) -> Array:
    """Return `x` (+ `residual`) normalized along axes: ``(x - mean) / sqrt(var + epsilon) * gamma + beta``.

    Parameters
    ----------
    x : array-like
        Float, any shape with at least one axis.
    gamma, beta : array-like, optional
        Scale and offset, float. Their shape has the lengths of the axes, in the order of `x`.
    axis : int or sequence of int
        The axes over which mean and variance are computed. Several axes are treated as one.
    epsilon : float
        Added to the variance, which is the mean of the squared deviations.
    residual : array-like, optional
        The shape of `x`. It is cast to the type of `x`, then added in float32 first.
    out : ndarray or tensor, optional
        Where to put the result: the shape and type of `x`. It may be `x` itself.

    Returns
    -------
    ndarray
        The shape and type of `x`. Sums for mean and variance are float32 (float64 for float64).

    Examples
    --------
    >>> layer_norm(np.array([1, 3], np.float16), epsilon=0.0)
    array([-1.,  1.], dtype=float16)
    >>> layer_norm(np.array([[1, 3], [3, 1]], np.float32), axis=(0, 1), epsilon=0.0)
    array([[-1.,  1.],
           [ 1., -1.]], dtype=float32)
    """
    axes, epsilon = _axes(axis), number(epsilon, "epsilon", 0.0)
    held = imported_out(out)
    x, gamma, beta, residual = imported_all(("x", "gamma", "beta", "residual"), x, gamma, beta, residual)
    x = as_float(x)
    if x.ndim == 0:
        raise ValueError("`x` must have at least 1 axis; received shape ()")
    if type(axes) is tuple:
        vectors = {"gamma": gamma, "beta": beta}
        joined = _joined(layer_norm, x, axes, vectors, held, epsilon=epsilon, residual=residual)
        return joined if out is None else out
    axis = axis_of(axes, x.ndim)
    n = x.shape[axis]
    scale = None if gamma is None else as_vector(gamma, n, "gamma")
    offset = None if beta is None else as_vector(beta, n, "beta")
    other = None
    if residual is not None:
        other = as_float(residual, "residual")
        if other.shape != x.shape:
            raise ValueError(f"`residual` must have shape {x.shape}; received {other.shape}")
        other = other if other.dtype is x.dtype else cast(other, x.dtype)
    result = np.empty(x.shape, x.dtype) if held is None else check_out(held, x.shape, x.dtype)
    view = result
    if axis != x.ndim - 1:
        x, view = np.moveaxis(x, axis, -1), np.moveaxis(result, axis, -1)
        other = None if other is None else np.moveaxis(other, axis, -1)
    if x.dtype is F64:
        np.copyto(view, float64.layer_norm(x if other is None else x + other, gamma, beta, epsilon))
        return result if out is None else out
    other = None if other is None else contiguous(other)
    if out is not None:
        other, scale, offset = (
            part.copy() if part is not None and np.may_share_memory(part, result) else part
            for part in (other, scale, offset)
        )
    x, work = contiguous_rows(x, view)
    fmt = FORMATS[x.dtype]
    _pointwise.layer_norm(fmt, x, work, epsilon, scale, offset, other)
    if work is not view:
        copy_into(view, work)
    return result if out is None else out


@recordable
@shown("{}(np.array([1, 7], np.float16), [1.0, 0.5], epsilon=0.0)", "array([0.2, 0.7], dtype=float16)")
def rms_norm(
    x: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-6,
    out: Array | None = None,
) -> Array:
    """Return `x` divided by its root mean square along axes: ``x / sqrt(mean(x**2) + epsilon) * gamma``.

    Parameters
    ----------
    x : array-like
        Float, any shape with at least one axis.
    gamma : array-like, optional
        The scale, float. Its shape has the lengths of the axes, in the order of `x`.
    epsilon : float
        Added to the mean of the squares.
    axis, out
        As in :func:`layer_norm`.

    Returns
    -------
    ndarray
        The shape and type of `x`. The sum of squares is float32 (float64 for float64).
    """
    axes, epsilon = _axes(axis), number(epsilon, "epsilon", 0.0)
    held = imported_out(out)
    x, gamma = imported_all(("x", "gamma"), x, gamma)
    x = as_float(x)
    if type(axes) is tuple:
        joined = _joined(rms_norm, x, axes, {"gamma": gamma}, held, epsilon=epsilon)
        return joined if out is None else out
    axis = axis_of(axes, x.ndim)
    scale = None if gamma is None else as_vector(gamma, x.shape[axis], "gamma", F64 if x.dtype is F64 else F32)
    result = np.empty(x.shape, x.dtype) if held is None else check_out(held, x.shape, x.dtype)
    view = result
    if axis != x.ndim - 1:
        x, view = np.moveaxis(x, axis, -1), np.moveaxis(result, axis, -1)
    if x.dtype is F64:
        np.copyto(view, float64.rms_norm(x, scale, epsilon))
        return result if out is None else out
    if out is not None and scale is not None and np.may_share_memory(scale, result):
        scale = scale.copy()
    x, work = contiguous_rows(x, view)
    _pointwise.rms_norm(FORMATS[x.dtype], x, work, epsilon, scale)
    if work is not view:
        copy_into(view, work)
    return result if out is None else out


def _axes(axis: Any) -> int | tuple[int, ...]:
    """Return the axes of a norm as a tuple of int, or a single axis as an int."""
    if isinstance(axis, int) or not isinstance(axis, Iterable):
        return integer(axis, "axis")
    axes = axes_of(axis)
    return axes[0] if len(axes) == 1 else axes


def _joined(
    norm: Callable[..., Array],
    x: Array,
    axes: tuple[int, ...],
    vectors: dict[str, Any],
    out: Array | None,
    **others: Any,
) -> Array:
    """Compute a norm along several axes, which are merged into one last axis; write into `out` if given."""
    places = sorted(axis_of(axis, x.ndim) for axis in axes)
    if not places or len(set(places)) < len(places):
        raise ValueError(f"`axis` must name axes, each once, of an array with {x.ndim} axes; received {axes}")
    order = [place for place in range(x.ndim) if place not in places] + places
    lengths = tuple(x.shape[place] for place in places)
    shape = *(x.shape[place] for place in order[: -len(places)]), math.prod(lengths)

    def rows(array: Array) -> Array:
        return contiguous(array.transpose(order)).reshape(shape)

    for name, vector in vectors.items():
        if vector is not None:
            vector = asarray(vector, name)
            if vector.shape != lengths:
                raise ValueError(f"`{name}` must have shape {lengths}; received {vector.shape}")
            vectors[name] = contiguous(vector).reshape(-1)
    if others.get("residual") is not None:
        residual = as_float(others["residual"], "residual")
        if residual.shape != x.shape:
            raise ValueError(f"`residual` must have shape {x.shape}; received {residual.shape}")
        others["residual"] = rows(residual)
    result = np.empty(x.shape, x.dtype) if out is None else check_out(out, x.shape, x.dtype)
    moved = result.transpose(order)
    target = moved.reshape(shape) if moved.flags.c_contiguous else np.empty(shape, x.dtype)
    norm(rows(x), **vectors, **others, out=target)
    if not moved.flags.c_contiguous:
        copy_into(moved, target.reshape(moved.shape))
    return result


def checked_scale(scale: float, is_float64: bool) -> float:
    """Return `scale`; raise ValueError unless it is finite in float32, or in float64 if `is_float64`."""
    if not abs(scale) <= _LARGEST[is_float64]:
        raise ValueError(f"`scale` must be finite in {F64 if is_float64 else F32}; received scale={scale}")
    return scale


def _mask(mask: ArrayLike, shape: tuple[int, ...]) -> Array:
    keep = as_mask(mask)
    try:
        return np.broadcast_to(keep, shape)
    except ValueError:
        raise ValueError(f"`mask` must broadcast to shape {shape}; received {keep.shape}") from None


def contiguous_rows(x: Array, out: Array) -> tuple[Array, Array]:
    """Return `x` and `out` as the row kernels take them; a new array replaces an `out` that they cannot write to."""
    if not out.flags.c_contiguous or not out.dtype.isnative or may_overlap(x, out):
        out = np.empty(x.shape, x.dtype)
    return contiguous(x), out
