"""The loss scale optimizer of the experimental generations, and the rule when to use one."""

from typing import Any

from mp_core.dtype_policies import DTypePolicy
from mp_core.loss_scale import Optimizer
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import get, serialize
from mp_core.tf_keras.mixed_precision.experimental.policy import PolicyV1
from mp_core.tf_keras.mixed_precision.optimizer import LossScaleOptimizer, arguments_of

__all__ = ["LossScaleOptimizerV1", "wrap_optimizer"]


class LossScaleOptimizerV1(LossScaleOptimizer):
    """A loss scale optimizer that takes its scale as one argument.

    Parameters
    ----------
    optimizer : Optimizer
    loss_scale : LossScale, int, float, dict or "dynamic"
        Of a dynamic one, the initial value counts, not the current one.

    Raises
    ------
    ValueError
        `loss_scale` is None, or a dynamic one whose multiplier is not 2.

    Examples
    --------
    >>> from mp_core.loss_scale import SGD
    >>> LossScaleOptimizerV1(SGD(), "dynamic").loss_scale
    np.float32(32768.0)
    """

    def __init__(self, optimizer: Optimizer, loss_scale: Any) -> None:
        config = serialize(get(loss_scale))
        if config is None:
            raise ValueError("`loss_scale` must be a loss scale, a number or 'dynamic'; received None")
        super().__init__(optimizer, **arguments_of(config))


def wrap_optimizer(optimizer: Optimizer, policy: DTypePolicy) -> Optimizer:
    """Return the optimizer that ``Model.compile`` trained with under a policy.

    A policy that has a loss scale brings it; of those that never have one, ``"mixed_float16"`` needs a dynamic one.

    Examples
    --------
    >>> from mp_core.loss_scale import SGD
    >>> type(wrap_optimizer(SGD(), PolicyV1("mixed_float16"))).__name__
    'LossScaleOptimizerV1'
    """
    if isinstance(optimizer, LossScaleOptimizer):
        return optimizer
    if isinstance(policy, PolicyV1):
        return optimizer if policy.loss_scale is None else LossScaleOptimizerV1(optimizer, policy.loss_scale)
    return LossScaleOptimizer(optimizer) if policy.name == "mixed_float16" else optimizer
