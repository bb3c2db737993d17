"""Elementwise functions of one array, computed by fixed polynomials, and extremes along axes.

They give the same bits on every instruction set. If a function is composed of other operations, plans record those. If
a function gives integers for integers, NumPy computes these.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, as_float, as_mask, asarray, cast, contiguous
from mp_core.arrays.dtypes import ALLOWED, is_float, parse
from mp_core.arrays.recorded import (
    comes_from_input,
    constant,
    is_recorded,
    recordable,
    refuse_recorded,
    with_numbers,
)
from mp_core.ops import elementwise, specs
from mp_core.ops.activations import FLOATS, OF_ELEMENTS, activate
from mp_core.ops.arrangement import array_of
from mp_core.ops.ordering import place_of_extreme
from mp_core.ops.pairs import maximum, minimum, operands
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axes_of, axis_of, boolean, number
from mp_core.utilities.docstrings import documented

__all__ = ["absolute", "argmax", "argmin", "clip", "exp", "function_of", "log", "log1p", "max", "min", "negative",
           "power", "softplus", "sqrt", "square", "where"]  # fmt: skip

_OF_INTEGERS = ("absolute", "negative", "square")
"""Functions that give integers for integers."""

_ELEMENTS = documented(FLOATS)
_ELEMENTS_OF_ANY = documented(OF_ELEMENTS.format(kinds="Any shape, floats or integers."))
_EXTREMES = documented("""
    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int or sequence of int, optional
        The axes to reduce. None: all of them.
    keepdims : bool
        Keep the reduced axes, with length 1.

    Returns
    -------
    ndarray
        In the type of `x`. Equal extremes share the gradient.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` is not of integers.
    ValueError
        `axis` is out of range or names an axis twice, or one of these axes has length 0.
""")
_PLACES = documented("""
    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int, optional
        The axis to search. None: the flattened array.
    keepdims : bool
        Keep the searched axis, or all axes, with length 1.

    Returns
    -------
    ndarray of int32
        Indices. +0 is larger than -0, as in Keras.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` is not an integer.
    ValueError
        `axis` is out of range, or has no elements.
