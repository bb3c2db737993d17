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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mp_core import (
        activations,
        autocast,
        callbacks,
        checkpoint,
        config,
        constraints,
        dtype_policies,
        dtypes,
        forms,
        initializers,
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
        utils,
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
    from mp_core.fitting import calibrate, choose_policy, convert_qat, distill, prepare_qat, sensitivity
    from mp_core.gradients.custom import custom_gradient
    from mp_core.layers import Layer
    from mp_core.layers.initializers import Initializer
    from mp_core.losses import Loss
    from mp_core.metrics import Metric
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
    from mp_core.optimizers import Optimizer
    from mp_core.plans import compile
    from mp_core.plans.backward import grad, value_and_grad
    from mp_core.quantization import QuantizedArray, dequantize, quantize
    from mp_core.regularizers import Regularizer
    from mp_core.saving import load_model
    from mp_core.training import Functional, Input, KerasTensor, Model, Sequential

if sys.platform == "win32":  # Windows has no rpath (install_rpath in meson.build), so say where the library is
    os.add_dll_directory(os.path.join(os.path.dirname(__file__), "core"))

_MODULES = (
    "activations",
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
    "initializers",
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
    "utils",
)
_HOMES = {
    "__version__": "core.cpu",
    "add": "ops",
    "AutoCastVariable": "autocast",
    "calibrate": "fitting",
    "cast": "ops",
    "choose_policy": "fitting",
    "compile": "plans",
    "convert_qat": "fitting",
    "custom_gradient": "gradients.custom",
    "dequantize": "quantization",
    "distill": "fitting",
    "dot_product_attention": "ops",
    "DTypePolicy": "dtype_policies",
    "dynamic_matmul": "ops",
    "einsum": "ops.contraction",
    "FloatDTypePolicy": "dtype_policies",
    "Functional": "training",
    "gelu": "ops",
    "grad": "plans.backward",
    "Initializer": "layers.initializers",
    "Input": "training",
    "KerasTensor": "training",
    "Layer": "layers",
    "layer_norm": "ops",
    "load_model": "saving",
    "Loss": "losses",
    "matmul": "ops",
    "mean": "ops",
    "Metric": "metrics",
    "Model": "training",
    "multiply": "ops",
    "Optimizer": "optimizers",
    "pack": "ops",
    "PackedMatrix": "ops",
    "prepare_qat": "fitting",
    "qlinear_matmul": "ops",
    "quantize": "quantization",
    "QuantizedArray": "quantization",
    "Regularizer": "regularizers",
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
    "value_and_grad": "plans.backward",
}

__all__ = [
    "AutoCastVariable",
    "DTypePolicy",
    "FloatDTypePolicy",
    "Functional",
    "Initializer",
    "Input",
    "KerasTensor",
    "Layer",
    "Loss",
    "Metric",
    "Model",
    "Optimizer",
    "PackedMatrix",
    "QuantizedArray",
    "Regularizer",
    "Sequential",
    "__version__",
    "activations",
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
    "convert_qat",
    "custom_gradient",
    "dequantize",
    "distill",
    "dot_product_attention",
    "dtype_policies",
    "dtypes",
    "dynamic_matmul",
    "einsum",
    "forms",
    "gelu",
    "get_include",
    "grad",
    "initializers",
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
    "prepare_qat",
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
    """Return the folder of the headers ``mp_core.h`` and ``mp_core_python.h``, for the ``-I`` option of compilers.

    Examples
    --------
    >>> import os
    >>> sorted(os.listdir(get_include()))
    ['mp_core.h', 'mp_core_python.h']
    """
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "include")


if not TYPE_CHECKING:  # so that type checkers report names that are not imported above

    def __getattr__(name: str) -> Any:
        """Import a submodule or a public name at its first use.

        ``import mp_core`` alone imports nothing, so it is fast, and the command line can report errors of imports.
        """
        if name in _MODULES:
            return importlib.import_module(f"mp_core.{name}")
        if name in _HOMES:
            found = globals()[name] = getattr(importlib.import_module(f"mp_core.{_HOMES[name]}"), name)
            return found
        from mp_core.utilities.absent import refuse  # needed only for unknown names

        refuse(name, "")


def __dir__() -> list[str]:
    return sorted(__all__)
