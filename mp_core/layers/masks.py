"""Masks: how they are checked, and how they pass from layer to layer.

Keras attaches the mask to the array. Here an array is a plain ndarray: models pass masks from layer to layer, and a
direct call of a layer gets its mask as an argument.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, Array, as_mask, asarray, cast, dtypes

if TYPE_CHECKING:
    from mp_core.layers.layer import Layer

__all__ = ["as_keep", "from_masks", "mask_after", "needs_inputs"]

Method = TypeVar("Method", bound=Callable[..., Any])


def from_masks(compute_mask: Method) -> Method:
    """Mark a method ``compute_mask`` that reads only the masks of the inputs, and returns None without them."""
    compute_mask.from_masks = True  # type: ignore[attr-defined]
    return compute_mask


def needs_inputs(layer: "Layer") -> bool:
    """Return whether ``compute_mask`` of a layer reads the inputs too."""
    return not hasattr(type(layer).compute_mask, "from_masks")


def as_keep(mask: ArrayLike, argument: str = "mask") -> Array:
    """Return a mask as booleans; the mask may be bool, or integers or floats that are 0 or 1."""
    given = mask if isinstance(mask, np.ndarray) else asarray(mask, argument)
    return as_mask(cast(given, F32) if dtypes.is_float(given.dtype) else given, argument, kinds="biuf")


def mask_after(layer: "Layer", inputs: Any, mask: Any) -> Any:
    """Return the mask of the outputs of `layer`; if the layer drops the mask of its inputs, warn and return None."""
    if layer.supports_masking:
        return layer.compute_mask(inputs, mask)
    if mask is not None:
        warnings.warn(
            f"Layer '{layer.name}' (of type {type(layer).__name__}) was passed an input with a mask. However, this "
            "layer does not support masking and will therefore destroy the mask information. Downstream layers will "
            "not see the mask.",
            stacklevel=4,
        )
    return None
