"""Dtype policies: in which dtypes layers store, compute and return (Keras' ``keras.dtype_policies``)."""

from mp_core.policies.dtype_policies.map import DTypePolicyMap
from mp_core.policies.dtype_policies.policy import DTypePolicy, FloatDTypePolicy, dtype_policy, standardize_dtype
from mp_core.policies.dtype_policies.quantized import (
    QUANTIZATION_MODES,
    AWQDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
    SchemeDTypePolicy,
)
from mp_core.policies.dtype_policies.registry import (
    deserialize,
    get,
    policy_of,
    policy_scope,
    serialize,
    set_dtype_policy,
)
from mp_core.policies.dtype_policies.schemes import SPELLINGS, Scheme

__all__ = [
    "QUANTIZATION_MODES",
    "SPELLINGS",
    "AWQDTypePolicy",
    "DTypePolicy",
    "DTypePolicyMap",
    "FloatDTypePolicy",
    "GPTQDTypePolicy",
    "Int4DTypePolicy",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "Scheme",
    "SchemeDTypePolicy",
    "deserialize",
    "dtype_policy",
    "get",
    "policy_of",
    "policy_scope",
    "serialize",
    "set_dtype_policy",
    "standardize_dtype",
]


def __dir__() -> list[str]:
    return __all__
