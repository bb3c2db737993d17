"""Loss scaling: keep small float16 gradients from vanishing.

A loss scale is an immutable state that multiplies losses and divides gradients; ``adjust`` returns the state of the
next step. :class:`LossScaleOptimizer` is Keras 3's optimizer around an optimizer; tf.keras' are in
:mod:`mp_core.tf_keras.mixed_precision`.
"""

from mp_core.loss_scale.optimizer import (
    SGD,
    LossScaleOptimizer,
    Optimizer,
    deserialize_optimizer,
    serialize_optimizer,
)
from mp_core.loss_scale.state import DynamicLossScale, LossScale, all_finite

__all__ = [
    "SGD",
    "DynamicLossScale",
    "LossScale",
    "LossScaleOptimizer",
    "Optimizer",
    "all_finite",
    "deserialize_optimizer",
    "serialize_optimizer",
]


def __dir__() -> list[str]:
    return __all__
