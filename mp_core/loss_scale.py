"""Loss scaling: keep small float16 gradients from becoming 0.

A loss scale is an immutable object that multiplies losses and divides gradients; ``adjust`` returns the loss scale of
the next step. :class:`LossScaleOptimizer` is Keras 3's wrapper of an optimizer. The classes of tf.keras are in
:mod:`mp_core.tf_keras.mixed_precision`, all optimizers in :mod:`mp_core.optimizers`.
"""

from mp_core.arrays.finite import all_finite
from mp_core.training.optimizers import SGD, LossScaleOptimizer, Optimizer
from mp_core.training.optimizers import deserialize as deserialize_optimizer
from mp_core.training.optimizers import serialize as serialize_optimizer
from mp_core.training.optimizers.protocol import OptimizerLike
from mp_core.training.optimizers.scales import DynamicLossScale, LossScale

__all__ = [
    "SGD",
    "DynamicLossScale",
    "LossScale",
    "LossScaleOptimizer",
    "Optimizer",
    "OptimizerLike",
    "all_finite",
    "deserialize_optimizer",
    "serialize_optimizer",
]


def __dir__() -> list[str]:
    return __all__
