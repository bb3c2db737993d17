"""What is averaged over batches beside losses, and the values that logs have of it."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mp_core.layers.base.state import metrics_among
from mp_core.training.metrics import Metric

__all__ = ["flat_logs", "metrics_in", "results_of"]


def metrics_in(model: Any) -> list[Metric]:
    """Return the metrics among the attributes of a model and of its layers, each once; those of models in it are not.

    They are in lists, tuples and dictionaries too.
    """
    layers = [layer for layer in model.flatten() if layer is model or not hasattr(layer, "train_step")]
    return metrics_among(layers)


def results_of(trackers: Iterable[Any]) -> dict[str, Any]:
    """Return the means by their names: those of a dictionary by its own."""
    return flat_logs({tracker.name: tracker.result() for tracker in trackers})


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return logs without dictionaries in them, and with Python's numbers; several numbers stay an array."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            found |= flat_logs(value)
        else:
            array = np.asarray(value)
            found[name] = array if array.ndim else array.item()
    return found
