"""Bits of integers and booleans, under NumPy's and Keras' names."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import I32, Array, cast
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.ops import specs
from mp_core.ops.elementwise import combined, computed
from mp_core.ops.pairs import operands
from mp_core.ops.registry import operation
from mp_core.utilities.docstrings import documented, shown

__all__ = ["bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
           "bitwise_xor", "left_shift", "right_shift"]  # fmt: skip

_TWO = documented("""
    Parameters
    ----------
    x, y : array-like of int or bool
        Of shapes that broadcast against each other.

    Returns
    -------
    ndarray
        In the common type of the operands.

    Raises
    ------
    TypeError
        An operand is a float.
    ValueError
        The shapes do not broadcast.
""")


def _checked(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if is_float(dtype):
        raise TypeError(f"operands must be integers or booleans, which have bits; received {dtype}")
    return dtype


@recordable
@with_numbers
def _of_two(name: str, x: Any, y: Any) -> Array:
    one, two, dtype = operands(x, y)
    if _checked(dtype) == np.bool_ and "shift" in name:
        one, two, dtype = cast(one, I32), cast(two, I32), I32
    return combined(name, one, two, dtype)


@operation(specs.combined, "x y")
@_TWO
@shown("{}(np.int32([6, 5]), 3)", "array([2, 1], dtype=int32)")
def bitwise_and(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in both operands."""
    return _of_two("bitwise_and", x, y)


@operation(specs.combined, "x y")
@_TWO
@shown("{}(np.int32([6, 5]), 3)", "array([7, 7], dtype=int32)")
def bitwise_or(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in an operand."""
    return _of_two("bitwise_or", x, y)


@operation(specs.combined, "x y")
@_TWO
@shown("{}(np.int32([6, 5]), 3)", "array([5, 6], dtype=int32)")
def bitwise_xor(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the bits that are set in exactly one operand."""
    return _of_two("bitwise_xor", x, y)


@operation(specs.quantified, "x y")
@_TWO
@shown("{}(np.int32([1, 3]), 2)", "array([ 4, 12], dtype=int32)")
def left_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x * 2**y`` modulo the range of the type; 0 if `y` is negative or not less than the bits of the type."""
    return _of_two("left_shift", x, y)


@operation(specs.quantified, "x y")
@_TWO
@shown("{}(np.int32([8, -3]), 1)", "array([ 4, -2], dtype=int32)")
def right_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the largest integer that is at most ``x / 2**y``; 0 or -1 if `y` is negative or at least the bits of x."""
    return _of_two("right_shift", x, y)


@operation(specs.quantified, "x y")
@shown("{}(np.int32([1, 3]), 2)", "array([ 4, 12], dtype=int32)")
def bitwise_left_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """Return :func:`left_shift`."""
    return left_shift(x, y)


@operation(specs.quantified, "x y")
@shown("{}(np.int32([8, -3]), 1)", "array([ 4, -2], dtype=int32)")
def bitwise_right_shift(x: ArrayLike, y: ArrayLike) -> Array:
    """Return :func:`right_shift`."""
    return right_shift(x, y)


@operation(specs.kept)
@recordable
@with_numbers
@shown("{}(np.int32([0, 5]))", "array([-1, -6], dtype=int32)")
def bitwise_invert(x: ArrayLike) -> Array:
    """Return the integers with all bits inverted, and the other boolean of booleans."""
    array = operands(x, np.zeros((), np.bool_))[0]
    return computed("invert", array, dtype=_checked(array.dtype))


@operation(specs.kept)
@shown("{}(np.int32([0, 5]))", "array([-1, -6], dtype=int32)")
def bitwise_not(x: ArrayLike) -> Array:
    """Return :func:`bitwise_invert`."""
    return bitwise_invert(x)
