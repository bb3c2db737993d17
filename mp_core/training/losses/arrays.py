"""Arguments of losses and metrics: conversion to floats, and checks of shapes."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray
from mp_core.arrays.recorded import is_recorded

__all__ = [
    "EPSILON",
    "PAIRS",
    "VALUES",
    "broadcastable",
    "floats",
    "matching_floats",
    "one_hot",
    "reduces_samples",
    "same_rank",
    "smooth_labels",
]  # fmt: skip

EPSILON = 1e-7
"""Keeps logarithms and quotients finite; Keras' default."""

PAIRS = """
    Parameters
    ----------
    y_true, y_pred : array-like
        Targets and outputs with the same shape; one of them may have an additional last axis of length 1.
"""
"""The parameters of a function that calls :func:`matching_floats`."""

VALUES = """
    Returns
    -------
    ndarray
        Shape of the outputs without {axes}; float32, or float64 if the outputs are float64.
"""
"""The result of such a function; ``{axes}`` are the reduced axes."""


def floats(x: Any, argument: str) -> Array:
    """Convert to float32; arrays of float64 are returned unchanged."""
    if not (hasattr(x, "dtype") and hasattr(x, "shape")):
        return ops.cast(asarray(x, argument), F32)
    is_computed = x.dtype in (F32, F64) and x.dtype.isnative
    return x if is_computed else ops.cast(x, F64 if x.dtype == F64 else F32)


def matching_floats(y_true: Any, y_pred: Any) -> tuple[Array, Array]:
    """Convert targets and outputs to floats of the same dtype; raise ValueError if their shapes differ.

    Broadcasting would compare targets with outputs of other samples.
    """
    y_true, y_pred = same_rank(floats(y_true, "y_true"), floats(y_pred, "y_pred"))
    if y_true.dtype != y_pred.dtype:
        y_true = ops.cast(y_true, y_pred.dtype)
    if y_true.shape != y_pred.shape:
        raise ValueError(f"`y_true` and `y_pred` must have one shape; received {y_true.shape} and {y_pred.shape}")
    return y_true, y_pred


def same_rank(x: Array, y: Array) -> tuple[Array, Array]:
    """Return two arrays with equal rank if one had an additional last axis of length 1, such as (n, 1) and (n,)."""
    if x.ndim == y.ndim + 1 and x.shape[-1] == 1:
        return (x, y[..., None]) if y.ndim == 1 else (x.reshape(x.shape[:-1]), y)
    if y.ndim == x.ndim + 1 and y.shape[-1] == 1:
        return (x[..., None], y) if x.ndim == 1 else (x, y.reshape(y.shape[:-1]))
    return x, y


def broadcastable(x: Array, shape: tuple[int, ...], argument: str) -> Array:
    """Return weights or a mask with the rank of `shape`: append axes of length 1, or drop one.

    So weights of shape (n,) for values of shape (n, T) are one number per sample, for every T.
    """
    found = x
    if x.ndim == len(shape) + 1 and x.shape[-1] == 1:
        found = x.reshape(x.shape[:-1])
    elif 0 < x.ndim < len(shape):
        found = x.reshape(x.shape + (1,) * (len(shape) - x.ndim))
    if found.ndim and not shape:
        raise ValueError(f"`{argument}` must be one number, as the loss of all samples together; received {x.shape}")
    fits = found.ndim <= len(shape) and all(n in (1, most) for n, most in zip(found.shape, shape, strict=False))
    if not fits:
        raise ValueError(
            f"`{argument}` must have the shape of the values, {shape}, or of their first axes; received {x.shape}"
        )
    return found


def smooth_labels(y_true: Array, label_smoothing: float, share: float) -> Array:
    """Return ``y_true * (1 - label_smoothing) + label_smoothing * share``."""
    return y_true * (1.0 - label_smoothing) + label_smoothing * share if label_smoothing else y_true


def one_hot(indices: Array, classes: int) -> Array:
    """Return one-hot rows of float32: shape of `indices` + (classes,). Other indices raise IndexError."""
    if not is_recorded(indices) and indices.size and not 0 <= indices.min() <= indices.max() < classes:
        wrong = indices[(indices < 0) | (indices >= classes)].flat[0]
        raise IndexError(f"`y_true` must be classes from 0 to {classes - 1}; received {wrong}")
    numbers = np.arange(classes, dtype=F32)  # exact below 2^24 classes
    found = ops.take_rows(numbers.reshape(-1, 1), indices, F32)  # checks the range of recorded indices
    return ops.cast(found == numbers, F32)


def reduces_samples(axis: Any) -> bool:
    """Whether a sum over `axis` (None: all axes) includes the first axis, which is samples."""
    return axis is None or 0 in np.atleast_1d(axis)
