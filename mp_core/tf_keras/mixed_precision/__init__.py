"""tf.keras' ``mixed_precision``: policies, the default policy and loss scaling; older APIs are in ``experimental``."""

from mp_core.policies.autocast import enable_auto_cast_variables
from mp_core.tf_keras.mixed_precision import experimental
from mp_core.tf_keras.mixed_precision.optimizer import LossScaleOptimizer
from mp_core.tf_keras.mixed_precision.policy import (
    Policy,
    deserialize,
    global_policy,
    policy_scope,
    serialize,
    set_global_policy,
)
from mp_core.tf_keras.mixed_precision.variable import AutoCastVariable, create_autocast_variable

__all__ = [
    "AutoCastVariable",
    "LossScaleOptimizer",
    "Policy",
    "create_autocast_variable",
    "deserialize",
    "enable_auto_cast_variables",
    "experimental",
    "global_policy",
    "policy_scope",
    "serialize",
    "set_global_policy",
]
