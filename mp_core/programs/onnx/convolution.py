"""Convolutions. Arrays have the channels at axis 1."""

from collections.abc import Sequence
from typing import Any

from mp_core import ops
from mp_core.programs.onnx.windows import AutoPad, Ints, Windows, windows_of
from mp_core.programs.registry import operator

__all__ = ["convolved"]


@operator("Conv", keeps_type=True)
def conv(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    kernel_shape: Sequence[int] | None = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
    activation: str | None = None,
) -> Any:
    """Return the convolution with a kernel of shape (filters, channels / groups, places ...)."""
    if kernel.shape[1] * group != x.shape[1]:
        raise ValueError(
            f"`group` must be the channels / {kernel.shape[1]}; received {group} for {x.shape[1]} channels"
        )
    windows = windows_of(x, kernel_shape or kernel.shape[2:], strides, dilations, pads, auto_pad)
    return convolved(x, kernel, bias, windows, activation)


def convolved(x: Any, kernel: Any, bias: Any, windows: Windows, activation: str | None = None) -> Any:
    """Return the convolution of an array over windows; the number of groups follows from the channels."""
    channels_last = ops.transpose(kernel, (*range(2, kernel.ndim), 1, 0))
    w = windows
    return ops.conv(
        x, channels_last, w.strides, w.pads, "channels_first", w.dilations, bias=bias, activation=activation
    )


@operator("ConvTranspose")
def conv_transpose(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    kernel_shape: Sequence[int] | None = None,
    strides: Ints = None,
    pads: Ints = None,
    dilations: Ints = None,
    output_padding: Ints = None,
    output_shape: Ints = None,
    group: int = 1,
    auto_pad: AutoPad = "NOTSET",
) -> Any:
    """Return the transposed convolution with a kernel of shape (channels, filters / groups, places ...).

    It is the convolution of the input, with zeros between its places, with the kernel in the other order.
    """
    rank, size = x.ndim - 2, tuple(kernel_shape or kernel.shape[2:])
    steps, rates = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
    spans = [(n - 1) * rate + 1 for n, rate in zip(size, rates, strict=True)]
    more = tuple(output_padding or (0,) * rank)
    wanted = tuple(output_shape or ())[-rank:]
    if auto_pad.startswith("SAME") and not wanted:
        wanted = tuple(n * step for n, step in zip(x.shape[2:], steps, strict=True))
    whole = [
        (n - 1) * step + span + extra for n, step, span, extra in zip(x.shape[2:], steps, spans, more, strict=True)
    ]
    if wanted:
        more = tuple(extra + max(m - n, 0) for extra, n, m in zip(more, whole, wanted, strict=True))
        cut = [max(n - m, 0) for n, m in zip(whole, wanted, strict=True)]
        pairs = [(n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2) for n in cut]
    else:
        flat = tuple(pads or (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        pairs = list(zip(flat[:rank], flat[rank:], strict=True))
    wide = _spread(x, steps)
    ends = [(span - 1 - a, span - 1 - b + extra) for span, (a, b), extra in zip(spans, pairs, more, strict=True)]
    kept = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(wide.shape[2:], ends, strict=True))
    wide, ends = wide[(slice(None), slice(None), *kept)], [(max(a, 0), max(b, 0)) for a, b in ends]
    windows = Windows(size, (1,) * rank, rates, tuple(ends))
    return convolved(wide, _mirrored(kernel, group), bias, windows)


def _spread(x: Any, steps: Sequence[int]) -> Any:
    """Return an array with zeros between its places, so that they have these distances."""
    for axis, step in enumerate(steps, 2):
        if step > 1:
            pairs = [(0, 0)] * (axis + 1) + [(0, step - 1)] + [(0, 0)] * (x.ndim - axis - 1)
            rows = ops.pad(ops.expand_dims(x, axis + 1), pairs)
            lengths = (*x.shape[:axis], x.shape[axis] * step, *x.shape[axis + 1 :])
            last = (slice(None),) * axis + (slice(x.shape[axis] * step - step + 1),)
            x = ops.reshape(rows, lengths)[last]
    return x


def _mirrored(kernel: Any, group: int) -> Any:
    """Return the kernel of the convolution that a transposed convolution is: (filters, channels / groups, ...)."""
    channels, filters, *size = kernel.shape
    parts = ops.reshape(kernel, (group, channels // group, filters, *size))
    parts = ops.reshape(ops.swapaxes(parts, 1, 2), (group * filters, channels // group, *size))
    return ops.flip(parts, tuple(range(2, kernel.ndim)))
