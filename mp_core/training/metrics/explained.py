"""The coefficient of determination: the share of the targets' variance that the outputs explain."""

from typing import Any

import numpy as np

from mp_core.arrays import Array
from mp_core.policies.autocast.variable import assign_each
from mp_core.training.losses.arrays import same_rank
from mp_core.training.metrics.metric import NAMED, TOTALS, Metric, as_float64, quotient
from mp_core.utilities.arguments import integer
from mp_core.utilities.docstrings import documented

__all__ = ["R2Score"]

_AGGREGATIONS = (None, "uniform_average", "variance_weighted_average")


@documented(NAMED)
class R2Score(Metric):
    """``1 - sum((y_true - y_pred)**2) / sum((y_true - mean(y_true))**2)``.

    Parameters
    ----------
    class_aggregation : {"uniform_average", "variance_weighted_average", None}
        Return the mean of the scores of several outputs, their mean weighted by variances, or (None) all scores.
    num_regressors : int
        If above 0, the score is adjusted: ``1 - (1 - score) * (n - 1) / (n - num_regressors - 1)``, n the number of
        values. It is not adjusted if ``n <= num_regressors + 1``.

    Examples
    --------
    >>> R2Score()([[1.0], [4.0], [3.0]], [[2.0], [4.0], [4.0]]).round(4)
    np.float32(0.5714)
    """

    _direction = "up"
    _arguments = ("class_aggregation", "num_regressors")

    def __init__(
        self, class_aggregation: str | None = "uniform_average", num_regressors: int = 0, name: str = "r2_score",
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(dtype, name)
        if class_aggregation not in _AGGREGATIONS:
            raise ValueError(f"`class_aggregation` must be one of {_AGGREGATIONS}; received {class_aggregation!r}")
        if integer(num_regressors, "num_regressors") < 0:
            raise ValueError(f"`num_regressors` must be at least 0; received {num_regressors}")
        self.class_aggregation, self.num_regressors = class_aggregation, num_regressors
        self.num_samples = self.add_variable(dtype=TOTALS, name="num_samples")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        truth, found = same_rank(as_float64(y_true, "y_true"), as_float64(y_pred, "y_pred"))
        if truth.ndim != 2 or truth.shape != found.shape:
            raise ValueError(
                "`y_true` and `y_pred` must have one shape (samples, outputs); received "
                f"{truth.shape} and {found.shape}"
            )
        if len(self._variables) == 1:
            for name in ("deviations", "sum", "residual", "count"):
                setattr(self, name, self.add_variable(truth.shape[1:], dtype=TOTALS, name=name))
        weight = as_float64(1.0 if sample_weight is None else sample_weight, "sample_weight")
        weight = np.broadcast_to(weight[:, np.newaxis] if weight.ndim == 1 else weight, truth.shape)
        assign_each(self._variables, self._updated(truth, found, weight))

    def _updated(self, truth: Array, found: Array, weight: Array) -> list[Array]:
        """Return the new values of the variables after a batch; variances are merged as in Chan (1979)."""
        samples, deviations, total, residual, count = (variable.numpy() for variable in self._variables)
        new_total, new_count = (truth * weight).sum(0), weight.sum(0)
        apart = truth - quotient(new_total, new_count)
        between = quotient(new_total, new_count) - quotient(total, count)
        both = quotient(count * new_count, count + new_count)
        return [
            np.asarray(samples + truth.size),
            deviations + (apart * apart * weight).sum(0) + between * between * both,
            total + new_total,
            residual + ((truth - found) ** 2 * weight).sum(0),
            count + new_count,
        ]

    def result(self) -> Any:
        """Return the score; an array if there is no aggregation; 0 before the first batch."""
        if len(self._variables) == 1:
            return self._rounded(0.0)
        total, _, residual, _ = (variable.numpy() for variable in self._variables[1:])
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = 1 - residual / total
        scores = np.where(np.isinf(scores), 0.0, scores)
        if self.class_aggregation == "uniform_average":
            scores = scores.mean()
        elif self.class_aggregation == "variance_weighted_average":
            scores = (total * scores).sum() / total.sum()
        return self._rounded(self._adjusted(scores))

    def _adjusted(self, scores: Any) -> Any:
        """Return scores adjusted for the number of regressors, if there are enough samples."""
        count, regressors = self.num_samples.numpy(), self.num_regressors
        if not regressors or regressors >= count - 1:
            return scores
        return 1 - (1 - scores) * (count - 1) / (count - regressors - 1)
