"""Pickle arrays of ml_dtypes types without a copy. NumPy copies them into the pickle with every protocol."""

from typing import Any

import numpy as np

from mp_core.arrays.dtypes import dtype_of, name_of
from mp_core.arrays.received import Array

__all__ = ["out_of_band"]


class _Buffered(np.ndarray[Any, Any]):
    """An array that pickles as unsigned integers, which protocol 5 passes out of band. It unpickles as an ndarray."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        array = np.asarray(self)
        return _restored, (array.view(f"u{array.itemsize}"), name_of(array.dtype))


def out_of_band(array: Array) -> Array:
    """Return a view for ``__getstate__``, so that pickling with protocol 5 and a ``buffer_callback`` copies no data."""
    return array.view(_Buffered) if array.dtype.isbuiltin == 2 else array


def _restored(codes: Any, name: Any) -> Array:
    """Return the array of a pickle; raise TypeError if the pickle is damaged."""
    try:
        dtype = dtype_of(name)
        if codes.dtype.kind == "u" and codes.dtype.itemsize == dtype.itemsize and type(codes) is np.ndarray:
            return codes.view(dtype)
    except (KeyError, TypeError, AttributeError):
        pass
    raise TypeError(f"a pickled array is damaged: its type is {name!r}, its codes are {type(codes).__name__}")
