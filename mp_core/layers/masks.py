"""Masks: what a layer takes for one, and how it passes from layer to layer.

Keras keeps the mask of an array with the array. Here an array is an ndarray and nothing else: a
:class:`~mp_core.layers.Sequential` hands the mask on, everyone else passes it as an argument.
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
    """Say of a method ``compute_mask`` that it needs the masks of the inputs alone, and makes none without them."""
    compute_mask.from_masks = True  # type: ignore[attr-defined]
    return compute_mask


def needs_inputs(layer: "Layer") -> bool:
    """Whether a layer computes its mask from its inputs too."""
    return not hasattr(type(layer).compute_mask, "from_masks")


def as_keep(mask: ArrayLike, argument: str = "mask") -> Array:
    """Return a mask as booleans: bool already, or integers or floats of any type that are 0 or 1."""
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
