"""Integrations with other libraries: arrays without copies, and models of Keras and torch.

It imports models and the rooms below it; cli may import it.

:func:`dlpack`, :func:`to_torch` and :func:`to_jax` export arrays. ``mp_core.interop.keras`` and
``mp_core.interop.torch`` import models, ``mp_core.interop.onnx`` runs ONNX files, ``mp_core.interop.dask`` distributes
work over machines, ``mp_core.interop.sklearn`` has estimators, and ``mp_core.interop.threads`` registers mp_core's
threads with threadpoolctl, and ``mp_core.interop.lm_eval`` scores decoders in lm-evaluation-harness. Each module
imports its library only when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mp_core.interop.arrays import dlpack, to_jax, to_torch

if TYPE_CHECKING:
    from mp_core.interop import dask as dask
    from mp_core.interop import keras as keras
    from mp_core.interop import lm_eval as lm_eval
    from mp_core.interop import onnx as onnx
    from mp_core.interop import sklearn as sklearn
    from mp_core.interop import threads as threads
    from mp_core.interop import torch as torch

__all__ = ["dlpack", "to_jax", "to_torch"]


def __dir__() -> list[str]:
    return __all__


_MODULES = ("dask", "keras", "lm_eval", "onnx", "sklearn", "threads", "torch")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a module at its first use.

        ``__dir__`` omits these modules: otherwise ``help()`` would import all of them, and need every library.
        """
        if name in _MODULES:
            return importlib.import_module(f"mp_core.interop.{name}")
        raise AttributeError(f"module 'mp_core.interop' has no attribute {name!r}")
