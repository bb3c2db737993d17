"""The losses of Keras as classes: each calls the function of the same name, which documents the formula.

:class:`FunctionLoss` adds the parameters to their docstrings.
"""

from typing import Any, ClassVar

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.recorded import is_recorded
from mp_core.training.losses import classification, overlap, regression, sequences
from mp_core.training.losses.arrays import reduces_samples
from mp_core.training.losses.loss import FunctionLoss

__all__ = [
    "CTC", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy", "CategoricalHinge", "Circle", "CosineSimilarity", "Dice", "Hinge", "Huber",
    "KLDivergence", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Poisson", "SparseCategoricalCrossentropy", "SquaredHinge", "Tversky",
]  # fmt: skip


class MeanSquaredError(FunctionLoss):
    """The mean of squared errors: :func:`mean_squared_error`, reduced.

    >>> MeanSquaredError()([[0.0], [0.0]], [[1.0], [3.0]])  # (1 + 9) / 2
    np.float32(5.0)
    """

    function = staticmethod(regression.mean_squared_error)


class MeanAbsoluteError(FunctionLoss):
    """The mean of absolute errors: :func:`mean_absolute_error`, reduced.

    >>> MeanAbsoluteError()([[0.0], [0.0]], [[1.0], [3.0]], sample_weight=[3.0, 1.0])  # (3 * 1 + 1 * 3) / 2
    np.float32(3.0)
    """

    function = staticmethod(regression.mean_absolute_error)


class MeanAbsolutePercentageError(FunctionLoss):
    """The mean of absolute errors in percent of the targets: :func:`mean_absolute_percentage_error`, reduced.

    >>> MeanAbsolutePercentageError()([[2.0], [4.0]], [[1.0], [5.0]])  # (50 % + 25 %) / 2
    np.float32(37.5)
    """

    function = staticmethod(regression.mean_absolute_percentage_error)


class MeanSquaredLogarithmicError(FunctionLoss):
    """The mean of squared differences of logarithms: :func:`mean_squared_logarithmic_error`, reduced.

    >>> loss = MeanSquaredLogarithmicError()
    >>> loss([[0.0]], [[19.0]]).round(2), loss([[4.0]], [[99.0]]).round(2)  # log(20)**2: both are 20 times 1 + y_true
    (np.float32(8.97), np.float32(8.97))
    """

    function = staticmethod(regression.mean_squared_logarithmic_error)


class CosineSimilarity(FunctionLoss):
    """Minus the cosine of the angle between vectors: :func:`cosine_similarity`, reduced.

    >>> CosineSimilarity(reduction="none")([[1.0, 0.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 2.0]])  # parallel, orthogonal
    array([-1., -0.], dtype=float32)
    """

    function = staticmethod(regression.cosine_similarity)
    function_arguments: ClassVar[dict[str, Any]] = {"axis": -1}


class Huber(FunctionLoss):
    """The Huber loss, squared up to `delta` and linear beyond: :func:`huber`, reduced.

    >>> Huber(delta=1.0, reduction="none")([[0.0], [0.0]], [[0.5], [3.0]])  # 0.5**2 / 2, then 3 - 0.5
    array([0.125, 2.5  ], dtype=float32)
    """

    function = staticmethod(regression.huber)
    function_arguments: ClassVar[dict[str, Any]] = {"delta": 1.0}
    default_name = "huber_loss"


class LogCosh(FunctionLoss):
    """The logarithm of the hyperbolic cosine of errors: :func:`log_cosh`, reduced.

    >>> loss = LogCosh()
    >>> loss([[0.0]], [[0.1]]).round(3), loss([[0.0]], [[10.0]]).round(3)  # about 0.1**2 / 2, about 10 - log(2)
    (np.float32(0.005), np.float32(9.307))
    """

    function = staticmethod(regression.log_cosh)


class Hinge(FunctionLoss):
    """The hinge loss for targets -1 and 1: :func:`hinge`, reduced.

    >>> Hinge(reduction="none")([[1.0], [-1.0], [1.0]], [[2.0], [0.5], [0.5]])  # max(1 - y_true * y_pred, 0)
    array([0. , 1.5, 0.5], dtype=float32)
    """

    function = staticmethod(classification.hinge)


class SquaredHinge(FunctionLoss):
    """The square of the hinge loss: :func:`squared_hinge`, reduced.

    >>> float(SquaredHinge(reduction="sum")([[1.0], [-1.0]], [[0.5], [0.5]]))  # 0.5**2 + 1.5**2
    2.5
    """

    function = staticmethod(classification.squared_hinge)


