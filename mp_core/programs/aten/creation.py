"""Arrays made of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.dtypes import parse
from mp_core.programs.registry import operator

__all__: list[str] = []


def _type(value: Any, dtype: str | None) -> Any:
    """Return a type by its name; by default that of a Python number in torch."""
    if dtype is not None:
        return parse(dtype)
    return np.bool_ if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float32


@operator("aten.full.default")
def full(size: Sequence[int], fill_value: Any, dtype: str | None = None) -> Array:
    """Return an array filled with a number."""
    return np.full(tuple(size), fill_value, _type(fill_value, dtype))


@operator("aten.full_like.default")
def full_like(self: Any, fill_value: Any, dtype: str | None = None) -> Array:
    """Return an array filled with a number, in the shape of another one."""
    return np.full(self.shape, fill_value, self.dtype if dtype is None else parse(dtype))


@operator("aten.zeros.default", "aten.empty.memory_format")
def zeros(size: Sequence[int], dtype: str | None = None) -> Array:
    """Return zeros."""
    return full(size, 0.0, dtype)


@operator("aten.new_empty_strided.default")
def new_zeros(self: Any, size: Sequence[int], stride: Sequence[int], dtype: str | None = None) -> Array:
    """Return zeros, by default in the type of another array."""
    return zeros(size, dtype or self.dtype.name)


@operator("aten.ones.default")
def ones(size: Sequence[int], dtype: str | None = None) -> Array:
    """Return ones."""
    return full(size, 1.0, dtype)


@operator("aten.zeros_like.default", "aten.empty_like.default")
def zeros_like(self: Any, dtype: str | None = None) -> Array:
    """Return zeros in the shape of another array."""
    return full_like(self, 0, dtype)


@operator("aten.ones_like.default")
def ones_like(self: Any, dtype: str | None = None) -> Array:
    """Return ones in the shape of another array."""
    return full_like(self, 1, dtype)


@operator("aten.scalar_tensor.default")
def scalar_tensor(s: Any, dtype: str | None = None) -> Array:
    """Return a number as an array without axes, by default in float32."""
    return np.asarray(s, _type(1.0, dtype))


@operator("aten.arange.start_step", "aten.arange.start")
def arange(start: Any, end: Any, step: Any = 1, dtype: str | None = None) -> Array:
    """Return evenly spaced numbers from `start` to below `end`."""
    kind = np.float32 if any(isinstance(x, float) for x in (start, end, step)) else np.int64
    return np.arange(start, end, step).astype(kind if dtype is None else parse(dtype))


@operator("aten.arange.default")
def arange_to(end: Any, dtype: str | None = None) -> Array:
    """Return evenly spaced numbers from 0 to below `end`."""
    return arange(0, end, dtype=dtype)


@operator("aten.tril.default")
def tril(self: Any, diagonal: int = 0) -> Any:
    """Return the elements on and below a diagonal, zeros elsewhere."""
    return _kept(self, _lower(self, diagonal))


@operator("aten.triu.default")
def triu(self: Any, diagonal: int = 0) -> Any:
    """Return the elements on and above a diagonal, zeros elsewhere."""
    return _kept(self, ~_lower(self, diagonal - 1))


def _lower(x: Any, diagonal: int) -> Array:
    """Return which elements of matrices are on and below a diagonal."""
    rows, columns = x.shape[-2:]
    return np.tri(rows, columns, diagonal, dtype=np.bool_)


def _kept(x: Any, keep: Array) -> Any:
    return x & keep if x.dtype == np.bool_ else ops.where(keep, x, 0)
