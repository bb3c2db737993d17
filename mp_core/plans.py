"""The public name of :mod:`mp_core.layers.plans`."""

from mp_core.layers.plans import *  # noqa: F403
from mp_core.layers.plans import __all__ as __all__
