"""Losses of classes, computed from probabilities, or from logits without overflow."""

import math
import warnings
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array, asarray, cast
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.training.losses.arrays import EPSILON, PAIRS, VALUES, floats, matching_floats, one_hot, smooth_labels
from mp_core.utilities.arguments import axis_of
from mp_core.utilities.docstrings import documented

__all__ = [
    "binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy", "categorical_hinge", "hinge", "indices", "sparse_categorical_crossentropy",
    "squared_hinge",
]  # fmt: skip

_HINGES = documented(PAIRS, VALUES.format(axes="the last axis"))
_WITHOUT_AXIS = VALUES.format(axes="that axis")
_TABLE = """
    Parameters
    ----------
    y_true : array-like
        {targets}
    y_pred : array-like
        {outputs}
    from_logits : bool
    label_smoothing : float
        Targets are replaced by ``y_true * (1 - label_smoothing) + label_smoothing / {classes}``.
    axis : int
        The axis of the {axis}.
"""
_BINARY = documented(_TABLE.format(
    targets="0 and 1, or probabilities.", classes=2, axis="mean",
    outputs="Probabilities p, clipped to [1e-7, 1 - 1e-7]; with `from_logits`, x of ``p = sigmoid(x)``.",
), _WITHOUT_AXIS)  # fmt: skip
_CATEGORICAL = documented(_TABLE.format(
    targets="One-hot, or the probability of each class.", classes="classes", axis="classes",
    outputs="Probabilities p, divided by their sum and clipped to [1e-7, 1 - 1e-7]; with `from_logits`, x of\n"
    "        ``p = softmax(x)``.",
), _WITHOUT_AXIS)  # fmt: skip


@_BINARY
def binary_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Array:
    """Return the mean along an axis of ``-(y_true * log(p) + (1 - y_true) * log(1 - p))``.

    >>> binary_crossentropy([[1.0], [0.0]], [[1000.0], [1000.0]], from_logits=True)
    array([   0., 1000.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(_binary(smooth_labels(y_true, label_smoothing, 0.5), y_pred, from_logits), axis=axis)


def _binary(y_true: Array, y_pred: Array, from_logits: bool) -> Array:
    if from_logits:  # -log(sigmoid(x)) is softplus(-x)
        return y_true * ops.softplus(-y_pred) + (1.0 - y_true) * ops.softplus(y_pred)
    p = ops.clip(y_pred, EPSILON, 1.0 - EPSILON)
    return -(y_true * ops.log(p) + (1.0 - y_true) * ops.log(1.0 - p))


@_BINARY
def binary_focal_crossentropy(
    y_true: Any,
    y_pred: Any,
    apply_class_balancing: bool = False,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Array:
    """Return the focal loss: :func:`binary_crossentropy` times ``(1 - q)**gamma``, q the probability of the target.

    See Lin et al., 2018, https://arxiv.org/abs/1708.02002.

    Parameters
    ----------
    apply_class_balancing : bool
        Whether to multiply by `alpha` for targets 1, and by ``1 - alpha`` for targets 0.
    alpha, gamma : float

    Examples
    --------
    >>> binary_focal_crossentropy([[1.0]], [[0.5]]).round(4)
    array([0.1733], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    y_true = smooth_labels(y_true, label_smoothing, 0.5)
    p = ops.sigmoid(y_pred) if from_logits else y_pred
    target = y_true * p + (1.0 - y_true) * (1.0 - p)
    loss = ops.power(1.0 - target, gamma) * _binary(y_true, p, False)
    if apply_class_balancing:
        loss = loss * (y_true * alpha + (1.0 - y_true) * (1.0 - alpha))
    return ops.mean(loss, axis=axis)


def _log_of(y_pred: Array, from_logits: bool, axis: int) -> Array:
    """Return the logarithms of the probabilities, which are normalized to the sum 1."""
    if from_logits:
        return ops.log_softmax(y_pred, axis=axis)
    return ops.log(_probabilities(y_pred, axis))


def _probabilities(y_pred: Array, axis: int) -> Array:
    return ops.clip(y_pred / ops.sum(y_pred, axis=axis, keepdims=True), EPSILON, 1.0 - EPSILON)


@_CATEGORICAL
def categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1
) -> Array:
    """Return ``-sum(y_true * log(p))`` along the axis of the classes.

    >>> categorical_crossentropy([[0.0, 1.0]], [[1000.0, 0.0]], from_logits=True)
    array([1000.], dtype=float32)
    """
    y_true, y_pred = _check_shapes(*matching_floats(y_true, y_pred))
    axis = axis_of(axis, y_pred.ndim)
    _warn_of_one_class(y_pred.shape[axis])
    targets = smooth_labels(y_true, label_smoothing, 1.0 / y_pred.shape[axis])
    return -ops.sum(targets * _log_of(y_pred, from_logits, axis), axis=axis)


