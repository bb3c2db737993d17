"""Losses of Keras 3, computed in float32 whatever the policy of the model.

They consist of operations of mp_core, so that a training step can record them and compute their gradients.
"""

from typing import TYPE_CHECKING

from mp_core.training.losses.classes import (
    CTC,
    BinaryCrossentropy,
    BinaryFocalCrossentropy,
    CategoricalCrossentropy,
    CategoricalFocalCrossentropy,
    CategoricalGeneralizedCrossEntropy,
    CategoricalHinge,
    Circle,
    CosineSimilarity,
    Dice,
    Hinge,
    Huber,
    KLDivergence,
    LogCosh,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    MeanSquaredLogarithmicError,
    Poisson,
    SparseCategoricalCrossentropy,
    SquaredHinge,
    Tversky,
)
from mp_core.training.losses.classification import (
    binary_crossentropy,
    binary_focal_crossentropy,
    categorical_crossentropy,
    categorical_focal_crossentropy,
    categorical_generalized_cross_entropy,
    categorical_hinge,
    hinge,
    sparse_categorical_crossentropy,
    squared_hinge,
)
from mp_core.training.losses.loss import Loss
from mp_core.training.losses.overlap import (
    circle,
    dice,
    tversky,
)
from mp_core.training.losses.registry import deserialize, get, serialize
from mp_core.training.losses.regression import (
    cosine_similarity,
    huber,
    kl_divergence,
    log_cosh,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_squared_error,
    mean_squared_logarithmic_error,
    poisson,
)
from mp_core.training.losses.sequences import ctc
from mp_core.utilities.absent import refusing

__all__ = [
    "CTC", "BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy", "CategoricalFocalCrossentropy",
    "CategoricalGeneralizedCrossEntropy", "CategoricalHinge", "Circle", "CosineSimilarity", "Dice", "Hinge", "Huber",
    "KLDivergence", "LogCosh", "Loss", "MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError",
    "MeanSquaredLogarithmicError", "Poisson", "SparseCategoricalCrossentropy", "SquaredHinge", "Tversky",
    "binary_crossentropy", "binary_focal_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy",
    "categorical_generalized_cross_entropy", "categorical_hinge", "circle", "cosine_similarity", "ctc", "deserialize",
    "dice", "get", "hinge", "huber", "kl_divergence", "log_cosh", "mean_absolute_error",
    "mean_absolute_percentage_error", "mean_squared_error", "mean_squared_logarithmic_error", "poisson", "serialize",
    "sparse_categorical_crossentropy", "squared_hinge", "tversky",
]  # fmt: skip


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__, __dir__ = refusing("losses", __all__)
