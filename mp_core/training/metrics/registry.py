"""Metrics by name, and their configurations."""

from typing import Any

from mp_core.files.family import Family
from mp_core.training.metrics import (
    accuracies,
    confusion,
    correlations,
    explained,
    f_scores,
    functions,
    means,
    metric,
    operating_points,
    overlap,
)
from mp_core.training.metrics.functions import FUNCTIONS, class_of
from mp_core.training.metrics.metric import Metric
from mp_core.utilities.names import snake_case

__all__ = ["CLASSES", "FUNCTIONS", "deserialize", "get", "serialize"]

_HOMES = (accuracies, confusion, correlations, explained, f_scores, means, operating_points, overlap)
CLASSES: dict[str, Any] = {
    name: getattr(home, name) for home in _HOMES for name in home.__all__ if name[0].isupper()
} | {"Mean": metric.Mean, "MeanMetricWrapper": functions.MeanMetricWrapper, "Sum": metric.Sum}
"""Name -> class."""

_NAMES = {
    **CLASSES,
    **{snake_case(name): kind for name, kind in CLASSES.items()},
    **{name: kind for name, function in FUNCTIONS.items() if (kind := class_of(function)) is not None},
}
"""Name -> class: the class name, its snake case, and the name of the averaged function."""

serialize, deserialize, get = Family(
    Metric, "metric", _NAMES, {name: each for name, each in FUNCTIONS.items() if name not in _NAMES}
).functions(__name__)
