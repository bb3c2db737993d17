"""The loss scale optimizer of the experimental APIs, and the rule for when ``compile`` uses one."""

from typing import Any

from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import DynamicLossScale, FixedLossScale, LossScale, get
from mp_core.tf_keras.mixed_precision.experimental.policy import PolicyV1
from mp_core.tf_keras.mixed_precision.optimizer import LossScaleOptimizer, arguments_of
from mp_core.training.optimizers.loss_scale import ScaledOptimizer, check_wrapping
from mp_core.training.optimizers.protocol import OptimizerLike
from mp_core.utilities.arguments import is_number

__all__ = ["LossScaleOptimizerV1", "wrap_optimizer"]


class LossScaleOptimizerV1(LossScaleOptimizer):
    """A loss scale optimizer whose scale is one argument.

    Parameters
    ----------
    optimizer : Optimizer
    loss_scale : FixedLossScale, DynamicLossScale, int, float, dict or "dynamic"
        A dynamic scale starts at its initial value, not at the current one, and must have the multiplier 2.

    Examples
    --------
    >>> from mp_core.loss_scale import SGD
    >>> LossScaleOptimizerV1(SGD(), "dynamic").loss_scale
    np.float32(32768.0)
    """

    def __init__(self, optimizer: OptimizerLike, loss_scale: Any) -> None:
        super().__init__(optimizer, **_arguments(loss_scale))


def _arguments(loss_scale: Any) -> dict[str, Any]:
    """Convert a loss scale to the arguments of :class:`LossScaleOptimizer`."""
    if is_number(loss_scale):
        return {"dynamic": False, "initial_scale": loss_scale}
    if isinstance(loss_scale, dict) or (isinstance(loss_scale, str) and loss_scale == "dynamic"):
        loss_scale = get(loss_scale)
    if isinstance(loss_scale, FixedLossScale | DynamicLossScale):
        refusal = 'When passing a DynamicLossScale to "loss_scale", DynamicLossScale.multiplier must be 2. Got: '
        return arguments_of(isinstance(loss_scale, DynamicLossScale), loss_scale.get_config(), refusal)
    if isinstance(loss_scale, LossScale):
        raise TypeError(
            "Passing a LossScale that is not a FixedLossScale or a DynamicLossScale is no longer supported. "
            f"Got: {loss_scale}"
        )
    raise ValueError(
        'Invalid value passed to loss_scale. loss_scale must be the string "dynamic" (recommended), an int, a float, '
        f"a FixedLossScale, or a DynamicLossScale. Got value: {loss_scale}"
    )


def wrap_optimizer(optimizer: OptimizerLike, policy: DTypePolicy) -> OptimizerLike:
    """Return the optimizer that ``Model.compile`` uses under a policy.

    A ``PolicyV1`` has a loss scale or None, which decides. Any other policy gets a dynamic loss scale if it is
    ``"mixed_float16"``, else none.

    >>> from mp_core.loss_scale import SGD
    >>> type(wrap_optimizer(SGD(), PolicyV1("mixed_float16"))).__name__
    'LossScaleOptimizerV1'
    """
    check_wrapping(optimizer, policy)
    if isinstance(optimizer, ScaledOptimizer):
        return optimizer
    if isinstance(policy, PolicyV1):
        return optimizer if policy.loss_scale is None else LossScaleOptimizerV1(optimizer, policy.loss_scale)
    return LossScaleOptimizer(optimizer) if policy.name == "mixed_float16" else optimizer
