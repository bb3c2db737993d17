"""Metrics of two classes at the best threshold that meets a condition, such as sensitivity at a specificity."""

import inspect
from typing import Any, ClassVar

import numpy as np

from mp_core.arrays import Array
from mp_core.training.losses.loss import bound_arguments
from mp_core.training.metrics.confusion import COUNTS, clip_to_unit_range, confusion_counts, prepare_inputs
from mp_core.training.metrics.metric import NAMED, TOTALS, Metric, quotient
from mp_core.utilities.arguments import integer, positive_integer, share
from mp_core.utilities.docstrings import with_sections

__all__ = ["PrecisionAtRecall", "RecallAtPrecision", "SensitivityAtSpecificity", "SpecificityAtSensitivity"]

_SHARES = {
    "sensitivity": ("true_positives", "false_negatives"), "recall": ("true_positives", "false_negatives"),
    "specificity": ("true_negatives", "false_positives"), "precision": ("true_positives", "false_positives"),
}  # fmt: skip
"""Name of a rate -> two counts; rate = first / (first + second)."""

_PARAMETERS = """
    Parameters
    ----------
    {condition} : float
        From 0 to 1.
    num_thresholds : int
        The number of thresholds, evenly spaced from 0 to 1; 1: the threshold 0.5.
    class_id : int, optional
        Use only the outputs of this class.
"""


class _BestAtCondition(Metric):
    """The largest value of the rate `best` over all thresholds at which the rate `condition` is large enough."""

    best: ClassVar[str]
    condition: ClassVar[str]
    _direction = "up"
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kind, none = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        defaults = {cls.condition: none, "num_thresholds": 200, "class_id": None, "name": None, "dtype": None}
        cls.__signature__ = inspect.Signature(
            [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]
        )
        cls._arguments = ("num_thresholds", "class_id", cls.condition)
        if "condition" in vars(cls):
            cls.__doc__ = with_sections(cls.__doc__, _PARAMETERS.format(condition=cls.condition) + NAMED)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = bound_arguments(type(self), args, kwargs)
        super().__init__(arguments["dtype"], arguments["name"])
        self.least = share(arguments[self.condition], self.condition)
        setattr(self, self.condition, self.least)
        self.num_thresholds = positive_integer(arguments["num_thresholds"], "num_thresholds")
        self.class_id = None if arguments["class_id"] is None else integer(arguments["class_id"], "class_id")
        last = self.num_thresholds - 1
        self.thresholds = [i / last for i in range(self.num_thresholds)] if last else [0.5]
        for count in COUNTS:
            setattr(self, count, self.add_variable((self.num_thresholds,), dtype=TOTALS, name=count))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, outputs, weight = prepare_inputs(y_true, y_pred, sample_weight, class_id=self.class_id)
        weights = None if weight is None else weight.ravel()
        thresholds = np.array(self.thresholds, np.float32)
        outputs = clip_to_unit_range(outputs.ravel(), "apply a sigmoid to logits")
        found = confusion_counts(truth.ravel(), outputs, thresholds, weights)
        for count in COUNTS:
            getattr(self, count).assign_add(found[count])

    def result(self) -> Any:
        best, other = (self._share(name) for name in (self.best, self.condition))
        return self._rounded(np.where(other >= self.least, best, 0.0).max())

    def _share(self, name: str) -> Array:
        first, second = (getattr(self, count).numpy() for count in _SHARES[name])
        found: Array = quotient(first, first + second)
        return found


class SensitivityAtSpecificity(_BestAtCondition):
    """The largest sensitivity, ``tp / (tp + fn)``, where the specificity, ``tn / (tn + fp)``, is at least some value.

    >>> SensitivityAtSpecificity(0.5)([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8])
    np.float32(0.5)
    """

    best, condition = "sensitivity", "specificity"


class SpecificityAtSensitivity(_BestAtCondition):
    """The largest specificity, ``tn / (tn + fp)``, where the sensitivity, ``tp / (tp + fn)``, is at least some value.

    >>> SpecificityAtSensitivity(0.5)([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8])
    np.float32(0.6666667)
    """

    best, condition = "specificity", "sensitivity"


class PrecisionAtRecall(_BestAtCondition):
    """The largest precision, ``tp / (tp + fp)``, where the recall, ``tp / (tp + fn)``, is at least some value.

    >>> PrecisionAtRecall(0.5)([0, 0, 0, 1, 1], [0.0, 0.3, 0.8, 0.3, 0.8])
    np.float32(0.5)
    """

    best, condition = "precision", "recall"


class RecallAtPrecision(_BestAtCondition):
    """The largest recall, ``tp / (tp + fn)``, where the precision, ``tp / (tp + fp)``, is at least some value.

    >>> RecallAtPrecision(0.8)([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9])
    np.float32(0.5)
    """

    best, condition = "recall", "precision"
