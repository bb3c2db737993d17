"""The recorded array: layers are called with it in place of an ndarray while a plan is recorded."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core.core.convert import copied
from mp_core.utilities.tree import map_leaves

if TYPE_CHECKING:
    from mp_core.arrays.recorded import Recording

__all__ = [
    "BIT_EQUAL_FUNCTIONS",
    "EQUIVALENT_FUNCTIONS",
    "EQUIVALENT_METHODS",
    "NO_VALUES",
    "Equivalent",
    "Recorded",
    "address_of",
    "is_recorded",
    "known_elements",
]

NO_VALUES = "<recorded array"
"""How the text of a recorded array begins if its values cannot be read. A plan cannot return such a text."""

_SHAPE_ONLY = {np.shape, np.ndim, np.size, np.zeros_like, np.ones_like}
"""NumPy functions whose results do not depend on elements."""
_VIEWS = {
    np.array_split, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to, np.diagonal, np.dsplit,
    np.expand_dims, np.flip, np.fliplr, np.flipud, np.hsplit, np.moveaxis, np.ravel, np.reshape, np.rollaxis,
    np.rot90, np.split, np.squeeze, np.swapaxes, np.transpose, np.vsplit, sliding_window_view,
}  # fmt: skip
"""NumPy functions that return views and read no element."""

BIT_EQUAL_FUNCTIONS: dict[Any, tuple[Any, ...]] = {}
"""NumPy function -> (operation of ops/elementwise.py with the same bits, its first arguments)."""


class Equivalent(NamedTuple):
    """An operation equivalent to a NumPy function or array method; the last bits may differ."""

    name: str  # the name of the function or method, for errors
    operation: Callable[..., Any]  # takes the same arguments
    is_ufunc: bool = False  # whether all arguments are operands
    # The kinds of dtypes that it takes besides floats, with NumPy's dtype of the result; "f": float64 with any other
    others: str = ""
    # Used in place of `operation` if no operand is a variable; needed where NumPy's result has another dtype then
    of_arrays: Callable[..., Any] | None = None


EQUIVALENT_FUNCTIONS: dict[Any, Equivalent] = {}
"""NumPy function -> equivalent operation, filled by ops/of_numpy.py."""
EQUIVALENT_METHODS: dict[str, Equivalent] = {}
"""Name of an array method -> equivalent operation, filled by ops/of_numpy.py."""


def _by(function: Any, reflected: bool = False) -> Any:
    """Return an operator method that computes a NumPy function."""

    def operator(self: "Recorded", *others: Any) -> Any:
        operands = (*others, self) if reflected else (self, *others)
        if function in BIT_EQUAL_FUNCTIONS:
            return self.recording.compute(function, *operands)
        return self.__array_ufunc__(function, "__call__", *operands)

    return operator


def _by_value(name: str) -> Any:
    """Return a method, such as ``__bool__``, that calls the array's own if values may be read, and raises otherwise."""

    def method(self: "Recorded", *args: Any) -> Any:
        if not self.recording.is_readable:
            self.recording.refuse(f"a decision by its elements, in {_caller()}")
        return getattr(self.array, f"__{name}__")(*args)

    return method


