"""The public name of :mod:`mp_core.training.losses`."""

from typing import TYPE_CHECKING

from mp_core.training.losses import *  # noqa: F403
from mp_core.training.losses import __all__ as __all__

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error
    pass
