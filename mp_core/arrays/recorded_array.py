"""The array of a recording, which layers are called with in the place of an ndarray."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core.core.convert import copied
from mp_core.utilities.tree import map_leaves

if TYPE_CHECKING:
    from mp_core.arrays.recorded import Recording

__all__ = ["SEEN", "Recorded", "address_of", "is_recorded"]

_SHAPE_ONLY = {np.shape, np.ndim, np.size}
_VIEWS = {
    np.array_split, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to, np.diagonal, np.dsplit,
    np.expand_dims, np.flip, np.fliplr, np.flipud, np.hsplit, np.moveaxis, np.ravel, np.reshape, np.rollaxis,
    np.rot90, np.split, np.squeeze, np.swapaxes, np.transpose, np.vsplit, sliding_window_view,
}  # fmt: skip
"""NumPy's functions that return views, and read no element."""

SEEN: dict[Any, tuple[Any, ...]] = {}
"""Function of NumPy -> the operation that has its bits, of ops/elementwise.py, and that operation's first arguments."""


def _by(function: Any, reflected: bool = False) -> Any:
    """Return an operator of recorded arrays: a function of NumPy."""

    def operator(self: "Recorded", *others: Any) -> Any:
        return self._recording.compute(function, *((*others, self) if reflected else (self, *others)))

    return operator


def _by_value(name: str) -> Any:
    """Return a method that returns what the array's returns, where values can be read."""

    def method(self: "Recorded", *args: Any) -> Any:
        if not self._recording.is_readable:
            self._recording.refuse(f"a decision by its elements, in {_caller()}")
        return getattr(self._array, f"__{name}__")(*args)

    return method


