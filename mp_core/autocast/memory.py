"""Arrays that nobody can make writeable, and whether another object may write the memory of an array."""

from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import F32, Array
from mp_core.core.convert import Memory, read_only

__all__ = ["Value", "frozen", "is_shared"]


class Value(np.ndarray[Any, Any]):
    """A read-only array that gives itself when it is called: Keras 3 reads ``variable.value``, tf.keras calls it."""

    def __call__(self) -> Array:
        """Return the array, as one of NumPy's own type."""
        return self.view(np.ndarray)

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else array


def frozen(array: Array) -> Array:
    """Return a read-only array on the memory of `array` that no attribute and no base of it makes writeable."""
    dtype = array.dtype
    return read_only(array, dtype if dtype is F32 else dtypes.parse(dtype))  # unpickled dtypes are equal, not the same


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
    if base is None or isinstance(base, Memory):
        return False
    try:
        return not memoryview(base).readonly
    except TypeError:  # it does not say
        return True
