"""tf.keras' ``Policy``: its names, its configurations, and the default policy of new layers."""

from typing import Any, Self, TypeVar

import numpy as np

from mp_core.arrays import dtypes
from mp_core.core.scopes import Scope
from mp_core.policies import dtype_policies
from mp_core.policies.dtype_policies import DTypePolicy, FloatDTypePolicy, standardize_dtype
from mp_core.policies.dtype_policies.policy import default_as_set, replace_default
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.utilities.registry import own_config

__all__ = [
    "Policy",
    "as_global",
    "default_as",
    "deserialize",
    "get",
    "global_policy",
    "is_floating",
    "policy_scope",
    "serialize",
    "serialize_as_dict",
    "set_global_policy",
    "standardize",
]

P = TypeVar("P", bound=DTypePolicy)

# TensorFlow's names of dtypes that Keras 3 does not have -> Keras' names.
_TENSORFLOW = {"half": "float16", "float": "float32", "double": "float64"}

# Prefix of a policy of TensorFlow 2.0 that ends in "_with_float32_vars" -> what to use instead.
_REPLACEMENTS = {
    "infer": "the 'mixed_float16' or 'mixed_bfloat16'",
    "float16": "the 'mixed_float16'",
    "bfloat16": "the 'mixed_bfloat16'",
}


class Policy(DTypePolicy):
    """The dtypes in which a tf.keras layer stores its variables and computes.

    Policies are immutable and hashable; two are equal if type and name are equal.

    Parameters
    ----------
    name : str
        ``"mixed_float16"``, ``"mixed_bfloat16"``, the name of a dtype (TensorFlow's ``"half"``, ``"float"`` and
        ``"double"`` too), or ``"_infer"``: the layer infers its dtypes from its first input or variable.

    Examples
    --------
    >>> policy = Policy("mixed_float16")
    >>> policy, policy.compute_dtype, policy.variable_dtype
    (<Policy "mixed_float16">, 'float16', 'float32')
    """

    __slots__ = ()
    _RECEIVED = "Received: name="

    def __init__(self, name: str) -> None:
        _check_name(name, self._RECEIVED)
        try:
            super().__init__("float32" if name == "_infer" else _TENSORFLOW.get(name, name))
        except ValueError:
            raise ValueError(
                f"Cannot convert value {name} to a mixed precision Policy. Valid policies include 'mixed_float16', "
                "'mixed_bfloat16', and the name of any dtype such as 'float32'."
            ) from None
        if name in _TENSORFLOW:
            self._name = name
        if name == "_infer":
            self._name = name
            self._spec = type(self._spec)(name, None, None, None)  # type: ignore[arg-type]

    def convert_input(self, x: Any, autocast: bool, dtype: str) -> Any:
        """Cast `x` to `dtype` if both are floating-point and `autocast` is true."""
        return super().convert_input(x, autocast, dtype) if is_floating(dtype) else x

    def of_keras(self) -> DTypePolicy:
        """Return Keras 3's policy with the same dtypes; ``"_infer"`` becomes floatx."""
        return DTypePolicy(dtypes.floatx() if self.name == "_infer" else self._spec.name)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Self:
        """Return the policy with the arguments `config`; neither its loss scale nor `custom_objects` has an effect."""
        return cls(**{key: value for key, value in own_config(config, "policy").items() if key != "loss_scale"})


def _check_name(name: Any, received: str) -> None:
    if isinstance(name, np.dtype) or (isinstance(name, type) and issubclass(name, np.generic)):
        raise TypeError(
            f"'name' must be a string, not a DType. Instead, pass DType.name. {received}{np.dtype(name).name}"
        )
    if not isinstance(name, str):
        raise TypeError(f"'name' must be a string, but got: {name}")
    if name.endswith("_float32_vars"):
        hint = _REPLACEMENTS.get(name.removesuffix("_float32_vars").removesuffix("_with"))
        raise ValueError(
            "Policies ending in '_float32_vars' have been removed from TensorFlow."
            + (f" Please use {hint} policy instead." if hint else "")
            + f" Got policy name: '{name}'"
        )


def standardize(dtype: Any) -> str:
    """Return Keras' name of a dtype; accept TensorFlow's names."""
    return standardize_dtype(_TENSORFLOW.get(dtype, dtype) if isinstance(dtype, str) else dtype)


def is_floating(name: str | None) -> bool:
    """Return whether the dtype of a policy is floating-point; the dtype of ``"_infer"`` is None."""
    return name in dtypes.ALLOWED and dtypes.is_float(dtypes.ALLOWED[name])


def default_as(policy_type: type[P], *plain: type[DTypePolicy]) -> P | DTypePolicy:
    """Return the default policy; convert policies of Keras 3, or of the types `plain`, to `policy_type`."""
    policy = default_as_set()
    return policy_type(policy.name) if type(policy) in (DTypePolicy, FloatDTypePolicy, *plain) else policy


