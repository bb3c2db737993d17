"""The memory of values: arrays that nobody can make writeable, and values that have no memory of their own.

A weight is in memory once, in the form in which products read it, although a variable, a packed matrix and a file all
have it. Three things see to that; docs/memory.md says who calls them and when:

- :func:`drop_pages`: the pages of a mapped file go once their numbers have been read.
- :class:`Elsewhere`: the variable of a packed matrix keeps the way back to its value, and not the value.
- :func:`trim_heap`: what was free between the arrays of opening and packing goes back to the system.
"""

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

import numpy as np

from mp_core.arrays import F32, Array, dtypes
from mp_core.arrays.recorded_array import address_of
from mp_core.core.convert import Memory, file_map, read_only

__all__ = ["Elsewhere", "Value", "drop_pages", "frozen", "is_shared", "trim_heap"]


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


@final
class Elsewhere:
    """In the place of an array whose elements something else holds, in another order or type.

    Parameters
    ----------
    shape : tuple of int
    dtype : dtype
    make : callable
        Returns the array, which is made whenever it is read, and kept by nobody.
    """

    __slots__ = ("dtype", "make", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], Array]) -> None:
        self.shape, self.dtype, self.make = shape, dtype, make

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def view(self, *kinds: Any) -> Array:
        """Return the array, read-only, as :meth:`numpy.ndarray.view` does."""
        return frozen(self.make()).view(*kinds)


def drop_pages(array: Any) -> bool:
    """Return whether an array lies in the map of a file; its pages there are out of memory until they are read again.

    The operating system reads them from its cache of files, or from the file. (Windows keeps them until it needs their
    memory, and so do all systems if the process has locked them.)
    """
    file = file_map(array)
    if file is None:
        return False
    if hasattr(file, "madvise") and array.nbytes:
        from mmap import MADV_DONTNEED, PAGESIZE  # arrays of files are few

        begin = address_of(array) - address_of(np.frombuffer(file, np.uint8))
        start = begin // PAGESIZE * PAGESIZE
        with suppress(OSError):  # of pages that mlock or mlockall keeps in memory
            file.madvise(MADV_DONTNEED, start, begin + array.nbytes - start)
    return True


def trim_heap() -> None:
    """Give back the memory that is free between what is allocated, where the C library can (glibc's ``malloc_trim``).

    Large arrays of many sizes that come and go, as weights do while they are packed, leave it behind.
    """
    if sys.platform == "linux":
        with suppress(ImportError, OSError):  # Python without libffi, or linked statically
            import ctypes

            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
