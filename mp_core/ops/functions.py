"""Functions of one array: of its elements, by fixed polynomials, and the largest along axes.

They give the same bits on every instruction set, and those that several operations make up are recorded as these.
Where integers have integers for results, NumPy computes them.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, as_float, as_mask, asarray, cast
from mp_core.arrays.recorded import constant, recordable, takes_symbols, with_numbers
from mp_core.dtypes import ALLOWED, is_float, parse
from mp_core.ops import elementwise
from mp_core.ops.activations import activate
from mp_core.ops.arrangement import array_of
from mp_core.ops.pairs import divide, maximum, minimum, operands
from mp_core.ops.sums import sum as sum_of
from mp_core.utilities.arguments import axes_of, axis_of, boolean, number

__all__ = ["absolute", "argmax", "argmin", "clip", "exp", "function_of", "log", "log1p", "max", "min", "negative",
           "normalize", "power", "softplus", "sqrt", "square", "where"]  # fmt: skip

_OF_INTEGERS = ("absolute", "negative", "square")
"""The functions that give integers for integers."""


@recordable
@with_numbers
def function_of(name: str, x: ArrayLike) -> Array:
    """Return the function of that name, a row of library/elementwise.def, of each element; in the type of `x`."""
    array = asarray(x)
    if name in _OF_INTEGERS and not is_float(array.dtype):
        return np.asarray(getattr(np, name)(_counted(array) if name == "square" else array))
    array = as_float(array)
    return elementwise.computed(name, array, dtype=array.dtype)


def _counted(x: Array) -> Array:
    """Return booleans as int32, as Keras multiplies them, and everything else as it is."""
    return cast(x, ALLOWED["int32"]) if x.dtype == np.bool_ else x


def exp(x: ArrayLike) -> Array:
    """Return e to the power of `x`, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Float, any shape; integers become float32.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> exp(np.array([-200.0, 0.0, 1.0], np.float32))
    array([0.       , 1.       , 2.7182817], dtype=float32)
    """
    return activate("exponential", x)


def softplus(x: ArrayLike) -> Array:
    """Return ``log(1 + exp(x))``, in the type of `x`, without overflow.

    Parameters
    ----------
    x : array-like
        As in :func:`exp`.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> softplus(np.array([-1.0, 1000.0], np.float32))
    array([3.1326172e-01, 1.0000000e+03], dtype=float32)
    """
    return activate("softplus", x)


def log(x: ArrayLike) -> Array:
    """Return the natural logarithm, in the type of `x`; -Inf at 0, NaN below.

    Parameters
    ----------
    x : array-like
        As in :func:`exp`.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> log(np.array([0.0, 1.0, 10.0], np.float32))
    array([     -inf, 0.       , 2.3025851], dtype=float32)
    """
    return function_of("log", x)


def log1p(x: ArrayLike) -> Array:
    """Return ``log(1 + x)``, in the type of `x`, precise also near 0; -Inf at -1, NaN below.

    Parameters
    ----------
    x : array-like
        As in :func:`exp`.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> log1p(np.array([-1.0, 1e-10, 1.0], np.float32))
    array([        -inf, 1.000000e-10, 6.931472e-01], dtype=float32)
    """
    return function_of("log1p", x)


def sqrt(x: ArrayLike) -> Array:
    """Return the square root, in the type of `x`, correctly rounded; NaN below 0.

    Parameters
    ----------
    x : array-like
        As in :func:`exp`.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> sqrt(np.array([4.0, 2.0], np.float32))
    array([2.       , 1.4142135], dtype=float32)
    """
    return function_of("sqrt", x)


def square(x: ArrayLike) -> Array:
    """Return ``x * x``, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Any shape; the squares of booleans are int32.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> square(np.array([-3.0, 0.5], np.float32))
    array([9.  , 0.25], dtype=float32)
    """
    return function_of("square", x)


def absolute(x: ArrayLike) -> Array:
    """Return the magnitude of each element, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Any shape, floats or integers.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric.

    Examples
    --------
    >>> absolute(np.array([-3.0, 0.5], np.float32))
    array([3. , 0.5], dtype=float32)
    """
    return function_of("absolute", x)


def negative(x: ArrayLike) -> Array:
    """Return ``-x``, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Any shape, floats or integers.

    Returns
    -------
    ndarray
        The shape of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric, or of booleans.

    Examples
    --------
    >>> negative(np.array([-3.0, 0.5], np.float32))
    array([ 3. , -0.5], dtype=float32)
    """
    return function_of("negative", x)


@recordable
@with_numbers
def power(x: ArrayLike, exponent: float) -> Array:
    """Return `x` to the power of a number, in the type of `x`.

    Parameters
    ----------
    x : array-like
        Any shape. Integers stay integers if `exponent` is one, booleans become int32; else they become float32.
    exponent : float
        Finite; rounded to float32 (of float64 `x`: as it is).

    Returns
    -------
    ndarray
        The shape of `x`. Of a negative, finite element NaN, unless `exponent` is an integer; 1 everywhere if it is 0.

    Raises
    ------
    TypeError
        `x` is not numeric.
    ValueError
        `exponent` is no finite number, or a negative integer beside integers.

    Examples
    --------
    >>> power(np.array([4.0, -2.0], np.float32), 3)
    array([64., -8.], dtype=float32)
    """
    array = asarray(x)
    if isinstance(exponent, int | np.integer) and not isinstance(exponent, bool) and not is_float(array.dtype):
        return _power_of_integers(_counted(array), int(exponent))
    exponent = number(exponent, "exponent")
    if not isfinite(exponent):
        raise ValueError(f"`exponent` must be finite; received {exponent}")
    x = as_float(array)
    other = constant(np.full(1, exponent, F64 if x.dtype is F64 else F32))
    return elementwise.computed("power", x, other, dtype=x.dtype)


def _power_of_integers(x: Array, exponent: int) -> Array:
    if not 0 <= exponent <= np.iinfo(x.dtype).max:
        raise ValueError(f"`exponent` must be a float, or from 0 to the largest {x.dtype}; received {exponent}")
    return np.asarray(np.power(x, x.dtype.type(exponent)))


@recordable
@with_numbers
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """Return the elements of `x` where a condition is true, those of `y` elsewhere.

    Parameters
    ----------
    condition : array-like of bool or integers 0 and 1
    x, y : array-like
        Of shapes that broadcast against each other and `condition`; numbers of Python as in :func:`add`.

    Returns
    -------
    ndarray
        In the type that `x` and `y` have in common, as of :func:`add`.

    Raises
    ------
    TypeError
        An operand is not numeric, or `condition` is neither bool nor integer.
    ValueError
        The shapes do not broadcast, or `condition` has other numbers than 0 and 1.

    Examples
    --------
    >>> where([True, False], np.array([1, 2], np.float32), 0)
    array([1., 0.], dtype=float32)
    """
    x, y, dtype = operands(x, y)
    mask = as_mask(condition)
    return elementwise.where(mask, x, y, dtype=dtype) if is_float(dtype) else np.asarray(np.where(mask, x, y))


@takes_symbols
def clip(x: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return `x` with elements below `low` or above `high` replaced by these: ``minimum(maximum(x, low), high)``.

    Parameters
    ----------
    x, low, high : array-like
        Of shapes that broadcast against each other.

    Returns
    -------
    ndarray
        In the type of `x`, as in Keras; of booleans int32.

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
def clip_of_integers(x: ArrayLike, low: ArrayLike, high: ArrayLike) -> Array:
    """Return :func:`clip` of integers: where nothing is clipped, the element itself, which a float might not hold."""
    array = _counted(asarray(x))
    try:
        clipped = np.clip(array, low, high)
    except OverflowError:
        allowed = f"numbers that {array.dtype} can hold"
        raise ValueError(f"`low` and `high` must be {allowed}; received {low!r}, {high!r}") from None
    if clipped.dtype.kind == "f" and np.isnan(clipped).any():
        raise ValueError(f"`low` and `high` must not be NaN beside {array.dtype}; received {low!r}, {high!r}")
    return np.where(clipped == array, array, clipped.astype(array.dtype))


@takes_symbols
def normalize(x: ArrayLike, axis: int = -1, epsilon: float = 1e-12) -> Array:
    """Return `x` divided by its Euclidean length along an axis: ``x / sqrt(maximum(sum(x**2), epsilon))``.

    Parameters
    ----------
    x : array-like
        Any shape with at least one axis; integers become float32. float16 and bfloat16 are computed in float32 and
        rounded at the end.
    axis : int
        The axis along which the squares are summed.
    epsilon : float
        The least sum of squares.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` no integer.
    ValueError
        `axis` is out of range.

    Examples
    --------
    >>> normalize(np.array([[3.0, 4.0]], np.float32))
    array([[0.6, 0.8]], dtype=float32)
    """
    x = array_of(x)
    x = x if is_float(x.dtype) else cast(x, F32)
    wide = x if x.dtype == F64 else cast(x, F32)
    length = sqrt(maximum(sum_of(square(wide), axis, keepdims=True), epsilon))
    return cast(divide(wide, length), x.dtype)


@takes_symbols
def max(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the largest element along axes; NaN where there is one.

    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int or sequence of int, optional
        The axes along which the largest is looked for. None: all of them.
    keepdims : bool
        Keep these axes, with length 1.

    Returns
    -------
    ndarray
        In the type of `x`. Equal largest elements share the gradient.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` no integers.
    ValueError
        `axis` is out of range, or the length of one of these axes is 0.

    Examples
    --------
    >>> max(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([5., 6.], dtype=float32)
    """
    return _extreme(maximum, x, axis, keepdims)


@takes_symbols
def min(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the smallest element along axes; NaN where there is one.

    Parameters
    ----------
    x, axis, keepdims
        As in :func:`max`.

    Returns
    -------
    ndarray
        As of :func:`max`.

    Raises
    ------
    TypeError, ValueError
        As :func:`max`.

    Examples
    --------
    >>> min(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([1., 2.], dtype=float32)
    """
    return _extreme(minimum, x, axis, keepdims)


def _extreme(choose: Callable[[Any, Any], Array], x: Any, axis: Any, keepdims: bool) -> Array:
    """Halve each axis by choosing between its halves, until one element is left."""
    x = array_of(x)
    parse(x.dtype, "x", any_order=True)
    axes = range(x.ndim) if axis is None else [axis_of(each, x.ndim) for each in axes_of(axis)]
    shape = tuple(1 if place in axes else length for place, length in enumerate(x.shape))
    for place in axes:
        if x.shape[place] == 0:
            raise ValueError(f"axis {place} of `x` must have elements; received shape {x.shape}")
        while (n := x.shape[place]) > 1:
            before, half = (slice(None),) * place, (n + 1) // 2  # of an odd number, both halves have the middle one
            x = choose(x[(*before, slice(half))], x[(*before, slice(n - half, n))])
    kept = shape if keepdims else tuple(length for place, length in enumerate(shape) if place not in axes)
    result: Array = x.reshape(kept)
    return result


@recordable
@with_numbers
def argmax(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return where along an axis the largest element is: the first of equal ones, or of NaN.

    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int, optional
        The axis along which the largest is looked for. None: all elements, one behind the other.
    keepdims : bool
        Keep this axis, or all, with length 1.

    Returns
    -------
    ndarray of int32
        Indices. +0 is larger than -0, as in Keras.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` no integer.
    ValueError
        `axis` is out of range, or there are no elements along it.

    Examples
    --------
    >>> argmax(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([1, 0], dtype=int32)
    """
    return _place_of("argmax", x, axis, keepdims)


@recordable
@with_numbers
def argmin(x: ArrayLike, axis: int | None = None, keepdims: bool = False) -> Array:
    """Return where along an axis the smallest element is: the first of equal ones, or of NaN.

    Parameters
    ----------
    x, axis, keepdims
        As in :func:`argmax`.

    Returns
    -------
    ndarray of int32
        As of :func:`argmax`.

    Raises
    ------
    TypeError, ValueError
        As :func:`argmax`.

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
    if is_float(array.dtype):
        array = array if array.dtype is F64 else cast(array, F32)
        array = np.where((array == 0) & np.signbit(array), -np.finfo(array.dtype).smallest_subnormal, array)
    return np.asarray(getattr(np, name)(array, axis, keepdims=boolean(keepdims, "keepdims")), np.int32)
