"""Gradients of operations on rows, and their rules: softmax, layer norm, RMS norm."""

import functools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, as_vector, cast, contiguous
from mp_core.arrays.recorded import recordable
from mp_core.core import pointwise as _pointwise
from mp_core.ops.gradients.registry import Summed, gradient_of, wide_type
from mp_core.ops.gradients.sums import BLOCK, rows_behind, summed_rows
from mp_core.ops.rows import layer_norm, log_softmax, rms_norm, softmax

__all__ = ["norm_gradient", "softmax_gradient"]


@recordable
def softmax_gradient(d: Array, y: Array, dtype: Any, axis: int = -1, scale: float = 1.0, is_log: bool = False) -> Array:
    """Return the gradient of a softmax `y`, ``(y (d - sum d y)) scale``, or of its logarithm, ``d - exp(y) sum d``.

    Parameters
    ----------
    d : ndarray of float
        The gradient of the softmax, of the shape and type of `y`.
    y : ndarray of float
    dtype : dtype
        That of the result, which is computed in float32 and rounded once.
    axis : int
        The axis along which `y` sums to 1.
    scale : float
        That of the softmax.
    is_log : bool
        Whether `y` is the logarithm; `scale` is 1 then.

    Returns
    -------
    ndarray
        The shape of `y`.

    Examples
    --------
    >>> softmax_gradient(np.float32([1, 0]), np.float32([0.5, 0.5]), np.float32)
    array([ 0.25, -0.25], dtype=float32)
    """
    dtype = np.dtype(dtype)
    if y.dtype == F64:
        if is_log:
            return cast(d - np.exp(y) * d.sum(axis, keepdims=True), dtype)
        return cast(y * (d - (d * y).sum(axis, keepdims=True)) * scale, dtype)
    rows, grown = (contiguous(np.moveaxis(x, axis, -1)) for x in (y, d))
    out = np.empty(rows.shape, dtype)
    if out.size:
        _pointwise.softmax_gradient((FORMATS[y.dtype], FORMATS[dtype]), rows, grown, out, scale, is_log)
    return contiguous(np.moveaxis(out, -1, axis))


@recordable
def norm_gradient(
    d: Array,
    x: Array,
    residual: Array | None,
    gamma: Array | None,
    *,
    is_centred: bool,
    axes: tuple[int, ...],
    epsilon: float,
) -> tuple[Array, Array | None]:
    """Return the gradient of what a norm has normalized, and `d` times the normalized elements.

    With r and the mean as the norm has computed them, ``n = (x + residual - mean) r`` and ``g = d gamma``, the gradient
    is ``r (g - mean(g) - n mean(g n))``, where ``mean(g)`` is left out if the norm is not centred.

    Parameters
    ----------
    d : ndarray of float
        The gradient of the result, of the shape and type of `x`.
    x, residual, gamma : ndarray or None
        As the norm was given them.
    is_centred : bool
        Whether it is a layer norm, or an RMS norm.
    axes : tuple of int
        Along which it takes the statistics: not negative, ascending.
    epsilon : float

    Returns
    -------
    gradient : ndarray
        The shape and type of `x`.
    shares : ndarray of float32 or None
        A matrix of `d` times n, whose columns are the elements of `gamma`; None without one.
    """
    rows, grown = rows_behind(x, axes), rows_behind(d, axes)
    other = None if residual is None else rows_behind(residual, axes)
    scale = None if gamma is None else as_vector(gamma.reshape(-1), rows.shape[1], "gamma", wide_type(x.dtype))
    if x.dtype == F64:
        y = rows if other is None else rows + other
        wide = _norm_gradient_float64(grown, y, scale, is_centred, epsilon)
        return _as_it_was(wide[0], x.shape, axes), wide[1]
    out = np.empty(rows.shape, x.dtype)
    shares = None if gamma is None else np.empty(rows.shape, F32)
    if out.size:
        formats = FORMATS[x.dtype], FORMATS[x.dtype]
        _pointwise.norm_gradient(formats, (rows, other, grown, out, shares), scale, epsilon, is_centred)
    return _as_it_was(out, x.shape, axes), shares


def _as_it_was(rows: Array, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """Return what :func:`rows_behind` has made a matrix in its old shape."""
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    moved = rows.reshape([shape[axis] for axis in order])
    return moved if order == sorted(order) else contiguous(moved.transpose(np.argsort(order)))


def _norm_gradient_float64(
    d: Array, y: Array, gamma: Array | None, is_centred: bool, epsilon: float
) -> tuple[Array, Array]:
    def mean(x: Array) -> Any:
        return x.mean(-1, keepdims=True)

    y = y - mean(y) if is_centred else y
    factor = 1.0 / np.sqrt(mean(y * y) + epsilon)
    n, g = y * factor, d if gamma is None else d * gamma
    return factor * (g - (mean(g) if is_centred else 0.0) - n * mean(g * n)), d * n


@gradient_of(softmax)
def _(d: Array, y: Array, x: Any, *, axis: int = -1, scale: float = 1.0, mask: Any = None) -> dict[str, Any]:
    return {"x": lambda dtype: softmax_gradient(d, y, dtype, axis, scale)}


@gradient_of(log_softmax)
def _(d: Array, y: Array, x: Any, *, axis: int = -1) -> dict[str, Any]:
    return {"x": lambda dtype: softmax_gradient(d, y, dtype, axis, is_log=True)}


def _norm_rule(is_centred: bool, d: Array, x: Any, gamma: Any, axis: Any, epsilon: float, residual: Any) -> Any:
    x, residual, gamma = (None if part is None else _array(part) for part in (x, residual, gamma))
    axes = tuple(sorted(each % x.ndim for each in np.atleast_1d(axis).tolist()))
    residual = residual if residual is None or residual.dtype == x.dtype else cast(residual, x.dtype)
    options: dict[str, Any] = {"is_centred": is_centred, "axes": axes, "epsilon": float(epsilon)}
    parts: Callable[[], Any] = functools.cache(lambda: norm_gradient(d, x, residual, gamma, **options))
    lengths = tuple(x.shape[axis] for axis in axes)

    def of_input(dtype: Any) -> Array:
        gradient = parts()[0]
        return gradient if gradient.dtype == dtype else cast(gradient, dtype)

    return {
        "x": of_input,
        "residual": of_input,
        "gamma": Summed(
            x.size // max(prod(lengths), 1),
            BLOCK,
            lambda before: summed_rows(parts()[1], lengths).after(before),
            lambda rows: summed_rows(parts()[1], lengths).part(rows),
        ),
        "beta": summed_rows(d, lengths, axes),
    }


def _array(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else as_float(x)


@gradient_of(layer_norm)
def _(
    d: Array,
    y: Array,
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Any = -1,
    epsilon: float = 1e-3,
    residual: Any = None,
) -> dict[str, Any]:
    return _norm_rule(True, d, x, gamma, axis, epsilon, residual)  # type: ignore[no-any-return]


@gradient_of(rms_norm)
def _(d: Array, y: Array, x: Any, gamma: Any = None, *, axis: Any = -1, epsilon: float = 1e-6) -> dict[str, Any]:
    gradients: dict[str, Any] = _norm_rule(False, d, x, gamma, axis, epsilon, None)
    return {name: gradients[name] for name in ("x", "gamma")}
