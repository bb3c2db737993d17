"""The public name of :mod:`mp_core.cli.benchmark`."""

from mp_core.cli.benchmark import *  # noqa: F403
from mp_core.cli.benchmark import __all__ as __all__
