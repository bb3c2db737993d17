"""Dtype policies: in which dtypes layers store, compute and return (Keras' ``keras.dtype_policies``)."""

from mp_core.dtype_policies.map import DTypePolicyMap
from mp_core.dtype_policies.policy import DTypePolicy, FloatDTypePolicy, dtype_policy, standardize_dtype
from mp_core.dtype_policies.quantized import (
    QUANTIZATION_MODES,
    AWQDTypePolicy,
    GPTQDTypePolicy,
    Int4DTypePolicy,
    Int8WeightOnlyDTypePolicy,
    QuantizedDTypePolicy,
    QuantizedFloat8DTypePolicy,
)
from mp_core.dtype_policies.registry import deserialize, get, policy_scope, serialize, set_dtype_policy

__all__ = [
    "QUANTIZATION_MODES",
    "AWQDTypePolicy",
    "DTypePolicy",
    "DTypePolicyMap",
    "FloatDTypePolicy",
    "GPTQDTypePolicy",
    "Int4DTypePolicy",
    "Int8WeightOnlyDTypePolicy",
    "QuantizedDTypePolicy",
    "QuantizedFloat8DTypePolicy",
    "deserialize",
    "dtype_policy",
    "get",
    "policy_scope",
    "serialize",
    "set_dtype_policy",
    "standardize_dtype",
]
