"""torch: modules and compiled graphs that run here, modules as layers, and linear modules that use mp_core."""

from typing import TYPE_CHECKING, Any

from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.torch"):
    from mp_core.interop.torch.exported import from_exported
    from mp_core.interop.torch.linears import PackedLinear, TrainableLinear, replace_linears
    from mp_core.interop.torch.modules import from_torch

if TYPE_CHECKING:
    from mp_core.interop.torch.compiled import backend as backend
    from mp_core.interop.torch.compiled import explain as explain

__all__ = [
    "PackedLinear", "TrainableLinear", "backend", "explain", "from_exported", "from_torch", "replace_linears",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return what needs torch's compiler, whose import takes seconds."""
        if name not in ("backend", "explain"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from mp_core.interop.torch import compiled  # see the docstring

        return getattr(compiled, name)
