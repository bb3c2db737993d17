"""Losses of sequences whose outputs are longer than their targets, and not aligned with them."""

import math
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import constant, is_recorded
from mp_core.training.losses.arrays import floats
from mp_core.training.losses.classification import numbers

__all__ = ["ctc"]

_IMPOSSIBLE = -1e5
"""The logarithm of the probability of what cannot be, as in Keras on JAX: infinities would make gradients NaN."""


def ctc(y_true: Any, y_pred: Any) -> Array:
    """Return the CTC loss: ``-log(p)`` of a sequence of labels, whatever their places in the outputs.

    An output names a label or the blank 0. A path of outputs stands for the labels that are left when repeated ones
    are merged and blanks are dropped; p is the sum of the probabilities of all paths that stand for the target (Graves
    et al., 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf). They are added in order of time, by logarithms.

    Parameters
    ----------
    y_true : array-like, shape (samples, labels)
        Integers from 1. Samples with fewer labels are filled up with zeros.
    y_pred : array-like, shape (samples, times, classes)
        Logits. Those of class 0 are the blank's.

    Returns
    -------
    ndarray, shape (samples,)
        float32, or float64 where the outputs are; about 1e5 where no path is long enough.

    Raises
    ------
    IndexError
        A label is no class. (In a step of training the loss is NaN.)
    TypeError, ValueError
        They are not numeric, or their shapes are others; a label is negative or has a fraction, or follows a zero.

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
        raise IndexError(f"`y_true` must hold classes from 1 to {classes - 1}; received {targets.max():.0f}")
    logs, states = ops.log_softmax(y_pred, axis=-1), _states(targets)
    of_states = ops.matmul(logs, ops.cast(_one_hot(states, classes), logs.dtype).swapaxes(1, 2))
    end = _in_logarithms(_is_end(targets, states.shape[1])) + _last(of_states, _in_logarithms(_may_skip(states)))
    return -ops.logsumexp(end, axis=-1)


def labels(y_true: Any) -> Array:
    """Return targets as float32 numbers, which recordings compare; raise ValueError for what are no labels."""
    found = numbers(y_true)
    if found.size and found.min() < 0:
        raise ValueError(f"`y_true` must hold labels from 1, and zeros; received {found.min():.0f}")
    if found.ndim == 2 and ((found[:, :-1] == 0) & (found[:, 1:] != 0)).any():
        raise ValueError("`y_true` must have its zeros behind the labels; received a label behind a zero")
    return found


def _states(targets: Array) -> Array:
    """Return what the states of a path stand for: a blank before each label, and one behind the last."""
    blanks = targets * 0.0
    both = ops.stack([blanks, targets], axis=-1)
    return ops.concatenate([both.reshape(len(targets), 2 * targets.shape[1]), _column(targets, 0.0)], axis=1)


def _column(like: Array, value: float) -> Array:
    """Return a column of one number, of as many rows as an array has, in its dtype."""
    return np.full((len(like), 1), value, like.dtype)


def _up_to(count: int) -> Array:
    """Return the numbers from 0 on, a constant of a recording."""
    return constant(np.arange(count, dtype=F32))


def _one_hot(states: Array, classes: int) -> Array:
    """Return rows with a 1 at the class of each state, of NaN where there is none."""
    found = ops.cast(ops.equal(states[..., None], _up_to(classes)), F32)
    known = ops.sum(found, axis=-1, keepdims=True)
    return ops.multiply(found, ops.where(ops.equal(known, 0.0), math.nan, known))


def _may_skip(states: Array) -> Array:
    """Return which states may follow the one two before them: labels that differ from the label before."""
    before = ops.concatenate([_column(states, 0.0), _column(states, 0.0), states[:, :-2]], axis=1)
    return ops.multiply(ops.cast(ops.not_equal(states, 0.0), F32), ops.cast(ops.not_equal(states, before), F32))


def _is_end(targets: Array, count: int) -> Array:
    """Return at which states a path may end: at the last label, and the blank behind it."""
    last = ops.sum(ops.cast(ops.not_equal(targets, 0.0), F32), axis=1, keepdims=True) * 2.0
    behind = last - _up_to(count)
    return ops.add(ops.cast(ops.equal(behind, 0.0), F32), ops.cast(ops.equal(behind, 1.0), F32))


def _in_logarithms(allowed: Array) -> Array:
    """Return 0 for 1, and the logarithm of what cannot be for 0."""
    return (1.0 - allowed) * _IMPOSSIBLE


def _last(of_states: Array, skips: Array) -> Array:
    """Return the logarithm of the probability of all paths to each state at the last time.

    Parameters
    ----------
    of_states : ndarray, shape (samples, times, states)
        The logarithm of the probability of each state at each time.
    skips : ndarray, shape (samples, states)
        That of coming from the state two before it.
    """
    never = [_column(of_states, _IMPOSSIBLE)] * 2
    rows = [_column(of_states, 0.0), *never * (of_states.shape[2] // 2)]
    total = ops.concatenate(rows, axis=1)  # before the first time all paths are at the first state
    for time in range(of_states.shape[1]):
        padded = ops.concatenate([*never, total], axis=1)
        ways = ops.stack([total, padded[:, 1:-1], padded[:, :-2] + skips])
        largest = ops.stop_gradient(ops.max(ways, axis=0))  # whose gradient is zero: it is subtracted and added
        total = ops.log(ops.sum(ops.exp(ways - largest), axis=0)) + (largest + of_states[:, time])
    return total
