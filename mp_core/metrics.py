"""The public name of :mod:`mp_core.training.metrics`."""

from typing import TYPE_CHECKING

from mp_core.training.metrics import *  # noqa: F403
from mp_core.training.metrics import __all__ as __all__

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error
    pass
