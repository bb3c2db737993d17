"""Metrics of two classes from true and false positives and negatives at thresholds."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.training.losses.arrays import EPSILON, floats, same_rank
from mp_core.training.metrics.metric import NAMED, TOTALS, Metric, as_float64, quotient
from mp_core.utilities.arguments import boolean, integer, positive_integer, share
from mp_core.utilities.docstrings import documented

__all__ = [
    "AUC", "FalseNegatives", "FalsePositives", "Precision", "Recall", "TrueNegatives", "TruePositives", "as_float32",
]  # fmt: skip

_HEIGHTS: dict[str, Any] = {
    "interpolation": lambda a, b: (a + b) / 2, "minoring": np.minimum, "majoring": np.maximum,
}  # fmt: skip
_SLACK = 1e-6
"""Tolerance for outputs below 0 or above 1: a few rounding errors of float32."""
COUNTS = ("true_positives", "false_positives", "true_negatives", "false_negatives")


def confusion_counts(y_true: Array, y_pred: Array, thresholds: Array, weight: Array | None) -> dict[str, Array]:
    """Return the four weighted counts for each threshold, in float64. Outputs above the threshold are positive.

    Targets, of bool, and outputs have the shape (n,). Thresholds ascend and have the dtype of the outputs.
    """
    above = np.searchsorted(thresholds, y_pred, "left")  # number of thresholds below the output
    found = {}
    for name, chosen in (("positives", y_true), ("negatives", ~y_true)):
        weights = None if weight is None else weight[chosen]
        bins = np.bincount(above[chosen], weights, thresholds.size + 1)
        exceeding = np.cumsum(bins[::-1])[::-1][1:].astype(np.float64)
        right, wrong = exceeding, np.cumsum(bins)[:-1].astype(np.float64)
        if name == "positives":
            found["true_positives"], found["false_negatives"] = right, wrong
        else:
            found["false_positives"], found["true_negatives"] = right, wrong
    return found


def prepare_inputs(
    y_true: Any, y_pred: Any, weight: Any, top_k: int | None = None, class_id: int | None = None
) -> tuple[Array, Array, Array | None]:
    """Return targets (bool), outputs (float32) and weights (float64), all with the shape of the outputs."""
    y_pred, y_true = same_rank(as_float32(y_pred, "y_pred"), as_float32(y_true, "y_true"))
    if y_true.shape != y_pred.shape:
        raise ValueError(f"`y_true` and `y_pred` must have one shape; received {y_true.shape} and {y_pred.shape}")
    if np.isnan(y_pred).any():
        raise ValueError("`y_pred` must hold numbers; received NaN")
    if top_k is not None:
        kept = np.argsort(-y_pred, -1, kind="stable")[..., :top_k]
        best = np.full_like(y_pred, -1e10)
        np.put_along_axis(best, kept, np.take_along_axis(y_pred, kept, -1), -1)
        y_pred = best
    if class_id is not None:
        if y_pred.ndim < 2:
            raise ValueError(f"with `class_id`, `y_pred` must have shape (samples, classes); received {y_pred.shape}")
        if not -y_pred.shape[-1] <= class_id < y_pred.shape[-1]:
            raise ValueError(f"`class_id` must be a class of `y_pred` of shape {y_pred.shape}; received {class_id}")
        y_true, y_pred = y_true[..., class_id, None], y_pred[..., class_id, None]
    if weight is not None:
        weight = as_float64(weight, "sample_weight")
        if weight.ndim < y_pred.ndim:
            weight = weight.reshape(weight.shape + (1,) * (y_pred.ndim - weight.ndim))
        try:
            weight = np.broadcast_to(weight, y_pred.shape)
        except ValueError:
            raise ValueError(
                f"`sample_weight` must broadcast to the outputs, {y_pred.shape}; received {weight.shape}"
            ) from None
    return y_true.astype(bool), y_pred, weight


def clip_to_unit_range(outputs: Array, hint: str) -> Array:
    """Clip outputs to [0, 1]; more than :data:`_SLACK` beyond raises a ValueError that ends with `hint`."""
    if outputs.size and not -_SLACK <= outputs.min() <= outputs.max() <= 1 + _SLACK:
        found = f"{outputs.min():.6g} to {outputs.max():.6g}"
        raise ValueError(f"`y_pred` must be from 0 to 1; received values from {found}: {hint}")
    return np.clip(outputs, 0, 1)


def as_float32(x: Any, argument: str) -> Array:
    """Convert to an array of float32."""
    return np.asarray(floats(x, argument), np.float32)


def _thresholds(given: Any, default: float) -> list[float]:
    if given is None:
        return [default]
    return [share(value, "thresholds") for value in (given if np.iterable(given) else [given])]


_THRESHOLDS = """
    Parameters
    ----------
    thresholds : float or sequence of float, optional
        From 0 to 1; default: 0.5.
