"""Floor division and remainders, with NumPy's bits, under NumPy's and Keras' names."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import I32, Array, cast
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.ops import specs
from mp_core.ops.elementwise import combined
from mp_core.ops.pairs import COMMON_TYPE, ERRORS, OPERANDS, operands
from mp_core.ops.registry import operation
from mp_core.utilities.docstrings import documented, shown

__all__ = ["floor_divide", "fmod", "mod"]

_WHOLE = COMMON_TYPE.format(integers="Two booleans give int32. Integers divided by 0 give 0.")
_QUOTIENTS = documented(OPERANDS.format(x="x1", y="x2"), _WHOLE, ERRORS)


@operation(specs.quantified, "x1 x2")
@recordable
@with_numbers
@_QUOTIENTS
def floor_divide(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the largest whole number that is at most the exact quotient ``x1 / x2``.

    Examples
    --------
    >>> floor_divide([7, -7], 2)
    array([ 3, -4])
    >>> floor_divide(np.float32([7.5, -7.5]), 2)
    array([ 3., -4.], dtype=float32)
    """
    return _computed("floor_divide", x1, x2)


@operation(specs.quantified, "x1 x2")
@recordable
@with_numbers
@_QUOTIENTS
@shown("{}([7, -7], 3)", "array([1, 2])")
def mod(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the remainder ``x1 - floor_divide(x1, x2) * x2``, which has the sign of ``x2``."""
    return _computed("mod", x1, x2)


@operation(specs.quantified, "x1 x2")
@recordable
@with_numbers
@_QUOTIENTS
@shown("{}([7, -7], 3)", "array([ 1, -1])")
def fmod(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the remainder of C's division, which has the sign of ``x1``. For floats it is exact."""
    return _computed("fmod", x1, x2)


def _computed(name: str, x1: Any, x2: Any) -> Array:
    x, y, dtype = operands(x1, x2)
    if dtype == np.bool_:
        x, y, dtype = cast(x, I32), cast(y, I32), I32
    return combined(name, x, y, dtype)