""")


@recordable
@with_numbers
def function_of(name: str, x: ArrayLike) -> Array:
    """Return the function `name`, a row of library/elementwise.def, of each element, in the type of `x`."""
    array = asarray(x)
    if name in _OF_INTEGERS and not is_float(array.dtype):
        array = _counted(array) if name == "square" else array
        return elementwise.computed(name, array, dtype=array.dtype)
    array = as_float(array)
    return elementwise.computed(name, array, dtype=array.dtype)


def _counted(x: Array) -> Array:
    """Return booleans as int32, in which Keras multiplies them, and other arrays as they are."""
    return cast(x, ALLOWED["int32"]) if x.dtype == np.bool_ else x


@operation(specs.floating)
@_ELEMENTS
def exp(x: ArrayLike) -> Array:
    """Return e to the power of `x`, in the type of `x`.

    Examples
    --------
    >>> exp(np.array([-200.0, 0.0, 1.0], np.float32))
    array([0.       , 1.       , 2.7182817], dtype=float32)
    """
    return activate("exponential", x)


@operation(specs.floating, home="nn")
@_ELEMENTS
def softplus(x: ArrayLike) -> Array:
    """Return ``log(1 + exp(x))``, in the type of `x`, without overflow.

    Examples
    --------
    >>> softplus(np.array([-1.0, 1000.0], np.float32))
    array([3.1326172e-01, 1.0000000e+03], dtype=float32)
    """
    return activate("softplus", x)


@operation(specs.floating)
@_ELEMENTS
def log(x: ArrayLike) -> Array:
    """Return the natural logarithm, in the type of `x`; -Inf at 0, NaN below.

    Examples
    --------
    >>> log(np.array([0.0, 1.0, 10.0], np.float32))
    array([     -inf, 0.       , 2.3025851], dtype=float32)
    """
    return function_of("log", x)


@operation(specs.floating)
@_ELEMENTS
def log1p(x: ArrayLike) -> Array:
    """Return ``log(1 + x)``, in the type of `x`, accurate also near 0; -Inf at -1, NaN below.

    Examples
    --------
    >>> log1p(np.array([-1.0, 1e-10, 1.0], np.float32))
    array([        -inf, 1.000000e-10, 6.931472e-01], dtype=float32)
    """
    return function_of("log1p", x)


@operation(specs.floating)
@_ELEMENTS
def sqrt(x: ArrayLike) -> Array:
    """Return the square root, in the type of `x`, correctly rounded; NaN below 0.

    Examples
    --------
    >>> sqrt(np.array([4.0, 2.0], np.float32))
    array([2.       , 1.4142135], dtype=float32)
    """
    return function_of("sqrt", x)


@operation(specs.squared)
@_ELEMENTS_OF_ANY
def square(x: ArrayLike) -> Array:
    """Return ``x * x``, in the type of `x`; booleans give int32.

    Examples
    --------
    >>> square(np.array([-3.0, 0.5], np.float32))
    array([9.  , 0.25], dtype=float32)
    """
    return function_of("square", x)


@operation(specs.kept)
@_ELEMENTS_OF_ANY
def absolute(x: ArrayLike) -> Array:
    """Return the magnitude of each element, in the type of `x`.

    Examples
    --------
    >>> absolute(np.array([-3.0, 0.5], np.float32))
    array([3. , 0.5], dtype=float32)
    """
    return function_of("absolute", x)


@operation(specs.negated)
@_ELEMENTS_OF_ANY
def negative(x: ArrayLike) -> Array:
    """Return ``-x``, in the type of `x`; booleans are refused.

    Examples
    --------
    >>> negative(np.array([-3.0, 0.5], np.float32))
    array([ 3. , -0.5], dtype=float32)
    """
    return function_of("negative", x)


@operation(specs.powered, "x exponent")
@recordable
@with_numbers
def power(x: ArrayLike, exponent: ArrayLike) -> Array:
    """Return `x` to the power of a number, or of an array element by element.

    Parameters
    ----------
    x : array-like
        Any shape. With an integer exponent, integers keep their type and booleans become int32; otherwise both become
        float32.
    exponent : float or array-like
        A number must be finite. It is rounded to float32 unless `x` is float64. An array broadcasts against `x`.

    Returns
    -------
    ndarray
        With a number: shape and type of `x`. With an array: the broadcast shape and the common type. A negative finite
        element gives NaN unless its exponent is a whole number; the exponent 0 gives 1.

    Raises
    ------
    TypeError
        `x` is not numeric.
    ValueError
        `exponent` is not a finite number, or is a negative integer for integers; or the shapes do not broadcast.

    Examples
    --------
    >>> power(np.array([4.0, -2.0], np.float32), 3)
    array([64., -8.], dtype=float32)
    >>> power(2.0, np.array([3.0, -1.0], np.float32))
    array([8. , 0.5], dtype=float32)
    """
    if hasattr(exponent, "__len__") and not isinstance(exponent, str | bytes):
        return _power_of_arrays(x, asarray(exponent, "exponent"))
    array = asarray(x)
    if isinstance(exponent, int | np.integer) and not isinstance(exponent, bool) and not is_float(array.dtype):
        return _power_of_integers(_counted(array), int(exponent))
    exponent = number(exponent, "exponent")
    if not math.isfinite(exponent):
        raise ValueError(f"`exponent` must be finite; received {exponent}")
    x = as_float(array)
    other = constant(np.full(1, exponent, F64 if x.dtype is F64 else F32))
    return elementwise.computed("power", x, other, dtype=x.dtype)


def _power_of_arrays(x: Any, exponent: Any) -> Array:
    base, exponents, dtype = operands(x, exponent)
    if is_float(dtype):
        return elementwise.computed("power", base, exponents, dtype=dtype)
    refuse_recorded(exponents, "an integer exponent that depends on an input")
    if exponents.size and exponents.min() < 0:
        raise ValueError("`exponent` must be floats, or integers from 0 on; received negative integers")
    base, exponents = _counted(base), _counted(exponents)
    return elementwise.computed("power", base, exponents, dtype=np.result_type(base.dtype, exponents.dtype))


def _power_of_integers(x: Array, exponent: int) -> Array:
    if not 0 <= exponent <= np.iinfo(x.dtype).max:
        raise ValueError(f"`exponent` must be a float, or from 0 to the largest {x.dtype}; received {exponent}")
    return elementwise.computed("power", x, constant(np.full(1, exponent, x.dtype)), dtype=x.dtype)


@operation(specs.selected, "condition x y")
@recordable
@with_numbers
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """Return the elements of `x` where a condition is true, those of `y` elsewhere.

    Parameters
    ----------
    condition : array-like of bool or integers 0 and 1
    x, y : array-like
        Of shapes that broadcast against each other and `condition`. Python numbers are treated as in :func:`add`.

    Returns
    -------
    ndarray
        In the common type of `x` and `y`, as for :func:`add`.

    Raises
    ------
    TypeError
        An operand is not numeric, or `condition` is neither bool nor integer.
    ValueError
        The shapes do not broadcast, or `condition` has numbers other than 0 and 1.

    Examples
    --------
    >>> where([True, False], np.array([1, 2], np.float32), 0)
    array([1., 0.], dtype=float32)
    """
    x, y, dtype = operands(x, y)
    mask = as_mask(condition)
    return elementwise.where(mask if comes_from_input(mask) else constant(mask), x, y, dtype=dtype)


@operation(specs.clipped, options={"x_min": "low", "x_max": "high"})
def clip(x: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return `x` clipped to the range from `low` to `high`: ``minimum(maximum(x, low), high)``.

    Parameters
    ----------
    x, low, high : array-like
        Of shapes that broadcast against each other.

    Returns
    -------
    ndarray
        In the type of `x`, as in Keras; booleans give int32.

    Raises
    ------
    TypeError, ValueError
        As :func:`add`.

    Examples
    --------
    >>> clip(np.array([-2.0, 0.5, 2.0], np.float32), 0, 1)
    array([0. , 0.5, 1. ], dtype=float32)
    >>> clip(np.array([0, 5, 250], np.uint8), 1, 300)
    array([  1,   5, 250], dtype=uint8)
    """
    array = array_of(x)
    if not is_float(array.dtype):
        return clip_of_integers(array, low, high)
    clipped = minimum(maximum(array, low), high)
    return clipped if clipped.dtype == array.dtype else cast(clipped, array.dtype)


