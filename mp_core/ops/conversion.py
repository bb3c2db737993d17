"""Casts, and conversion of anything array-like to an array."""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, cast
from mp_core.arrays.conversion import cast_any
from mp_core.arrays.dtypes import parse
from mp_core.ops import specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.registry import Row, operation, register
from mp_core.utilities.docstrings import shown

__all__ = ["convert_to_numpy", "convert_to_tensor"]


@operation(specs.converted, options="dtype", home="core", fixed={"sparse": (None, False), "ragged": (None, False)})
def convert_to_tensor(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Convert an array, array-like or variable to an array, by default of its own type.

    Python numbers, and lists of them, become float32, int32 or bool, as in Keras.

    Parameters
    ----------
    x : array-like
        An array that already has the type is returned itself, not a copy.
    dtype : dtype, optional
        The type of the result.

    Examples
    --------
    >>> convert_to_tensor([1, 2]), convert_to_tensor([1, 2], "bfloat16")
    (array([1, 2], dtype=int32), array([1, 2], dtype=bfloat16))
    """
    array = array_of(x)
    if not hasattr(x, "dtype"):
        default = {"f": "float32", "i": "int32"}.get(array.dtype.kind)
        array = array if default is None else narrowed(array, default)
    return array if dtype is None or array.dtype == parse(dtype) else cast(array, dtype)


@shown("{}([1.0, 2.0])", "array([1., 2.])")
def convert_to_numpy(x: ArrayLike) -> Array:
    """Convert an array, array-like or variable to a NumPy array, which all arrays of mp_core are."""
    return np.asarray(array_of(x))


def narrowed(array: Array, name: str) -> Array:
    """Return an array of Python numbers in the dtype `name`, Keras' default for them; integers must fit int32."""
    if name == "int32" and array.size and not (int(array.min()) >= -(2**31) and int(array.max()) < 2**31):
        raise ValueError("integers in `x` must fit int32: convert `x` to an array with another dtype first")
    return np.asarray(array, parse(name))


register(Row("Cast", cast, specs.cast_to, ("x",), {"dtype": "dtype"}, "core"), cast_any)
