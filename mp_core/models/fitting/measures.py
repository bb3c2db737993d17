"""How far the outputs of a model are from those in float32: the metrics of a budget, and what each can measure."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.finite import all_finite
from mp_core.models.fitting.results import OutputError
from mp_core.utilities.arguments import is_number

__all__ = ["METRICS", "Metric", "OwnMetric", "check_metric", "described", "error_of", "metric_for"]

Metric = Literal["max", "mean", "rmse", "largest", "disagreement"]
METRICS: tuple[str, ...] = get_args(Metric)
OwnMetric = Callable[[Array, Array], float]
"""A function of the outputs and of those in float32, of all calls together, or a metric; less is better."""

_OF_SEVERAL = {
    **dict.fromkeys(("max", "mean"), "the cosine of two numbers is 1 or -1, whatever they are"),
    "disagreement": "the largest number of one is always the same",
}
"""The metrics that need outputs of several numbers, and why."""


def check_metric(metric: Any) -> None:
    """Raise ValueError unless `metric` is None, one of :data:`METRICS` or a function."""
    if not (metric is None or metric in METRICS or callable(metric)):
        raise ValueError(f"`metric` must be one of {', '.join(METRICS)}, a function or None; received {metric!r}")


def metric_for(metric: Metric | OwnMetric | None, outputs: Sequence[Array]) -> str:
    """Return the field of :class:`OutputError` that a budget is for, given the outputs of all calls in float32.

    Raises
    ------
    ValueError
        The metric cannot measure such outputs.
    """
    ones = [x for x in outputs if _numbers(x) == 1]
    if metric is None:
        return "largest" if ones else "max"
    if callable(metric):
        return "own"
    short = [x for x in outputs if x.shape[-1] == 1] if metric == "disagreement" else ones
    if metric in _OF_SEVERAL and short:
        raise ValueError(
            f"`metric` '{metric}' cannot measure outputs of one number: {_OF_SEVERAL[metric]}; take 'largest', 'rmse' "
            f"or a function; received outputs of shape {short[0].shape}"
        )
    return metric


def error_of(outputs: Sequence[Array], reference: Sequence[Array], own: OwnMetric | None = None) -> OutputError:
    """Return how far the outputs of calls are from those in float32: arrays of at least two axes, a row an output."""
    if not all_finite(outputs):
        return OutputError(math.inf, math.inf, math.inf, math.inf, math.inf, math.nan if own is None else math.inf)
    rows = [(_rows(x), _rows(y)) for x, y in zip(outputs, reference, strict=True)]
    distances = np.concatenate([_distances(*pair) for pair in rows])
    largest = max(float(np.abs(x - y).max(initial=0.0)) for x, y in rows)
    difference = math.hypot(*(float(np.linalg.norm(x - y)) for x, y in rows))
    size, count = math.hypot(*(float(np.linalg.norm(y)) for _, y in rows)), sum(y.size for _, y in rows)
    return OutputError(
        max=float(distances.max()),
        mean=float(distances.mean()),
        rmse=_ratio(difference, size),
        largest=_ratio(largest, size / math.sqrt(count)),
        disagreement=_disagreement(outputs, reference),
        own=math.nan if own is None else _own(own, outputs, reference),
    )


def described(x: Any) -> str:
    """Return what came, without the elements of arrays."""
    if isinstance(x, np.ndarray):
        return f"{x.dtype.name} of shape {x.shape}"
    return f"a {type(x).__name__} of {len(x)}" if isinstance(x, (list, tuple, dict)) else repr(x)


def _rows(outputs: Array) -> Array:
    return outputs.reshape(len(outputs), _numbers(outputs))


def _numbers(outputs: Array) -> int:
    """Return how many numbers an output has."""
    return math.prod(outputs.shape[1:])


def _ratio(difference: float, size: float) -> float:
    return difference / size if size else math.inf if difference else 0.0


def _distances(outputs: Array, reference: Array) -> Array:
    """Return ``1 - cosine`` of the rows: 1 if one of two is zero, 0 if both are, NaN of one number."""
    if outputs.shape[1] == 1:
        return np.full(len(outputs), np.nan)
    lengths, expected = (np.linalg.norm(x, axis=1, keepdims=True) for x in (outputs, reference))
    units = [np.divide(x, n, out=np.zeros_like(x), where=n > 0) for x, n in ((outputs, lengths), (reference, expected))]
    # 1 - cos of unit vectors is half the square of their distance, without the cancellation.
    squares = ((units[0] - units[1]) ** 2).sum(axis=1)
    distances: Array = squares / np.where((lengths > 0) & (expected > 0), 2, 1)[:, 0]
    return distances


def _disagreement(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the share of places at which the largest number of the last axis is another one; NaN of one number."""
    if any(x.shape[-1] < 2 for x in reference):
        return math.nan
    other = [(x.argmax(axis=-1) != y.argmax(axis=-1)).reshape(-1) for x, y in zip(outputs, reference, strict=True)]
    return float(np.concatenate(other).mean())


def _own(own: OwnMetric, outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return what the caller's function says, as infinity where it says NaN."""
    shapes = {x.shape[1:] for x in reference}
    if len(shapes) > 1:
        raise ValueError(
            "`metric` as a function gets the outputs of all calls as one array, so they must have one shape beyond "
            f"the first axis; received {', '.join(map(str, sorted(shapes)))}"
        )
    if hasattr(own, "reset_state"):  # a metric counts all calls together
        own.reset_state()
    found = own(np.concatenate(outputs), np.concatenate(reference))
    if not is_number(found):
        raise TypeError(f"`metric` must return a number; it returned {described(found)}")
    error = float(found)
    return math.inf if math.isnan(error) else error
