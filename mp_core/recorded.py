"""Arrays of a recording: what layers are called with while a plan of their operations is made.

A :class:`Recorded` has the shape and type of an array, and views of it. What computes with it is either an operation of
mp_core, which the recording notes and repeats, or raises :class:`UnseenError`: a plan would otherwise return what NumPy
computed from the example.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from mp_core.core.convert import copied
from mp_core.core.steps import Tape, UnseenError, constant, recorded_on
from mp_core.tree import leaves, map_leaves

__all__ = ["Recorded", "Recording", "UnseenError", "call_recorded", "constant", "is_recorded", "recordable"]

P = ParamSpec("P")
R = TypeVar("R")

_SHAPE_ONLY = {np.shape, np.ndim, np.size}
_PARTS = ("data", "column_sums", "scale", "zero_point", "values")
"""The arrays of a packed matrix and of a QuantizedArray."""


class Recording:
    """What notes operations, in one thread.

    Attributes
    ----------
    tape : Tape
        The steps.
    """

    def __init__(self) -> None:
        self.tape = Tape()

    def input(self, array: np.ndarray[Any, Any]) -> "Recorded":
        """Return an array whose contents a plan is given, in the place of its example."""
        self.tape.add_buffer(array)
        return Recorded(self, array)

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what an operation returns for arguments among which are recorded arrays, and note it."""
        args, kwargs = map_leaves(self._plain, args), map_leaves(self._plain, kwargs)
        with recorded_on(self.tape):
            result = function(*args, **kwargs)
        return map_leaves(lambda part: self._wrapped(part, function.__name__), result)

    def _plain(self, x: Any) -> Any:
        """Return an argument without its wrapper; what is no recorded array is a constant."""
        if type(x) is Recorded:
            return x._array
        parts = [x] if type(x) is np.ndarray else [getattr(x, name, None) for name in _PARTS]
        for part in parts:
            if type(part) is np.ndarray and part.size and self.tape.find(_address(part)) is None:
                self.tape.add_constant(part)
        return x

    def _wrapped(self, x: Any, name: str) -> Any:
        if not isinstance(x, np.ndarray) or x.size == 0:
            return x
        if self.tape.find(_address(x)) is None:
            raise UnseenError(f"{name} computes by NumPy for these arguments, so a plan cannot repeat it")
        return Recorded(self, x)


class Recorded:
    """An array of a recording. It passes for an ndarray where Python code asks; NumPy gets nothing from it.

    Parameters
    ----------
    recording : Recording
    array : ndarray
        What the example makes of it.
    """

    __slots__ = ("_array", "_recording")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recording: Recording, array: np.ndarray[Any, Any]) -> None:
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

    def _view(self, array: Any) -> "Recorded":
        return Recorded(self._recording, array)

    def __getitem__(self, index: Any) -> "Recorded":
        if any(not isinstance(part, (int, slice, type(None), type(Ellipsis))) for part in _parts(index)):
            _refuse("indexing by arrays")
        return self._view(np.asarray(self._array[index]))

    def __iter__(self) -> Iterator["Recorded"]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: Any, **kwargs: Any) -> "Recorded":
        """Return the elements in another shape: a view where NumPy has one, otherwise a copy."""
        result = self._array.reshape(*shape, **kwargs)
        if result.size == 0 or np.may_share_memory(result, self._array):
            return self._view(result)
        with recorded_on(self._recording.tape):
            return self._view(copied(self._array).reshape(*shape, **kwargs))

    def transpose(self, *axes: Any) -> "Recorded":
        """Return a view with permuted axes."""
        return self._view(self._array.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> "Recorded":
        """Return a view with two axes exchanged."""
        return self._view(self._array.swapaxes(first, second))

    def squeeze(self, axis: Any = None) -> "Recorded":
        """Return a view without axes of length 1."""
        return self._view(self._array.squeeze(axis))

    # ---- all else is unseen

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        _refuse(f"numpy.{ufunc.__name__}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return what a function of NumPy returns if that is a view of an argument or does not depend on elements."""
        plain = map_leaves(lambda x: x._array if type(x) is Recorded else x, (args, kwargs))
        result = function(*plain[0], **plain[1])
        if function in _SHAPE_ONLY:
            return result
        given = [x._array for x in leaves((args, kwargs)) if type(x) is Recorded]
        for part in leaves(result):
            if not isinstance(part, np.ndarray) or not any(np.may_share_memory(part, array) for array in given):
                _refuse(f"numpy.{function.__name__}")
        return map_leaves(self._view, result)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        _refuse(f"a conversion to a NumPy array in {_caller()}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        _refuse(f"ndarray.{name}")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        _refuse("an assignment to elements")

    def __bool__(self) -> NoReturn:
        _refuse("a decision by its elements")

    __float__ = __int__ = __index__ = __complex__ = __bool__

    def _operator(self, *others: Any) -> NoReturn:
        _refuse(f"an operator in {_caller()}")

    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = __mul__ = __rmul__ = __imul__ = _operator
    __truediv__ = __rtruediv__ = __itruediv__ = __floordiv__ = __mod__ = __pow__ = __rpow__ = _operator
    __neg__ = __pos__ = __abs__ = __invert__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = _operator
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _operator

    def __matmul__(self, other: Any) -> Any:
        """Leave products with a packed matrix or a QuantizedArray to their own operators."""
        return self._operator(other) if isinstance(other, np.ndarray) else NotImplemented


def _refuse(what: str) -> NoReturn:
    raise UnseenError(
        f"{what} is not an operation of mp_core: a plan cannot see it, and would return what it returned for the "
        "example. Use the functions of mp_core, or compute it before the plan"
    )


def _caller() -> str:
    """Return the name of the innermost function that is neither NumPy's nor of this file or of mp_core's arrays."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and not module.startswith(("numpy", "mp_core.arrays")):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a function"


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _address(x: np.ndarray[Any, Any]) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


def is_recorded(*arguments: Any) -> bool:
    """Whether one of the arguments is an array of a recording."""
    return any(type(x) is Recorded for x in arguments)


def recordable(function: Callable[P, R]) -> Callable[P, R]:
    """Let an operation be noted: with recorded arrays among its arguments, its recording calls it."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        for x in args:
            if type(x) is Recorded:
                return x._recording.call(function, args, kwargs)  # type: ignore[no-any-return]
        for x in kwargs.values():
            if type(x) is Recorded:
                return x._recording.call(function, args, kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return operation


def call_recorded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let the recording call an operation if one of its arguments is recorded; otherwise return None."""
    for x in (*args, *kwargs.values()):
        if type(x) is Recorded:
            return x._recording.call(function, args, kwargs)
    return None
