"""Correlation coefficients of targets and outputs, as means over samples."""

from typing import Any, ClassVar

from mp_core import ops
from mp_core.arrays import Array
from mp_core.ops.norms import squared
from mp_core.training.losses.arrays import EPSILON, PAIRS, matching_floats
from mp_core.training.metrics.metric import FunctionMetric
from mp_core.utilities.docstrings import documented

__all__ = ["ConcordanceCorrelation", "PearsonCorrelation", "concordance_correlation", "pearson_correlation"]


_CORRELATION = documented(PAIRS, """
    axis : int or sequence of int
        The axes over which the coefficient is computed; the result does not have them.
""")  # fmt: skip


@_CORRELATION
def pearson_correlation(y_true: Any, y_pred: Any, axis: Any = -1) -> Array:
    """Return ``cov(y_true, y_pred) / (std(y_true) * std(y_pred))`` along axes: from -1 to 1.

    It is NaN if all targets or all outputs are equal.

    >>> pearson_correlation([[0.0, 1.0, 2.0]], [[1.0, 2.0, 4.0]]).round(4)
    array([0.982], dtype=float32)
    """
    x, y = (squared(_centered(each, axis)[0], axis).x for each in matching_floats(y_true, y_pred))
    x, y = (ops.divide(each, ops.sqrt(ops.mean(ops.square(each), axis, keepdims=True))) for each in (x, y))
    return ops.mean(x * y, axis)


@_CORRELATION
def concordance_correlation(y_true: Any, y_pred: Any, axis: Any = -1) -> Array:
    """Return ``2 * cov(y_true, y_pred) / (var(y_true) + var(y_pred) + (mean(y_true) - mean(y_pred))**2 + 1e-7)``.

    It is 1 if outputs equal targets, lower than :func:`pearson_correlation` if their means or variances differ, and 0
    if all targets or all outputs are equal (Lin, 1989, https://doi.org/10.2307/2532051).

    >>> concordance_correlation([[0.0, 1.0, 2.0]], [[1.0, 2.0, 4.0]]).round(4)
    array([0.5], dtype=float32)
    """
    (x, *mean_x), (y, *mean_y) = (_centered(each, axis) for each in matching_floats(y_true, y_pred))
    apart = (mean_x[0] - mean_y[0]) + (mean_x[1] - mean_y[1])
    spread = ops.mean(ops.square(x) + ops.square(y), axis, keepdims=True) + ops.square(apart)
    return ops.mean(2.0 * x * y / (spread + EPSILON), axis)


def _centered(x: Array, axis: Any) -> tuple[Array, Array, Array]:
    """Return values minus their mean, and the mean as two terms: the rounded mean and its rounding error."""
    mean = ops.mean(x, axis, keepdims=True)
    rest = ops.mean(x - mean, axis, keepdims=True)
    return x - mean - rest, mean, rest


class PearsonCorrelation(FunctionMetric):
    """The mean of :func:`pearson_correlation` over samples.

    >>> PearsonCorrelation()([[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]]).round(4)
    np.float32(0.9967)
    """

    function = staticmethod(pearson_correlation)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"axis": -1}


class ConcordanceCorrelation(FunctionMetric):
    """The mean of :func:`concordance_correlation` over samples.

    >>> ConcordanceCorrelation()([[0, 1, 0.5], [1, 1, 0.2]], [[0.1, 0.9, 0.5], [1, 0.9, 0.2]]).round(4)
    np.float32(0.9816)
    """

    function = staticmethod(concordance_correlation)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"axis": -1}
