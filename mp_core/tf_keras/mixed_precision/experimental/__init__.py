"""tf.keras' ``mixed_precision.experimental`` of TensorFlow 2.4; :mod:`.tf22` is that of TensorFlow 2.2 and 2.3."""

from mp_core.tf_keras.mixed_precision.experimental import tf22
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import DynamicLossScale, FixedLossScale, LossScale
from mp_core.tf_keras.mixed_precision.experimental.optimizer import LossScaleOptimizerV1, wrap_optimizer
from mp_core.tf_keras.mixed_precision.experimental.policy import PolicyV1, get_layer_policy, serialize
from mp_core.tf_keras.mixed_precision.policy import deserialize, global_policy
from mp_core.tf_keras.mixed_precision.policy import set_global_policy as set_policy

__all__ = [
    "DynamicLossScale",
    "FixedLossScale",
    "LossScale",
    "LossScaleOptimizer",
    "LossScaleOptimizerV1",
    "Policy",
    "PolicyV1",
    "deserialize",
    "get_layer_policy",
    "global_policy",
    "serialize",
    "set_policy",
    "tf22",
    "wrap_optimizer",
]

Policy = PolicyV1
LossScaleOptimizer = LossScaleOptimizerV1
