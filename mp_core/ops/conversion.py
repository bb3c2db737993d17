"""Other types: casts, and arrays of whatever can be one."""

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mp_core.arrays import Array, cast
from mp_core.arrays.conversion import cast_any
from mp_core.arrays.dtypes import parse
from mp_core.ops import specs
from mp_core.ops.arrangement import array_of
from mp_core.ops.registry import Row, operation, register

__all__ = ["convert_to_numpy", "convert_to_tensor"]


@operation(specs.converted, options="dtype", home="core", fixed={"sparse": (None, False), "ragged": (None, False)})
def convert_to_tensor(x: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """Return an array, array-like or variable as an array, by default in its own type.

    Numbers of Python become float32, int32 or bool, as in Keras; so do lists of them.

    Parameters
    ----------
    x : array-like
        An array that has the type already is returned itself, not copied.
    dtype : dtype, optional
        The type of the result.

    Raises
    ------
    TypeError
        `x` is no array, nor a nested list of numbers, or `dtype` is no type.

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


def convert_to_numpy(x: ArrayLike) -> Array:
    """Return an array, array-like or variable as an array of NumPy, which arrays are here.

    Examples
    --------
    >>> convert_to_numpy([1.0, 2.0])
    array([1., 2.])
    """
    return np.asarray(array_of(x))


def narrowed(array: Array, name: str) -> Array:
    """Return an array of numbers of Python in Keras' type for them.

    Raises
    ------
    ValueError
        The type cannot hold one of the integers.
    """
    if name == "int32" and array.size and not (int(array.min()) >= -(2**31) and int(array.max()) < 2**31):
        raise ValueError("`x` must have integers that int32 can hold, or a dtype of its own: make it an array first")
    return np.asarray(array, parse(name))


register(Row("Cast", cast, specs.cast_to, ("x",), {"dtype": "dtype"}, "core"), cast_any)
