"""The public name of :mod:`mp_core.layers.forms`."""

from mp_core.layers.forms import *  # noqa: F403
from mp_core.layers.forms import __all__ as __all__
from mp_core.layers.forms import __dir__ as __dir__
