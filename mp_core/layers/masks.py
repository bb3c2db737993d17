"""Masks: what a layer takes for one, and how it passes from layer to layer.

Keras keeps the mask of an array with the array. Here an array is an ndarray and nothing else: a
:class:`~mp_core.layers.Sequential` hands the mask on, everyone else passes it as an argument.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core import dtypes, ops
from mp_core.arrays import F32, Array, as_mask, asarray, cast
from mp_core.arrays.recorded import is_recorded
from mp_core.ops.elementwise import concatenated

__all__ = ["as_keep", "behind", "both", "either", "mask_after"]


def as_keep(mask: ArrayLike, argument: str = "mask") -> Array:
    """Return a mask as booleans: bool already, or integers or floats of any type that are 0 or 1."""
    if is_recorded(mask):
        return as_mask(mask, argument)
    given = asarray(mask, argument)
    return as_mask(cast(given, F32) if dtypes.is_float(given.dtype) else given, argument, kinds="biuf")


def both(first: Array, second: Array) -> Array:
    """Return where both of two masks are True; plans multiply them as numbers."""
    if not is_recorded(first, second):
        return first & second
    return ops.greater(ops.multiply(cast(first, F32), cast(second, F32)), 0.0)


def either(first: Array, second: Array) -> Array:
    """Return where one of two masks is True, or both; plans add them as numbers."""
    if not is_recorded(first, second):
        return first | second
    return ops.greater(ops.add(cast(first, F32), cast(second, F32)), 0.0)


def behind(masks: Sequence[Array], axis: int) -> Array:
    """Return masks concatenated along an axis; plans copy them as numbers."""
    if not is_recorded(*masks):
        return np.concatenate(masks, axis)
    return ops.greater(concatenated(*(cast(mask, F32) for mask in masks), axis=axis), 0.0)


def mask_after(layer: Any, inputs: Any, mask: Any) -> Any:
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
