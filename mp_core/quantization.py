"""The public name of :mod:`mp_core.arrays.quantization`."""

from mp_core.arrays.quantization import *  # noqa: F403
from mp_core.arrays.quantization import __all__ as __all__
