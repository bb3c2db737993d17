"""Pickles of arrays whose type is ml_dtypes': NumPy copies these into the pickle, whatever the protocol."""

from typing import Any

import numpy as np

from mp_core.arrays.dtypes import dtype_of, name_of
from mp_core.arrays.received import Array

__all__ = ["out_of_band"]


class _Buffered(np.ndarray[Any, Any]):
    """An array that pickles as its bits, which NumPy hands out as a buffer under protocol 5, and comes back plain."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        array = np.asarray(self)
        return _restored, (array.view(f"u{array.itemsize}"), name_of(array.dtype))


def out_of_band(array: Array) -> Array:
    """Return a view for a state that is pickled: one whose type is ml_dtypes' pickles without a copy.

    So ``pickle.dumps(x, protocol=5, buffer_callback=...)`` copies no large array.
    """
    return array.view(_Buffered) if array.dtype.isbuiltin == 2 else array


def _restored(codes: Any, name: Any) -> Array:
    """Return the array of a pickle; raise if that is damaged."""
    try:
        dtype = dtype_of(name)
        if codes.dtype.kind == "u" and codes.dtype.itemsize == dtype.itemsize and type(codes) is np.ndarray:
            return codes.view(dtype)
    except (KeyError, TypeError, AttributeError):
        pass
    raise TypeError(f"a pickled array is damaged: its type is {name!r}, its codes are {type(codes).__name__}")
