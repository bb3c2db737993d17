"""The geometry of convolutions: their arguments, where their windows are, and the shapes of the results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mp_core.ops.spatial import data_format_of, same_padding, sizes_of, spans_of
from mp_core.ops.specs import Shape, Spec, product_type
from mp_core.utilities.arguments import integer

__all__ = [
    "Ends", "Padding", "Windows", "convolved", "convolved_by_channel", "ends_along", "groups_of", "outputs_along",
    "pairs_of", "places_of", "transposed", "windows_over",
]  # fmt: skip

Padding = str | Sequence[Sequence[int]]

_MOST = 1 << 40  # the largest number of padded places along an axis, so that no size of memory overflows
_MOST_ELEMENTS = 1 << 58


@dataclass(frozen=True)
class Windows:
    """The windows of an array (batch, places ..., channels); each tuple has an item for each axis of places."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    counts: tuple[Any, ...]  # How many windows there are; None: the length of the axis is unknown.
    fill: int = 0  # The byte of which elements of padding are made.

    @property
    def before(self) -> tuple[int, ...]:
        """The places of padding before the first one."""
        return tuple(before for before, _ in self.padding)


# ---- arguments


def pairs_of(padding: Any, rank: int) -> list[tuple[int, int]]:
    """Return explicit padding as checked pairs."""
    pairs = [tuple(pair) for pair in padding] if isinstance(padding, Sequence) and not isinstance(padding, str) else []
    found = [tuple(integer(n, "padding") for n in pair) for pair in pairs]
    if len(found) != rank or any(len(pair) != 2 or min(pair) < 0 or max(pair) > _MOST for pair in found):
        raise ValueError(
            f"`padding` must be 'valid', 'same' or two numbers from 0 on for each of {rank} axes; received {padding!r}"
        )
    return [(before, after) for before, after in found]


