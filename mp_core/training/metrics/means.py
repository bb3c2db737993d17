"""Means of losses over all samples, with Keras' names."""

from typing import Any, ClassVar

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, asarray
from mp_core.training import losses
from mp_core.training.losses.arrays import matching_floats, same_rank
from mp_core.training.metrics.metric import FunctionMetric, as_float64
from mp_core.utilities.docstrings import documented, parameters_of

__all__ = [
    "BinaryCrossentropy", "CategoricalCrossentropy", "CategoricalHinge", "CosineSimilarity", "Hinge", "KLDivergence",
    "LogCoshError", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Poisson", "RootMeanSquaredError", "SparseCategoricalCrossentropy", "SquaredHinge",
    "cosine_similarity",
]  # fmt: skip


@documented(parameters_of(losses.cosine_similarity))
def cosine_similarity(y_true: Any, y_pred: Any, axis: int = -1) -> Array:
    """Return the cosine of the angle between vectors: minus the loss :func:`mp_core.losses.cosine_similarity`.

    >>> cosine_similarity([[1.0, 0.0]], [[2.0, 0.0]])
    array([1.], dtype=float32)
    """
    similarity: Array = -losses.cosine_similarity(y_true, y_pred, axis)
    return similarity


class CosineSimilarity(FunctionMetric):
    """The mean cosine of the angle between vectors: :func:`cosine_similarity`.

    >>> CosineSimilarity()([[1.0, 0.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 2.0]])  # parallel and orthogonal: (1 + 0) / 2
    np.float32(0.5)
    """

    function = staticmethod(cosine_similarity)
    _direction = "up"
    function_arguments: ClassVar[dict[str, Any]] = {"axis": -1}


def _squared(y_true: Any, y_pred: Any) -> Array:
    y_true, y_pred = matching_floats(y_true, y_pred)
    return ops.square(y_pred - y_true)


class RootMeanSquaredError(FunctionMetric):
    """``sqrt(mean((y_true - y_pred)**2))``.

    >>> RootMeanSquaredError()([[0.0, 0.0]], [[3.0, 3.0]])
    np.float32(3.0)
    """

    function = staticmethod(_squared)
    _direction = "down"

    def result(self) -> Any:
        return self._rounded(np.sqrt(self._mean()))


class MeanSquaredError(FunctionMetric):
    """The mean of squared errors: :func:`mp_core.losses.mean_squared_error`.

    >>> metric = MeanSquaredError()
    >>> metric([[0.0]], [[1.0]]), metric([[0.0]], [[3.0]])  # after the second batch (1 + 9) / 2
    (np.float32(1.0), np.float32(5.0))
    """

    function = staticmethod(losses.mean_squared_error)
    _direction = "down"


class MeanAbsoluteError(FunctionMetric):
    """The mean of absolute errors: :func:`mp_core.losses.mean_absolute_error`.

    >>> MeanAbsoluteError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[3.0, 1.0])  # (3 * 1 + 1 * 3) / (3 + 1)
    np.float32(1.5)
    """

    function = staticmethod(losses.mean_absolute_error)
    _direction = "down"


class MeanAbsolutePercentageError(FunctionMetric):
    """The mean of absolute errors in percent of the targets: :func:`mp_core.losses.mean_absolute_percentage_error`.

    >>> MeanAbsolutePercentageError()([[10.0], [10.0]], [[9.0], [13.0]])  # (10 % + 30 %) / 2
    np.float32(20.0)
    """

    function = staticmethod(losses.mean_absolute_percentage_error)
    _direction = "down"


class MeanSquaredLogarithmicError(FunctionMetric):
    """The mean of squared differences of logarithms: :func:`mp_core.losses.mean_squared_logarithmic_error`.

    >>> MeanSquaredLogarithmicError()([[1.0]], [[3.0]]).round(4)  # (log(1 + 3) - log(1 + 1))**2, which is log(2)**2
    np.float32(0.4805)
    """

    function = staticmethod(losses.mean_squared_logarithmic_error)
    _direction = "down"


