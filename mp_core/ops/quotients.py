"""Floor division and remainders, under NumPy's and Keras' names. NumPy computes them, so plans cannot record them."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mp_core.arrays import F32, F64, Array, cast
from mp_core.arrays.dtypes import ALLOWED, is_float
from mp_core.arrays.recorded import recordable, with_numbers
from mp_core.ops import specs
from mp_core.ops.pairs import COMMON_TYPE, ERRORS, OPERANDS, operands
from mp_core.ops.registry import operation
from mp_core.utilities.docstrings import documented, shown

__all__ = ["floor_divide", "mod"]

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
    return _computed(np.floor_divide, x1, x2)


@operation(specs.quantified, "x1 x2")
@recordable
@with_numbers
@_QUOTIENTS
@shown("{}([7, -7], 3)", "array([1, 2])")
def mod(x1: ArrayLike, x2: ArrayLike) -> Array:
    """Return the remainder ``x1 - floor_divide(x1, x2) * x2``, which has the sign of ``x2``."""
    return _computed(np.mod, x1, x2)


def _computed(function: Any, x1: Any, x2: Any) -> Array:
    x, y, dtype = operands(x1, x2)
    if is_float(dtype):
        wide = F64 if dtype is F64 else F32
        x, y = cast(x, wide), cast(y, wide)
    elif dtype == np.bool_:
        x, y = cast(x, ALLOWED["int32"]), cast(y, ALLOWED["int32"])
    with np.errstate(all="ignore"):
        result = np.asarray(function(x, y))
    return cast(result, dtype) if is_float(dtype) and result.dtype != dtype else result