def windows_over(
    lengths: Sequence[int | None], size: Sequence[int], strides: Any, padding: Padding, dilation: Any, fill: int = 0
) -> Windows:
    """Return the windows of an array with these lengths, of which None is unknown; raise ValueError if none fits."""
    rank = len(lengths)
    strides, dilation = sizes_of(strides, "strides", rank), sizes_of(dilation, "dilation_rate", rank)
    spans = spans_of(size, dilation)
    if padding == "valid":
        pairs = [(0, 0)] * rank
    elif padding == "same":
        each = zip(lengths, spans, strides, strict=True)
        pairs = [(0, 0) if n is None else same_padding(n, span, by) for n, span, by in each]
    else:
        pairs = pairs_of(padding, rank)
    padded = [None if n is None else n + sum(pair) for n, pair in zip(lengths, pairs, strict=True)]
    if any(n is not None and n < span for n, span in zip(padded, spans, strict=True)):
        raise ValueError(
            f"`inputs` must not be smaller than the kernel; received lengths {tuple(padded)} with padding, and a "
            f"kernel that spans {tuple(spans)}"
        )
    counts = [None if n is None else (n - s) // by + 1 for n, s, by in zip(padded, spans, strides, strict=True)]
    return Windows(tuple(size), strides, dilation, tuple(pairs), tuple(counts), fill)


def places_of(shape: Shape, data_format: str | None) -> tuple[Shape, int | None]:
    """Return the spatial lengths and the channels of inputs; raise ValueError for a wrong number of axes."""
    if not 3 <= len(shape) <= 5:
        raise ValueError(
            f"`inputs` must have a batch axis, one to three spatial axes and channels; received shape {tuple(shape)}"
        )
    first = data_format_of(data_format) == "channels_first"
    return (tuple(shape[2:]), shape[1]) if first else (tuple(shape[1:-1]), shape[-1])


def check_kernel(shape: Shape, rank: int) -> None:
    """Raise ValueError unless a kernel has an axis for each spatial axis, with places, and two more axes."""
    if len(shape) != rank + 2 or not all(shape[:rank]):
        raise ValueError(
            f"`kernel` must have {rank} spatial axes of at least one element and two axes of channels; received shape "
            f"{tuple(shape)}"
        )


def groups_of(channels: int | None, depth: int, filters: int) -> int:
    """Return into how many groups a kernel of `depth` channels divides the channels of the inputs."""
    if channels is None or channels == depth:
        return 1
    groups = channels // depth if depth else 0
    if not groups or channels != groups * depth or filters % groups:
        raise ValueError(
            f"the channels of `inputs` must be those of `kernel` times a number of groups that divides its filters; "
            f"received {channels} channels, and a kernel of {depth} channels and {filters} filters"
        )
    return groups


def check_elements(images: int | None, counts: Sequence[int | None], channels: int) -> None:
    """Raise ValueError if the results have more elements than memory has."""
    lengths = [n for n in (images, *counts, channels) if n is not None]
    if math.prod(lengths) > _MOST_ELEMENTS:
        raise ValueError(f"the results must fit memory; their shape would be {(images, *counts, channels)}")


# ---- transposed convolutions


@dataclass(frozen=True)
class Ends:
    """Where the outputs begin and end along an axis of the overlap-added windows."""

    first: int  # index in the first window at which outputs begin
    last: int  # length of the outputs from this index in the last window on


def ends_along(
    size: Sequence[int], strides: Sequence[int], padding: str, more: Sequence[int] | None, dilation: Sequence[int]
) -> list[Ends]:
    """Return where the outputs begin and end along each spatial axis. `more`: the argument `output_padding`."""
    if padding not in ("valid", "same"):
        raise ValueError(f"`padding` must be 'valid' or 'same'; received {padding!r}")
    if more is not None and any(not 0 <= n < stride for n, stride in zip(more, strides, strict=True)):
        raise ValueError(
            "`output_padding` must be from 0 to `strides` - 1 along each axis; received "
            f"output_padding={more}, strides={strides}"
        )
    if max(strides) > 1 and max(dilation) > 1:
        raise ValueError(
            "`strides` or `dilation_rate` must be 1 along all axes; received "
            f"strides={strides}, dilation_rate={dilation}"
        )
    extra = [None] * len(size) if more is None else more
    return [_ends(*each, padding) for each in zip(spans_of(size, dilation), strides, extra, strict=True)]


def _ends(span: int, stride: int, more: int | None, padding: str) -> Ends:
    if padding == "valid":
        return Ends(0, max(span, stride) if more is None else span + more)
    last = stride if more is None else span % 2 + more
    return Ends(max((span - last) // 2, 0), last)


def outputs_along(length: int | None, stride: int, ends: Ends) -> int | None:
    """Return the length of the outputs along an axis; None if the length of the inputs is unknown."""
    if length is None:
        return None
    return (length - 1) * stride + ends.last if length else 0


# ---- shape rules


def _arranged(images: Any, counts: Sequence[Any], channels: int, data_format: str | None) -> Shape:
    if data_format_of(data_format) == "channels_first":
        return (images, channels, *counts)
    return (images, *counts, channels)


def convolved(
    inputs: Any, kernel: Any, strides: Any = 1, padding: Padding = "valid", data_format: str | None = None,
    dilation_rate: Any = 1, **_: Any,
) -> Spec:  # fmt: skip
    """Return the shape of a convolution."""
    lengths, channels = places_of(inputs.shape, data_format)
    check_kernel(kernel.shape, len(lengths))
    groups_of(channels, kernel.shape[-2], kernel.shape[-1])
    counts = windows_over(lengths, kernel.shape[:-2], strides, padding, dilation_rate).counts
    shape = _arranged(inputs.shape[0], counts, kernel.shape[-1], data_format)
    return Spec(shape, product_type(inputs.dtype, kernel.dtype))


def convolved_by_channel(
    inputs: Any, kernel: Any, strides: Any = 1, padding: Padding = "valid", data_format: str | None = None,
    dilation_rate: Any = 1, **_: Any,
) -> Spec:  # fmt: skip
    """Return the shape of a depthwise convolution."""
    lengths, channels = places_of(inputs.shape, data_format)
    check_kernel(kernel.shape, len(lengths))
    check_depth(channels, kernel.shape)
    counts = windows_over(lengths, kernel.shape[:-2], strides, padding, dilation_rate).counts
    shape = _arranged(inputs.shape[0], counts, kernel.shape[-2] * kernel.shape[-1], data_format)
    return Spec(shape, product_type(inputs.dtype, kernel.dtype))


def check_depth(channels: int | None, kernel: Shape) -> None:
    """Raise ValueError unless a depthwise kernel has the channels of the inputs."""
    if channels not in (None, kernel[-2]):
        raise ValueError(
            f"`kernel` must have shape (size ..., channels, multiplier) with the {channels} channels of `inputs`; "
            f"received shape {tuple(kernel)}"
        )


def transposed(
    inputs: Any, kernel: Any, strides: Any = 1, padding: str = "valid", output_padding: Any = None,
    data_format: str | None = None, dilation_rate: Any = 1, **_: Any,
) -> Spec:  # fmt: skip
    """Return the shape of a transposed convolution."""
    lengths, channels = places_of(inputs.shape, data_format)
    rank = len(lengths)
    check_kernel(kernel.shape, rank)
    if channels not in (None, kernel.shape[-1]):
        raise ValueError(
            f"`kernel` must have shape (size ..., filters, channels) with the {channels} channels of `inputs`; "
            f"received shape {tuple(kernel.shape)}"
        )
    strides, dilation = sizes_of(strides, "strides", rank), sizes_of(dilation_rate, "dilation_rate", rank)
    more = None if output_padding is None else sizes_of(output_padding, "output_padding", rank, integer)
    ends = ends_along(kernel.shape[:rank], strides, padding, more, dilation)
    counts = [outputs_along(*each) for each in zip(lengths, strides, ends, strict=True)]
    shape = _arranged(inputs.shape[0], counts, kernel.shape[-2], data_format)
    return Spec(shape, product_type(inputs.dtype, kernel.dtype))
