"""The public name of :mod:`mp_core.layers.regularizers`."""

from mp_core.layers.regularizers import *  # noqa: F403
from mp_core.layers.regularizers import __all__ as __all__
from mp_core.layers.regularizers import __dir__ as __dir__
