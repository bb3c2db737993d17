"""mp_core: mixed-precision numerics on CPUs for NumPy.

Casts, matrix products with float32 accumulation and int8 quantization for float16, bfloat16 and float8 arrays. Results
have the same bits for every thread count and batch size, and on every CPU after ``mp.config.set_reproducible(True)``.
On top of them: the dtype policies, variables and layers that Keras users know.

These are the public names (``dir(mp)`` lists them too). All other modules may change without notice.

    casts, products    cast, pack, PackedMatrix, matmul, dynamic_matmul, qlinear_matmul, einsum, dot_product_attention
    quantization       quantize, dequantize, QuantizedArray, quantizers
    rows, elements     add, multiply, sum, mean, softmax, layer_norm, rms_norm, gelu, relu, relu6, sigmoid, silu, tanh
    plans, gradients   compile, value_and_grad, grad, custom_gradient
    training           Input, Sequential, Functional, Model, KerasTensor, optimizers, losses, metrics, callbacks,
                       regularizers, constraints, initializers, activations, random, load_model, utils, and the base
                       classes Layer, Loss, Metric, Optimizer, Regularizer, Initializer
    models             layers, models, calibrate, choose_policy, sensitivity, distill, prepare_qat, convert_qat,
                       checkpoint, saving, forms
    policies           DTypePolicy, FloatDTypePolicy, dtype_policies, mixed_precision, loss_scale, tf_keras
    variables, scopes  AutoCastVariable, autocast
    settings, types    config, dtypes, get_include, __version__
    other libraries    interop, ops
"""

import importlib
import os
import sys
from types import ModuleType
from typing import Any

if sys.platform == "win32":  # Windows has no rpath (install_rpath in meson.build), so say where the library is
    os.add_dll_directory(os.path.join(os.path.dirname(__file__), "core"))

_MODULES = [
    "activations", "autocast", "callbacks", "checkpoint", "config", "constraints", "dtype_policies", "dtypes",
    "forms", "initializers", "interop", "layers", "loss_scale", "losses", "metrics", "mixed_precision", "models",
    "ops", "optimizers", "quantizers", "random", "regularizers", "saving", "tf_keras", "utils",
]  # fmt: skip
"""The public modules."""

_UNLISTED = ("benchmark", "core", "demo", "fitting", "plans", "quantization", "training")
"""Modules that are attributes too, but may change without notice, except the names in docs/api.md."""

_NAMES = {
    "core.cpu": "__version__",
    "arrays.quantization": "QuantizedArray dequantize quantize",
    "ops": "PackedMatrix add cast dot_product_attention dynamic_matmul gelu layer_norm matmul mean multiply pack "
    "qlinear_matmul relu relu6 rms_norm sigmoid silu softmax sum tanh",
    "ops.contraction": "einsum",
    "ops.gradients.custom": "custom_gradient",
    "policies.autocast": "AutoCastVariable",
    "policies.dtype_policies": "DTypePolicy FloatDTypePolicy",
    "layers": "Layer",
    "layers.initializers": "Initializer",
    "layers.input_layer": "Input",
    "layers.regularizers": "Regularizer",
    "layers.symbols": "KerasTensor",
    "layers.plans": "compile",
    "layers.plans.backward": "grad value_and_grad",
    "training.losses": "Loss",
    "training.metrics": "Metric",
    "training.models": "Functional Model",
    "training.optimizers": "Optimizer",
    "training.saving": "load_model",
    "training.sequential": "Sequential",
    "models.fitting": "calibrate choose_policy convert_qat distill prepare_qat sensitivity",
}
"""Module -> the public names that it defines. `.ci/stub.py --write` writes them for type checkers (__init__.pyi)."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, *_HOMES, "get_include"])


def get_include() -> str:
    """Return the folder of the headers ``mp_core.h`` and ``mp_core_python.h``, for the ``-I`` option of compilers.

    Examples
    --------
    >>> import os
    >>> sorted(os.listdir(get_include()))
    ['mp_core.h', 'mp_core_python.h']
    """
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "core", "include")


def _import(path: str) -> ModuleType:
    """Import a module after the packages around it.

    For a module, Python locks first it and then its package. While another thread imports the package, each would wait
    for the other, and Python would give one of them an incomplete module.
    """
    parts = ["mp_core", *path.split(".")]
    return [importlib.import_module(".".join(parts[:end])) for end in range(2, len(parts) + 1)][-1]


def __getattr__(name: str) -> Any:
    """Import a submodule or a public name at its first use.

    ``import mp_core`` alone imports nothing, so it is fast, and the command line can report errors of imports.
    """
    if name in _MODULES or name in _UNLISTED:
        return importlib.import_module(f"mp_core.{name}")
    if name in _HOMES:
        found = globals()[name] = getattr(_import(_HOMES[name]), name)
        return found
    from mp_core.utilities.absent import refuse  # needed only for unknown names

    refuse(name, "")


def __dir__() -> list[str]:
    return __all__
