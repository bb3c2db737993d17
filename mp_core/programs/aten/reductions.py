"""Functions of all elements along axes."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from mp_core import ops
from mp_core.arrays.dtypes import is_float
from mp_core.programs.aten.elementwise import cast
from mp_core.programs.registry import operator

__all__: list[str] = []

Axes = int | Sequence[int] | None


def _axes(dim: Axes) -> Any:
    """Return axes as operations take them; no axes are all axes."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


@operator("aten.sum.dim_IntList", "aten.sum.default")
def sum_(self: Any, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Any:
    """Return the sum; integers and booleans give int64."""
    if not is_float(self.dtype) and dtype is None:
        self = self if self.dtype.itemsize > 2 else cast(self, "int64")
    return ops.sum(cast(self, dtype), _axes(dim), keepdims=keepdim)


@operator("aten.mean.dim", "aten.mean.default")
def mean(self: Any, dim: Axes = None, keepdim: bool = False, dtype: str | None = None) -> Any:
    """Return the mean."""
    return ops.mean(cast(self, dtype), _axes(dim), keepdims=keepdim)


@operator("aten.amax.default", "aten.max.default")
def amax(self: Any, dim: Axes = (), keepdim: bool = False) -> Any:
    """Return the largest element."""
    return ops.max(self, _axes(dim), keepdims=keepdim)


@operator("aten.amin.default", "aten.min.default")
def amin(self: Any, dim: Axes = (), keepdim: bool = False) -> Any:
    """Return the smallest element."""
    return ops.min(self, _axes(dim), keepdims=keepdim)


@operator("aten.max.dim")
def max_with_indices(self: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the largest element along an axis, and its index."""
    return [amax(self, dim, keepdim), lambda: argmax(self, dim, keepdim)]


@operator("aten.min.dim")
def min_with_indices(self: Any, dim: int, keepdim: bool = False) -> Any:
    """Return the smallest element along an axis, and its index."""
    return [amin(self, dim, keepdim), lambda: argmin(self, dim, keepdim)]


@operator("aten.topk.default")
def topk(self: Any, k: int, dim: int = -1, largest: Literal[True] = True, sorted: bool = True) -> Any:
    """Return the largest elements along an axis, the largest first, and their indices."""
    found = ops.top_k(ops.moveaxis(self, dim, -1), k)
    return [ops.moveaxis(found[0], -1, dim), lambda: ops.moveaxis(cast(found[1], "int64"), -1, dim)]


@operator("aten.argmax.default")
def argmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the index of the largest element."""
    return ops.argmax(self, dim, keepdim)


@operator("aten.argmin.default")
def argmin(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the index of the smallest element."""
    return ops.argmin(self, dim, keepdim)


def _of_truths(function: Callable[..., Any]) -> Callable[..., Any]:
    def judged(self: Any, dim: Axes = None, keepdim: bool = False) -> Any:
        return function(self, _axes(dim), keepdim)

    judged.__doc__ = function.__doc__
    return judged


for _name, _function in {"any": ops.any, "all": ops.all}.items():
    operator(f"aten.{_name}.dim", f"aten.{_name}.dims", f"aten.{_name}.default")(_of_truths(_function))


@operator("aten.var.correction")
def var(self: Any, dim: Axes = None, correction: float | None = None, keepdim: bool = False) -> Any:
    """Return the variance: the sum of squared deviations divided by the number of elements less `correction`."""
    found = ops.var(self, _axes(dim), keepdim)
    count = self.size // max(found.size, 1)
    correction = 1 if correction is None else correction
    return found if correction == 0 else ops.multiply(found, count / max(count - correction, 0.0))


@operator("aten.var_mean.correction")
def var_mean(self: Any, dim: Axes = None, correction: float | None = None, keepdim: bool = False) -> Any:
    """Return variance and mean."""
    return [var(self, dim, correction, keepdim), lambda: mean(self, dim, keepdim)]


@operator("aten.linalg_vector_norm.default")
def linalg_vector_norm(
    self: Any, ord: float = 2, dim: Axes = None, keepdim: bool = False, dtype: str | None = None
) -> Any:
    """Return the norm of vectors along axes."""
    if ord == 2:
        return ops.norm(cast(self, dtype), axis=_axes(dim), keepdims=keepdim)
    magnitudes = ops.abs(cast(self, dtype))
    if np.isinf(ord):
        return (amax if ord > 0 else amin)(magnitudes, dim or (), keepdim)
    total = ops.sum(magnitudes if ord == 1 else ops.power(magnitudes, ord), _axes(dim), keepdims=keepdim)
    return total if ord == 1 else ops.power(total, 1 / ord)


@operator("aten.cumsum.default")
def cumsum(self: Any, dim: int, dtype: str | None = None) -> Any:
    """Return the sums of all elements up to each one along an axis; booleans and short integers give int64."""
    if dtype is None and not is_float(self.dtype) and self.dtype.itemsize < 4:
        dtype = "int64"
    return ops.cumsum(cast(self, dtype), dim) if self.ndim else cast(self, dtype)
