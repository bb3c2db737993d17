"""Functions of one array: of its elements, by fixed polynomials, and the largest along axes.

They give the same bits on every instruction set, and those that several operations make up are recorded as these.
Where integers have integers for results, NumPy computes them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, as_float, as_mask, asarray, cast
from mp_core.arrays.dtypes import ALLOWED, is_float, parse
from mp_core.arrays.recorded import constant, is_recorded, recordable, with_numbers
from mp_core.ops import elementwise, specs
from mp_core.ops.activations import FLOATS, OF_ELEMENTS, activate
from mp_core.ops.arrangement import array_of
from mp_core.ops.pairs import maximum, minimum, operands
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import axes_of, axis_of, boolean, number
from mp_core.utilities.docstrings import documented

__all__ = ["absolute", "argmax", "argmin", "clip", "exp", "function_of", "log", "log1p", "max", "min", "negative",
           "power", "softplus", "sqrt", "square", "where"]  # fmt: skip

_OF_INTEGERS = ("absolute", "negative", "square")
"""The functions that give integers for integers."""

_ELEMENTS = documented(FLOATS)
_ELEMENTS_OF_ANY = documented(OF_ELEMENTS.format(kinds="Any shape, floats or integers."))
_EXTREMES = documented("""
    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int or sequence of int, optional
        Along which axes to look. None: all of them.
    keepdims : bool
        Keep these axes, with length 1.

    Returns
    -------
    ndarray
        In the type of `x`. Elements that are equally large share the gradient.

    Raises
    ------
    TypeError
        `x` is not numeric, or `axis` no integers.
    ValueError
        `axis` is out of range or names an axis twice, or the length of one of these axes is 0.
""")
_PLACES = documented("""
    Parameters
    ----------
    x : array-like
        Any shape, floats, integers or booleans.
    axis : int, optional
        Along which axis to look. None: all elements, one behind the other.
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
""")


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
    """Return ``log(1 + x)``, in the type of `x`, precise also near 0; -Inf at -1, NaN below.

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
    """Return ``x * x``, in the type of `x`; of booleans in int32.

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
    """Return ``-x``, in the type of `x`, which must not be of booleans.

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
    """Return `x` to the power of a number, in the type of `x`, or of the elements of an array.

    Parameters
    ----------
    x : array-like
        Any shape. Integers stay integers if `exponent` is one, booleans become int32; else they become float32.
    exponent : float or array-like
        A number must be finite; it is rounded to float32 (of float64 `x`: as it is). An array broadcasts against `x`,
        and the result has the type that both have in common.

    Returns
    -------
    ndarray
        The shape of `x`, or that against which both broadcast. Of a negative, finite element NaN, unless `exponent` is
        a whole number; 1 where it is 0.

    Raises
    ------
    TypeError
        `x` is not numeric.
    ValueError
        `exponent` is no finite number, or has a negative integer beside integers; the shapes do not broadcast.

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
    if exponents.size and exponents.min() < 0:
        raise ValueError("`exponent` must be floats, or integers from 0 on; received negative integers")
    return np.asarray(np.power(_counted(base), _counted(exponents)))


def _power_of_integers(x: Array, exponent: int) -> Array:
    if not 0 <= exponent <= np.iinfo(x.dtype).max:
        raise ValueError(f"`exponent` must be a float, or from 0 to the largest {x.dtype}; received {exponent}")
    return np.asarray(np.power(x, x.dtype.type(exponent)))


@operation(specs.selected, "condition x y")
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


@operation(specs.clipped, options={"x_min": "low", "x_max": "high"})
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


@operation(specs.reduced, options="axis keepdims", fixed={"initial": (None,)})
@_EXTREMES
def max(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the largest element along axes; NaN where there is one.

    Examples
    --------
    >>> max(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([5., 6.], dtype=float32)
    """
    return _extreme(np.maximum, maximum, x, axis, keepdims)


@operation(specs.reduced, options="axis keepdims", fixed={"initial": (None,)})
@_EXTREMES
def min(x: ArrayLike, axis: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Array:
    """Return the smallest element along axes; NaN where there is one.

    Examples
    --------
    >>> min(np.array([[1, 5, 3], [6, 2, 4]], np.float32), 1)
    array([1., 2.], dtype=float32)
    """
    return _extreme(np.minimum, minimum, x, axis, keepdims)


_FEW = 2**20
"""Elements up to which NumPy finds an extreme about as fast as halving on two CPUs, or faster: timed with axes of all
places of float32 and bfloat16 arrays (AMD EPYC, November 2026)."""


def _extreme(ufunc: np.ufunc, choose: Callable[[Any, Any], Array], x: Any, axis: Any, keepdims: bool) -> Array:
    """Halve each axis by choosing between its halves, until one element is left, or few outside of a recording."""
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
    """Return an extreme; None where one is NaN, or a zero of the sign that is not chosen: NumPy has other bits then."""
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
    """Return where along an axis the largest element is: the first of equal ones, or of NaN.

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
    """Return where along an axis the smallest element is: the first of equal ones, or of NaN.

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
