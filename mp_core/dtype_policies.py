"""The public name of :mod:`mp_core.policies.dtype_policies`."""

from mp_core.policies.dtype_policies import *  # noqa: F403
from mp_core.policies.dtype_policies import __all__ as __all__
from mp_core.policies.dtype_policies import __dir__ as __dir__
