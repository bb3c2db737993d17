"""Rounding matrices for the inputs that they get: what one row loses, the rows after it make up for."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mp_core.arrays import Array, cast
from mp_core.ops import matmul

__all__ = ["Feedback", "feedback", "round_rows"]

_DAMPING = 0.01  # of the mean second moment, added to all: a sample is not all that there is
_BLOCK = 128  # rows; those beyond are brought up to date by one product


class Feedback(NamedTuple):
    """In which order to round the rows of a matrix, and what each owes to those before it: see :func:`feedback`."""

    order: Array
    weights: Array


def feedback(moments: Array) -> Feedback:
    """Return how the roundings of the rows of a matrix are to depend on each other.

    For inputs x with the second moments ``H = sum x x'`` an error E of the matrix costs ``trace(E' H E)``. With
    ``H = (I + U) D (I + U)'``, U strictly upper triangular, that is ``sum_j D_j |e_j + sum_(i<j) U_ij e_i|^2``: the
    least, as each row j is rounded from ``w_j - sum_(i<j) U_ij e_i`` (GPTQ [1]_ in the form of [2]_). The largest
    moments go first. All is elementwise or a float32 product of :func:`mp_core.matmul`, so that every machine gets the
    same bits.

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
    diagonal = cast(moments, "float64").diagonal()
    order = np.argsort(-diagonal, kind="stable")
    peak = diagonal.max(initial=0.0)
    weights = np.zeros((len(order), len(order)), np.float32)
    if not peak > 0:
        return Feedback(order, weights)
    h = cast(moments[np.ix_(order, order)] / peak, "float32")
    damping = np.float32(_DAMPING * math.fsum(diagonal / peak) / len(order))
    h[np.diag_indices_from(h)] += damping
    for last in range(len(order), 0, -_BLOCK):
        first = max(last - _BLOCK, 0)
        columns = h[:last, first:last]
        for j in range(last - first - 1, -1, -1):
            above = columns[: first + j, j]
            weights[: first + j, first + j] = above / max(columns[first + j, j], damping)  # less is a rounding error
            columns[: first + j, :j] -= weights[: first + j, first + j, np.newaxis] * above[first:]
        h[:first, :first] -= matmul(weights[:first, first:last], columns[:first].T)
    return Feedback(order, weights)


def round_rows(matrix: Array, feedback: Feedback, nearest: Callable[[Array, int], Array]) -> Array:
    """Return `matrix` with every row as codes can store it, in float64.

    Parameters
    ----------
    matrix : ndarray, shape (rows, columns)
        No column depends on another, and none on its own numbers that are not finite.
    feedback : Feedback
    nearest : callable
        Of a row and its index: the numbers that codes stand for, nearest to it.
    """
    exact = cast(matrix, "float64")
    wanted, rounded = exact[feedback.order], np.empty_like(exact)
    for first in range(0, len(wanted), _BLOCK):
        block = wanted[first : first + _BLOCK]
        weights = feedback.weights[first : first + len(block), first:]
        errors = np.empty_like(block)
        for j, row in enumerate(feedback.order[first : first + len(block)]):
            rounded[row] = nearest(block[j], row)
            errors[j] = np.where(np.isfinite(exact[row]), rounded[row] - exact[row], 0)
            block[j + 1 :] -= weights[j, j + 1 : len(block), np.newaxis] * errors[j]
        wanted[first + len(block) :] -= matmul(weights[:, len(block) :].T, cast(errors, "float32"))
    return rounded