class CategoricalHinge(FunctionLoss):
    """The hinge loss between the right class and the best wrong one: :func:`categorical_hinge`, reduced.

    >>> CategoricalHinge()([[0.0, 1.0], [1.0, 0.0]], [[0.5, 2.0], [0.5, 0.25]])  # (0 + (1 + 0.25 - 0.5)) / 2
    np.float32(0.375)
    """

    function = staticmethod(classification.categorical_hinge)


class KLDivergence(FunctionLoss):
    """The Kullback-Leibler divergence of distributions: :func:`kl_divergence`, reduced.

    >>> KLDivergence(reduction="none")([[0.5, 0.5], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]).round(4)  # equal; log(2)
    array([0.    , 0.6931], dtype=float32)
    """

    function = staticmethod(regression.kl_divergence)


class Poisson(FunctionLoss):
    """The Poisson loss of counts: :func:`poisson`, reduced.

    >>> Poisson()([[0.0], [3.0]], [[2.0], [1.0]]).round(4)  # y_pred - y_true * log(y_pred): (2 + 1) / 2
    np.float32(1.5)
    """

    function = staticmethod(regression.poisson)


class BinaryCrossentropy(FunctionLoss):
    """The cross-entropy of two classes: :func:`binary_crossentropy`, reduced.

    >>> BinaryCrossentropy(reduction="none")([[1.0], [0.0]], [[0.5], [0.75]]).round(4)  # log(2), log(4)
    array([0.6931, 1.3863], dtype=float32)
    >>> BinaryCrossentropy(from_logits=True)([[1.0], [0.0]], [[0.0], [0.0]]).round(4)  # sigmoid(0) is 0.5
    np.float32(0.6931)
    """

    function = staticmethod(classification.binary_crossentropy)
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0.0, "axis": -1}


class BinaryFocalCrossentropy(FunctionLoss):
    """The focal cross-entropy of two classes: :func:`binary_focal_crossentropy`, reduced.

    >>> BinaryFocalCrossentropy(gamma=2.0)([[1.0]], [[0.5]]).round(4)  # (1 - 0.5)**2 * log(2)
    np.float32(0.1733)
    """

    function = staticmethod(classification.binary_focal_crossentropy)
    function_arguments: ClassVar[dict[str, Any]] = {
        "apply_class_balancing": False,
        "alpha": 0.25,
        "gamma": 2.0,
        "from_logits": False,
        "label_smoothing": 0.0,
        "axis": -1,
    }


class CategoricalCrossentropy(FunctionLoss):
    """The cross-entropy of one-hot targets: :func:`categorical_crossentropy`, reduced.

    >>> CategoricalCrossentropy(reduction="none")([[0, 1], [1, 0]], [[0.5, 0.5], [0.25, 0.75]]).round(4)
    array([0.6931, 1.3863], dtype=float32)
    >>> CategoricalCrossentropy(from_logits=True)([[0, 1, 0, 0]], [[3.0, 3.0, 3.0, 3.0]]).round(4)  # log(4)
    np.float32(1.3863)
    """

    function = staticmethod(classification.categorical_crossentropy)
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0.0, "axis": -1}


class CategoricalFocalCrossentropy(FunctionLoss):
    """The focal cross-entropy of one-hot targets: :func:`categorical_focal_crossentropy`, reduced.

    >>> loss = CategoricalFocalCrossentropy(alpha=1.0, gamma=1.0)
    >>> loss([[0, 1]], [[0.75, 0.25]]).round(4)  # (1 - 0.25) * log(4)
    np.float32(1.0397)
    """

    function = staticmethod(classification.categorical_focal_crossentropy)
    function_arguments: ClassVar[dict[str, Any]] = {
        "alpha": 0.25,
        "gamma": 2.0,
        "from_logits": False,
        "label_smoothing": 0.0,
        "axis": -1,
    }


