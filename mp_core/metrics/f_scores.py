"""Harmonic means of precision and recall."""

from typing import Any, Literal

import numpy as np

from mp_core.losses.arrays import EPSILON
from mp_core.metrics.confusion import single
from mp_core.metrics.metric import Metric
from mp_core.utilities.arguments import positive, share

__all__ = ["F1Score", "FBetaScore"]


class FBetaScore(Metric):
    """The weighted harmonic mean of precision and recall, of which recall counts `beta` times as much.

    Parameters
    ----------
    average : {None, "micro", "macro", "weighted"}
        None: a score for each class. Else the score of all outputs together, the mean of the scores, or their mean
        weighted by how often a class is right.
    beta : float
    threshold : float, optional
        Above which outputs are positive; None: the largest of a sample is.
    name, dtype
        Those of :class:`Metric`.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

    Examples
    --------
    >>> FBetaScore(average="macro", beta=1.0)([[1, 0], [0, 1]], [[0.75, 0.25], [0.75, 0.25]]).round(4)
    np.float32(0.3333)
    """

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
        self.average, self.beta = average, positive(beta, "beta")
        self.threshold = None if threshold is None else share(threshold, "threshold")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count a batch of targets and outputs, each of shape (samples, classes)."""
        truth, outputs = single(y_true, "y_true"), single(y_pred, "y_pred")
        if truth.ndim != 2 or truth.shape != outputs.shape:
            raise ValueError(
                "`y_true` and `y_pred` must have one shape (samples, classes); received "
                f"{truth.shape} and {outputs.shape}"
            )
        if not self._variables:
            shape = () if self.average == "micro" else truth.shape[1:]
            names = "true_positives", "false_positives", "false_negatives", "intermediate_weights"
            for name in names:
                setattr(self, name, self.add_variable(shape, name=name))
        if self.threshold is None:
            chosen = (outputs >= outputs.max(-1, keepdims=True)) & (np.abs(outputs) > 1e-9)
        else:
            chosen = outputs > self.threshold
        positive_ = chosen.astype(np.float32)
        weight = np.float32(1) if sample_weight is None else single(sample_weight, "sample_weight").reshape(-1, 1)
        axis = None if self.average == "micro" else 0
        parts = positive_ * truth, positive_ * (1 - truth), (1 - positive_) * truth, truth
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign_add((part * weight).sum(axis))

    def result(self) -> Any:
        """Return the score, an array if there is no average."""
        if not self._variables:
            return np.float32(0)
        tp, fp, fn, weights = (variable.numpy() for variable in self._variables)
        epsilon, squared = np.float32(EPSILON), np.float32(self.beta**2)
        precision, recall = tp / (tp + fp + epsilon), tp / (tp + fn + epsilon)
        score = precision * recall / (squared * precision + recall + epsilon) * (1 + squared)
        if self.average == "weighted":
            return (score * (weights / (weights.sum() + epsilon))).sum()
        return score if self.average is None else score.mean()

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return super().get_config() | {"average": self.average, "beta": self.beta, "threshold": self.threshold}


class F1Score(FBetaScore):
    """The harmonic mean of precision and recall: :class:`FBetaScore` with a `beta` of 1.

    Parameters
    ----------
    average, threshold, name, dtype
        Those of :class:`FBetaScore`.

    Raises
    ------
    TypeError, ValueError
        As :class:`FBetaScore`.

    Examples
    --------
    >>> F1Score(average="micro")([[1, 0], [0, 1]], [[0.75, 0.25], [0.75, 0.25]]).round(4)
    np.float32(0.5)
    """

    def __init__(
        self,
        average: Literal["micro", "macro", "weighted"] | None = None,
        threshold: float | None = None,
        name: str = "f1_score",
        dtype: Any = None,
    ) -> None:
        super().__init__(average, 1.0, threshold, name, dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        del config["beta"]
        return config
