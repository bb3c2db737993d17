"""The public name of :mod:`mp_core.models.fitting`."""

from mp_core.models.fitting import *  # noqa: F403
from mp_core.models.fitting import __all__ as __all__
