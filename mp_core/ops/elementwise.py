"""Functions of the elements of arrays, which recordings see where NumPy's own are called or an operator is.

In float32, float16 and bfloat16 those that stand for NumPy's (:data:`SEEN`) have the bits of NumPy and ml_dtypes:
elements are widened to float32, computed in float32 and rounded once, which for these functions gives the same as
rounding the exact result once. (The sign of a zero is that of IEEE 754: the larger of two zeros is +0, the smaller -0.
In NumPy it depends on the processor.)
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mp_core.arrays import F64, FORMATS, Array, cast
from mp_core.arrays.products import float64
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.recorded import SEEN, recordable, with_numbers
from mp_core.core import pairs as _pairs
from mp_core.core.convert import copy_into, empty

__all__ = ["combined", "compared", "computed", "concatenated", "where"]


def combined(name: str, x: Array, y: Array, dtype: np.dtype[Any], activation: str | None = None) -> Array:
    """Return a function of two float arrays, an activation of the first one before that, rounded to `dtype`."""
    if dtype is F64 and activation is not None:
        x = float64.ACTIVATIONS[activation](cast(x, F64))
    return _run(name, (x, y), dtype, ACTIVATIONS[activation])


@recordable
@with_numbers
def computed(name: str, *operands: Array, dtype: np.dtype[Any]) -> Array:
    """Return a function of one array, or of two that broadcast against each other.

    Parameters
    ----------
    name : str
        A row of library/elementwise.def that gives floats: "add", "subtract", "sqrt", "log", ...
    *operands : array
    dtype : dtype
        That of the result, a float; float64 goes through NumPy, which must have a function of the name.

    Returns
    -------
    ndarray

    Raises
    ------
    ValueError
        The shapes do not broadcast.

    Examples
    --------
    >>> computed("maximum", np.array([1, 2], np.float32), np.float32([1.5]), dtype=np.dtype(np.float32))
    array([1.5, 2. ], dtype=float32)
    """
    return _run(name, operands, np.dtype(dtype))


@recordable
@with_numbers
def compared(name: str, *operands: Array, dtype: np.dtype[Any]) -> Array:
    """Return where a comparison of two arrays is true; NaN is unequal to all.

    Parameters
    ----------
    name : str
        "less", "less_equal", "greater", "greater_equal", "equal" or "not_equal".
    *operands : array
    dtype : dtype
        A float, the common type of the operands.

    Examples
    --------
    >>> compared("less", np.array([1, 2], np.float32), np.float32([1.5]), dtype=np.dtype(np.float32))
    array([ True, False])
    """
    return _run(name, operands, np.dtype(np.bool_))


@recordable
@with_numbers
def where(mask: Array, *operands: Array, dtype: np.dtype[Any]) -> Array:
    """Return the elements of the first array where `mask` is true, those of the second elsewhere.

    Parameters
    ----------
    mask : array of bool
    *operands : array
        Two.
    dtype : dtype
        That of the result, as for :func:`computed`.

    Examples
    --------
    >>> where(np.array([True, False]), np.array([1, 2], np.float32), np.float32([0]), dtype=np.dtype(np.float32))
    array([1., 0.], dtype=float32)
    """
    return _run("where", [mask, *operands], np.dtype(dtype))


@recordable
def concatenated(*arrays: Array, axis: int) -> Array:
    """Return arrays of one type behind each other along an axis, as :func:`numpy.concatenate` does.

    Examples
    --------
    >>> concatenated(np.zeros((1, 2)), np.ones((1, 1)), axis=1)
    array([[0., 0., 1.]])
    """
    first, axis = arrays[0], axis % arrays[0].ndim
    ends = np.cumsum([x.shape[axis] for x in arrays]).tolist()
    out: Array = empty((*first.shape[:axis], ends[-1], *first.shape[axis + 1 :]), first.dtype)
    for x, end in zip(arrays, ends, strict=True):
        copy_into(out[(*[slice(None)] * axis, slice(end - x.shape[axis], end))], x)
    return out


def _run(name: str, arrays: Sequence[Array], dtype: np.dtype[Any], activation: int = 0) -> Array:
    if dtype is F64 or any(x.dtype == F64 for x in arrays):  # no plan has them
        wide = [x if x.dtype == np.bool_ else cast(x, F64) for x in arrays]
        with np.errstate(all="ignore"):
            return np.asarray(getattr(np, name)(*wide), dtype)
    shape = _common_shape(arrays)
    out = np.empty(shape or (1,), dtype)
    if out.size:
        operands = tuple([x if x.shape == out.shape else np.broadcast_to(x, out.shape) for x in arrays])
        formats = tuple(_format(x.dtype) for x in operands)
        _pairs.elementwise(name, activation, operands, formats, out, _format(dtype))
    return out.reshape(shape)


def _common_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return the shape against which arrays broadcast; raise ValueError if there is none."""
    first: tuple[int, ...] = arrays[0].shape
    if all(x.shape == first for x in arrays):  # NumPy takes microseconds to say so
        return first
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"operands must broadcast against each other; received {shapes}") from None


def _format(dtype: np.dtype[Any]) -> int:
    """Return the format of a native float type, or that of booleans; raise KeyError for any other type."""
    return _pairs.BOOL if dtype == np.bool_ else FORMATS[dtype]


SEEN.update({
    **{getattr(np, name): (computed, name) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "absolute", "square", "sqrt")},
    **{getattr(np, name): (compared, name) for name in (
        "less", "less_equal", "greater", "greater_equal", "equal", "not_equal")},
    np.where: (where,),
})  # fmt: skip
