"""Arguments of losses and metrics: floats of one type, and shapes that fit."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray
from mp_core.arrays.recorded import is_recorded

__all__ = [
    "EPSILON", "PAIRS", "VALUES", "aligned", "fitted", "floats", "one_hot", "same_rank", "smoothed", "spans_samples",
]  # fmt: skip

EPSILON = 1e-7
"""What keeps logarithms and quotients finite: Keras' default."""

PAIRS = """
    Parameters
    ----------
    y_true, y_pred : array-like
        Targets and outputs, of one shape; one may have an axis of length 1 more at its end.
"""
"""The parameters of a function that calls :func:`fitted`."""

VALUES = """
    Returns
    -------
    ndarray
        Without {axes}; float32, or float64 where the outputs are.

    Raises
    ------
    TypeError, ValueError
        Targets or outputs are not numeric, or their shapes differ.
"""
"""What it returns and raises; ``{axes}`` are those that are reduced."""


def floats(x: Any, argument: str) -> Array:
    """Return an array of float32; one of float64 stays as it is, and Python's numbers count as float32."""
    if not (hasattr(x, "dtype") and hasattr(x, "shape")):
        return ops.cast(asarray(x, argument), F32)
    wide = x.dtype in (F32, F64) and x.dtype.isnative
    return x if wide else ops.cast(x, F64 if x.dtype == F64 else F32)


def fitted(y_true: Any, y_pred: Any) -> tuple[Array, Array]:
    """Return targets and outputs as floats of one type, of one number of axes.

    Raises
    ------
    ValueError
        The shapes differ: one that broadcasts would compare each target with outputs of other samples.
    """
    y_true, y_pred = same_rank(floats(y_true, "y_true"), floats(y_pred, "y_pred"))
    if y_true.dtype != y_pred.dtype:
        y_true = ops.cast(y_true, y_pred.dtype)
    if y_true.shape != y_pred.shape:
        raise ValueError(f"`y_true` and `y_pred` must have one shape; received {y_true.shape} and {y_pred.shape}")
    return y_true, y_pred


def same_rank(x: Array, y: Array) -> tuple[Array, Array]:
    """Return two arrays of which one had an axis of length 1 more at its end, as (n, 1) beside (n,)."""
    if x.ndim == y.ndim + 1 and x.shape[-1] == 1:
        return (x, y[..., None]) if y.ndim == 1 else (x.reshape(x.shape[:-1]), y)
    if y.ndim == x.ndim + 1 and y.shape[-1] == 1:
        return (x[..., None], y) if x.ndim == 1 else (x, y.reshape(y.shape[:-1]))
    return x, y


def aligned(x: Array, shape: tuple[int, ...], argument: str) -> Array:
    """Return weights or a mask with as many axes as some values: axes of length 1 at its end are added, or one dropped.

    So (n,) beside (n, T) is a number for each sample, whatever T is.

    Raises
    ------
    ValueError
        They do not broadcast to `shape`.
    """
    found = x
    if x.ndim == len(shape) + 1 and x.shape[-1] == 1:
        found = x.reshape(x.shape[:-1])
    elif 0 < x.ndim < len(shape):
        found = x.reshape(x.shape + (1,) * (len(shape) - x.ndim))
    if found.ndim and not shape:
        raise ValueError(f"`{argument}` must be one number, as the loss of all samples is; received {x.shape}")
    fits = found.ndim <= len(shape) and all(n in (1, most) for n, most in zip(found.shape, shape, strict=False))
    if not fits:
        raise ValueError(
            f"`{argument}` must have the shape {shape}, as the values have, or that of their first axes; received "
            f"{x.shape}"
        )
    return found


def smoothed(y_true: Array, label_smoothing: float, share: float) -> Array:
    """Return targets of which `label_smoothing` is taken, and `share` of that given to each class."""
    return y_true * (1.0 - label_smoothing) + label_smoothing * share if label_smoothing else y_true


def one_hot(indices: Array, classes: int) -> Array:
    """Return rows of zeros with a 1 at each index, in float32: an axis more.

    Raises
    ------
    IndexError
        An index is not in the range from 0 to `classes` - 1.
    """
    if not is_recorded(indices) and indices.size and not 0 <= indices.min() <= indices.max() < classes:
        wrong = indices[(indices < 0) | (indices >= classes)].flat[0]
        raise IndexError(f"`y_true` must hold classes from 0 to {classes - 1}; received {wrong}")
    numbers = np.arange(classes, dtype=F32)  # exact below 2^24 classes
    found = ops.take_rows(numbers.reshape(-1, 1), indices, F32)  # the indices again, each in the range
    return ops.cast(found == numbers, F32)


def spans_samples(axis: Any) -> bool:
    """Whether the first axis, that of the samples, is among the axes of a sum; None: it is over all."""
    return axis is None or 0 in np.atleast_1d(axis)
