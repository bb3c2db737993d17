"""The compiled core. Code above this package never names an instruction set; code in it never names a policy."""

from typing import TYPE_CHECKING, Any

from mp_core.core import cpu as cpu

_C_API: Any

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the table of C functions at its first use."""
        if name == "_C_API":
            from mp_core.core.capi import _C_API  # few programs need it

            return _C_API
        raise AttributeError(f"module 'mp_core.core' has no attribute {name!r}")
