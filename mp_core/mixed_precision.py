"""The names of ``keras.mixed_precision`` (Keras of 2023) for :mod:`mp_core.dtype_policies`, and loss scaling.

Examples
--------
>>> set_global_policy("mixed_float16")
>>> global_policy()
<DTypePolicy "mixed_float16">
>>> set_global_policy("float32")
"""

from typing import Any

from mp_core.policies.dtype_policies import DTypePolicy, dtype_policy, get, set_dtype_policy
from mp_core.training.optimizers import LossScaleOptimizer

__all__ = [
    "DTypePolicy",
    "LossScaleOptimizer",
    "Policy",
    "dtype_policy",
    "global_policy",
    "resolve_policy",
    "set_dtype_policy",
    "set_global_policy",
]


def __dir__() -> list[str]:
    return __all__


Policy = DTypePolicy
global_policy = dtype_policy
set_global_policy = set_dtype_policy


def resolve_policy(identifier: Any) -> DTypePolicy:
    """Return the policy for a layer's ``dtype`` argument; here a string is always the name of a plain policy.

    Raises
    ------
    ValueError
        `identifier` is neither None, a policy, its name, its config nor a dtype.

    Examples
    --------
    >>> resolve_policy("int8")
    <DTypePolicy "int8">
    """
    return DTypePolicy(identifier) if isinstance(identifier, str) else get(identifier)
