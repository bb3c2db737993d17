"""Errors of a model's outputs compared with float32: the metrics of a budget, and the outputs that each can measure."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.finite import all_finite
from mp_core.models.fitting.results import OutputError
from mp_core.utilities.arguments import is_number

__all__ = ["METRICS", "Metric", "OwnMetric", "check_metric", "describe", "error_of", "metric_for"]

Metric = Literal["max", "mean", "rmse", "largest", "disagreement"]
METRICS: tuple[str, ...] = get_args(Metric)
OwnMetric = Callable[[Array, Array], float]
"""A metric, or a function of the outputs and the float32 outputs of all calls together; smaller is better."""

_NEED_SEVERAL_NUMBERS = {
    **dict.fromkeys(("max", "mean"), "the cosine of two single numbers is always 1 or -1"),
    "disagreement": "the largest of a single number is always the same",
}
"""Metric that needs outputs of several numbers -> reason."""


def check_metric(metric: Any) -> None:
    """Raise ValueError unless `metric` is None, one of :data:`METRICS` or a function."""
    if not (metric is None or metric in METRICS or callable(metric)):
        raise ValueError(f"`metric` must be one of {', '.join(METRICS)}, a function or None; received {metric!r}")


def metric_for(metric: Metric | OwnMetric | None, outputs: Sequence[Array]) -> str:
    """Return the field of :class:`OutputError` that a budget limits, if it can measure these float32 outputs."""
    ones = [x for x in outputs if _size_of_output(x) == 1]
    if metric is None:
        return "largest" if ones else "max"
    if callable(metric):
        return "own"
    short = [x for x in outputs if x.shape[-1] == 1] if metric == "disagreement" else ones
    if metric in _NEED_SEVERAL_NUMBERS and short:
        raise ValueError(
            f"`metric` '{metric}' cannot measure outputs of one number: {_NEED_SEVERAL_NUMBERS[metric]}; take "
            f"'largest', 'rmse' or a function; received outputs of shape {short[0].shape}"
        )
    return metric


def error_of(outputs: Sequence[Array], reference: Sequence[Array], own: OwnMetric | None = None) -> OutputError:
    """Compare outputs with float32 outputs: arrays with at least two axes, one output per index of the first axis."""
    if not (all_finite(outputs) and all_finite(reference)):
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
        own=math.nan if own is None else _own_error(own, outputs, reference),
    )


def describe(x: Any) -> str:
    """Return a description of a value for errors, without the elements of arrays."""
    if isinstance(x, np.ndarray):
        return f"{x.dtype.name} of shape {x.shape}"
    return f"a {type(x).__name__} of {len(x)}" if isinstance(x, (list, tuple, dict)) else repr(x)


def _rows(outputs: Array) -> Array:
    return outputs.reshape(len(outputs), _size_of_output(outputs))


def _size_of_output(outputs: Array) -> int:
    return math.prod(outputs.shape[1:])


def _ratio(difference: float, size: float) -> float:
    return difference / size if size else math.inf if difference else 0.0


def _distances(outputs: Array, reference: Array) -> Array:
    """Return ``1 - cosine`` of each row: 1 if one vector is zero, 0 if both are, NaN for single numbers."""
    if outputs.shape[1] == 1:
        return np.full(len(outputs), np.nan)
    lengths, expected = (np.linalg.norm(x, axis=1, keepdims=True) for x in (outputs, reference))
    units = [np.divide(x, n, out=np.zeros_like(x), where=n > 0) for x, n in ((outputs, lengths), (reference, expected))]
    # 1 - cos of unit vectors is half the square of their distance, without the cancellation.
    squares = ((units[0] - units[1]) ** 2).sum(axis=1)
    distances: Array = squares / np.where((lengths > 0) & (expected > 0), 2, 1)[:, 0]
    return distances


def _disagreement(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the share of positions with a different argmax of the last axis; NaN if that axis has one number."""
    if any(x.shape[-1] < 2 for x in reference):
        return math.nan
    other = [(x.argmax(axis=-1) != y.argmax(axis=-1)).reshape(-1) for x, y in zip(outputs, reference, strict=True)]
    return float(np.concatenate(other).mean())


def _own_error(own: OwnMetric, outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the result of the caller's function; NaN becomes infinity."""
    shapes = {x.shape[1:] for x in reference}
    if len(shapes) > 1:
        raise ValueError(
            "`metric` as a function gets the outputs of all calls as one array, so they must have the same shape after "
            f"the first axis; received {', '.join(map(str, sorted(shapes)))}"
        )
    if hasattr(own, "reset_state"):  # a metric accumulates
        own.reset_state()
    found = own(np.concatenate(outputs), np.concatenate(reference))
    if not is_number(found):
        raise TypeError(f"`metric` must return a number; it returned {describe(found)}")
    error = float(found)
    return math.inf if math.isnan(error) else error