class Recorded:
    """An array of a recording. It passes for an ndarray where Python code asks; a NumPy call on it raises an error.

    Parameters
    ----------
    recording : Recording
        Of :mod:`mp_core.arrays.recorded`.
    array : ndarray
        What the example makes of it.
    """

    __slots__ = ("_array", "_recording")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recording: "Recording", array: np.ndarray[Any, Any]) -> None:
        self._recording = recording
        self._array = array

    __class__ = property(lambda self: np.ndarray)

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    ndim = property(lambda self: self._array.ndim)
    size = property(lambda self: self._array.size)
    itemsize = property(lambda self: self._array.itemsize)
    nbytes = property(lambda self: self._array.nbytes)
    T = property(lambda self: self._view(self._array.T))

    def __len__(self) -> int:
        return len(self._array)

    def __repr__(self) -> str:
        return f"<recorded array: shape={self.shape}, dtype={self.dtype}>"

    # ---- views

    def _view(self, array: Any) -> Any:
        self._recording.check_open()
        return self._recording.wrapped(array, "a copy")

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, bool) or not isinstance(part, _INDICES) for part in parts):
            self._recording.refuse("indexing by arrays")
        whole = parts if any(part is Ellipsis for part in parts) else (*parts, ...)  # so that no number comes out
        return self._view(self._array[whole])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Return the elements in another shape: a view where NumPy has one, otherwise a copy."""
        result = self._array.reshape(*shape, **kwargs)
        if result.size == 0 or np.may_share_memory(result, self._array):
            return self._view(result)
        copy = self._recording.call(copied, (self,), {})
        return self._view(copy._array.reshape(*shape, **kwargs))

    def view(self, kind: type[Any] = np.ndarray) -> Any:
        """Return a view of NumPy's own type, which it is."""
        if not (isinstance(kind, type) and issubclass(kind, np.ndarray)):
            self._recording.refuse(f"a view as {kind}")
        return self._view(self._array)

    def transpose(self, *axes: Any) -> Any:
        """Return a view with permuted axes."""
        return self._view(self._array.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> Any:
        """Return a view with two axes exchanged."""
        return self._view(self._array.swapaxes(first, second))

    def squeeze(self, axis: Any = None) -> Any:
        """Return a view without axes of length 1."""
        return self._view(self._array.squeeze(axis))

    # ---- all else is unseen

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Return what a ufunc returns that is an operation, called as usual."""
        if self._recording.is_readable:
            return getattr(ufunc, method)(*map_leaves(_array_of, inputs), **map_leaves(_array_of, kwargs))
        if method != "__call__" or kwargs:
            self._recording.refuse(f"numpy.{ufunc.__name__}" + "".join(f" with `{name}`" for name in kwargs))
        return self._recording.compute(ufunc, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return what a function of NumPy returns if that is a view of an argument or does not depend on elements."""
        if self._recording.is_readable:
            return function(*map_leaves(_array_of, args), **map_leaves(_array_of, kwargs))
        if function in SEEN and len(args) == 3 and not kwargs:
            return self._recording.compute(function, *args)
        if function not in _SHAPE_ONLY | _VIEWS:
            self._recording.refuse(f"numpy.{function.__name__}")
        plain = map_leaves(_array_of, (args, kwargs))
        result = function(*plain[0], **plain[1])
        return result if function in _SHAPE_ONLY else map_leaves(self._view, result)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self._recording.is_readable:
            return np.array(self._array, dtype=dtype, copy=copy)
        self._recording.refuse(f"a conversion to a NumPy array in {_caller()}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        if self._recording.is_readable:
            return getattr(self._array, name)
        self._recording.refuse(f"ndarray.{name}")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        self._recording.refuse("an assignment to elements")

    __bool__, __float__, __int__, __index__, __complex__ = map(_by_value, ("bool", "float", "int", "index", "complex"))
    __str__, __format__ = _by_value("str"), _by_value("format")

    def _operator(self, *others: Any) -> NoReturn:
        self._recording.refuse(f"an operator in {_caller()}")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = _operator
    __floordiv__ = __rfloordiv__ = __ifloordiv__ = __mod__ = __rmod__ = __imod__ = __divmod__ = _operator
    __rpow__ = __ipow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __imatmul__ = __contains__ = _operator
    __pos__ = __invert__ = __and__ = __rand__ = __iand__ = __or__ = __ror__ = __ior__ = _operator
    __xor__ = __rxor__ = __ixor__ = _operator
    __copy__ = __deepcopy__ = __reduce_ex__ = _operator

    __add__, __radd__ = _by(np.add), _by(np.add, reflected=True)
    __sub__, __rsub__ = _by(np.subtract), _by(np.subtract, reflected=True)
    __mul__, __rmul__ = _by(np.multiply), _by(np.multiply, reflected=True)
    __truediv__, __rtruediv__ = _by(np.divide), _by(np.divide, reflected=True)
    __neg__, __abs__ = _by(np.negative), _by(np.absolute)
    __eq__, __ne__ = _by(np.equal), _by(np.not_equal)
    __lt__, __le__, __gt__, __ge__ = _by(np.less), _by(np.less_equal), _by(np.greater), _by(np.greater_equal)

    def __pow__(self, exponent: Any) -> Any:
        """Return the squares, which NumPy computes for an exponent of 2."""
        return self._recording.compute(np.square if type(exponent) is int and exponent == 2 else np.power, self)

    def __matmul__(self, other: Any) -> Any:
        """Leave products with a packed matrix or a QuantizedArray to their own operators."""
        return self._operator(other) if isinstance(other, np.ndarray) else NotImplemented


_INDICES = (int, np.integer, slice, type(None), type(Ellipsis))


def _caller() -> str:
    """Return the name of the innermost function that is neither NumPy's nor of this file or of mp_core's arrays."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and not module.startswith(("numpy", "mp_core.arrays")):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a function"


def address_of(x: np.ndarray[Any, Any]) -> int:
    """Return where the first element of an array lies."""
    address: int = x.__array_interface__["data"][0]
    return address


def _array_of(x: Any) -> Any:
    """Return the array of a recorded array; all else as it is."""
    return x._array if type(x) is Recorded else x


def is_recorded(*arguments: Any) -> bool:
    """Whether one of the arguments is an array of a recording."""
    return any(type(x) is Recorded for x in arguments)
