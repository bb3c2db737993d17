"""The memory of variables: read-only arrays, and values that are recomputed instead of stored.

A variable, a packed matrix and a file all have the same weight, but it is in memory only once, in the form that
products read. Three functions and classes achieve that; docs/memory.md says who calls them and when:

- :func:`drop_pages` releases the pages of a mapped file after its numbers have been read.
- :class:`RecomputedArray` replaces the value of a variable that is packed: it stores a function that unpacks it.
- :func:`trim_heap` returns free memory, left between arrays by loading and packing, to the operating system.
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

__all__ = ["RecomputedArray", "Value", "drop_pages", "frozen", "is_shared", "trim_heap"]


class Value(np.ndarray[Any, Any]):
    """A read-only array that can be called: Keras 3 reads ``variable.value``, tf.keras calls ``variable.value()``."""

    def __call__(self) -> Array:
        """Return the array as a plain ndarray."""
        return self.view(np.ndarray)

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if return_scalar else array


def frozen(array: Array) -> Array:
    """Return a read-only array on the memory of `array`; neither a flag nor its base can make it writeable."""
    dtype = array.dtype
    return read_only(array, dtype if dtype is F32 else dtypes.parse(dtype))  # unpickled dtypes are equal, not identical


def is_shared(array: Array) -> bool:
    """Return whether another object may write to the memory of `array`."""
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
    except TypeError:  # the owner has no buffer interface: assume that it may write
        return True


@final
class RecomputedArray:
    """Replaces an array whose elements are stored elsewhere, in another order or dtype.

    `make` returns the array. It is called at each read, and the result is not cached. `source` is what it reads, if
    rows of that can be read alone: an array of a file, or a packed matrix.
    """

    __slots__ = ("dtype", "make", "shape", "source")

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], Array], source: Any = None
    ) -> None:
        self.shape, self.dtype, self.make, self.source = shape, dtype, make, source

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
    """Release the pages of an array in a memory-mapped file; return whether the array is in one.

    The next read gets the pages from the file cache of the operating system, or from the file. (Windows keeps the pages
    until it needs the memory. Locked pages stay on every system.)
    """
    file = file_map(array)
    if file is None:
        return False
    if hasattr(file, "madvise") and array.nbytes:
        from mmap import MADV_DONTNEED, PAGESIZE  # imported here because few arrays are in files

        begin = address_of(array) - address_of(np.frombuffer(file, np.uint8))
        start = begin // PAGESIZE * PAGESIZE
        with suppress(OSError):  # raised for pages locked by mlock or mlockall
            file.madvise(MADV_DONTNEED, start, begin + array.nbytes - start)
    return True


def trim_heap() -> None:
    """Return free heap memory to the operating system, if the C library has glibc's ``malloc_trim``.

    Packing allocates and frees large arrays of many sizes, which leaves free memory between the arrays that stay.
    """
    if sys.platform == "linux":
        with suppress(ImportError, OSError):  # Python without libffi, or linked statically
            import ctypes

            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
