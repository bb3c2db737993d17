"""torch: modules and compiled graphs that run here, modules as layers, and linear modules that use mp_core."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.torch"):
    from mp_core.interop.torch.linears import PackedLinear, TrainableLinear, replace_linears
    from mp_core.interop.torch.modules import from_torch

if TYPE_CHECKING:
    from mp_core.interop.torch.compiled import backend as backend
    from mp_core.interop.torch.compiled import explain as explain
    from mp_core.interop.torch.exported import from_exported as from_exported

__all__ = [
    "PackedLinear", "TrainableLinear", "backend", "explain", "from_exported", "from_torch", "replace_linears",
]  # fmt: skip

_LATER = {"backend": "compiled", "explain": "compiled", "from_exported": "exported"}
"""Names whose modules import torch's compiler, which takes seconds -> these modules."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a module at the first use of its names."""
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"mp_core.interop.torch.{_LATER[name]}"), name)