class SparseCategoricalCrossentropy(FunctionLoss):
    """The cross-entropy of integer targets: :func:`sparse_categorical_crossentropy`, reduced.

    >>> SparseCategoricalCrossentropy(reduction="none")([1, 0], [[0.5, 0.5], [0.25, 0.75]]).round(4)  # log(2), log(4)
    array([0.6931, 1.3863], dtype=float32)
    >>> SparseCategoricalCrossentropy(ignore_class=-1)([1, -1], [[0.5, 0.5], [0.25, 0.75]]).round(4)  # the first alone
    np.float32(0.6931)
    """

    function = staticmethod(classification.sparse_categorical_crossentropy)
    function_arguments: ClassVar[dict[str, Any]] = {"from_logits": False, "ignore_class": None, "axis": -1}
    order = ("from_logits", "ignore_class", "reduction", "axis", "name", "dtype")

    def targets(self, y_true: Any) -> Array:
        if is_recorded(y_true):
            return y_true  # type: ignore[no-any-return]
        return (classification.indices if self.arguments["ignore_class"] is None else classification.numbers)(y_true)

    def valid(self, y_true: Any, values: Array) -> Any:
        if self.arguments["ignore_class"] is None:
            return None
        return ops.not_equal(self.targets(y_true), float(self.arguments["ignore_class"])).reshape(values.shape)


class CategoricalGeneralizedCrossEntropy(FunctionLoss):
    """A cross-entropy that tolerates wrong labels: :func:`categorical_generalized_cross_entropy`, reduced.

    >>> loss = CategoricalGeneralizedCrossEntropy(q=0.5, reduction="none")
    >>> loss([0, 0], [[0.25, 0.75], [0.0, 1.0]]).round(2)  # (1 - 0.25**q) / q; a wrong label costs at most 1 / q
    array([1., 2.], dtype=float32)
    """

    function = staticmethod(classification.categorical_generalized_cross_entropy)
    function_arguments: ClassVar[dict[str, Any]] = {"q": 0.5}

    def targets(self, y_true: Any) -> Array:
        return classification.indices(y_true)


class CTC(FunctionLoss):
    """The CTC loss of sequences that are not aligned with their labels: :func:`ctc`, reduced.

    With a mask of times, a sequence counts with all its times if the mask is True for at least one of them.

    >>> import numpy as np
    >>> CTC()([[1]], np.zeros((1, 1, 2))).round(4)  # one output, and one of its two equal classes: log(2)
    np.float32(0.6931)
    """

    function = staticmethod(sequences.ctc)

    def targets(self, y_true: Any) -> Array:
        return y_true if is_recorded(y_true) else sequences.labels(y_true)


class Dice(FunctionLoss):
    """The Dice loss of masks: :func:`dice`, reduced.

    >>> Dice()([[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]]).round(4)  # 1 - 2 * 1 / (2 + 1)
    np.float32(0.3333)
    """

    function = staticmethod(overlap.dice)
    function_arguments: ClassVar[dict[str, Any]] = {"axis": None}
    order = ("reduction", "name", "axis", "dtype")

    @property
    def mixes_samples(self) -> bool:
        return reduces_samples(self.axis)


class Tversky(FunctionLoss):
    """The Tversky loss of masks: :func:`tversky`, reduced.

    >>> Tversky(alpha=0.75, beta=0.25)([[1.0, 1.0, 0.0]], [[1.0, 0.0, 0.0]]).round(4)  # 1 - 1 / (1 + 0.75 missed)
    np.float32(0.4286)
    >>> Tversky(alpha=0.75, beta=0.25)([[1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0]]).round(4)  # 1 - 1 / (1 + 0.25 too many)
    np.float32(0.2)
    """

    function = staticmethod(overlap.tversky)
    function_arguments: ClassVar[dict[str, Any]] = {"alpha": 0.5, "beta": 0.5, "axis": None}
    order = ("alpha", "beta", "reduction", "name", "axis", "dtype")

    @property
    def mixes_samples(self) -> bool:
        return reduces_samples(self.axis)


class Circle(FunctionLoss):
    """The circle loss of embeddings: :func:`circle`, reduced.

    >>> embeddings = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    >>> Circle()([0, 0, 1], embeddings).round(2), Circle()([0, 1, 0], embeddings).round(2)  # as labels say, or not
    (np.float32(0.0), np.float32(94.4))
    """

    function = staticmethod(overlap.circle)
    function_arguments: ClassVar[dict[str, Any]] = {"gamma": 80.0, "margin": 0.4, "remove_diagonal": True}

    @property
    def mixes_samples(self) -> bool:
        return True

    def valid(self, y_true: Any, values: Array) -> Any:
        """Return a mask of the positive losses: an embedding without a partner has the loss 0 and does not count."""
        return ops.greater(values, 0.0)

    def targets(self, y_true: Any) -> Array:
        return y_true if is_recorded(y_true) else classification.numbers(y_true)
