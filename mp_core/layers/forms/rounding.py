"""GPTQ: the rounding error of the weights of one input is propagated into the weights of later inputs."""

import math
from collections.abc import Callable

import numpy as np

from mp_core.arrays import F32, Array, cast
from mp_core.arrays.quantization import QuantizedArray, dequantize, quantize
from mp_core.ops import matmul
from mp_core.policies.dtype_policies import Scheme

__all__ = ["DAMPING", "Nearest", "quantize_for", "rounded_for"]

DAMPING = 0.01
"""What is added to each second moment, relative to their mean, because a sample is incomplete."""
Nearest = Callable[[Array, int], Array]
"""A function of a column and its index that returns the nearest numbers that have codes, in float32."""

_BLOCK = 128  # columns rounded one by one before one product propagates their errors into all later columns


def quantize_for(lines: Array, scheme: Scheme, moments: Array) -> QuantizedArray:
    """Quantize a matrix, shape (outputs, inputs), with a small error in products with inputs of these second moments.

    The scales are those of `scheme`. For second moments ``H = sum x x'``, of which only the upper half is read, an
    error E of the lines costs ``trace(E H E')``. With ``H = (I + U) D (I + U)'``, U strictly upper triangular, the cost
    is ``sum_j D_j |e_j + sum_(i<j) U_ij e_i|^2``. So each column j is rounded from ``w_j - sum_(i<j) U_ij e_i`` (GPTQ
    [1]_ in the form of [2]_), columns with the largest moments first. All operations are elementwise or float32
    products of :func:`mp_core.matmul`, so every machine gets the same bits. If H is zero, no errors are propagated.

    References
    ----------
    .. [1] E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
       ICLR 2023.
    .. [2] J. Chee et al., "QuIP: 2-Bit Quantization of Large Language Models With Guarantees", NeurIPS 2023.

    Examples
    --------
    >>> lines, scheme = np.array([[127, 10.4, 10.4, 10.4]]), Scheme("int8", "float")
    >>> scheme.quantize(lines).values, quantize_for(lines, scheme, np.ones((4, 4))).values
    (array([[127,  10,  10,  10]], dtype=int8), array([[127,  10,  11,  10]], dtype=int8))
    """
    q = scheme.quantize(cast(lines, F32))
    return quantize(
        rounded_for(lines, _rounding_function(q), moments), axis=q.axis, dtype=q.dtype, group_size=q.group_size,
        scale=q.scale, zero_point=q.zero_point,
    )  # fmt: skip


def rounded_for(lines: Array, nearest: Nearest, moments: Array, damping: float = DAMPING) -> Array:
    """Return a matrix rounded column by column, with the propagation of errors of :func:`quantize_for`.

    Parameters
    ----------
    lines : ndarray, shape (outputs, inputs)
        Finite floats.
    nearest : callable
        See :data:`Nearest`.
    moments : ndarray, shape (inputs, inputs)
        As in :func:`quantize_for`.
    damping : float
        What is added to each moment, relative to the mean of the diagonal.

    Returns
    -------
    ndarray of float32, shape (outputs, inputs)
        Numbers that `nearest` returned.
    """
    exact = cast(lines, "float64")
    order, owed = _feedback(moments, damping)
    wanted, rounded = np.ascontiguousarray(exact.T)[order], np.empty_like(exact.T, F32, order="C")
    for first in range(0, len(wanted), _BLOCK):
        block = wanted[first : first + _BLOCK]
        weights = owed[first : first + len(block), first:]
        errors = np.empty_like(block)
        for j, column in enumerate(order[first : first + len(block)]):
            rounded[column] = nearest(block[j], column)
            errors[j] = rounded[column] - exact[:, column]
            block[j + 1 :] -= weights[j, j + 1 : len(block), np.newaxis] * errors[j]
        wanted[first + len(block) :] -= matmul(weights[:, len(block) :].T, cast(errors, F32))
    return np.ascontiguousarray(rounded.T)


def _rounding_function(q: QuantizedArray) -> Nearest:
    """Return a function (column, index) that rounds a column of the matrix to the values of its codes."""
    lines, count = q.shape[0], q.scale.shape[1]
    group = q.group_size or max(q.shape[1], 1)
    scale, zero = (None if part is None else np.broadcast_to(part, (lines, count)) for part in (q.scale, q.zero_point))

    def quantized_column(column: Array, index: int) -> Array:
        own = [None if part is None else part[:, index] for part in (scale, zero)]
        return dequantize(quantize(column, axis=0, dtype=q.dtype, scale=own[0], zero_point=own[1]))

    infinite = np.full(lines, np.inf, F32)
    high = [quantized_column(infinite, index) for index in range(count)]
    low = [-high[index] if zero is None else quantized_column(-infinite, index) for index in range(count)]

    def nearest(column: Array, index: int) -> Array:
        own = index // group
        return quantized_column(np.clip(cast(column, F32), low[own], high[own]), own)

    return nearest


def _feedback(moments: Array, share: float) -> tuple[Array, Array]:
    """Return the order of the columns, and the matrix U of :func:`quantize_for` in this order."""
    diagonal = cast(moments, "float64").diagonal()
    order = np.argsort(-diagonal, kind="stable")
    peak = diagonal.max(initial=0.0)
    weights = np.zeros((len(order), len(order)), F32)
    if not peak > 0:
        return order, weights
    h = cast(moments[np.ix_(order, order)] / peak, "float32")
    damping = np.float32(share * math.fsum(diagonal / peak) / len(order))
    h[np.diag_indices_from(h)] += damping
    for last in range(len(order), 0, -_BLOCK):
        first = max(last - _BLOCK, 0)
        columns = h[:last, first:last]
        for j in range(last - first - 1, -1, -1):
            above = columns[: first + j, j]
            pivot = max(columns[first + j, j], damping)  # a smaller one is a rounding error
            weights[: first + j, first + j] = above / pivot
            columns[: first + j, :j] -= weights[: first + j, first + j, np.newaxis] * above[first:]
        h[:first, :first] -= matmul(weights[:first, first:last], columns[:first].T)
    return order, weights
