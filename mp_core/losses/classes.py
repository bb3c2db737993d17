"""The losses of Keras as classes: each calls the function of its name, whose page has the formula.

:class:`FunctionLoss` writes the parameters into their docstrings.
"""

from typing import Any, ClassVar

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.recorded import is_recorded
from mp_core.losses import classification, overlap, regression, sequences
from mp_core.losses.loss import FunctionLoss

__all__ = [
    "CTC",
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy",
    "CategoricalHinge",
    "Circle",
    "CosineSimilarity",
    "Dice",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
    "Tversky",
]


class MeanSquaredError(FunctionLoss):
    """The mean of the squares of errors: :func:`mean_squared_error`, reduced."""

    function = staticmethod(regression.mean_squared_error)


class MeanAbsoluteError(FunctionLoss):
    """The mean of the magnitudes of errors: :func:`mean_absolute_error`, reduced."""

    function = staticmethod(regression.mean_absolute_error)


class MeanAbsolutePercentageError(FunctionLoss):
    """The mean of the magnitudes of errors in percent of targets: :func:`mean_absolute_percentage_error`, reduced."""

    function = staticmethod(regression.mean_absolute_percentage_error)


class MeanSquaredLogarithmicError(FunctionLoss):
    """The mean of the squares of the errors of logarithms: :func:`mean_squared_logarithmic_error`, reduced."""

    function = staticmethod(regression.mean_squared_logarithmic_error)


class CosineSimilarity(FunctionLoss):
    """Minus the cosine of the angle between vectors: :func:`cosine_similarity`, reduced."""

    function = staticmethod(regression.cosine_similarity)
    own: ClassVar[dict[str, Any]] = {"axis": -1}


class Huber(FunctionLoss):
    """Half the squares of errors up to `delta`, linear beyond: :func:`huber`, reduced."""

    function = staticmethod(regression.huber)
    own: ClassVar[dict[str, Any]] = {"delta": 1.0}
    default_name = "huber_loss"


class LogCosh(FunctionLoss):
    """The logarithm of the hyperbolic cosine of errors: :func:`log_cosh`, reduced."""

    function = staticmethod(regression.log_cosh)


class Hinge(FunctionLoss):
    """The hinge loss of targets of -1 and 1: :func:`hinge`, reduced."""

    function = staticmethod(classification.hinge)


class SquaredHinge(FunctionLoss):
    """The square of the hinge loss: :func:`squared_hinge`, reduced."""

    function = staticmethod(classification.squared_hinge)


class CategoricalHinge(FunctionLoss):
    """The hinge loss between the right class and the best wrong one: :func:`categorical_hinge`, reduced."""

    function = staticmethod(classification.categorical_hinge)


class KLDivergence(FunctionLoss):
    """The Kullback-Leibler divergence of distributions: :func:`kl_divergence`, reduced."""

    function = staticmethod(regression.kl_divergence)


class Poisson(FunctionLoss):
    """The Poisson loss of counts: :func:`poisson`, reduced."""

    function = staticmethod(regression.poisson)


class BinaryCrossentropy(FunctionLoss):
    """The cross-entropy of two classes: :func:`binary_crossentropy`, reduced."""

    function = staticmethod(classification.binary_crossentropy)
    own: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0.0, "axis": -1}


class BinaryFocalCrossentropy(FunctionLoss):
    """The focal cross-entropy of two classes: :func:`binary_focal_crossentropy`, reduced."""

    function = staticmethod(classification.binary_focal_crossentropy)
    own: ClassVar[dict[str, Any]] = {
        "apply_class_balancing": False,
        "alpha": 0.25,
        "gamma": 2.0,
        "from_logits": False,
        "label_smoothing": 0.0,
        "axis": -1,
    }


class CategoricalCrossentropy(FunctionLoss):
    """The cross-entropy of one-hot targets: :func:`categorical_crossentropy`, reduced."""

    function = staticmethod(classification.categorical_crossentropy)
    own: ClassVar[dict[str, Any]] = {"from_logits": False, "label_smoothing": 0.0, "axis": -1}


class CategoricalFocalCrossentropy(FunctionLoss):
    """The focal cross-entropy of one-hot targets: :func:`categorical_focal_crossentropy`, reduced."""

    function = staticmethod(classification.categorical_focal_crossentropy)
    own: ClassVar[dict[str, Any]] = {
        "alpha": 0.25,
        "gamma": 2.0,
        "from_logits": False,
        "label_smoothing": 0.0,
        "axis": -1,
    }


class SparseCategoricalCrossentropy(FunctionLoss):
    """The cross-entropy of targets that are integers: :func:`sparse_categorical_crossentropy`, reduced."""

    function = staticmethod(classification.sparse_categorical_crossentropy)
    own: ClassVar[dict[str, Any]] = {"from_logits": False, "ignore_class": None}

    def targets(self, y_true: Any) -> Array:
        """Return targets as integers, as float32 where a class is ignored."""
        if is_recorded(y_true):
            return y_true  # type: ignore[no-any-return]
        return (classification.indices if self.arguments["ignore_class"] is None else classification.numbers)(y_true)

    def valid(self, y_true: Any) -> Any:
        """Return where targets are not the ignored class, without an axis of length 1 at the end."""
        if self.arguments["ignore_class"] is None:
            return None
        return ops.not_equal(self.targets(y_true), float(self.arguments["ignore_class"]))


class CategoricalGeneralizedCrossEntropy(FunctionLoss):
    """A cross-entropy that bears wrong labels: :func:`categorical_generalized_cross_entropy`, reduced."""

    function = staticmethod(classification.categorical_generalized_cross_entropy)
    own: ClassVar[dict[str, Any]] = {"q": 0.5}

    def targets(self, y_true: Any) -> Array:
        """Return targets as integers."""
        return classification.indices(y_true)


class CTC(FunctionLoss):
    """The loss of sequences that are not aligned with their labels: :func:`ctc`, reduced."""

    function = staticmethod(sequences.ctc)

    def targets(self, y_true: Any) -> Array:
        """Return labels as float32 numbers."""
        return y_true if is_recorded(y_true) else sequences.labels(y_true)


class Dice(FunctionLoss):
    """The Dice loss of masks: :func:`dice`, reduced."""

    function = staticmethod(overlap.dice)
    own: ClassVar[dict[str, Any]] = {"axis": None}

    @property
    def mixes_samples(self) -> bool:
        """Whether the sum is over samples too."""
        return overlap.spans_samples(self.axis)


class Tversky(FunctionLoss):
    """The Tversky loss of masks: :func:`tversky`, reduced."""

    function = staticmethod(overlap.tversky)
    own: ClassVar[dict[str, Any]] = {"alpha": 0.5, "beta": 0.5, "axis": None}

    @property
    def mixes_samples(self) -> bool:
        """Whether the sum is over samples too."""
        return overlap.spans_samples(self.axis)


class Circle(FunctionLoss):
    """The circle loss of embeddings: :func:`circle`, reduced."""

    function = staticmethod(overlap.circle)
    own: ClassVar[dict[str, Any]] = {"gamma": 80.0, "margin": 0.4, "remove_diagonal": True}

    @property
    def mixes_samples(self) -> bool:
        """Yes: embeddings are compared with each other."""
        return True

    def targets(self, y_true: Any) -> Array:
        """Return labels as float32."""
        return y_true if is_recorded(y_true) else classification.numbers(y_true)