def _warn_of_one_class(classes: int) -> None:
    """Warn if there is only one class: then the cross-entropy does not depend on the outputs."""
    if classes == 1:
        warnings.warn(
            "a categorical cross-entropy of one class is the same for all outputs: use binary_crossentropy",
            stacklevel=3,
        )


def _check_shapes(y_true: Array, y_pred: Array) -> tuple[Array, Array]:
    if y_true.shape != y_pred.shape or not y_true.ndim:
        raise ValueError(
            f"`y_true` and `y_pred` must have one shape with at least one axis; received {y_true.shape} and "
            f"{y_pred.shape}"
        )
    return y_true, y_pred


@_CATEGORICAL
def categorical_focal_crossentropy(
    y_true: Any,
    y_pred: Any,
    alpha: float = 0.25,
    gamma: float = 2.0,
    from_logits: bool = False,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Array:
    """Return :func:`categorical_crossentropy` with each class weighted by ``alpha * (1 - p)**gamma``.

    Parameters
    ----------
    alpha, gamma : float

    Examples
    --------
    >>> categorical_focal_crossentropy([[0.0, 1.0]], [[0.5, 0.5]]).round(4)
    array([0.0433], dtype=float32)
    """
    y_true, y_pred = _check_shapes(*matching_floats(y_true, y_pred))
    axis = axis_of(axis, y_pred.ndim)
    _warn_of_one_class(y_pred.shape[axis])
    targets = smooth_labels(y_true, label_smoothing, 1.0 / y_pred.shape[axis])
    p = _probabilities(ops.softmax(y_pred, axis=axis) if from_logits else y_pred, axis)
    return -ops.sum(ops.power(1.0 - p, gamma) * alpha * (targets * ops.log(p)), axis=axis)


@_CATEGORICAL
def sparse_categorical_crossentropy(
    y_true: Any, y_pred: Any, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1
) -> Array:
    """Return ``-log(p)`` of the target class; the result has the shape of the outputs without `axis`.

    A target that is not a class raises IndexError; in a training step with `ignore_class`, the loss is NaN instead.

    Parameters
    ----------
    y_true : array-like
        Class numbers from 0. Shape of the outputs without the axis of classes, or with length 1 there.
    ignore_class : int, optional
        The loss of targets with this number, such as -1, is 0.

    Examples
    --------
    >>> sparse_categorical_crossentropy([1, 0], [[1000.0, 0.0], [0.0, 0.0]], from_logits=True).round(4)
    array([1.000e+03, 6.931e-01], dtype=float32)
    """
    y_pred = floats(y_pred, "y_pred")
    axis = axis_of(axis, y_pred.ndim)
    targets = _without_class_axis(y_true if is_recorded(y_true) else indices(y_true), y_pred, axis)
    classes = y_pred.shape[axis]
    is_looked_up = ignore_class is None and targets.dtype.kind in "iu"
    chosen = one_hot(targets, classes) if is_looked_up else _one_hot_or_nan(targets, classes, ignore_class)
    chosen = chosen if axis == y_pred.ndim - 1 else np.moveaxis(chosen, -1, axis)
    logs = _log_of(y_pred, from_logits, axis)
    return -ops.sum(logs * (chosen if y_pred.dtype == F32 else cast(chosen, y_pred.dtype)), axis=axis)


def _without_class_axis(targets: Array, y_pred: Array, axis: int) -> Array:
    """Return targets with the shape of the outputs without `axis`; remove an axis of length 1 in its place."""
    shape = (*y_pred.shape[:axis], *y_pred.shape[axis + 1 :])
    if targets.shape == (*shape[:axis], 1, *shape[axis:]):
        targets = targets.reshape(shape)
    if targets.shape != shape:
        raise ValueError(
            f"`y_true` must have the shape of `y_pred` without the axis of classes, {shape}; received {targets.shape}"
        )
    return targets


def _one_hot_or_nan(targets: Array, classes: int, ignore_class: int | None) -> Array:
    """Return one-hot rows, zeros for the ignored class; in a recording, NaN if a target is not a class.

    A recording can compare floats only, so its targets are converted by :func:`numbers`.
    """
    if not is_recorded(targets):
        counts = targets != ignore_class
        chosen: Array = one_hot(np.where(counts, targets, targets.dtype.type(0)), classes)
        return np.where(counts[..., None], chosen, np.float32(0))
    every = constant(np.arange(classes, dtype=F32))
    known = ops.sum(ops.cast(ops.equal(targets[..., None], every), F32), axis=-1, keepdims=True)
    valid = ops.where(ops.greater(known, 0.0), known, math.nan)
    if ignore_class is not None:
        ignored = ops.cast(ops.equal(targets[..., None], float(ignore_class)), F32)
        valid = ops.where(ops.greater(ignored, 0.0), 1.0 - ignored, valid)
    found: Array = ops.cast(ops.equal(targets[..., None], every), F32) * valid
    return found


def numbers(y_true: Any) -> Array:
    """Convert class numbers to float32, which recordings can compare; raise ValueError for numbers >= 2^24."""
    found = indices(y_true)
    if found.size and max(int(found.max()), -int(found.min())) >= 2**24:
        raise ValueError("`y_true` must be classes below 2**24")
    return found.astype(F32)


def indices(y_true: Any) -> Array:
    """Convert targets to integers; raise ValueError for fractions."""
    x = y_true if hasattr(y_true, "dtype") and hasattr(y_true, "shape") else asarray(y_true, "y_true")
    if x.dtype.kind in "iu":
        return x if x.dtype in (np.int32, np.int64) else x.astype(np.int64)
    whole = np.asarray(x).astype(np.int64)
    if x.dtype.kind != "b" and not np.array_equal(whole, np.asarray(x, np.float64)):
        raise ValueError(f"`y_true` must be classes, which are integers; received {x.dtype} with fractions")
    return whole


@documented()
def categorical_generalized_cross_entropy(y_true: Any, y_pred: Any, q: float) -> Array:
    """Return ``(1 - p**q) / q``, p the probability of the target (Zhang and Sabuncu, https://arxiv.org/abs/1805.07836).

    Parameters
    ----------
    y_true : array-like
        Class numbers from 0.
    y_pred : array-like
        Probabilities along the last axis, which the result does not have.
    q : float
        Above 0, where the loss approaches the cross-entropy, to 1, where it is the mean absolute error.

    Examples
    --------
    >>> categorical_generalized_cross_entropy([1], [[0.5, 0.5]], 0.5).round(4)
    array([0.5858], dtype=float32)
    """
    y_pred = floats(y_pred, "y_pred")
    targets = _without_class_axis(indices(y_true), y_pred, axis_of(-1, y_pred.ndim))
    p = ops.sum(y_pred * one_hot(targets, y_pred.shape[-1]), axis=-1)
    return (1.0 - ops.power(p, q)) / q


def _signs(y_true: Array) -> Array:
    """Return targets -1 and 1; if all targets are 0 or 1, convert them."""
    others = ops.sum(ops.absolute(y_true * (y_true - 1.0)))
    return ops.where(others == 0.0, y_true * 2.0 - 1.0, y_true)


@_HINGES
def hinge(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean(max(1 - y_true * y_pred, 0))`` along the last axis; targets are -1 and 1, or 0 and 1.

    >>> hinge([[1.0, 0.0]], [[0.5, 0.5]])
    array([1.], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(ops.maximum(1.0 - _signs(y_true) * y_pred, 0.0), axis=-1)


@_HINGES
def squared_hinge(y_true: Any, y_pred: Any) -> Array:
    """Return ``mean(max(1 - y_true * y_pred, 0)**2)`` along the last axis; targets are -1 and 1, or 0 and 1.

    >>> squared_hinge([[1.0, 0.0]], [[0.5, 0.5]])
    array([1.25], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.mean(ops.square(ops.maximum(1.0 - _signs(y_true) * y_pred, 0.0)), axis=-1)


@_HINGES
def categorical_hinge(y_true: Any, y_pred: Any) -> Array:
    """Return ``max(neg - pos + 1, 0)`` of one-hot targets: pos is the target's output, neg the largest other output.

    >>> categorical_hinge([[0.0, 1.0]], [[0.5, 0.25]])
    array([1.25], dtype=float32)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    right = ops.sum(y_true * y_pred, axis=-1)
    return ops.maximum(ops.max((1.0 - y_true) * y_pred, -1) - right + 1.0, 0.0)
