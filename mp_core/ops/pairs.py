"""Elementwise arithmetic of two arrays, and rotary positions.

Floats are computed in float32 and rounded once. If both operands are integers or booleans, NumPy computes exactly.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, FORMATS, Array, as_float, asarray, cast, contiguous, imported_all
from mp_core.arrays.dtypes import ALLOWED, is_float, result_type
from mp_core.arrays.products.operands import ACTIVATIONS
from mp_core.arrays.recorded import comes_from_input, constant, recordable, with_numbers
from mp_core.core import pairs as _pairs
from mp_core.core.convert import copied
from mp_core.ops import specs
from mp_core.ops.attention import checked_offsets
from mp_core.ops.elementwise import combined
from mp_core.ops.registry import operation
from mp_core.utilities.arguments import integer
from mp_core.utilities.docstrings import documented, shown

__all__ = ["COMMON_TYPE", "ERRORS", "OPERANDS", "add", "divide", "gate", "maximum", "minimum", "multiply", "operands",
           "ragged_rotary", "rotary", "subtract", "true_divide"]  # fmt: skip

OPERANDS = """
    Parameters
    ----------
    {x}, {y} : array-like
        Of shapes that broadcast against each other. A Python number takes the type of the other operand if that is a
        float, or if both are integers. With integers a Python float becomes float32; with booleans an integer becomes
        int32.
"""
COMMON_TYPE = """
    Returns
    -------
    ndarray
        In the common type of the operands: bfloat16 with float32 or float16 gives float32; a float with an integer
        gives the float.
        {integers}
"""
ERRORS = """
    Raises
    ------
    TypeError
        An operand is not numeric, or only one is of a float8 type, or both are of different ones.
    ValueError
        The shapes do not broadcast, or a Python number does not fit the type of the array.
"""
"""Docstring sections of functions of two arrays; `integers` says what two integer operands give."""

_KEPT = "Two integers or booleans give their type, or the smallest one that holds both; results wrap around."
_EXACT = documented(OPERANDS.format(x="x", y="y"), COMMON_TYPE.format(integers=_KEPT), ERRORS)
_FLOATS = documented(OPERANDS.format(x="x", y="y"), COMMON_TYPE.format(integers="Two integers give float32."), ERRORS)


@operation(specs.combined, "x y")
@recordable
@with_numbers
@_EXACT
@shown("{}(np.array([1, 3], np.float16), 0.5)", "array([1.5, 3.5], dtype=float16)")
def add(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x + y``. Floats are added in float32 and rounded once; integers are exact."""
    return _combined("add", x, y)


