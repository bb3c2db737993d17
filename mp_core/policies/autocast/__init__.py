"""Autocast: variables that are read in the compute dtype, and the scope that sets this dtype."""

from mp_core.policies.autocast.scope import autocast_scope, enable_auto_cast_variables, read_dtype, scope_dtype
from mp_core.policies.autocast.variable import AutoCastVariable

__all__ = ["AutoCastVariable", "autocast_scope", "enable_auto_cast_variables", "read_dtype", "scope_dtype"]


def __dir__() -> list[str]:
    return __all__
