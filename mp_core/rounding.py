"""Rounding matrices for the inputs that they get: what one row loses, the rows after it make up for."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mp_core.arrays import Array, cast

__all__ = ["Feedback", "feedback", "round_rows"]

_DAMPING = 0.01  # of the mean second moment, added to all: a sample is not all that there is


class Feedback(NamedTuple):
    """In which order to round the rows of a matrix, and what each owes to those before it: see :func:`feedback`."""

    order: Array
    weights: Array


def feedback(moments: Array) -> Feedback:
    """Return how the roundings of the rows of a matrix are to depend on each other.

    For inputs x with the second moments ``H = sum x x'`` an error E of the matrix costs ``trace(E' H E)``. With
    ``H = (I + U) D (I + U)'``, U strictly upper triangular, that is ``sum_j D_j |e_j + sum_(i<j) U_ij e_i|^2``: the
    least, as each row j is rounded from ``w_j - sum_(i<j) U_ij e_i`` (GPTQ [1]_ in the form of [2]_). The largest
    moments go first. All is elementwise in float64, so that every machine gets the same bits.

    Parameters
    ----------
    moments : ndarray, shape (rows, rows)
        Symmetric; only the upper half counts.

    References
    ----------
    .. [1] E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
       ICLR 2023.
    .. [2] J. Chee et al., "QuIP: 2-Bit Quantization of Large Language Models With Guarantees", NeurIPS 2023.
    """
    h = cast(moments, "float64")
    diagonal = h.diagonal()
    order = np.argsort(-diagonal, kind="stable")
    h = h[np.ix_(order, order)]
    damping = _DAMPING * math.fsum(diagonal) / max(len(h), 1)
    h[np.diag_indices_from(h)] += damping or 1.0
    weights = np.zeros_like(h)
    for j in range(len(h) - 1, 0, -1):
        column = h[:j, j] / h[j, j]
        h[:j, :j] -= column[:, np.newaxis] * h[:j, j]
        weights[:j, j] = column
    return Feedback(order, weights)


def round_rows(matrix: Array, feedback: Feedback, nearest: Callable[[Array, int], Array]) -> Array:
    """Return `matrix` with every row as codes can store it, in float64.

    Parameters
    ----------
    matrix : ndarray, shape (rows, columns)
        Finite. No column depends on another.
    feedback : Feedback
    nearest : callable
        Of a row and its index: the numbers that codes stand for, nearest to it.
    """
    exact = cast(matrix, "float64")
    wanted, rounded = exact[feedback.order], np.empty_like(exact)
    for place, row in enumerate(feedback.order):
        rounded[row] = nearest(wanted[place], row)
        error = rounded[row] - exact[row]
        wanted[place + 1 :] -= feedback.weights[place, place + 1 :, np.newaxis] * error
    return rounded
