"""Arrays that nobody can make writeable, and whether another object may write the memory of an array."""

from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array

__all__ = ["Value", "frozen", "is_shared"]


class _Memory:
    """The memory of an array, from which NumPy makes read-only arrays that cannot be made writeable again."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, array: Array) -> None:
        self._owner = array
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], True)}


class Value(np.ndarray[Any, Any]):
    """A read-only array that gives itself when it is called: Keras 3 reads ``variable.value``, tf.keras calls it."""

    def __call__(self) -> Array:
        """Return the array, as one of NumPy's own type."""
        return self.view(np.ndarray)

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else array


def frozen(array: Array) -> Array:
    """Return a read-only array on the memory of `array` that no attribute and no base of it makes writeable."""
    dtype = dtypes.parse(array.dtype)  # unpickled dtypes are equal, but not the same object
    codes = np.asarray(array).view(f"u{dtype.itemsize}")  # an interface has no name for the types of ml_dtypes
    return np.asarray(_Memory(codes)).view(dtype)


def is_shared(array: Array) -> bool:
    """Whether some other object may write the memory of `array`."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        if isinstance(base, memoryview):
            writeable, base = not base.readonly, base.obj
        else:
            writeable, base = base.flags.writeable, base.base
        if writeable:
            return True
    if base is None or isinstance(base, _Memory):
        return False
    try:
        return not memoryview(base).readonly
    except TypeError:  # it does not say
        return True
