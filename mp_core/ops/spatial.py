"""Checks of the arguments of operations with one to three spatial axes, and paddings of their windows."""

from collections.abc import Callable, Sequence
from typing import Any

from mp_core.ops.specs import Operand, Shape, Spec
from mp_core.utilities.arguments import integer, positive_integer
from mp_core.utilities.docstrings import shown

__all__ = ["data_format_of", "padding_of", "pooled", "same_padding", "sizes_of"]

Padding = str | int | Sequence[Any]
"""`"valid"`, `"same"`, a number for both ends of all axes, or for each axis a number or (before, after)."""


def data_format_of(value: str | None) -> str:
    """Return the checked data format; the default is "channels_last"."""
    if value not in (None, "channels_last", "channels_first"):
        raise ValueError(f"`data_format` must be 'channels_last' or 'channels_first'; received {value!r}")
    return value or "channels_last"


def sizes_of(
    value: int | Sequence[int], argument: str, rank: int, check: Callable[[Any, str], int] = positive_integer
) -> tuple[int, ...]:
    """Return an integer for each of `rank` axes, checked by `check`."""
    sizes = tuple(value) if isinstance(value, Sequence) else (value,) * rank
    if len(sizes) != rank:
        wanted = "a pair of them" if rank == 2 else f"a sequence of {rank}"
        single = "a positive integer" if check is positive_integer else "an integer"
        raise ValueError(f"`{argument}` must be {single} or {wanted}; received {value!r}")
    return tuple(check(size, argument) for size in sizes)


def same_padding(length: int, span: int, stride: int) -> tuple[int, int]:
    """Return how many zeros to add before and after an axis, so that there are ceil(length / stride) outputs."""
    total = max((-(-length // stride) - 1) * stride + span - length, 0)
    return total // 2, total - total // 2


@shown('{}("same", (5, None), (3, 2), (2, 2))', "[(1, 1), (0, 0)]")
def padding_of(
    padding: Padding, lengths: Sequence[int | None], spans: Sequence[int], strides: Sequence[int],
    ceil_mode: bool = False,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return the numbers of places to add before and after each spatial axis.

    Parameters
    ----------
    padding : {"valid", "same"}, int or sequence of (int or pair of int)
    lengths : sequence of (int or None)
        The spatial lengths of the array. For an unknown length, "same" gives 0.
    spans, strides : sequence of int
        The lengths of a window, gaps included, and the distances between windows.
    ceil_mode : bool
        Whether to add places after the end for a last window that begins before the places that `padding` adds there.
    """
    axes = list(zip(lengths, spans, strides, strict=True))
    if padding == "same":
        return [(0, 0) if n is None else same_padding(n, span, step) for n, span, step in axes]
    each = (0,) * len(axes) if padding == "valid" else (padding,) * len(axes) if isinstance(padding, int) else padding
    if isinstance(each, str) or len(each) != len(axes):
        raise ValueError(f"`padding` must be 'valid', 'same', an integer, or an integer or a pair for each of "
                         f"{len(axes)} axes; received {padding!r}")  # fmt: skip
    pairs = [tuple(pair) if isinstance(pair, Sequence) else (pair, pair) for pair in each]
    found = [tuple(integer(n, "padding") for n in pair) for pair in pairs]
    for pair, span in zip(found, spans, strict=True):
        if len(pair) != 2 or not all(0 <= n < span for n in pair):
            raise ValueError(f"`padding` must be from 0 to less than a window, {tuple(spans)}; received {padding!r}")
    if not ceil_mode:
        return [(before, after) for before, after in found]
    return [(before, after + _more(n, before, after, span, step))
            for (n, span, step), (before, after) in zip(axes, found, strict=True)]  # fmt: skip


def _more(length: int | None, before: int, after: int, span: int, step: int) -> int:
    """Return the places that a last window needs after the padding, or 0 if it would begin in the padding."""
    if length is None:
        return 0
    whole = before + length + after - span
    last = -(-whole // step) * step
    return last - whole if last < before + length else 0


def pooled(
    inputs: Operand, pool_size: Any, strides: Any = None, padding: Padding = "valid", data_format: str | None = None
) -> Spec:
    """Return the shape with a place for each window, in the dtype of `inputs`."""
    shape: Shape = tuple(inputs.shape)
    rank = len(shape) - 2
    size = sizes_of(pool_size, "pool_size", rank)
    steps = size if strides is None else sizes_of(strides, "strides", rank)
    first = 1 if data_format_of(data_format) == "channels_last" else 2
    lengths = shape[first : first + rank]
    widths = padding_of(padding, lengths, size, steps)
    found = [None if n is None else -(-n // step) if padding == "same" else (n + sum(pair) - span) // step + 1
             for n, pair, span, step in zip(lengths, widths, size, steps, strict=True)]  # fmt: skip
    if any(n is not None and n < 1 for n in found):
        raise ValueError(f"`pool_size` must be at most the spatial lengths of the inputs, {lengths}; received {size}")
    return Spec((*shape[:first], *found, *shape[first + rank :]), inputs.dtype)
