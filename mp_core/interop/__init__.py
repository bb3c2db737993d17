"""Doors to other programs: arrays without copies, and models of Keras and torch.

:func:`dlpack`, :func:`to_torch` and :func:`to_jax` hand arrays on. Each module imports its library only when it is used
or imported itself: ``mp_core.interop.keras`` and ``mp_core.interop.torch`` bring models in, ``mp_core.interop.dask``
spreads work over machines, ``mp_core.interop.sklearn`` is an estimator, and ``mp_core.interop.threads`` registers the
number of threads with threadpoolctl.
"""

import importlib
from typing import Any

from mp_core.interop.arrays import dlpack, to_jax, to_torch

__all__ = ["dlpack", "to_jax", "to_torch"]

_DOORS = ("dask", "keras", "sklearn", "threads", "torch")


def __getattr__(name: str) -> Any:
    """Import a module at its first use.

    It is in no list of names: who reads all that a list has, such as ``help()``, would need the libraries of all doors.
    """
    if name in _DOORS:
        return importlib.import_module(f"mp_core.interop.{name}")
    raise AttributeError(f"module 'mp_core.interop' has no attribute {name!r}")
