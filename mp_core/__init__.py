"""mp_core: mixed-precision numerics on CPUs for NumPy.

Casts, matrix products with float32 accumulation and int8 quantization for float16, bfloat16 and float8 arrays, with the
same bits on every instruction set, thread count and batch size; beneath them the dtype policies, autocast variables and
layers that Keras users know.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mp_core.contraction import einsum
from mp_core.core.cpu import __version__
from mp_core.ops import (
    PackedMatrix,
    cast,
    dynamic_matmul,
    gelu,
    layer_norm,
    matmul,
    pack,
    qlinear_matmul,
    relu,
    relu6,
    rms_norm,
    sigmoid,
    silu,
    softmax,
    tanh,
)
from mp_core.quantization import QuantizedArray, dequantize, quantize

if TYPE_CHECKING:
    from mp_core import (
        autocast,
        checkpoint,
        config,
        dtype_policies,
        dtypes,
        layers,
        loss_scale,
        mixed_precision,
        models,
        ops,
        quantizers,
        saving,
        tf_keras,
    )
    from mp_core.autocast import AutoCastVariable
    from mp_core.calibration import calibrate, input_moments
    from mp_core.checkpoint import convert_file, inspect_file, verify_files
    from mp_core.dtype_policies import DTypePolicy, FloatDTypePolicy
    from mp_core.selection import choose_policy, sensitivity

_MODULES = (
    "autocast",
    "benchmark",
    "calibration",
    "checkpoint",
    "config",
    "dtype_policies",
    "dtypes",
    "layers",
    "loss_scale",
    "mixed_precision",
    "models",
    "ops",
    "quantizers",
    "saving",
    "selection",
    "tf_keras",
)
_HOMES = {
    "AutoCastVariable": "autocast",
    "DTypePolicy": "dtype_policies",
    "FloatDTypePolicy": "dtype_policies",
    "calibrate": "calibration",
    "choose_policy": "selection",
    "convert_file": "checkpoint",
    "input_moments": "calibration",
    "inspect_file": "checkpoint",
    "sensitivity": "selection",
    "verify_files": "checkpoint",
}

__all__ = [
    "AutoCastVariable",
    "DTypePolicy",
    "FloatDTypePolicy",
    "PackedMatrix",
    "QuantizedArray",
    "__version__",
    "autocast",
    "calibrate",
    "cast",
    "checkpoint",
    "choose_policy",
    "config",
    "convert_file",
    "dequantize",
    "dtype_policies",
    "dtypes",
    "dynamic_matmul",
    "einsum",
    "gelu",
    "input_moments",
    "inspect_file",
    "layer_norm",
    "layers",
    "loss_scale",
    "matmul",
    "mixed_precision",
    "models",
    "ops",
    "pack",
    "qlinear_matmul",
    "quantize",
    "quantizers",
    "relu",
    "relu6",
    "rms_norm",
    "saving",
    "sensitivity",
    "sigmoid",
    "silu",
    "softmax",
    "tanh",
    "tf_keras",
    "verify_files",
]


def __getattr__(name: str) -> Any:
    """Import a submodule, or what it defines, at its first use: ``import mp_core`` alone stays cheap."""
    if name in _MODULES:
        return importlib.import_module(f"mp_core.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"mp_core.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'mp_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
