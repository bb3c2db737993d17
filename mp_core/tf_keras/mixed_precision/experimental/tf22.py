"""``experimental`` of TensorFlow 2.2 and 2.3: ``Policy`` has a loss scale, also in its configurations."""

from typing import Any

from mp_core.policies.dtype_policies import DTypePolicy
from mp_core.policies.dtype_policies.policy import replace_default
from mp_core.tf_keras.mixed_precision import policy as newer
from mp_core.tf_keras.mixed_precision.experimental.policy import PolicyV1, serialize

__all__ = ["Policy", "deserialize", "global_policy", "serialize", "set_policy"]


class Policy(PolicyV1):
    """A policy with a loss scale; ``"USE_DEFAULT"`` is the ``"auto"`` of ``PolicyV1``.

    >>> Policy("float32"), Policy("mixed_bfloat16").should_cast_variables
    (<Policy "float32", loss_scale=None>, True)
    """

    __slots__ = ()
    _DEFAULT = "USE_DEFAULT"

    def __init__(self, name: str, loss_scale: Any = _DEFAULT) -> None:
        super().__init__(name, loss_scale)

    @property
    def should_cast_variables(self) -> bool:
        """Whether layers cast their variables: the compute dtype differs from the variable dtype."""
        return self.variable_dtype != self.compute_dtype


def global_policy() -> DTypePolicy:
    """Return the default policy of new layers; if none was set, the policy called :func:`mp_core.dtypes.floatx`."""
    return newer.default_as(Policy, newer.Policy)


def set_policy(policy: DTypePolicy | str | None) -> None:
    """Set the default policy of new layers, of tf.keras, Keras 3 and mp_core; None restores floatx.

    It must compute in a floating-point dtype.

    >>> set_policy("mixed_bfloat16")
    >>> global_policy()
    <Policy "mixed_bfloat16", loss_scale=None>
    >>> set_policy(None)
    """
    checked = newer.as_global(policy, Policy, "set_policy")
    replace_default(None if policy is None else checked)


def deserialize(config: str | dict[str, Any] | None) -> DTypePolicy:
    """Return the policy of a :func:`serialize` configuration, with its loss scale.

    >>> deserialize(serialize(Policy("float16", loss_scale=2)))
    <Policy "float16", loss_scale=FixedLossScale(2.0)>
    """
    if config is None or isinstance(config, str):
        return Policy("_infer" if config is None else config)
    return newer.deserialize(config, {"Policy": Policy})
