"""The public name of :mod:`mp_core.files.checkpoint`."""

from mp_core.files.checkpoint import *  # noqa: F403
from mp_core.files.checkpoint import __all__ as __all__
from mp_core.files.checkpoint import __dir__ as __dir__