"""
_CHOSEN_AND_NAMED = (
    """
    Parameters
    ----------
    top_k : int, optional
        Only the `top_k` largest outputs of a sample can be positive; the default threshold is then -infinity.
    class_id : int, optional
        Use only the outputs of this class.
"""
    + NAMED
)


class _ConfusionMetric(Metric):
    """A metric that stores some of the four counts for each threshold."""

    counts: ClassVar[tuple[str, ...]]
    _direction = "up"

    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(dtype, name)
        self._thresholds_argument = thresholds
        self.top_k = None if top_k is None else positive_integer(top_k, "top_k")
        self.class_id = None if class_id is None else integer(class_id, "class_id")
        self.thresholds = _thresholds(thresholds, 0.5 if top_k is None else -1e10)
        found = np.array(self.thresholds, np.float32)
        self._order = np.argsort(found, kind="stable")
        self._ascending = found[self._order]
        for count in self.counts:
            setattr(self, count, self.add_variable((len(found),), dtype=TOTALS, name=count))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, outputs, weight = prepare_inputs(y_true, y_pred, sample_weight, self.top_k, self.class_id)
        weights = None if weight is None else weight.ravel()
        found = confusion_counts(truth.ravel(), outputs.ravel(), self._ascending, weights)
        for count in self.counts:
            values = np.empty(len(self.thresholds))
            values[self._order] = found[count]
            getattr(self, count).assign_add(values)

    def result(self) -> Any:
        first, second = (getattr(self, count).numpy() for count in self.counts)
        result = self._rounded(quotient(first, first + second))
        return result[0] if result.size == 1 else result

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "thresholds": self._thresholds_argument,
            "top_k": self.top_k,
            "class_id": self.class_id,
        }


@documented(_THRESHOLDS, _CHOSEN_AND_NAMED)
class Precision(_ConfusionMetric):
    """``true positives / (true positives + false positives)``, 0 without positives; positive: above a threshold.

    >>> Precision()([1, 0, 1], [0.75, 0.75, 0.25])
    np.float32(0.5)
    """

    counts = ("true_positives", "false_positives")


@documented(_THRESHOLDS, _CHOSEN_AND_NAMED)
class Recall(_ConfusionMetric):
    """``true positives / (true positives + false negatives)``, 0 without targets 1; positive: above a threshold.

    >>> Recall()([1, 0, 1], [0.75, 0.75, 0.25])
    np.float32(0.5)
    """

    counts = ("true_positives", "false_negatives")


class _CountMetric(_ConfusionMetric):
    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(thresholds, None, None, name, dtype)

    def result(self) -> Any:
        result = getattr(self, self.counts[0]).numpy()
        return result[0] if result.size == 1 else result

    def get_config(self) -> dict[str, Any]:
        return Metric.get_config(self) | {"thresholds": self._thresholds_argument}


@documented(_THRESHOLDS, NAMED)
class TruePositives(_CountMetric):
    """The number of targets 1 with an output above a threshold.

    >>> TruePositives()([1, 1, 0, 0], [0.75, 0.25, 0.75, 0.75])  # the first
    np.float64(1.0)
    """

    counts = ("true_positives",)


@documented(_THRESHOLDS, NAMED)
class FalsePositives(_CountMetric):
    """The number of targets 0 with an output above a threshold.

    >>> FalsePositives()([1, 1, 0, 0], [0.75, 0.25, 0.75, 0.75])  # the last two
    np.float64(2.0)
    """

    counts = ("false_positives",)
    _direction = "down"


@documented(_THRESHOLDS, NAMED)
class TrueNegatives(_CountMetric):
    """The number of targets 0 with an output not above a threshold.

    >>> TrueNegatives(thresholds=[0.5, 0.8])([1, 1, 0, 0], [0.75, 0.25, 0.75, 0.75])
    array([0., 2.])
    """

    counts = ("true_negatives",)


@documented(_THRESHOLDS, NAMED)
class FalseNegatives(_CountMetric):
    """The number of targets 1 with an output not above a threshold.

    >>> FalseNegatives()([1, 1, 0, 0], [0.75, 0.25, 0.75, 0.75])  # the second
    np.float64(1.0)
    """

    counts = ("false_negatives",)
    _direction = "down"


@documented(NAMED)
class AUC(Metric):
    """The area under a curve, computed at a number of thresholds.

    - ``"ROC"``: true positive rate over false positive rate
    - ``"PR"``: precision over recall
    - ``"PRGAIN"``: precision gain over recall gain (Flach and Kull, 2015). With ``r = positive targets / negative
      targets``, the precision gain is ``1 - r * fp / tp``, or 1 if ``tp = 0``; the recall gain is
      ``max(1 - r * fn / tp, 0)``, or 0 if ``tp = 0``.

    Parameters
    ----------
    num_thresholds : int
        The number of thresholds, evenly spaced.
    curve : {"ROC", "PR", "PRGAIN"}
    summation_method : {"interpolation", "minoring", "majoring"}
        The height of a strip under the curve: the mean, the minimum or the maximum of its two ends. With ``"PR"``,
        interpolation follows Davis and Goadrich (2006).
    thresholds : sequence of float, optional
        The thresholds between 0 and 1, instead of `num_thresholds`.
    multi_label : bool
        Whether to compute a curve for each label of outputs of shape (samples, labels), and average the areas.
    num_labels : int, optional
        The number of labels, only with `multi_label`.
    label_weights : sequence of float, optional
        The weight of each label.
    from_logits : bool
        Whether outputs are x of ``sigmoid(x)``; otherwise they must be from 0 to 1.

    Examples
    --------
    >>> AUC()([0, 0, 1, 1], [0.0, 0.5, 0.3, 0.9])
    np.float32(0.75)
    """

    _direction = "up"

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: Literal["ROC", "PR", "PRGAIN"] = "ROC",
        summation_method: Literal["interpolation", "minoring", "majoring"] = "interpolation",
        name: str | None = None,
        dtype: Any = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Sequence[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        super().__init__(dtype, name)
        if curve not in _CURVES:
            raise ValueError(f'`curve` must be "ROC", "PR" or "PRGAIN"; received curve={curve!r}')
        if summation_method not in ("interpolation", "minoring", "majoring"):
            raise ValueError(
                '`summation_method` must be "interpolation", "minoring" or "majoring"; received '
                f"summation_method={summation_method!r}"
            )
        self.curve, self.summation_method = curve, summation_method
        self._inner = None if thresholds is None else sorted(share(value, "thresholds") for value in thresholds)
        if thresholds is None and positive_integer(num_thresholds, "num_thresholds") < 2:
            raise ValueError(f"`num_thresholds` must be an integer > 1; received num_thresholds={num_thresholds}")
        self.num_thresholds = num_thresholds if self._inner is None else len(self._inner) + 2
        even = [i / (self.num_thresholds - 1) for i in range(1, self.num_thresholds - 1)]
        self.thresholds = [-EPSILON, *(even if self._inner is None else self._inner), 1 + EPSILON]
        self.multi_label, self.from_logits = boolean(multi_label, "multi_label"), boolean(from_logits, "from_logits")
        self.num_labels = None if num_labels is None else positive_integer(num_labels, "num_labels")
        if self.num_labels is not None and not self.multi_label:
            raise ValueError("`num_labels` is needed only when `multi_label` is True.")
        self.label_weights = None if label_weights is None else np.asarray(label_weights, np.float32)
        if not self.multi_label:
            self._build((self.num_thresholds,))
        elif self.num_labels is not None:
            self._build((self.num_thresholds, self.num_labels))

    def _build(self, shape: tuple[int, ...]) -> None:
        for count in COUNTS:
            setattr(self, count, self.add_variable(shape, dtype=TOTALS, name=count))

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        outputs = ops.sigmoid(as_float32(y_pred, "y_pred")) if self.from_logits else y_pred
        truth, outputs, weight = prepare_inputs(y_true, outputs, sample_weight)
        outputs = clip_to_unit_range(outputs, "logits need from_logits=True")
        if self.label_weights is not None and not self.multi_label:
            labels = np.broadcast_to(self.label_weights.astype(np.float64), outputs.shape)
            weight = labels if weight is None else weight * labels
        if self.multi_label and outputs.ndim != 2:
            raise ValueError(f"`y_pred` must have two axes with `multi_label`; received {outputs.shape}")
        columns = outputs.shape[1] if self.multi_label else 1
        if not self._variables:
            self._build((self.num_thresholds, columns))
        truth, outputs = truth.reshape(-1, columns), outputs.reshape(-1, columns)
        weights = None if weight is None else weight.reshape(-1, columns)
        thresholds = np.array(self.thresholds, np.float32)
        found = [
            confusion_counts(truth[:, i], outputs[:, i], thresholds, None if weights is None else weights[:, i])
            for i in range(columns)
        ]
        for count in COUNTS:
            values = np.stack([each[count] for each in found], -1)
            variable = getattr(self, count)
            if values.size != variable.size:
                raise ValueError(f"`y_pred` must have {variable.shape[-1]} labels; received {columns}")
            variable.assign_add(values.reshape(variable.shape))

    def result(self) -> Any:
        if not self._variables:
            return self._rounded(0.0)
        tp, fp, tn, fn = (getattr(self, count).numpy() for count in COUNTS)
        if self.curve == "PR" and self.summation_method == "interpolation":
            areas = _interpolated(tp, fp, fn)
        else:
            x, y = _CURVES[self.curve](tp, fp, tn, fn)
            heights = _HEIGHTS[self.summation_method](y[:-1], y[1:])
            areas = (x[:-1] - x[1:]) * heights
        by_label = areas.sum(0)
        if self.multi_label:
            weights = np.ones_like(by_label) if self.label_weights is None else self.label_weights.astype(np.float64)
            by_label = quotient((by_label * weights).sum(), weights.sum())
        return self._rounded(by_label)

    def get_config(self) -> dict[str, Any]:
        weights = self.label_weights
        config = super().get_config() | {
            "num_thresholds": self.num_thresholds, "curve": self.curve, "summation_method": self.summation_method,
            "multi_label": self.multi_label, "num_labels": self.num_labels,
            "label_weights": None if weights is None else weights.astype(str).astype(float).tolist(),
            "from_logits": self.from_logits,
        }  # fmt: skip
        return config if self._inner is None else config | {"thresholds": self._inner}


def _gains(tp: Array, fp: Array, tn: Array, fn: Array) -> tuple[Array, Array]:
    """Return recall gain and precision gain."""
    factor = quotient(tp + fn, tn + fp)
    recall, precision = (1 - factor * quotient(wrong, tp) for wrong in (fn, fp))
    return np.where(tp == 0, 0.0, np.maximum(recall, 0.0)), np.where(tp == 0, 1.0, precision)


_CURVES: dict[str, Callable[..., tuple[Any, Any]]] = {
    "ROC": lambda tp, fp, tn, fn: (quotient(fp, fp + tn), quotient(tp, tp + fn)),
    "PR": lambda tp, fp, tn, fn: (quotient(tp, tp + fn), quotient(tp, tp + fp)),
    "PRGAIN": _gains,
}
"""Name of a curve -> function of the four counts that returns x and y of its points."""


def _interpolated(tp: Array, fp: Array, fn: Array) -> Array:
    """Return the areas of strips under precision over recall; true positives are interpolated linearly in positives."""
    gained, positives = tp[:-1] - tp[1:], tp + fp
    slope = quotient(gained, np.maximum(positives[:-1] - positives[1:], 0))
    intercept = tp[1:] - slope * positives[1:]
    both = (positives[:-1] > 0) & (positives[1:] > 0)
    ratio = np.where(both, quotient(positives[:-1], positives[1:]), 1.0)
    area = slope * (gained + intercept * np.log(ratio))
    return quotient(area, np.maximum(tp[1:] + fn[1:], 0))  # type: ignore[no-any-return]
