"""Literal types of string arguments, for type checkers. Functions check their arguments at run time."""

from typing import Literal

__all__ = ["Activation", "CodeName", "FloatName", "OtherName", "PanelName", "StoredName"]

Activation = Literal[
    "relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "elu", "softplus", "exponential",
]  # fmt: skip
CodeName = Literal[
    "int8", "uint8", "int4", "uint4", "int16", "uint16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn",
    "mxfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4",
]  # fmt: skip
FloatName = Literal["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
OtherName = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]
PanelName = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]
StoredName = Literal[
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e4m3b11fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
    "int4",
    "uint4",
]
