"""Integrations with other programs: arrays without copies, and models of Keras and torch.

It imports models and the rooms below it; cli may import it.

:func:`dlpack`, :func:`to_torch` and :func:`to_jax` hand arrays on. Each module imports its library only when it is used
or imported itself: ``mp_core.interop.keras`` and ``mp_core.interop.torch`` bring models in, ``mp_core.interop.dask``
spreads work over machines, ``mp_core.interop.sklearn`` is an estimator, and ``mp_core.interop.threads`` registers the
number of threads with threadpoolctl.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mp_core.interop.arrays import dlpack, to_jax, to_torch

if TYPE_CHECKING:
    from mp_core.interop import dask as dask
    from mp_core.interop import keras as keras
    from mp_core.interop import sklearn as sklearn
    from mp_core.interop import threads as threads
    from mp_core.interop import torch as torch

__all__ = ["dlpack", "to_jax", "to_torch"]


def __dir__() -> list[str]:
    return __all__


_MODULES = ("dask", "keras", "sklearn", "threads", "torch")

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a module at its first use.

        It is in no list of names: who reads all that a list has, such as ``help()``, would need every library.
        """
        if name in _MODULES:
            return importlib.import_module(f"mp_core.interop.{name}")
        raise AttributeError(f"module 'mp_core.interop' has no attribute {name!r}")
