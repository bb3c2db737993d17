"""mp_core: mixed-precision numerics on CPUs for NumPy.

Casts, matrix products with float32 accumulation and int8 quantization for float16, bfloat16 and float8 arrays, with the
same bits for every thread count and batch size, and on every CPU after ``mp.config.set_reproducible(True)``; above them
the dtype policies, variables and layers that Keras users know.

Public names. ``dir(mp)`` lists them too; modules that are not among them may change without notice.

    casts, products    cast, pack, PackedMatrix, matmul, dynamic_matmul, qlinear_matmul, einsum, dot_product_attention
    quantization       quantize, dequantize, QuantizedArray, quantizers
    rows, elements     add, multiply, sum, mean, softmax, layer_norm, rms_norm, gelu, relu, relu6, sigmoid, silu, tanh
    plans, gradients   compile, value_and_grad, grad, custom_gradient
    training           Input, Sequential, Functional, Model, KerasTensor, optimizers, losses, metrics, callbacks,
                       regularizers, constraints, random, load_model, utils
    models             layers, models, calibrate, choose_policy, sensitivity, checkpoint, saving, forms
    policies           DTypePolicy, FloatDTypePolicy, dtype_policies, mixed_precision, loss_scale, tf_keras
    variables, scopes  AutoCastVariable, autocast
    settings, types    config, dtypes, get_include, __version__
    other libraries    interop, ops
"""

import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mp_core import (
        autocast,
        callbacks,
        checkpoint,
        config,
        constraints,
        dtype_policies,
        dtypes,
        forms,
        interop,
        layers,
        loss_scale,
        losses,
        metrics,
        mixed_precision,
        models,
        ops,
        optimizers,
        quantizers,
        random,
        regularizers,
        saving,
        tf_keras,
    )
    from mp_core import benchmark as benchmark
    from mp_core import core as core
    from mp_core import fitting as fitting
    from mp_core import plans as plans
    from mp_core import quantization as quantization
    from mp_core import training as training
    from mp_core.autocast import AutoCastVariable
    from mp_core.core.cpu import __version__
    from mp_core.dtype_policies import DTypePolicy, FloatDTypePolicy
    from mp_core.fitting import calibrate, choose_policy, sensitivity
    from mp_core.gradients.custom import custom_gradient
    from mp_core.interop.keras import load_model
    from mp_core.ops import (
        PackedMatrix,
        add,
        cast,
        dot_product_attention,
        dynamic_matmul,
        gelu,
        layer_norm,
        matmul,
        mean,
        multiply,
        pack,
        qlinear_matmul,
        relu,
        relu6,
        rms_norm,
        sigmoid,
        silu,
        softmax,
        sum,
        tanh,
    )
    from mp_core.ops.contraction import einsum
    from mp_core.plans import compile
    from mp_core.plans.backward import grad, value_and_grad
    from mp_core.quantization import QuantizedArray, dequantize, quantize
    from mp_core.training import Functional, Input, KerasTensor, Model, Sequential, utils

if sys.platform == "win32":  # has no paths in modules that lead to the library they link (install_rpath in meson.build)
    os.add_dll_directory(os.path.join(os.path.dirname(__file__), "core"))

_MODULES = (
    "autocast",
    "benchmark",
    "callbacks",
    "checkpoint",
    "config",
    "constraints",
    "core",
    "dtype_policies",
    "dtypes",
    "forms",
    "fitting",
    "interop",
    "layers",
    "loss_scale",
    "losses",
    "metrics",
    "mixed_precision",
    "models",
    "ops",
    "optimizers",
    "plans",
    "quantization",
    "quantizers",
    "random",
    "regularizers",
    "saving",
    "tf_keras",
    "training",
)
_MOVED = {"mp_core.forward": "mp_core.plans", "mp_core.selection": "mp_core.fitting"}
_HOMES = {
    "__version__": "core.cpu",
    "add": "ops",
    "AutoCastVariable": "autocast",
    "calibrate": "fitting",
    "cast": "ops",
    "choose_policy": "fitting",
    "compile": "plans",
    "custom_gradient": "gradients.custom",
    "dequantize": "quantization",
    "dot_product_attention": "ops",
    "DTypePolicy": "dtype_policies",
    "dynamic_matmul": "ops",
    "einsum": "ops.contraction",
    "FloatDTypePolicy": "dtype_policies",
    "Functional": "training",
    "gelu": "ops",
    "grad": "plans.backward",
    "Input": "training",
    "KerasTensor": "training",
    "layer_norm": "ops",
    "load_model": "interop.keras",
    "matmul": "ops",
    "mean": "ops",
    "Model": "training",
    "multiply": "ops",
    "pack": "ops",
    "PackedMatrix": "ops",
    "qlinear_matmul": "ops",
    "quantize": "quantization",
    "QuantizedArray": "quantization",
    "relu": "ops",
    "relu6": "ops",
    "rms_norm": "ops",
    "sensitivity": "fitting",
    "Sequential": "training",
    "sigmoid": "ops",
    "silu": "ops",
    "softmax": "ops",
    "sum": "ops",
    "tanh": "ops",
    "utils": "training",
    "value_and_grad": "plans.backward",
}

__all__ = [
    "AutoCastVariable",
    "DTypePolicy",
    "FloatDTypePolicy",
    "Functional",
    "Input",
    "KerasTensor",
    "Model",
    "PackedMatrix",
    "QuantizedArray",
    "Sequential",
    "__version__",
    "add",
    "autocast",
    "calibrate",
    "callbacks",
    "cast",
    "checkpoint",
    "choose_policy",
    "compile",
    "config",
    "constraints",
    "custom_gradient",
    "dequantize",
    "dot_product_attention",
    "dtype_policies",
    "dtypes",
    "dynamic_matmul",
    "einsum",
    "forms",
    "gelu",
    "get_include",
    "grad",
    "interop",
    "layer_norm",
    "layers",
    "load_model",
    "loss_scale",
    "losses",
    "matmul",
    "mean",
    "metrics",
    "mixed_precision",
    "models",
    "multiply",
    "ops",
    "optimizers",
    "pack",
    "qlinear_matmul",
    "quantize",
    "quantizers",
    "random",
    "regularizers",
    "relu",
    "relu6",
    "rms_norm",
    "saving",
    "sensitivity",
    "sigmoid",
    "silu",
    "softmax",
    "sum",
    "tanh",
    "tf_keras",
    "utils",
    "value_and_grad",
]


def get_include() -> str:
    """Return the folder of ``mp_core.h`` and ``mp_core_python.h``, for compilers: ``-I$(python -c ...)``.

    Examples
    --------
    >>> import os
    >>> sorted(os.listdir(get_include()))
    ['mp_core.h', 'mp_core_python.h']
    """
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


class _Moved(ModuleType):
    """A module under the name that it had before: what it defines comes from where it is now."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who asks all modules for these, such as `inspect`, imports nothing
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MOVED[self.__name__]), name)


sys.modules.update((name, _Moved(name)) for name in _MOVED)

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error

    def __getattr__(name: str) -> Any:
        """Import a submodule, or what it defines, at its first use.

        So ``import mp_core`` alone imports nothing, and the command line can say what fails while the rest is imported.
        """
        if name in _MODULES or f"mp_core.{name}" in _MOVED:
            return importlib.import_module(f"mp_core.{name}")
        if name in _HOMES:
            found = globals()[name] = getattr(importlib.import_module(f"mp_core.{_HOMES[name]}"), name)
            return found
        raise AttributeError(f"module 'mp_core' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
