"""Metrics by name, and their configurations."""

from typing import Any

from mp_core import losses
from mp_core.dtype_policies.lookup import class_and_config, known_classes, named_function
from mp_core.metrics import accuracies, confusion, f_scores, means, metric
from mp_core.metrics.metric import Metric

__all__ = ["CLASSES", "FUNCTIONS", "deserialize", "get", "serialize"]

_HOMES = (accuracies, confusion, f_scores, means)
CLASSES: dict[str, Any] = {
    name: getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].isupper()
} | {"Mean": metric.Mean, "Sum": metric.Sum}
"""Name -> class."""

FUNCTIONS: dict[str, Any] = {
    **losses.registry.FUNCTIONS,
    **{name: getattr(home, name) for home in (accuracies, means) for name in home.__all__ if name[0].islower()},
}
"""Name -> function of targets and outputs, those of losses too."""


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
    if not isinstance(metric, Metric):
        name = getattr(metric, "__name__", None)
        if not callable(metric) or name is None:
            raise TypeError(f"`metric` must be a Metric or a function; received {metric!r}")
        return name
    kind = type(metric)
    own = CLASSES.get(kind.__name__) is kind
    return {
        "module": "keras.metrics" if own else None,
        "class_name": kind.__name__,
        "config": metric.get_config(),
        "registered_name": None if own else kind.__name__,
    }


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
    config = named_function(config)
    if callable(config):
        return config
    objects = {**FUNCTIONS, **(custom_objects or {})}
    if isinstance(config, str):
        if config in objects:
            return objects[config]
        config = {"class_name": config, "config": {}}
    found, own = class_and_config(config, known_classes(Metric, CLASSES, custom_objects), "metric")
    return found.from_config(own)


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
    if identifier is None or isinstance(identifier, Metric):
        return identifier
    if callable(identifier) and not isinstance(identifier, type):
        return identifier
    if isinstance(identifier, str | dict):
        return deserialize(identifier)
    raise ValueError(f"Could not interpret metric identifier: {identifier!r}")
