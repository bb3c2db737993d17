"""The public name of :mod:`mp_core.layers.constraints`."""

from mp_core.layers.constraints import *  # noqa: F403
from mp_core.layers.constraints import __all__ as __all__
from mp_core.layers.constraints import __dir__ as __dir__