class LogCoshError(FunctionMetric):
    """The mean of ``log(cosh(error))``: :func:`mp_core.losses.log_cosh`.

    >>> LogCoshError()([[0.0]], [[5.0]]).round(4)  # about 5 - log(2)
    np.float32(4.3069)
    """

    function = staticmethod(losses.log_cosh)
    _direction = "down"
    default_name = "logcosh"


class Hinge(FunctionMetric):
    """The mean of hinge losses: :func:`mp_core.losses.hinge`.

    >>> Hinge()([1.0, -1.0, 1.0], [2.0, 0.5, 0.5]).round(4)  # (0 + 1.5 + 0.5) / 3
    np.float32(0.6667)
    """

    function = staticmethod(losses.hinge)
    _direction = "down"


class SquaredHinge(FunctionMetric):
    """The mean of squared hinge losses: :func:`mp_core.losses.squared_hinge`.

    >>> SquaredHinge()([[1.0], [-1.0]], [[2.0], [0.5]])  # (0 + 1.5**2) / 2
    np.float32(1.125)
    """

    function = staticmethod(losses.squared_hinge)
    _direction = "down"


class CategoricalHinge(FunctionMetric):
    """The mean of categorical hinge losses: :func:`mp_core.losses.categorical_hinge`.

    >>> CategoricalHinge()([[0.0, 1.0, 0.0]], [[0.5, 1.0, 0.75]])  # 1 + 0.75, the best wrong one, - 1
    np.float32(0.75)
    """

    function = staticmethod(losses.categorical_hinge)
    _direction = "down"


class KLDivergence(FunctionMetric):
    """The mean of Kullback-Leibler divergences: :func:`mp_core.losses.kl_divergence`.

    >>> KLDivergence()([[1.0, 0.0]], [[0.25, 0.75]]).round(4)  # 1 * log(1 / 0.25)
    np.float32(1.3863)
    """

    function = staticmethod(losses.kl_divergence)
    _direction = "down"


class Poisson(FunctionMetric):
    """The mean of Poisson losses: :func:`mp_core.losses.poisson`.

    >>> Poisson()([[5.0]], [[1.0]]).round(4)  # 1 - 5 * log(1)
    np.float32(1.0)
    """

    function = staticmethod(losses.poisson)
    _direction = "down"


class BinaryCrossentropy(FunctionMetric):
    """The mean cross-entropy of two classes: :func:`mp_core.losses.binary_crossentropy`.

    >>> BinaryCrossentropy()([[1.0], [1.0]], [[0.5], [0.125]]).round(4)  # (log(2) + log(8)) / 2
    np.float32(1.3863)
    """

    function = staticmethod(losses.binary_crossentropy)
    _direction = "down"
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0}


class CategoricalCrossentropy(FunctionMetric):
    """The mean cross-entropy of one-hot targets: :func:`mp_core.losses.categorical_crossentropy`.

    >>> CategoricalCrossentropy()([[0, 1, 0], [1, 0, 0]], [[0.0, 1.0, 0.0], [0.25, 0.5, 0.25]]).round(4)  # log(4) / 2
    np.float32(0.6931)
    """

    function = staticmethod(losses.categorical_crossentropy)
    _direction = "down"
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0, "axis": -1}


class SparseCategoricalCrossentropy(FunctionMetric):
    """The mean cross-entropy of integer targets: :func:`mp_core.losses.sparse_categorical_crossentropy`.

    >>> SparseCategoricalCrossentropy()([1, 0], [[0.0, 1.0, 0.0], [0.25, 0.5, 0.25]]).round(4)  # (0 + log(4)) / 2
    np.float32(0.6931)
    """

    function = staticmethod(losses.sparse_categorical_crossentropy)
    _direction = "down"
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "axis": -1, "ignore_class": None}
    order = ("name", "dtype", "from_logits", "axis")
    ignore_class: int | None

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Update the totals with a batch; if there are weights, those of targets `ignore_class` are replaced by 0."""
        if sample_weight is not None and self.ignore_class is not None:
            counts, weight = same_rank(
                asarray(y_true, "y_true") != self.ignore_class, as_float64(sample_weight, "sample_weight")
            )
            sample_weight = weight.reshape(weight.shape + (1,) * (counts.ndim - weight.ndim)) * counts
        super().update_state(y_true, y_pred, sample_weight)
