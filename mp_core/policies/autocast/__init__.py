"""Autocast: variables that read in the compute dtype, and the scope that says which dtype that is."""

from mp_core.policies.autocast.scope import autocast_scope, enable_auto_cast_variables, read_dtype, scope_dtype
from mp_core.policies.autocast.variable import AutoCastVariable

__all__ = ["AutoCastVariable", "autocast_scope", "enable_auto_cast_variables", "read_dtype", "scope_dtype"]


def __dir__() -> list[str]:
    return __all__
