"""The public name of :mod:`mp_core.layers.activations`."""

from mp_core.layers.activations import *  # noqa: F403
from mp_core.layers.activations import __all__ as __all__
from mp_core.layers.activations import __dir__ as __dir__
