"""Sums and means, accumulated in float32 in a fixed order."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, asarray, cast, check_out, contiguous, imported_out
from mp_core.arrays.dtypes import ALLOWED, is_float, name_of, parse
from mp_core.arrays.recorded import comes_from_input, constant, recordable, with_numbers
from mp_core.core.sums import sum_middle
from mp_core.ops import specs
from mp_core.ops.elementwise import combined
from mp_core.ops.padding import folded
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axes_of, axis_of, boolean

__all__ = ["mean", "sum"]


@operation(specs.totalled, options="axis keepdims")
@recordable
@with_numbers
def sum(
    x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False,
    out_dtype: DTypeLike | None = None, out: Array | None = None,
) -> Array:  # fmt: skip
    """Return the sum of the elements along axes, accumulated in float32 in a fixed order and rounded once.

    Parameters
    ----------
    x : array-like
        Any shape; float, integer or bool.
    axis : int or sequence of int, optional
        The axes to sum over. None: all of them.
    keepdims : bool
        Keep the summed axes, with length 1.
    out_dtype : dtype, optional
        The type of the result: a float type, or for integers also int64 (for unsigned ones uint64). Default: the type
        of `x`, but float32 for float8, and int64 or uint64 for integers and booleans.
    out : ndarray or tensor, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap `x`.

    Returns
    -------
    ndarray
        The bits are the same for every instruction set, number of threads, memory layout and order of axes. A sum
        without elements is 0. float64 is summed in float64, by NumPy; integers are summed exactly, modulo 2^64.

    Notes
    -----
    The numerics page states the order of sums and proves an error bound. Contiguous arrays, also with permuted axes,
    are read in the order of memory if the summed axes are neighbours there; other arrays are copied first.

    Examples
    --------
    >>> import ml_dtypes
    >>> ones = np.ones(1000, ml_dtypes.bfloat16)
    >>> sum(ones), ones.sum()
    (array(1000, dtype=bfloat16), 256)
    """
    return _reduce(x, axis, keepdims, out_dtype, out, False)


@operation(specs.averaged, options="axis keepdims")
@recordable
@with_numbers
def mean(
    x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False,
    out_dtype: DTypeLike | None = None, out: Array | None = None,
) -> Array:  # fmt: skip
    """Return the mean of the elements along axes: the float32 sum divided by the number of elements, rounded once.

    Parameters
    ----------
    x : array-like
        Any shape; integers and booleans become float32.
    axis, keepdims, out
        As for :func:`sum`.
    out_dtype : dtype, optional
        The type of the result, a float type. Default: the type of `x`, but float32 for float8.

    Returns
    -------
    ndarray
        As for :func:`sum`. A mean without elements is NaN.

    Examples
    --------
    >>> import ml_dtypes
    >>> mean(np.ones((2, 1000), ml_dtypes.bfloat16), axis=1)
    array([1, 1], dtype=bfloat16)
    """
    return _reduce(x, axis, keepdims, out_dtype, out, True)


def _reduce(x: Any, axis: Any, keepdims: bool, out_dtype: Any, out: Any, is_mean: bool) -> Array:
    keepdims, wanted = boolean(keepdims, "keepdims"), None if out_dtype is None else parse(out_dtype, "out_dtype")
    held = imported_out(out)
    x = asarray(x)
    axes = _axes(axis, x.ndim)
    x = as_float(x) if is_mean or (wanted is not None and is_float(wanted)) else x
    target = _target(x.dtype, wanted)
    shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes)
    plain = None if held is None else check_out(held, shape, target)
    total = _total(x, axes, is_mean).reshape(shape)
    if total.dtype is not target:
        total = cast(total, target)
    if plain is None:
        return total
    np.copyto(plain, total)
    return out  # type: ignore[no-any-return]


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis_of(each, ndim) for each in axes_of(axis, "an int, a sequence of int, or None"))
    if len(set(axes)) < len(axes):
        raise ValueError(f"`axis` must not name an axis twice; received {axis}")
    return tuple(sorted(axes))


def _target(dtype: np.dtype[Any], wanted: np.dtype[Any] | None) -> np.dtype[Any]:
    """Return the type of a sum of elements of `dtype`: `wanted` if allowed, or the default for None."""
    if is_float(dtype):
        default = F32 if "float8" in name_of(dtype) else dtype
    else:
        default = ALLOWED["uint64" if dtype.kind == "u" else "int64"]
    if wanted is not None and wanted is not default and not is_float(wanted):
        raise TypeError(f"`out_dtype` must be a float type{'' if is_float(default) else f' or {default}'}; "
                        f"received {wanted}")  # fmt: skip
    return wanted or default


def _total(x: Array, axes: tuple[int, ...], is_mean: bool) -> Array:
    """Return sums or means in float32, float64 or 64-bit integers: a C-contiguous array of the kept axes."""
    kept = [i for i in range(x.ndim) if i not in axes]
    lengths = tuple(x.shape[i] for i in kept)
    if not is_float(x.dtype):
        if comes_from_input(x):
            wide = cast(x, "uint64" if x.dtype.kind == "u" else "int64")
            return folded(lambda one, two: combined("add", one, two, wide.dtype), wide, axes, 0).reshape(lengths)
        return np.asarray(np.sum(x, axis=axes, dtype=np.uint64 if x.dtype.kind == "u" else np.int64))
    count = prod(x.shape[i] for i in axes)
    if count == 0 or 0 in lengths:
        return constant(np.full(lengths, np.nan if is_mean else 0.0, F64 if x.dtype is F64 else F32))
    if x.dtype is F64:
        return np.asarray((np.mean if is_mean else np.sum)(x, axis=axes))
    order, middle = _in_memory(x, kept, axes)
    sums = np.empty((middle.shape[0], middle.shape[2]), F32)
    sum_middle(FORMATS[x.dtype], middle, sums, float(count) if is_mean else 1.0)
    result = sums.reshape([x.shape[i] for i in order])
    return result if order == sorted(order) else contiguous(result.transpose(np.argsort(order)))


def _in_memory(x: Array, kept: list[int], axes: tuple[int, ...]) -> tuple[list[int], Array]:
    """Return the kept axes in the order of memory, and `x` as a C-contiguous array (outer, summed, inner).

    The summed axes keep their order, since it is the order of the sum. If they are not neighbours in memory in this
    order, `x` is copied with the summed axes last.
    """
    by_stride = sorted(range(x.ndim), key=lambda i: (-abs(x.strides[i]), i))
    first = by_stride.index(axes[0]) if axes else x.ndim
    together = by_stride[first : first + len(axes)] == list(axes)
    if together and x.transpose(by_stride).flags.c_contiguous:
        x, order = x.transpose(by_stride), by_stride[:first] + by_stride[first + len(axes) :]
        outer = prod(x.shape[:first])
        summed = prod(x.shape[first : first + len(axes)])
        return order, x.reshape(outer, summed, -1)
    x = contiguous(x.transpose(*kept, *axes))
    return kept, x.reshape(prod(x.shape[: len(kept)]), -1, 1)
