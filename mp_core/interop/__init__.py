"""Doors to other programs: arrays without copies, and models of Keras and torch.

:func:`dlpack`, :func:`to_torch` and :func:`to_jax` hand arrays on. Each module imports its library only when it is
imported itself: ``mp_core.interop.keras`` and ``mp_core.interop.torch`` bring models in, ``mp_core.interop.dask``
spreads work over machines, ``mp_core.interop.sklearn`` is an estimator.
"""

from mp_core.interop.arrays import dlpack, to_jax, to_torch

__all__ = ["dlpack", "to_jax", "to_torch"]
