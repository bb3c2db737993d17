"""Elementwise functions that a recording calls in place of NumPy's functions and of operators.

In float32, float16 and bfloat16 the functions in :data:`BIT_EQUAL_FUNCTIONS` give the bits of NumPy and ml_dtypes:
elements are widened to float32, computed in float32 and rounded once. For these functions that equals rounding the
exact result once. Of integers, booleans and float64, calls use NumPy, and steps of plans give the same results. One
difference: the larger of two zeros is +0 and the smaller is -0, as in IEEE 754. In NumPy this sign depends on the CPU.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mp_core.arrays import F32, F64, Array, as_float, cast, in_order_of, memory_order
from mp_core.arrays.conversion import STEP_FORMATS, wide_of
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.products import float64
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.recorded import (
    BIT_EQUAL_FUNCTIONS,
    comes_from_input,
    constant,
    recordable,
    refuse_recorded,
    with_numbers,
)
from mp_core.core import pairs as _pairs
from mp_core.core.convert import copy_into, empty

__all__ = ["combined", "compared", "computed", "concatenated", "floating", "rounded", "where"]


def combined(name: str, x: Array, y: Array, dtype: np.dtype[Any], activation: str | None = None) -> Array:
    """Return ``name(activation(x), y)`` of two arrays, in `dtype`. Only floats have an activation."""
    if dtype is F64 and activation is not None:
        x = float64.ACTIVATIONS[activation](cast(x, F64))
    return _run(name, (x, y), dtype, dtype, ACTIVATIONS[activation])


@recordable
@with_numbers
def computed(name: str, *operands: Array, dtype: np.dtype[Any]) -> Array:
    """Return an elementwise function of one array, or of two that broadcast against each other.

    Parameters
    ----------
    name : str
        A row of library/elementwise.def that is no comparison: "add", "subtract", "sqrt", "log", ...
    *operands : array
    dtype : dtype
        The type of the result. float64 is computed by a row of ``float64.FUNCTIONS``, or else by the NumPy function of
        the same name, and so are integers and booleans; a step of a plan gives the same bits.

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
    return _run(name, operands, np.dtype(dtype), np.dtype(dtype))


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
        The common type of the operands.

    Examples
    --------
    >>> compared("less", np.array([1, 2], np.float32), np.float32([1.5]), dtype=np.dtype(np.float32))
    array([ True, False])
    """
    return _run(name, operands, np.dtype(np.bool_), np.dtype(dtype))


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
    return _run("where", [mask, *operands], np.dtype(dtype), np.dtype(dtype))


@recordable
def concatenated(*arrays: Array, axis: int) -> Array:
    """Concatenate arrays of one dtype along an axis, as :func:`numpy.concatenate` does.

    Examples
    --------
    >>> concatenated(np.zeros((1, 2)), np.ones((1, 1)), axis=1)
    array([[0., 0., 1.]])
    """
    first, axis = arrays[0], axis % arrays[0].ndim
    order = memory_order(first)
    if order is not None:
        return in_order_of(order, concatenated(*(x.transpose(order) for x in arrays), axis=order.index(axis)))
    ends = np.cumsum([x.shape[axis] for x in arrays]).tolist()
    out: Array = empty((*first.shape[:axis], ends[-1], *first.shape[axis + 1 :]), first.dtype)
    for x, end in zip(arrays, ends, strict=True):
        copy_into(out[(*[slice(None)] * axis, slice(end - x.shape[axis], end))], x)
    return out


def _run(name: str, arrays: Sequence[Array], dtype: np.dtype[Any], common: np.dtype[Any], activation: int = 0) -> Array:
    """Return a function of arrays in `dtype`; `common` is the type in which it is computed, or a narrower float."""
    if any(x.dtype == F64 for x in arrays):
        common = F64
    wide = _pairs.SINGLE if is_float(common) and common is not F64 else wide_of(common)
    if wide != _pairs.SINGLE and not any(map(comes_from_input, arrays)):
        return constant(_by_numpy(name, arrays, dtype, common))
    if wide != _pairs.SINGLE:
        _check_step(name, arrays, common)
        if name == "invert" and dtype == np.bool_:
            name, arrays = "equal", [*arrays, constant(np.zeros(1, np.bool_))]
    shape = _common_shape(arrays)
    order = next((memory_order(x) for x in arrays if x.shape == shape), None)
    operands = tuple([x if x.shape == shape else np.broadcast_to(x, shape or (1,)) for x in arrays])
    if order is not None:
        operands = tuple([x.transpose(order) for x in operands])
    elif not shape:
        operands = tuple([x.reshape(1) for x in operands])
    out = np.empty(operands[0].shape, dtype)
    if out.size:
        formats = tuple([STEP_FORMATS[x.dtype] for x in operands])
        _pairs.elementwise(name, activation, operands, formats, out, STEP_FORMATS[dtype], wide)
    return out.reshape(shape) if order is None else in_order_of(order, out)


def _by_numpy(name: str, arrays: Sequence[Array], dtype: np.dtype[Any], common: np.dtype[Any]) -> Array:
    """Return a function of integers, booleans or float64."""
    function = float64.FUNCTIONS.get(name) or getattr(np, name)
    if common is F64 and not all(x.dtype.kind in "iu" for x in arrays):  # NumPy compares integers exactly
        arrays = [x if x.dtype == np.bool_ and name == "where" else cast(x, F64) for x in arrays]
    with np.errstate(all="ignore"):
        return np.asarray(function(*arrays), dtype)


_DOUBLE = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "absolute", "square", "sqrt", "positive",
    "floor", "rint", "floor_divide", "mod", "fmod", "sign", "where", "less", "less_equal", "greater", "greater_equal",
    "equal", "not_equal",
})  # fmt: skip
_WHOLE = (_DOUBLE - {"divide", "sqrt", "floor", "rint"}) | {
    "power", "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift"}  # fmt: skip
"""The functions of float64, and of integers and booleans, that steps compute with NumPy's bits."""


def _check_step(name: str, arrays: Sequence[Array], common: np.dtype[Any]) -> None:
    """Raise UnseenError unless a step computes the function, and NumPy's TypeError if the types are wrong."""
    signs = {x.dtype.kind for x in arrays if x.dtype.itemsize == 8 and x.dtype.kind in "iu"}
    if name not in (_DOUBLE if common is F64 else _WHOLE) or (common is F64 and signs == {"i", "u"}):
        for x in arrays:
            refuse_recorded(x, f"{name} of {' and '.join(sorted({x.dtype.name for x in arrays}))}")
    getattr(np, name)(*(np.empty(0, x.dtype) for x in arrays))


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


BIT_EQUAL_FUNCTIONS.update({
    **{getattr(np, name): (computed, name) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "absolute", "square", "sqrt", "fmod",
        "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift")},
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
