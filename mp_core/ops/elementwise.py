"""Elementwise functions that a recording calls in place of NumPy's functions and of operators.

In float32, float16 and bfloat16 the functions in :data:`BIT_EQUAL_FUNCTIONS` give the bits of NumPy and ml_dtypes:
elements are widened to float32, computed in float32 and rounded once. For these functions that equals rounding the
exact result once. One difference: the larger of two zeros is +0 and the smaller is -0, as in IEEE 754. In NumPy this
sign depends on the CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.products import float64
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.recorded import BIT_EQUAL_FUNCTIONS, recordable, with_numbers
from mp_core.core import pairs as _pairs
from mp_core.core.convert import copy_into, empty

__all__ = ["combined", "compared", "computed", "concatenated", "floating", "rounded", "where"]


def combined(name: str, x: Array, y: Array, dtype: np.dtype[Any], activation: str | None = None) -> Array:
    """Return ``name(activation(x), y)`` of two float arrays, rounded to `dtype`."""
    if dtype is F64 and activation is not None:
        x = float64.ACTIVATIONS[activation](cast(x, F64))
    return _run(name, (x, y), dtype, ACTIVATIONS[activation])


@recordable
@with_numbers
def computed(name: str, *operands: Array, dtype: np.dtype[Any]) -> Array:
    """Return an elementwise function of one array, or of two that broadcast against each other.

    Parameters
    ----------
    name : str
        A row of library/elementwise.def with float results: "add", "subtract", "sqrt", "log", ...
    *operands : array
    dtype : dtype
        The float type of the result. float64 is computed by a row of ``float64.FUNCTIONS``, or else by the NumPy
        function of the same name.

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
    """Return a comparison of two arrays as booleans; NaN equals nothing.

    Parameters
    ----------
    name : str
        "less", "less_equal", "greater", "greater_equal", "equal" or "not_equal".
    *operands : array
    dtype : dtype
        The common type of the operands, a float.

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
        Two arrays.
    dtype : dtype
        The type of the result, as for :func:`computed`.

    Examples
    --------
    >>> where(np.array([True, False]), np.array([1, 2], np.float32), np.float32([0]), dtype=np.dtype(np.float32))
    array([1., 0.], dtype=float32)
    """
    return _run("where", [mask, *operands], np.dtype(dtype))


@recordable
def concatenated(*arrays: Array, axis: int) -> Array:
    """Concatenate arrays of one dtype along an axis, as :func:`numpy.concatenate` does.

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
    if dtype is F64 or any(x.dtype == F64 for x in arrays):  # plans have no float64
        wide = [x if x.dtype == np.bool_ else cast(x, F64) for x in arrays]
        with np.errstate(all="ignore"):
            return np.asarray((float64.FUNCTIONS.get(name) or getattr(np, name))(*wide), dtype)
    shape = _common_shape(arrays)
    out = np.empty(shape or (1,), dtype)
    if out.size:
        operands = tuple([x if x.shape == out.shape else np.broadcast_to(x, out.shape) for x in arrays])
        formats = tuple(_format(x.dtype) for x in operands)
        _pairs.elementwise(name, activation, operands, formats, out, _format(dtype))
    return out.reshape(shape)


def _common_shape(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return the broadcast shape of arrays; raise ValueError if there is none."""
    first: tuple[int, ...] = arrays[0].shape
    if all(x.shape == first for x in arrays):  # np.broadcast_shapes would take microseconds
        return first
    try:
        return np.broadcast_shapes(*(x.shape for x in arrays))
    except ValueError:
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"operands must broadcast against each other; received {shapes}") from None


def _format(dtype: np.dtype[Any]) -> int:
    """Return the kernels' number of a native float type or of bool; raise KeyError for any other type."""
    return _pairs.BOOL if dtype == np.bool_ else FORMATS[dtype]


BIT_EQUAL_FUNCTIONS.update({
    **{getattr(np, name): (computed, name) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "absolute", "square", "sqrt")},
    **{getattr(np, name): (compared, name) for name in (
        "less", "less_equal", "greater", "greater_equal", "equal", "not_equal")},
    np.where: (where,),
})  # fmt: skip


def rounded(function: Callable[..., Any], *arrays: Any, dtype: Any = None) -> Array:
    """Return ``function(*arrays)``, computed on widened arrays and rounded to `dtype` (default: the first array's).

    They are widened to float32, or to float64 if one of them has it. The function must not write to its arguments,
    which may be `arrays` themselves. A plan records its operators, and the NumPy functions that are in
    :data:`mp_core.arrays.recorded.BIT_EQUAL_FUNCTIONS`; these are called with float32 arrays.

    Examples
    --------
    >>> rounded(lambda x, y: x * y + 1, np.float16([300]), np.float16([300]), dtype="float32")
    array([90001.], dtype=float32)
    """
    arrays = tuple(x if hasattr(x, "dtype") else as_float(x) for x in arrays)
    target = arrays[0].dtype if dtype is None else dtype
    wide = F64 if any(x.dtype == F64 for x in arrays) else F32
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        return _cast(function(*(_cast(x, wide) for x in arrays)), target)


def _cast(x: Array, dtype: Any) -> Array:
    """Return an array in a dtype; an ndarray that has the dtype is returned unchanged."""
    return x if x.__class__ is np.ndarray and x.dtype == dtype else cast(x, dtype)


def floating(x: Array, dtype: Any) -> Array:
    """Cast integers and booleans to `dtype`; return floats unchanged."""
    return x if is_float(x.dtype) else cast(x, dtype)
