"""Losses of masks (Dice, Tversky) and of embeddings (circle loss)."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, asarray
from mp_core.arrays.recorded import is_recorded
from mp_core.training.losses.arrays import EPSILON, PAIRS, VALUES, floats, matching_floats
from mp_core.utilities.docstrings import documented

__all__ = ["circle", "dice", "tversky"]

_MASKS = documented(PAIRS, """
    axis : int, sequence of int or None
        The axes of the sums; None: all.
""", VALUES.format(axes="these axes"))  # fmt: skip


@_MASKS
def dice(y_true: Any, y_pred: Any, axis: Any = None) -> Array:
    """Return ``1 - 2 * sum(y_true * y_pred) / (sum(y_true) + sum(y_pred) + 1e-7)`` of masks and their probabilities.

    >>> dice([1.0, 0.0], [0.5, 0.5]).round(4)
    np.float32(0.5)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    both = ops.sum(y_true * y_pred, axis=axis)
    loss: Array = 1.0 - both * 2.0 / (ops.sum(y_true, axis=axis) + ops.sum(y_pred, axis=axis) + EPSILON)
    return loss


@_MASKS
def tversky(y_true: Any, y_pred: Any, alpha: float = 0.5, beta: float = 0.5, axis: Any = None) -> Array:
    """Return ``1 - both / (both + alpha * missed + beta * extra + 1e-7)``.

    ``both = sum(y_true * y_pred)``, ``missed = sum(y_true * (1 - y_pred))``, ``extra = sum((1 - y_true) * y_pred)``.

    Parameters
    ----------
    alpha, beta : float

    Examples
    --------
    >>> tversky([1.0, 0.0], [0.5, 0.5], alpha=1.0, beta=0.0).round(4)
    np.float32(0.5)
    """
    y_true, y_pred = matching_floats(y_true, y_pred)
    both = ops.sum(y_true * y_pred, axis=axis)
    missed = ops.sum((1.0 - y_pred) * y_true, axis=axis)
    extra = ops.sum(y_pred * (1.0 - y_true), axis=axis)
    return 1.0 - both / (both + missed * alpha + extra * beta + EPSILON)


@documented(VALUES.format(axes="the last axis"))
def circle(
    y_true: Any,
    y_pred: Any,
    ref_labels: Any = None,
    ref_embeddings: Any = None,
    remove_diagonal: bool = True,
    gamma: float = 80.0,
    margin: float = 0.4,
) -> Array:
    """Return the circle loss of each embedding (Sun et al., 2020, https://arxiv.org/abs/2002.10857).

    Parameters
    ----------
    y_true : array-like
        The label of each embedding: integers, shape (n,) or (n, 1).
    y_pred : array-like
        Normalized embeddings, shape (n, width).
    ref_labels, ref_embeddings : array-like, optional
        Labels and embeddings to compare with; default: `y_true` and `y_pred`.
    remove_diagonal : bool
        Whether to skip the pair of each embedding with the reference of the same index.
    gamma, margin : float

    Examples
    --------
    >>> circle([0, 0, 1], np.eye(3), gamma=1.0).round(4)
    array([1.0899, 1.0899, 0.    ])
    """
    y_pred = floats(y_pred, "y_pred")
    references = y_pred if ref_embeddings is None else floats(ref_embeddings, "ref_embeddings")
    labels = (y_true if is_recorded(y_true) else asarray(y_true, "y_true")).reshape(-1)
    others = labels if ref_labels is None else asarray(ref_labels, "ref_labels").reshape(-1)
    if labels.shape != y_pred.shape[:1] or others.shape != references.shape[:1]:
        raise ValueError(
            "`y_true` and `ref_labels` must have one label per embedding; received "
            f"{labels.size} and {others.size} labels for embeddings of shapes {y_pred.shape} and {references.shape}"
        )
    same, apart = ops.equal(labels[:, None], others), ops.not_equal(labels[:, None], others)
    distance = ops.maximum(1.0 - ops.matmul(y_pred, references.T), 0.0)
    positive = ops.maximum(distance + margin, 0.0) * (margin - distance) * -gamma
    if remove_diagonal:
        positive = ops.where(np.eye(*positive.shape, dtype=np.bool_), -1e30, positive)
    negative = ops.maximum((1.0 + margin) - distance, 0.0) * ((1.0 - margin) - distance) * gamma
    return ops.softplus(_log_sum(positive, same) + _log_sum(negative, apart))


def _log_sum(x: Array, mask: Array) -> Array:
    """Return ``log(sum(exp(x)))`` over elements with a true mask, about -1e30 if the mask is false everywhere."""
    kept = ops.where(mask, x, -1e30)
    most = ops.max(kept, -1)
    total: Array = ops.log(ops.sum(ops.exp(kept - most[:, None]), axis=-1)) + most
    return total
