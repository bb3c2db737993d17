"""The public name of :mod:`mp_core.policies.autocast`."""

from mp_core.policies.autocast import *  # noqa: F403
from mp_core.policies.autocast import __all__ as __all__
from mp_core.policies.autocast import __dir__ as __dir__
