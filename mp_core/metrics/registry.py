"""Metrics by name, and their configurations."""

from typing import Any

from mp_core import losses
from mp_core.dtype_policies.lookup import Registry
from mp_core.metrics import (
    accuracies,
    confusion,
    correlations,
    explained,
    f_scores,
    means,
    metric,
    operating_points,
    overlap,
)
from mp_core.metrics.metric import Metric

__all__ = ["CLASSES", "FUNCTIONS", "deserialize", "get", "serialize"]

_HOMES = (accuracies, confusion, correlations, explained, f_scores, means, operating_points, overlap)
CLASSES: dict[str, Any] = {
    name: getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].isupper()
} | {"Mean": metric.Mean, "Sum": metric.Sum}
"""Name -> class."""

FUNCTIONS: dict[str, Any] = {
    **losses.registry.FUNCTIONS,
    **{
        name: getattr(home, name)
        for home in (accuracies, correlations, means)
        for name in home.__all__
        if name[0].islower()
    },
}
"""Name -> function of targets and outputs, those of losses too."""


_REGISTRY = Registry(Metric, "metric", "keras.metrics", CLASSES, FUNCTIONS)


def serialize(metric: Any) -> Any:
    """Return the class name and the configuration of a metric, as Keras writes them; of a function its name.

    Raises
    ------
    TypeError
        `metric` is no metric and no function.

    Examples
    --------
    >>> serialize(accuracies.BinaryAccuracy())["config"]["threshold"]
    0.5
    """
    return _REGISTRY.serialize(metric)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the metric of a :func:`serialize` dictionary, or the class or function of a name.

    Raises
    ------
    TypeError, ValueError
        It names no metric; its arguments are not those of the class.

    Examples
    --------
    >>> deserialize("mae").__name__
    'mean_absolute_error'
    """
    return _REGISTRY.deserialize(config, custom_objects)


def get(identifier: Any) -> Any:
    """Return the metric of a name such as ``"AUC"``, of a dictionary, a metric or function itself, or None for None.

    Raises
    ------
    ValueError
        `identifier` is none of these.

    Examples
    --------
    >>> get("AUC").num_thresholds
    200
    """
    return _REGISTRY.get(identifier)
