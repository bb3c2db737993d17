"""Harmonic means of precision and recall."""

import math
from typing import Any, ClassVar, Literal

import numpy as np

from mp_core.arrays import Array
from mp_core.training.metrics.confusion import as_float32
from mp_core.training.metrics.metric import NAMED, TOTALS, Metric, as_float64, quotient
from mp_core.utilities.docstrings import documented

__all__ = ["F1Score", "FBetaScore"]


_SCORE = documented("""
    Parameters
    ----------
    average : {None, "micro", "macro", "weighted"}
        None: a score for each class. ``"micro"``: one score from the counts of all classes. ``"macro"``: the mean of
        the classes' scores. ``"weighted"``: their mean weighted by the number of targets of each class.
    threshold : float, optional
        Outputs above it are positive; None: the largest output of a sample is positive.
""", NAMED)  # fmt: skip


@_SCORE
class FBetaScore(Metric):
    """``(1 + beta**2) * precision * recall / (beta**2 * precision + recall)``.

    Parameters
    ----------
    beta : float

    Examples
    --------
    >>> FBetaScore(average="macro", beta=1.0)([[1, 0], [0, 1]], [[0.75, 0.25], [0.75, 0.25]]).round(4)
    np.float32(0.3333)
    """

    _direction = "up"
    _arguments: ClassVar[tuple[str, ...]] = ("average", "beta", "threshold")

    def __init__(
        self,
        average: Literal["micro", "macro", "weighted"] | None = None,
        beta: float = 1.0,
        threshold: float | None = None,
        name: str = "fbeta_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(dtype, name)
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(f'`average` must be None, "micro", "macro" or "weighted"; received average={average!r}')
        if not isinstance(beta, float) or not 0 < beta < math.inf:
            raise ValueError(f"`beta` must be a finite float above 0; received beta={beta!r}")
        if threshold is not None and not (isinstance(threshold, float) and 0 < threshold <= 1):
            raise ValueError(
                f"`threshold` must be a float above 0, at most 1, or None; received threshold={threshold!r}"
            )
        self.average, self.beta, self.threshold = average, beta, threshold

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, outputs = as_float32(y_true, "y_true"), as_float32(y_pred, "y_pred")
        if truth.ndim != 2 or truth.shape != outputs.shape:
            raise ValueError(
                "`y_true` and `y_pred` must have one shape (samples, classes); received "
                f"{truth.shape} and {outputs.shape}"
            )
        if not self._variables:
            shape = () if self.average == "micro" else truth.shape[1:]
            names = "true_positives", "false_positives", "false_negatives", "intermediate_weights"
            for name in names:
                setattr(self, name, self.add_variable(shape, dtype=TOTALS, name=name))
        if self.threshold is None:
            chosen = (outputs >= outputs.max(-1, keepdims=True)) & (np.abs(outputs) > 1e-9)
        else:
            chosen = outputs > self.threshold
        truth, positive_ = truth.astype(np.float64), chosen.astype(np.float64)
        weight = 1.0 if sample_weight is None else _weights(sample_weight, len(truth))
        axis = None if self.average == "micro" else 0
        parts = positive_ * truth, positive_ * (1 - truth), (1 - positive_) * truth, truth
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign_add((part * weight).sum(axis))

    def result(self) -> Any:
        if not self._variables:
            return self._rounded(0.0)
        tp, fp, fn, weights = (variable.numpy() for variable in self._variables)
        squared = self.beta**2
        precision, recall = quotient(tp, tp + fp), quotient(tp, tp + fn)
        score = quotient((1 + squared) * precision * recall, squared * precision + recall)
        if self.average == "weighted":
            score = (score * quotient(weights, weights.sum())).sum()
        return self._rounded(score if self.average is None else score.mean())


def _weights(sample_weight: Any, count: int) -> Array:
    """Return the weights of `count` samples as a column."""
    weights = as_float64(sample_weight, "sample_weight")
    if weights.shape not in ((), (1,), (count,), (count, 1)):
        raise ValueError(f"`sample_weight` must have the shape ({count},) or ({count}, 1); received {weights.shape}")
    return weights.reshape(-1, 1)


@_SCORE
class F1Score(FBetaScore):
    """The harmonic mean of precision and recall: :class:`FBetaScore` with ``beta=1``.

    >>> F1Score(average="micro")([[1, 0], [0, 1]], [[0.75, 0.25], [0.75, 0.25]]).round(4)
    np.float32(0.5)
    """

    _arguments = ("average", "threshold")

    def __init__(
        self,
        average: Literal["micro", "macro", "weighted"] | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)