class Recorded:
    """An array of a recording. ``isinstance(x, np.ndarray)`` is true, but NumPy calls without an operation raise.

    `array` is its memory in the example call; while a plan is recorded, its elements are not computed.
    """

    __slots__ = ("array", "recording")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recording: "Recording", array: np.ndarray[Any, Any]) -> None:
        self.recording = recording
        self.array = array

    __class__ = property(lambda self: np.ndarray)

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    itemsize = property(lambda self: self.array.itemsize)
    nbytes = property(lambda self: self.array.nbytes)
    T = property(lambda self: self._view(self.array.T))

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"{NO_VALUES}: shape={self.shape}, dtype={self.dtype}>"

    def __str__(self) -> str:
        """Return the text of the array if values may be read, otherwise shape and dtype, so that ``print`` works."""
        return str(self.array) if self.recording.is_readable else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.array, spec) if self.recording.is_readable else repr(self)

    # ---- views

    def _view(self, array: Any) -> Any:
        self.recording.check_open()
        return self.recording.wrapped(array, "a copy")

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, bool) or not isinstance(part, _INDICES) for part in parts):
            self.recording.refuse("indexing by arrays", "Use mp_core.ops.take for places, and where for a mask")
        whole = parts if any(part is Ellipsis for part in parts) else (*parts, ...)  # `...` makes the result an array
        return self._view(self.array[whole])

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Return the elements in another shape: a view where NumPy has one, otherwise a copy."""
        result = self.array.reshape(*shape, **kwargs)
        if result.size == 0 or np.may_share_memory(result, self.array):
            return self._view(result)
        copy = self.recording.call(copied, (self,), {})
        return self._view(copy.array.reshape(*shape, **kwargs))

    def view(self, kind: type[Any] = np.ndarray) -> Any:
        """Return a view as numpy.ndarray; other classes are refused."""
        if not (isinstance(kind, type) and issubclass(kind, np.ndarray)):
            self.recording.refuse(f"a view as {kind}")
        return self._view(self.array)

    def transpose(self, *axes: Any) -> Any:
        """Return a view with permuted axes."""
        return self._view(self.array.transpose(*axes))

    def swapaxes(self, first: int, second: int) -> Any:
        """Return a view with two axes exchanged."""
        return self._view(self.array.swapaxes(first, second))

    def squeeze(self, axis: Any = None) -> Any:
        """Return a view without axes of length 1."""
        return self._view(self.array.squeeze(axis))

    # ---- everything else

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """Compute a ufunc by an operation; raise UnseenError if there is none, or for methods and keywords."""
        if self.recording.is_readable:
            return getattr(ufunc, method)(*map_leaves(_array_of, inputs), **map_leaves(_array_of, kwargs))
        if method != "__call__" or kwargs:
            how = "" if method == "__call__" else f".{method}"
            self.recording.refuse(f"numpy.{ufunc.__name__}{how}" + "".join(f" with `{name}`" for name in kwargs))
        if ufunc in EQUIVALENT_FUNCTIONS:
            return self.recording.compute_equivalent(EQUIVALENT_FUNCTIONS[ufunc], inputs, {})
        return self.recording.compute(ufunc, *inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Call a NumPy function that returns views or reads no element; compute others by operations, or raise."""
        if self.recording.is_readable:
            return function(*map_leaves(_array_of, args), **map_leaves(_array_of, kwargs))
        if function in BIT_EQUAL_FUNCTIONS and len(args) == 3 and not kwargs:
            return self.recording.compute(function, *args)
        if function in EQUIVALENT_FUNCTIONS:
            return self.recording.compute_equivalent(EQUIVALENT_FUNCTIONS[function], args, kwargs)
        if function not in _SHAPE_ONLY | _VIEWS:
            self.recording.refuse(f"numpy.{function.__name__}")
        plain = map_leaves(_array_of, (args, kwargs))
        result = function(*plain[0], **plain[1])
        return result if function in _SHAPE_ONLY else map_leaves(self._view, result)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.recording.is_readable:
            return np.array(self.array, dtype=dtype, copy=copy)
        self.recording.refuse(f"a conversion to a NumPy array in {_caller()}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        if self.recording.is_readable:
            return getattr(self.array, name)
        if name in EQUIVALENT_METHODS:
            return partial(self._method, name)
        self.recording.refuse(f"ndarray.{name}")

    def _method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.recording.compute_equivalent(EQUIVALENT_METHODS[name], (self, *args), kwargs)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        self.recording.refuse("an assignment to elements", "Use mp_core.ops.where or concatenate")

    __bool__, __float__, __int__, __index__, __complex__ = map(_by_value, ("bool", "float", "int", "index", "complex"))

    def _operator(self, *others: Any) -> NoReturn:
        self.recording.refuse(f"an operator in {_caller()}")

    def _in_place(self, other: Any) -> NoReturn:
        self.recording.refuse(f"an operator that writes, in {_caller()},", "Write `x = x + y` for `x += y`")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = _in_place
    __iand__ = __ior__ = __ixor__ = __ilshift__ = __irshift__ = _in_place
    __divmod__ = __contains__ = _operator
    __copy__ = __deepcopy__ = __reduce_ex__ = _operator

    __add__, __radd__ = _by(np.add), _by(np.add, reflected=True)
    __sub__, __rsub__ = _by(np.subtract), _by(np.subtract, reflected=True)
    __mul__, __rmul__ = _by(np.multiply), _by(np.multiply, reflected=True)
    __truediv__, __rtruediv__ = _by(np.divide), _by(np.divide, reflected=True)
    __neg__, __abs__ = _by(np.negative), _by(np.absolute)
    __eq__, __ne__ = _by(np.equal), _by(np.not_equal)
    __lt__, __le__, __gt__, __ge__ = _by(np.less), _by(np.less_equal), _by(np.greater), _by(np.greater_equal)

    __floordiv__, __rfloordiv__ = _by(np.floor_divide), _by(np.floor_divide, reflected=True)
    __mod__, __rmod__ = _by(np.remainder), _by(np.remainder, reflected=True)
    __and__, __rand__ = _by(np.bitwise_and), _by(np.bitwise_and, reflected=True)
    __or__, __ror__ = _by(np.bitwise_or), _by(np.bitwise_or, reflected=True)
    __xor__, __rxor__ = _by(np.bitwise_xor), _by(np.bitwise_xor, reflected=True)
    __lshift__, __rlshift__ = _by(np.left_shift), _by(np.left_shift, reflected=True)
    __rshift__, __rrshift__ = _by(np.right_shift), _by(np.right_shift, reflected=True)
    __invert__, __rpow__ = _by(np.invert), _by(np.power, reflected=True)

    def __pos__(self) -> Any:
        """Return a view: no code writes to recorded arrays, so a copy is not needed."""
        return self._view(self.array)

    def __pow__(self, exponent: Any) -> Any:
        """Return a power; for the exponent 2 by ``square``, as NumPy does."""
        if type(exponent) is int and exponent == 2:
            return self.recording.compute(np.square, self)
        return self.__array_ufunc__(np.power, "__call__", self, exponent)

    def __matmul__(self, other: Any) -> Any:
        """Return the matrix product; a PackedMatrix or QuantizedArray multiplies by its own operator."""
        is_array = isinstance(other, np.ndarray | list | tuple) or hasattr(other, "read_value")
        return self.__array_ufunc__(np.matmul, "__call__", self, other) if is_array else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        """Return the matrix product with `other` on the left."""
        return self.__array_ufunc__(np.matmul, "__call__", other, self)


_INDICES = (int, np.integer, slice, type(None), type(Ellipsis))


def _caller() -> str:
    """Return the name of the innermost calling function outside of NumPy and mp_core.arrays, for errors."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != __name__ and not module.startswith(("numpy", "mp_core.arrays")):
            return f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a function"


def address_of(x: np.ndarray[Any, Any]) -> int:
    """Return the address of the first element."""
    address: int = x.__array_interface__["data"][0]  # x.ctypes is not safe among threads: ctypes writes to its types
    return address


def _array_of(x: Any) -> Any:
    """Return the array of a recorded array; everything else as it is."""
    return x.array if type(x) is Recorded else x


def is_recorded(*arguments: Any) -> bool:
    """Return whether an argument is a recorded array."""
    return any(type(x) is Recorded for x in arguments)


def known_elements(x: Any) -> Any:
    """Return the elements of a recorded array if operations compute immediately; None while a plan is recorded."""
    return x.array if x.recording.is_eager else None
