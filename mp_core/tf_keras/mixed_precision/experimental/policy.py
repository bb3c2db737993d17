"""The policy of TensorFlow 2.4's ``experimental``, which has a loss scale."""

import logging
from typing import Any, Self

from mp_core.layers import Layer
from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.tf_keras.mixed_precision.experimental import loss_scale as loss_scales
from mp_core.tf_keras.mixed_precision.experimental.loss_scale import LossScale
from mp_core.tf_keras.mixed_precision.policy import Policy
from mp_core.utilities.registry import own_config

__all__ = ["PolicyV1", "get_layer_policy", "serialize"]

_logger = logging.getLogger(__name__)


class PolicyV1(Policy):
    """A policy with a loss scale for the training loop; layers ignore the loss scale.

    Parameters
    ----------
    name : str
        See :class:`~mp_core.tf_keras.mixed_precision.Policy`.
    loss_scale : LossScale, int, float, dict, "dynamic", "auto" or None
        ``"auto"`` means dynamic for ``"mixed_float16"`` and None for all others.

    Examples
    --------
    >>> PolicyV1("float32"), PolicyV1("float16", loss_scale=2)
    (<PolicyV1 "float32", loss_scale=None>, <PolicyV1 "float16", loss_scale=FixedLossScale(2.0)>)
    """

    __slots__ = ("_is_default", "_loss_scale")
    _RECEIVED = "Got: "
    _DEFAULT = "auto"

    def __init__(self, name: str, loss_scale: Any = _DEFAULT) -> None:
        super().__init__(name)
        self._is_default = isinstance(loss_scale, str) and loss_scale == self._DEFAULT
        if self._is_default:
            loss_scale = "dynamic" if name == "mixed_float16" else None
        self._loss_scale = loss_scales.get(loss_scale)
        if self._loss_scale is not None and self.compute_dtype not in (None, "float16"):
            _logger.warning(
                "Creating a Policy with a loss scale is only useful for float16 policies. You passed loss_scale=%r for "
                "policy %s. Consider not passing any loss_scale instead.",
                loss_scale,
                name,
            )

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale."""
        return self._loss_scale

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | (
            {} if self._is_default else {"loss_scale": loss_scales.serialize(self.loss_scale)}
        )

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the policy with the arguments `config`; `custom_objects` has no effect."""
        return cls(**own_config(config, "policy"))

    def __repr__(self) -> str:
        return f'<{type(self).__name__} "{self.name}", loss_scale={self.loss_scale}>'

    __str__ = __repr__  # the name alone would lose the loss scale

    def _key(self) -> tuple[Any, ...]:
        scale = self.loss_scale
        return (self.name, None if scale is None else (type(scale), *scale.get_config().items()))


def get_layer_policy(layer: Layer) -> DTypePolicy:
    """Return the policy of a layer.

    >>> from mp_core.tf_keras.layers import Dense
    >>> get_layer_policy(Dense(2, dtype=PolicyV1("mixed_float16", loss_scale=8)))
    <PolicyV1 "mixed_float16", loss_scale=FixedLossScale(8.0)>
    """
    if not isinstance(layer, Layer):
        raise ValueError(f"get_policy can only be called on a layer, but got: {layer}")
    return layer.dtype_policy


def serialize(policy: Policy) -> str | dict[str, Any] | None:
    """Return the configuration of a policy as TensorFlow 2.2 to 2.4 wrote it.

    A ``Policy`` with a single dtype and no loss scale gives its name, ``"_infer"`` gives None; all others give a class
    name and a configuration.

    >>> serialize(PolicyV1("float16", loss_scale=2))["config"]
    {'name': 'float16', 'loss_scale': {'class_name': 'FixedLossScale', 'config': {'loss_scale_value': 2.0}}}
    """
    if not isinstance(policy, DTypePolicy):
        raise TypeError(f"`policy` must be a policy, such as Policy('float32'); received {policy!r}")
    config = policy.get_config()
    kind = type(policy).__name__
    if kind == "Policy" and config.keys() == {"name"} and policy.compute_dtype == policy.variable_dtype:
        return None if policy.name == "_infer" else policy.name
    return {"class_name": kind, "config": config}
