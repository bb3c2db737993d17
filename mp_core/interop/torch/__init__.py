"""torch: convert modules to layers of mp_core, and replace linear modules by modules that use mp_core."""

from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.torch"):
    from mp_core.interop.torch.linears import PackedLinear, TrainableLinear, replace_linears
    from mp_core.interop.torch.modules import from_torch

__all__ = ["PackedLinear", "TrainableLinear", "from_torch", "replace_linears"]
