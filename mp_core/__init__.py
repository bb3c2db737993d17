"""mp_core: mixed-precision numerics on CPUs for NumPy."""

from mp_core.core.cpu import __version__

__all__ = ["__version__"]
