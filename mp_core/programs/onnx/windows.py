"""The windows of convolutions and pooling, as ONNX describes them. Arrays have the channels at axis 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["AutoPad", "Windows", "windows_of"]

AutoPad = Literal["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]
Ints = Sequence[int] | None


@dataclass(frozen=True)
class Windows:
    """For each axis of places: the length of a window, the distance to the next one, gaps, and places added."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]


def windows_of(x: Any, size: Sequence[int], strides: Ints, dilations: Ints, pads: Ints, auto_pad: str) -> Windows:
    """Return the windows of an array with defaults filled in."""
    rank = x.ndim - 2
    if len(size) != rank:
        raise ValueError(f"`kernel_shape` must have {rank} lengths; received {tuple(size)}")
    steps, rates = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        spans = [(n - 1) * rate + 1 for n, rate in zip(size, rates, strict=True)]
        axes = zip(x.shape[2:], spans, steps, strict=True)
        given = tuple(_halves(max((-(-n // step) - 1) * step + span - n, 0), auto_pad) for n, span, step in axes)
    else:
        flat = tuple(pads or (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        given = tuple(zip(flat[:rank], flat[rank:], strict=True))
    return Windows(tuple(size), steps, rates, given)


def _halves(total: int, auto_pad: str) -> tuple[int, int]:
    """Return how many places of `total` are before and after; an odd one is after, or before with SAME_LOWER."""
    half = total // 2
    return (half, total - half) if auto_pad == "SAME_UPPER" else (total - half, half)
