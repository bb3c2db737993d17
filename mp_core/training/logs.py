"""Metrics of a model and its layers, and logs: name -> Python number or array."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mp_core.layers.base.state import flat_layers, metrics_among
from mp_core.training.metrics import Metric

__all__ = ["flat_logs", "metrics_in", "results_of"]


def metrics_in(model: Any) -> list[Metric]:
    """Return the metrics among the attributes of a model and of its layers, each once.

    Lists, tuples and dictionaries are searched too. Metrics of models inside the model are left out.
    """
    layers = [layer for layer in flat_layers(model) if layer is model or not hasattr(layer, "train_step")]
    return metrics_among(layers)


def results_of(trackers: Iterable[Any]) -> dict[str, Any]:
    """Return name -> mean; a result that is a dictionary adds its own names."""
    return flat_logs({tracker.name: tracker.result() for tracker in trackers})


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs with nested dictionaries flattened and scalars as Python numbers; other arrays stay arrays."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found |= flat_logs(value)
        else:
            array = np.asarray(value)
            found[name] = array if array.ndim else array.item()
    return found