def global_policy() -> DTypePolicy:
    """Return the default policy of new layers; if none was set, the policy called :func:`mp_core.dtypes.floatx`.

    >>> global_policy()
    <Policy "float32">
    """
    return default_as(Policy)


def as_global(policy: Any, policy_type: type[DTypePolicy], setter: str) -> DTypePolicy:
    """Return the policy that the function `setter` will set, given a policy, its name, or None for floatx."""
    if not isinstance(policy, DTypePolicy):
        policy = _from_name(dtypes.floatx() if policy is None else policy, policy_type)
    if policy.compute_dtype is not None and not is_floating(policy.compute_dtype):
        raise ValueError(
            f'{setter} can only be used to set the global policy to floating-point policies, such as "float32" and '
            f'"mixed_float16", but got policy: {policy.name}'
        )
    return policy  # type: ignore[no-any-return]


def set_global_policy(policy: DTypePolicy | str | None) -> None:
    """Set the default policy of new layers, of tf.keras, Keras 3 and mp_core; None restores floatx.

    It must compute in a floating-point dtype.

    >>> set_global_policy("mixed_bfloat16")
    >>> global_policy()
    <Policy "mixed_bfloat16">
    >>> set_global_policy(None)
    """
    checked = as_global(policy, Policy, "set_global_policy")
    replace_default(None if policy is None else checked)


def policy_scope(policy: DTypePolicy | str | None) -> Scope[DTypePolicy]:
    """Make `policy` the default inside a ``with`` block, in this thread or task.

    >>> with policy_scope("mixed_float16"):
    ...     global_policy()
    <Policy "mixed_float16">
    """
    return dtype_policies.policy_scope(as_global(policy, Policy, "set_global_policy"))


def get(identifier: Any) -> DTypePolicy:
    """Return the policy of a layer's ``dtype`` argument.

    Parameters
    ----------
    identifier : DTypePolicy, str, dict, dtype or None
        A policy, its name, its :func:`serialize` dict, a dtype, or None for the default. A policy is returned
        unchanged; only a plain policy of Keras 3 becomes the ``Policy`` of the same name. Names of Keras 3's quantized
        policies, such as ``"int8_from_float32"``, are accepted. The name ``"_infer"`` is not: use ``Policy("_infer")``.

    Examples
    --------
    >>> get(np.float16), get("mixed_bfloat16")
    (<Policy "float16">, <Policy "mixed_bfloat16">)
    """
    if isinstance(identifier, DTypePolicy):
        return _of_tf(identifier)
    if not isinstance(identifier, np.dtype) and not identifier:
        return global_policy()
    if isinstance(identifier, dict):
        return deserialize(identifier)
    if isinstance(identifier, str) and identifier != "_infer":
        return _from_name(_TENSORFLOW.get(identifier, identifier), Policy)
    return Policy(standardize_dtype(identifier))


def _from_name(name: Any, policy_type: type[DTypePolicy]) -> DTypePolicy:
    return parse_quantized(name) if isinstance(name, str) and "_from_" in name else policy_type(name)


def _of_tf(policy: DTypePolicy) -> DTypePolicy:
    """Convert a plain policy of Keras 3 to the ``Policy`` of the same name; return other policies unchanged."""
    return Policy(policy.name) if type(policy) in (DTypePolicy, FloatDTypePolicy) else policy


def serialize(policy: DTypePolicy) -> str | dict[str, Any] | None:
    """Return the configuration of a policy: a name for a single dtype, None for ``"_infer"``, else a dictionary.

    >>> serialize(Policy("float32")), serialize(Policy("_infer"))
    ('float32', None)
    >>> serialize(Policy("mixed_float16"))["config"]
    {'name': 'mixed_float16'}
    """
    if not isinstance(policy, DTypePolicy):
        raise TypeError(f"`policy` must be a policy, such as Policy('float32'); received {policy!r}")
    if not isinstance(policy, Policy):
        return dtype_policies.serialize(policy)
    if type(policy) is Policy and policy.compute_dtype == policy.variable_dtype:
        return None if policy.name == "_infer" else policy.name
    return serialize_as_dict(policy)


def serialize_as_dict(policy: Policy) -> dict[str, Any]:
    """Return the configuration of a policy as a dictionary."""
    own = type(policy) is Policy
    kind = type(policy).__name__
    return {
        "module": "keras.mixed_precision" if own else None,
        "class_name": kind,
        "config": policy.get_config(),
        "registered_name": None if own else kind,
    }


def deserialize(
    config: str | dict[str, Any] | None, custom_objects: dict[str, type[DTypePolicy]] | None = None
) -> DTypePolicy:
    """Return the policy of a :func:`serialize` configuration; the loss scale of an experimental policy is dropped.

    The class is one of `custom_objects` or a policy class.

    >>> deserialize({"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale": None}})
    <Policy "mixed_float16">
    """
    if config is None or isinstance(config, str):
        return Policy("_infer" if config is None else config)
    policy = dtype_policies.deserialize(config, {"Policy": Policy, "PolicyV1": Policy, **(custom_objects or {})})
    return _of_tf(policy)
