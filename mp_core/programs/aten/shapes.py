"""Arrays in another shape, parts and sequences of arrays, and numbers that follow from lengths of axes."""

import operator as python
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core import ops
from mp_core.arrays.dtypes import result_type
from mp_core.programs.registry import operator
from mp_core.utilities.arguments import axis_of

__all__: list[str] = []


def _of_numbers(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a function of Python as one of `count` arguments."""
    return (lambda a: function(a)) if count == 1 else lambda a, b: function(a, b)


_OF_TWO: dict[str, Callable[..., Any]] = {
    "add": python.add, "sub": python.sub, "mul": python.mul, "floordiv": python.floordiv, "mod": python.mod,
    "truediv": python.truediv, "pow": python.pow, "eq": python.eq, "ne": python.ne, "lt": python.lt, "le": python.le,
    "gt": python.gt, "ge": python.ge, "and": python.and_, "or": python.or_, "sym_max": max,
    "sym_min": min,
}  # fmt: skip
_OF_ONE: dict[str, Callable[..., Any]] = {
    "neg": python.neg, "sym_int": int, "sym_float": float, "sym_not": python.not_,
}  # fmt: skip
for _name, _function in _OF_TWO.items():
    operator(f"aten.python.{_name}")(_of_numbers(_function, 2))
for _name, _function in _OF_ONE.items():
    operator(f"aten.python.{_name}")(_of_numbers(_function, 1))


@operator("aten.python.getitem")
def getitem(a: Sequence[Any], index: int) -> Any:
    """Return one of several results. A result that is seldom used is a function that computes it."""
    found = a[index]
    return found() if callable(found) else found


@operator("aten.sym_size.int")
def sym_size(self: Any, dim: int) -> int:
    """Return the length of an axis."""
    return int(self.shape[dim])


@operator("aten.sym_numel.default")
def sym_numel(self: Any) -> int:
    """Return the number of elements."""
    return int(self.size)


@operator("aten.view.default", "aten._unsafe_view.default")
def view(self: Any, size: Sequence[int]) -> Any:
    """Return the elements in another shape."""
    return ops.reshape(self, tuple(size))


@operator("aten.permute.default")
def permute(self: Any, dims: Sequence[int]) -> Any:
    """Return the array with the axes in another order."""
    return ops.transpose(self, tuple(dims))


@operator("aten.transpose.int")
def transpose(self: Any, dim0: int, dim1: int) -> Any:
    """Return the array with two axes exchanged."""
    return ops.swapaxes(self, dim0, dim1) if self.ndim else self


@operator("aten.t.default")
def t(self: Any) -> Any:
    """Return the transposed matrix."""
    return ops.transpose(self)


@operator("aten.unsqueeze.default")
def unsqueeze(self: Any, dim: int) -> Any:
    """Return the array with a new axis."""
    return ops.expand_dims(self, dim)


@operator("aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default")
def squeeze(self: Any, dim: Any = None) -> Any:
    """Return the array without these axes, if their length is 1."""
    axes = range(self.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    single = [axis for axis in axes if self.shape[axis] == 1] if self.ndim else []
    return ops.squeeze(self, tuple(single)) if single else self


@operator("aten.expand.default")
def expand(self: Any, size: Sequence[int], implicit: bool = False) -> Any:
    """Return the array broadcast to a shape; -1 keeps a length."""
    shape = (*(1,) * (len(size) - self.ndim), *self.shape)
    return ops.broadcast_to(self, [old if new == -1 else new for old, new in zip(shape, size, strict=True)])


@operator("aten.slice.Tensor")
def slice_(self: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """Return a part of the array along an axis."""
    return self[(slice(None),) * axis_of(dim, self.ndim) + (slice(start, end, step),)]


@operator("aten.select.int")
def select(self: Any, dim: int, index: int) -> Any:
    """Return the part at an index of an axis, without this axis."""
    return self[(*(slice(None),) * axis_of(dim, self.ndim), index, ...)]


@operator("aten.cat.default")
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the arrays, one after the other along an axis."""
    kept = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return ops.concatenate(_of_one_type(kept), dim)


@operator("aten.stack.default")
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Return the arrays along a new axis."""
    return ops.stack(_of_one_type(tensors), dim)


def _of_one_type(arrays: Sequence[Any]) -> list[Any]:
    kind = arrays[0].dtype
    for x in arrays:
        kind = result_type(kind, x.dtype) if x.dtype != kind else kind
    return [x if x.dtype == kind else ops.cast(x, kind) for x in arrays]


@operator("aten.split_with_sizes.default", "aten.split.sizes")
def split_with_sizes(self: Any, split_sizes: Sequence[int], dim: int = 0) -> list[Any]:
    """Return parts of these lengths."""
    ends = np.cumsum(split_sizes).tolist()
    starts = [0, *ends[:-1]]
    return [slice_(self, dim, start, end) for start, end in zip(starts, ends, strict=True)]


@operator("aten.split.Tensor")
def split(self: Any, split_size: int, dim: int = 0) -> list[Any]:
    """Return parts of one length; the last one may be shorter."""
    length = self.shape[dim]
    return [slice_(self, dim, start, start + split_size) for start in range(0, length, split_size)]


@operator("aten.repeat.default")
def repeat(self: Any, repeats: Sequence[int]) -> Any:
    """Return the array, repeated along each axis."""
    return ops.tile(self, tuple(repeats))


@operator("aten.roll.default")
def roll(self: Any, shifts: Any, dims: Any = ()) -> Any:
    """Return the array with the elements shifted along axes, and continued at the other end."""
    if not dims:
        return ops.roll(self, *shifts)
    x = self
    for shift, axis in zip(shifts, dims, strict=True):
        x = ops.roll(x, shift, axis)
    return x


@operator("aten.flip.default")
def flip(self: Any, dims: Sequence[int]) -> Any:
    """Return the array with the elements in reverse order along axes."""
    return ops.flip(self, tuple(dims))


@operator("aten.unfold.default")
def unfold(self: Any, dimension: int, size: int, step: int) -> Any:
    """Return windows along an axis; their elements are the last axis."""
    axis = axis_of(dimension, self.ndim)
    return slice_(sliding_window_view(self, size, axis), axis, step=step)


@operator("aten.constant_pad_nd.default")
def constant_pad_nd(self: Any, pad: Sequence[int], value: float = 0) -> Any:
    """Return the array with more elements, or fewer if widths are negative, at both ends of the last axes."""
    return pad_(self, pad, "constant", value)


@operator("aten.pad.default")
def pad_(self: Any, pad: Sequence[int], mode: Literal["constant"] = "constant", value: float | None = None) -> Any:
    """Return the array with more elements, or fewer if widths are negative, at both ends of the last axes."""
    given = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (self.ndim - len(given)) + given[::-1]
    ends = [(before, behind, length) for (before, behind), length in zip(widths, self.shape, strict=True)]
    x = self[tuple(slice(max(-before, 0), n - max(-behind, 0)) for before, behind, n in ends)]
    added = [(max(before, 0), max(behind, 0)) for before, behind in widths]
    return ops.pad(x, added, value or 0.0) if any(map(any, added)) else x
