"""The CTC loss: outputs are longer than their labels, and not aligned with them."""

import math
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.training.losses.arrays import VALUES, floats
from mp_core.training.losses.classification import numbers
from mp_core.utilities.docstrings import documented

__all__ = ["ctc"]

_IMPOSSIBLE = -1e5
"""Logarithm of the probability 0, as in Keras on JAX: with -infinity the gradients would be NaN."""


@documented(VALUES.format(axes="times and classes"))
def ctc(y_true: Any, y_pred: Any) -> Array:
    """Return the CTC loss of each sample: ``-log(p)`` of a sequence of labels at unknown positions.

    A path has one class per time: a label, or the blank 0. Merging repeated classes and then removing blanks turns a
    path into labels. p is the sum of the probabilities of all paths that turn into the target (Graves et al., 2006,
    https://www.cs.toronto.edu/~graves/icml_2006.pdf). It is computed in logarithms, time by time. The loss is about
    1e5 if there are too few times for the labels.

    Parameters
    ----------
    y_true : array-like, shape (samples, labels)
        Integers from 1, padded with zeros at the end. A label that is not a class raises IndexError; in a training step
        the loss is NaN instead.
    y_pred : array-like, shape (samples, times, classes)
        Logits. Class 0 is the blank.

    Examples
    --------
    >>> ctc([[1]], np.zeros((1, 2, 2))).round(4)  # three of the four paths of two outputs: 11, 10, 01
    array([0.2877])
    """
    y_pred = floats(y_pred, "y_pred")
    targets = y_true if is_recorded(y_true) else labels(y_true)
    if y_pred.ndim != 3 or targets.ndim != 2 or len(targets) != len(y_pred):
        raise ValueError(
            "`y_true` and `y_pred` must have the shapes (samples, labels) and (samples, times, classes); received "
            f"{targets.shape} and {y_pred.shape}"
        )
    classes = y_pred.shape[2]
    if not is_recorded(targets) and targets.size and targets.max() >= classes:
        raise IndexError(f"`y_true` must be classes from 1 to {classes - 1}; received {targets.max():.0f}")
    logs, states = ops.log_softmax(y_pred, axis=-1), _states(targets)
    of_states = ops.matmul(logs, ops.cast(_one_hot(states, classes), logs.dtype).swapaxes(1, 2))
    totals = _log_of_all_paths(of_states, _log_allowed(_may_skip(states)))
    return -ops.logsumexp(_log_allowed(_may_end(targets, states.shape[1])) + totals, axis=-1)


def labels(y_true: Any) -> Array:
    """Convert labels to float32, which recordings can compare; raise ValueError for invalid labels."""
    found = numbers(y_true)
    if found.size and found.min() < 0:
        raise ValueError(f"`y_true` must be labels from 1, and zeros; received {found.min():.0f}")
    if found.ndim == 2 and ((found[:, :-1] == 0) & (found[:, 1:] != 0)).any():
        raise ValueError("`y_true` must have its zeros after the labels; received a label after a zero")
    return found


def _states(targets: Array) -> Array:
    """Return the class of each state of a path: a blank before each label, and one after the last."""
    blanks = targets * 0.0
    both = ops.stack([blanks, targets], axis=-1)
    return ops.concatenate([both.reshape(len(targets), 2 * targets.shape[1]), _column(targets, 0.0)], axis=1)


def _column(like: Array, value: float) -> Array:
    """Return a column filled with one number, with the rows and the dtype of `like`."""
    return np.full((len(like), 1), value, like.dtype)


def _numbers_below(count: int) -> Array:
    """Return 0, 1, ..., count - 1 as a constant that can be recorded."""
    return constant(np.arange(count, dtype=F32))


def _one_hot(states: Array, classes: int) -> Array:
    """Return one-hot rows of the class of each state, NaN if it is not a class."""
    found = ops.cast(ops.equal(states[..., None], _numbers_below(classes)), F32)
    known = ops.sum(found, axis=-1, keepdims=True)
    return ops.multiply(found, ops.where(ops.equal(known, 0.0), math.nan, known))


def _may_skip(states: Array) -> Array:
    """Return 1 for states that may follow the state two before: labels that differ from the previous label."""
    before = ops.concatenate([_column(states, 0.0), _column(states, 0.0), states[:, :-2]], axis=1)
    return ops.multiply(ops.cast(ops.not_equal(states, 0.0), F32), ops.cast(ops.not_equal(states, before), F32))


def _may_end(targets: Array, count: int) -> Array:
    """Return 1 for states at which a path may end: the last label, and the blank after it."""
    last = ops.sum(ops.cast(ops.not_equal(targets, 0.0), F32), axis=1, keepdims=True) * 2.0
    behind = last - _numbers_below(count)
    return ops.add(ops.cast(ops.equal(behind, 0.0), F32), ops.cast(ops.equal(behind, 1.0), F32))


def _log_allowed(allowed: Array) -> Array:
    """Return log(1) for 1, and the logarithm of an impossible event for 0."""
    return (1.0 - allowed) * _IMPOSSIBLE


def _log_of_all_paths(of_states: Array, skips: Array) -> Array:
    """Return the logarithm of the probability of all paths to each state at the last time.

    `of_states` are the logarithms of shape (samples, times, states). `skips` is 0 if a state may follow the state two
    before, otherwise the logarithm of an impossible event.
    """
    never = [_column(of_states, _IMPOSSIBLE)] * 2
    rows = [_column(of_states, 0.0), *never * (of_states.shape[2] // 2)]
    total = ops.concatenate(rows, axis=1)  # before the first time, all paths are in the first state
    for time in range(of_states.shape[1]):
        padded = ops.concatenate([*never, total], axis=1)
        ways = ops.stack([total, padded[:, 1:-1], padded[:, :-2] + skips])
        largest = ops.stop_gradient(ops.max(ways, axis=0))  # subtracted and added again, so its gradient is zero
        total = ops.log(ops.sum(ops.exp(ways - largest), axis=0)) + (largest + of_states[:, time])
    return total