@operation(specs.combined, "x y")
@recordable
@with_numbers
@_EXACT
@shown("{}(np.array([1, 2, 3], np.float32), 0.5)", "array([0.5, 1. , 1.5], dtype=float32)")
def multiply(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x * y``, element by element. Floats are multiplied in float32 and rounded once; integers are exact."""
    return _combined("multiply", x, y)


@operation(specs.combined, "x y")
@recordable
@with_numbers
@_EXACT
@shown("{}(1.0, np.array([1, 2], np.float16))", "array([ 0., -1.], dtype=float16)")
def subtract(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x - y``. Floats are subtracted in float32 and rounded once; integers are exact; booleans are refused."""
    return _combined("subtract", x, y)


@operation(specs.divided, "x y")
@recordable
@with_numbers
@_FLOATS
@shown("{}(np.array([1, 3], np.float32), 2)", "array([0.5, 1.5], dtype=float32)")
def divide(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x / y``, divided in float32 and rounded once; infinities and NaN follow IEEE 754."""
    return _combined("divide", x, y, exact=False)


@operation(specs.divided, "x y")
@_FLOATS
@shown("{}(np.array([1, 3], np.float32), 2)", "array([0.5, 1.5], dtype=float32)")
def true_divide(x: ArrayLike, y: ArrayLike) -> Array:
    """Return ``x / y``: Keras' other name of :func:`divide`."""
    return divide(x, y)


@operation(specs.combined, "x y")
@recordable
@with_numbers
@_EXACT
@shown("{}(np.array([-1, 2], np.float32), 0)", "array([0., 2.], dtype=float32)")
def maximum(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the larger of two elements: NaN if one is NaN; +0 is larger than -0."""
    return _combined("maximum", x, y)


@operation(specs.combined, "x y")
@recordable
@with_numbers
@_EXACT
@shown("{}(np.array([-1, 2], np.float32), 0)", "array([-1.,  0.], dtype=float32)")
def minimum(x: ArrayLike, y: ArrayLike) -> Array:
    """Return the smaller of two elements: NaN if one is NaN; -0 is smaller than +0."""
    return _combined("minimum", x, y)


@recordable
@with_numbers
@_FLOATS
@shown('{}(np.array([-1, 2], np.float32), np.array([3, 4], np.float32), "relu")', "array([0., 8.], dtype=float32)")
def gate(x: ArrayLike, y: ArrayLike, activation: str) -> Array:
    """Return ``activation(x) * y``, computed in float32 and rounded once, as in gated perceptrons.

    Parameters
    ----------
    activation : str
        The name of an activation that products apply, or ``"linear"``.
    """
    name = None if activation == "linear" else activation
    if name not in ACTIVATIONS:
        known = ", ".join(repr(name or "linear") for name in ACTIVATIONS)
        raise ValueError(f"`activation` must be one of {known}; received {activation!r}")
    return _combined("multiply", x, y, name, exact=False)


def _combined(function: str, x: ArrayLike, y: ArrayLike, activation: str | None = None, *, exact: bool = True) -> Array:
    """Return ``function(activation(x), y)``; with `exact`, two integer operands give integers."""
    x, y, dtype = operands(*imported_all(("x", "y"), x, y))
    try:
        np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        raise ValueError(f"`x` and `y` must broadcast against each other; received {x.shape}, {y.shape}") from None
    if is_float(dtype) or exact:
        return combined(function, x, y, dtype, activation)
    return combined(function, _floating(x, F32), _floating(y, F32), F32, activation)


def operands(x: Any, y: Any) -> tuple[Array, Array, np.dtype[Any]]:
    """Return both operands as arrays, and their common type. If that is a float, both are cast to float types."""
    if type(x) in _NUMBERS:
        y = _alone(y) if type(y) in _NUMBERS else asarray(y, "y")
        x = _number(x, y, "x")
    else:
        x = asarray(x, "x")
        y = _number(y, x, "y") if type(y) in _NUMBERS else asarray(y, "y")
    dtype = result_type(x.dtype, y.dtype)
    return (_floating(x, dtype), _floating(y, dtype), dtype) if is_float(dtype) else (x, y, dtype)


_NUMBERS = (int, float)


def _floating(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return floats as they are; cast integers to float32, or to float64 if that is the common type."""
    if is_float(x.dtype):
        return x
    found = cast(x, F64 if dtype is F64 else F32)
    return found if comes_from_input(x) else constant(found)


def _alone(value: float) -> Array:
    """Return a Python number whose other operand is a Python number too: float32 or int32, as in Keras."""
    return _number(value, np.zeros((), F32 if type(value) is float else np.bool_), "y")


def _number(value: float, other: Array, argument: str) -> Array:
    """Return a Python number in the type that it has as an operand together with `other`."""
    dtype = other.dtype
    if not is_float(dtype):
        dtype = F32 if type(value) is float else ALLOWED["int32"] if dtype == np.bool_ else dtype
    floats = is_float(dtype)
    try:
        found = np.full((1,) if other.ndim else (), np.asarray(value, F64 if floats else dtype))
    except OverflowError:
        kind = "float64" if floats else dtype
        raise ValueError(f"`{argument}` must be a number that {kind} can hold; received one out of range") from None
    return constant(cast(constant(found), dtype) if floats else found)


# ---- rotary positions


@recordable
def rotary(x: Array, angles: Array) -> Array:
    """Return rotary positions: each vector rotated by the angles of its position.

    The first half a and the second half b of a vector become ``a cos - b sin`` and ``b cos + a sin``. They are computed
    in float32, where the products are rounded, and then rounded once to the type of `x`.

    Parameters
    ----------
    x : ndarray, shape (n, length, ..., size)
        Float; `size` is even.
    angles : ndarray, shape (positions, size)
        For each position ``size / 2`` cosines, then as many sines. `positions` is at least `length`.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Examples
    --------
    >>> rotary(np.array([[[1, 2], [1, 2]]], np.float32), [[1, 0], [0, 1]])
    array([[[ 1.,  2.],
            [-2.,  1.]]], dtype=float32)
    """
    x = as_float(x)
    if x.ndim < 3:
        raise ValueError(f"`x` must have shape (n, length, ..., size); received {x.shape}")
    return _rotated(x, angles, x.shape[:2], None)


@recordable
def ragged_rotary(x: Array, angles: Array, offsets: Array, few: int = 0, past: Array | None = None) -> Array:
    """Return :func:`rotary` of ragged sequences, which are stored one after the other.

    Parameters
    ----------
    x : ndarray, shape (tokens, ..., size)
    angles : ndarray, shape (positions, size)
        As in :func:`rotary`, with at least as many positions as the longest sequence has tokens.
    offsets : ndarray of int32, shape (sequences + 1,)
        The first token of each sequence, then the end of the last one: from 0 to the number of tokens.
    few : int
        If not 0, `angles` has two tables, and both start at position 0: the first `few` rows for sequences of at most
        `few` tokens, and the rows after them for longer sequences.
    past : ndarray of int32, shape (sequences,), optional
        The number of tokens of each sequence before those in `x`; default: none. Not with float64.

    Returns
    -------
    ndarray
        The shape and type of `x`.

    Raises
    ------
    ValueError
        The shapes do not fit, or `offsets` do not ascend from 0 to the number of tokens.

    Examples
    --------
    >>> ragged_rotary(np.array([[1, 2], [1, 2]], np.float32), [[1, 0], [0, 1]], np.array([0, 1, 2], np.int32))
    array([[1., 2.],
           [1., 2.]], dtype=float32)
    """
    x, few = as_float(x), integer(few, "few")
    if not 0 <= few < 2**31:
        raise ValueError(f"`few` must be from 0 to 2^31 - 1; received {few}")
    if x.ndim < 2:
        raise ValueError(f"`x` must have shape (tokens, ..., size); received {x.shape}")
    longest = checked_offsets(offsets, len(x))
    if offsets[0] != 0 or offsets[-1] != len(x):
        raise ValueError(f"`offsets` must be from 0 to the {len(x)} tokens; received {offsets}")
    return _rotated(x, angles, (len(offsets) - 1, longest), contiguous(offsets), few, past)


def _rotated(
    x: Array, angles: Any, sequences: tuple[int, int], offsets: Array | None, few: int = 0, past: Array | None = None
) -> Array:
    """Return the rotated vectors; `sequences` is (number of sequences, length of the longest one)."""
    size = x.shape[-1]
    wide = F64 if x.dtype is F64 else F32
    angles = angles if isinstance(angles, np.ndarray) and angles.dtype is wide else cast(angles, wide)
    least = sequences[1] + (few if sequences[1] > few else 0)
    if size % 2 or angles.ndim != 2 or angles.shape[1] != size or angles.shape[0] < least:
        expected = f"(at least {least}, {size}), the latter even"
        raise ValueError(f"`angles` must have shape {expected}; received {angles.shape}")
    tokens = len(x) if offsets is not None else sequences[0] * sequences[1]
    shape = tokens, x.size // max(tokens * size, 1), size
    if x.dtype is F64:
        places = np.tile(np.arange(sequences[1]), sequences[0])
        if offsets is not None:
            lengths = np.diff(offsets)
            places = np.arange(tokens) - np.repeat(offsets[:-1] - few * (lengths > few), lengths)
        return _rotated_float64(x.reshape(shape), angles[places, np.newaxis]).reshape(x.shape)
    out = np.empty(x.shape, x.dtype)
    if out.size:
        parts = x.reshape(shape)
        if not np.may_share_memory(parts, x) or parts.strides[1:] != (size * x.itemsize, x.itemsize):
            parts = copied(x).reshape(shape)
        _pairs.turn(FORMATS[x.dtype], parts, contiguous(angles), out.reshape(shape), sequences[1], offsets, few, past)
    return out


def _rotated_float64(x: Array, angles: Array) -> Array:
    (a, b), (cos, sin) = np.split(x, 2, axis=-1), np.split(angles, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
