"""Types of codes, and how the elements of an array correspond to scales and to the layout of the kernels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import prod
from operator import index, itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from mp_core.arrays.dtypes import ALLOWED, STORED, foreign_name, name_of
from mp_core.utilities.arguments import axes_of

__all__ = [
    "CODES",
    "Codes",
    "Plan",
    "int_or_axes",
    "int_or_none",
    "parse_codes",
    "plan_of",
    "spelled",
    "stored_shape",
]


@dataclass(frozen=True)
class Codes:
    """A type of codes: its range, and how its elements are stored (`packed`: two in a byte)."""

    dtype: np.dtype[Any]
    qmin: int
    qmax: int
    storage: np.dtype[Any]
    packed: bool = False
    is_float: bool = False

    @property
    def is_wide(self) -> bool:
        """Whether an element has more than 8 bits; no kernel reads such codes."""
        return self.storage.itemsize > 1


CODES = {
    codes.dtype.name: codes
    for codes in (
        Codes(ALLOWED["int8"], -128, 127, ALLOWED["int8"]),
        Codes(ALLOWED["uint8"], 0, 255, ALLOWED["uint8"]),
        Codes(STORED["int4"], -8, 7, ALLOWED["uint8"], packed=True),
        Codes(STORED["uint4"], 0, 15, ALLOWED["uint8"], packed=True),
        Codes(ALLOWED["int16"], -32768, 32767, ALLOWED["int16"]),
        Codes(ALLOWED["uint16"], 0, 65535, ALLOWED["uint16"]),
        Codes(ALLOWED["float8_e4m3fn"], -448, 448, ALLOWED["float8_e4m3fn"], is_float=True),
        Codes(ALLOWED["float8_e5m2"], -57344, 57344, ALLOWED["float8_e5m2"], is_float=True),
        Codes(STORED["float4_e2m1fn"], -6, 6, ALLOWED["uint8"], packed=True, is_float=True),
    )
}


class Plan(NamedTuple):
    """How the elements of an array correspond to its scales, as `mp_scale_layout` in core/library/quantize.h states."""

    axes: tuple[int, ...]
    group_size: int | None
    scale_shape: tuple[int, ...]
    order: tuple[int, ...] | None  # transpose the array to this order of axes first; None: not needed
    blocks: tuple[int, int, int, int, int, int, int, bool]  # the fields of mp_scale_layout
    in_pairs: bool  # whether no row or group ends between the two 4-bit codes of a byte


def spelled(dtype: Any) -> str:
    """Return the name of anything that may be given as a dtype."""
    try:
        return dtype if isinstance(dtype, str) else name_of(np.dtype(dtype))
    except (TypeError, ValueError):
        return foreign_name(dtype) or str(dtype)


def parse_codes(dtype: DTypeLike, others: Iterable[str] = ()) -> Codes:
    """Return the type of codes that `dtype` names; raise TypeError, which lists `others` too, if there is none."""
    codes = CODES.get(spelled(dtype)) if dtype is not None else None
    if codes is None:
        received = "None" if dtype is None else spelled(dtype)
        raise TypeError(f"`dtype` must be one of {', '.join((*CODES, *others))}; received {received}")
    return codes


def plan_of(shape: tuple[int, ...], axis: int | Sequence[int] | None, group_size: int | None) -> Plan:
    """Check the arguments and return their plan."""
    return _plan(shape, int_or_axes(axis), int_or_none(group_size))


def int_or_axes(axis: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """Return an argument `axis` as an int, a tuple of int or None; raise TypeError for anything else."""
    return axis if axis is None or type(axis) is int else axes_of(axis, "an int, a sequence of int or None")


def int_or_none(group_size: int | None) -> int | None:
    """Return an argument `group_size` as an int or None; raise TypeError for anything else."""
    try:
        if not isinstance(group_size, bool):
            return None if group_size is None else index(group_size)
    except TypeError:
        pass
    raise TypeError(f"`group_size` must be an int or None; received {group_size!r}")


def _axes(axis: int | tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    wanted = () if axis is None else (axis,) if isinstance(axis, int) else axis
    axes = tuple(sorted(i + ndim if i < 0 else i for i in wanted))
    if any(not 0 <= i < ndim for i in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"`axis` must name distinct axes of an array with {ndim} axes; received {axis!r}")
    return axes


def stored_shape(codes: Codes, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the array that stores the codes of an array of this shape."""
    if codes.packed and not shape:
        raise ValueError(f"`x` must have an axis to be packed as {codes.dtype}; received shape ()")
    return (*shape[:-1], (shape[-1] + 1) // 2) if codes.packed else shape


@lru_cache(1024)
def _plan(shape: tuple[int, ...], axis: int | tuple[int, ...] | None, group_size: int | None) -> Plan:
    """Return the plan; raise ValueError for arguments that do not fit each other.

    Along a kept axis scales differ, along a shared axis they do not. Neighbouring axes of one kind are merged. Then
    these patterns need no transposition: (shared), (kept, shared), ([kept,] shared, kept), (shared, kept, shared). All
    others are transposed to (kept, shared).
    """
    axes = _axes(axis, len(shape))
    even = not shape or shape[-1] % 2 == 0
    if group_size is not None:
        if group_size < 1:
            raise ValueError(f"`group_size` must be positive; received {group_size}")
        if len(axes) != len(shape) - 1:
            raise ValueError(
                f"`axis` must leave out one axis of an array with {len(shape)} axes for `group_size`; received {axis!r}"
            )
        split = next(i for i in range(len(shape)) if i not in axes)
        outer, length, cols = prod(shape[:split]), shape[split], prod(shape[split + 1 :])
        groups, group = -(-length // group_size), min(group_size, length)
        scales = (*shape[:split], groups, *shape[split + 1 :])
        if cols == 1:
            runs = (outer, length, 1, length, length, group, groups, False)
            return Plan(axes, group_size, scales, None, runs, even and group % 2 == 0)
        columns = (outer, length * cols, length, cols, cols, group, groups, True)
        return Plan(axes, group_size, scales, None, columns, even)
    scales, order = tuple(length if i in axes else 1 for i, length in enumerate(shape)), None
    kinds = [(i in axes, n) for i, n in enumerate(shape) if n != 1]
    merged = [(kept, prod(n for _, n in run)) for kept, run in groupby(kinds, key=itemgetter(0))]
    if len(merged) > 3:
        order = axes + tuple(i for i in range(len(shape)) if i not in axes)
        merged = [(kept, prod(n for same, n in kinds if same is kept)) for kept in (True, False)]
    kept = [kind for kind, _ in merged]
    first, second, last = ([1, 1, 1] + [n for _, n in merged])[-3:]
    if not kept or (kept[-1] is False and len(kept) < 3):
        return Plan(axes, None, scales, order, (second, last, 1, last, last, last, 1, False), even)
    if kept == [False, True, False]:
        return Plan(axes, None, scales, None, (second, last, first, second * last, last, first, 1, False), even)
    return Plan(axes, None, scales, None, (first, second * last, second, last, last, second, 1, True), even)