@recordable
@with_numbers
def clip_of_integers(x: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return :func:`clip` of integers. Elements within the bounds stay exact, even if NumPy computes in float64."""
    array = _counted(asarray(x))
    if comes_from_input(array):
        return minimum(maximum(array, _bound(low, array.dtype, math.ceil)), _bound(high, array.dtype, math.floor))
    try:
        clipped = np.clip(array, low, high)
    except OverflowError:
        allowed = f"numbers that {array.dtype} can hold"
        raise ValueError(f"`low` and `high` must be {allowed}; received {low!r}, {high!r}") from None
    if clipped.dtype.kind == "f" and np.isnan(clipped).any():
        raise ValueError(f"`low` and `high` must not be NaN for {array.dtype}; received {low!r}, {high!r}")
    return np.where(clipped == array, array, clipped.astype(array.dtype))


def _bound(x: ArrayLike, dtype: np.dtype[Any], rounded: Callable[[float], int]) -> Array:
    """Return a bound of integers in their type, as near to `x` as the type allows."""
    array, limits = asarray(x), np.iinfo(dtype)
    if comes_from_input(array):
        return cast(minimum(maximum(array, limits.min), limits.max), dtype) if array.dtype != dtype else array
    whole = [limits.min if each < limits.min else limits.max if each > limits.max else rounded(each)
             for each in array.ravel().tolist()]  # fmt: skip
    return constant(np.array(whole, dtype).reshape(array.shape))


@operation(specs.reduced, options="axis keepdims", fixed={"initial": (None,)})
@_EXTREMES
def max(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the largest element along axes; NaN if there is a NaN.

    Examples
    --------
    >>> max(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([5., 6.], dtype=float32)
    """
    return _extreme(np.maximum, maximum, x, axis, keepdims)


@operation(specs.reduced, options="axis keepdims", fixed={"initial": (None,)})
@_EXTREMES
def min(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the smallest element along axes; NaN if there is a NaN.

    Examples
    --------
    >>> min(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([1., 2.], dtype=float32)
    """
    return _extreme(np.minimum, minimum, x, axis, keepdims)


_FEW = 2**20
"""The most elements for which NumPy finds an extreme at least about as fast as halving does on two CPUs. It was timed
for float32 and bfloat16 arrays, along axes at every position (AMD EPYC, November 2026)."""


def _extreme(ufunc: np.ufunc, choose: Callable[[Any, Any], Array], x: Any, axis: Any, keepdims: bool) -> Array:
    """Halve each axis, choosing between its halves element by element, until one element is left.

    Outside of a recording NumPy reduces the array once it has at most `_FEW` elements.
    """
    x = array_of(x)
    parse(x.dtype, "x", any_order=True)
    axes = tuple(range(x.ndim)) if axis is None else tuple(axis_of(each, x.ndim) for each in axes_of(axis))
    if len(set(axes)) < len(axes):
        raise ValueError(f"`axis` must not name an axis twice; received {axis}")
    shape = tuple(1 if place in axes else length for place, length in enumerate(x.shape))
    kept = shape if keepdims else tuple(length for place, length in enumerate(shape) if place not in axes)
    if empty := [place for place in axes if x.shape[place] == 0]:
        raise ValueError(f"axis {empty[0]} of `x` must have elements; received shape {x.shape}")
    for place in axes:
        while (n := x.shape[place]) > 1:
            if x.size <= _FEW and not is_recorded(x):
                found = _by_numpy(ufunc, x, axes)
                if found is not None:
                    return found.reshape(kept)
            before, half = (slice(None),) * place, (n + 1) // 2  # of an odd number, both halves have the middle one
            x = choose(x[(*before, slice(half))], x[(*before, slice(n - half, n))])
    result: Array = x.reshape(kept)
    return result


def _by_numpy(ufunc: np.ufunc, x: Array, axes: tuple[int, ...]) -> Array | None:
    """Return extremes; None if one is NaN or a zero of the wrong sign, since NumPy's bits may differ there.

    Of two zeros the minimum is -0 and the maximum +0; NumPy may return either.
    """
    x = asarray(x)
    wide = cast(x, F32) if is_float(x.dtype) and x.dtype.itemsize < 4 else x
    with np.errstate(invalid="ignore"):
        found = np.asarray(ufunc.reduce(wide, axes))
    if is_float(x.dtype):
        wrong = 0 if ufunc is np.minimum else -(2 ** (8 * wide.itemsize - 1))  # the bits of +0, or of -0
        if (found.view(f"i{wide.itemsize}") == wrong).any() or np.isnan(found).any():
            return None
    return found if found.dtype is x.dtype else cast(found, x.dtype)


@operation(specs.places, options="axis keepdims")
@recordable
@with_numbers
@_PLACES
def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the largest element along an axis: the first of equal ones, or the first NaN.

    Examples
    --------
    >>> argmax(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([1, 0], dtype=int32)
    """
    return _place_of("argmax", x, axis, keepdims)


@operation(specs.places, options="axis keepdims")
@recordable
@with_numbers
@_PLACES
def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return the index of the smallest element along an axis: the first of equal ones, or the first NaN.

    Examples
    --------
    >>> argmin(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([0, 1], dtype=int32)
    """
    return _place_of("argmin", x, axis, keepdims)


def _place_of(name: str, x: ArrayLike, axis: int | None, keepdims: bool) -> Array:
    array = asarray(x)
    axis = None if axis is None else axis_of(axis, array.ndim)
    if (array.size if axis is None else array.shape[axis]) == 0:
        raise ValueError(f"`x` must have elements along axis {axis}; received shape {array.shape}")
    found = place_of_extreme(name, *((contiguous(array).reshape(-1), 0) if axis is None else (array, axis)))
    reduced = range(array.ndim) if axis is None else (axis,)
    kept = [1 if place in reduced else n for place, n in enumerate(array.shape)]
    return found.reshape(kept if boolean(keepdims, "keepdims") else np.delete(kept, list(reduced)))
