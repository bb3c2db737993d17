"""The public name of :mod:`mp_core.policies.quantizers`."""

from typing import TYPE_CHECKING

from mp_core.policies.quantizers import *  # noqa: F403
from mp_core.policies.quantizers import __all__ as __all__

if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error
    pass
