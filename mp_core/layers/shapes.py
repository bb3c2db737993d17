"""Shapes of outputs by formulas: what a layer has as `_shape_after`, so that nothing is computed to find them.

Such a method gets the shape of the one input, in which None is any length. It returns the shape of the outputs, or None
where only a call says it, or why there is none.
"""

from collections.abc import Sequence
from typing import Any

__all__ = ["Shape", "after_windows", "kept"]

Shape = tuple[int | None, ...]


def kept(layer: Any, shape: Shape) -> Shape:
    """Return the shape of the input, which outputs of this layer have."""
    return shape


def after_windows(
    shape: Shape,
    spans: Sequence[int],
    strides: Sequence[int],
    padding: str,
    data_format: str,
    channels: int | None,
) -> Shape | None:
    """Return the shape of outputs with a place for each window and so many channels; None if no window fits."""
    first = 1 if data_format == "channels_last" else 2
    lengths = zip(shape[first : first + len(spans)], spans, strides, strict=True)
    places = [_windows_along(*each, padding) for each in lengths]
    if 0 in places:
        return None
    return (shape[0], *places, channels) if first == 1 else (shape[0], channels, *places)


def _windows_along(length: int | None, span: int, stride: int, padding: str) -> int | None:
    """Return how many windows there are along an axis; None if that may have any length."""
    if length is None:
        return None
    return max((length - span) // stride + 1, 0) if padding == "valid" else -(-length // stride)
