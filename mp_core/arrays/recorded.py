"""Arrays of a recording: what layers are called with while a plan of their operations is made.

A :class:`Recorded` has the shape and type of an array, and views of it. What computes with it is either an operation of
mp_core, which the recording notes and repeats, or a function of NumPy that such an operation stands for (:data:`SEEN`),
or raises :class:`UnseenError`: a plan would otherwise return what NumPy computed from the example.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mp_core.core.convert import copied
from mp_core.core.recording import Tape, UnseenError, constant, recorded_on
from mp_core.core.scopes import called_in
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "HOLDING",
    "SEEN",
    "Noted",
    "Offsets",
    "Recorded",
    "Recording",
    "Symbolic",
    "UnseenError",
    "begin",
    "call_recorded",
    "comes_from_input",
    "constant",
    "finish",
    "is_recorded",
    "names_of",
    "note_call",
    "note_offsets",
    "recordable",
    "refuse_recorded",
    "under_way",
    "with_numbers",
]

P = ParamSpec("P")
R = TypeVar("R")

_SHAPE_ONLY = {np.shape, np.ndim, np.size}
_VIEWS = {
    np.array_split, np.atleast_1d, np.atleast_2d, np.atleast_3d, np.broadcast_to, np.diagonal, np.dsplit,
    np.expand_dims, np.flip, np.fliplr, np.flipud, np.hsplit, np.moveaxis, np.ravel, np.reshape, np.rollaxis,
    np.rot90, np.split, np.squeeze, np.swapaxes, np.transpose, np.vsplit, sliding_window_view,
}  # fmt: skip
"""NumPy's functions that return views, and read no element."""
_PARTS = ("data", "column_sums", "scale", "zero_point", "values")
"""The arrays of a packed matrix and of a QuantizedArray."""
_COMPUTED = ("float32", "float16", "bfloat16")
"""The types in which steps compute."""

SEEN: dict[Any, tuple[Any, ...]] = {}
"""Function of NumPy -> the operation that has its bits, of ops/elementwise.py, and that operation's first arguments."""

HOLDING: dict[int, "Recording"] = {}
"""The recordings under way, of any thread, in which variables may be buffers, by their `id`."""

_under_way: ContextVar["Recording | None"] = ContextVar("mp_core.recording", default=None)


def under_way() -> "Recording | None":
    """Return the recording that this thread or task makes, if any."""
    return _under_way.get()


def begin(recording: "Recording") -> Token[Any]:
    """Let a recording be under way in this thread or task until :func:`finish` is called with what this returns."""
    return _under_way.set(recording)


def finish(token: Token[Any]) -> None:
    """Let the recording be under way that was before :func:`begin`."""
    _under_way.reset(token)


class Offsets(NamedTuple):
    """What an operation demands of an input that says where sequences lie: kernels do not check it.

    Attributes
    ----------
    number : int
        Of the input.
    rows : int
        How many rows there are: the last sequence ends there or before.
    shortest : int
        How many rows a sequence has at least.
    longest : int or None
        How many it has at most. None: any number.
    """

    number: int
    rows: int
    shortest: int
    longest: int | None

    def check(self, offsets: np.ndarray[Any, Any], rows: int) -> None:
        """Raise ValueError unless offsets say where sequences of such lengths lie in so many rows."""
        lengths = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)  # int32 would wrap around
        least, most = (lengths.min(), lengths.max()) if lengths.size else (self.shortest, 0)
        if offsets[0] < 0 or offsets[-1] > rows or least < 0:
            raise ValueError(f"`offsets` must ascend from 0 to at most the {rows} tokens; received {offsets}")
        if least < self.shortest or (self.longest is not None and most > self.longest):
            limit = "" if self.longest is None else f" and at most {self.longest}"
            raise ValueError(
                f"sequences must have at least {self.shortest}{limit} tokens; received some of {least} to {most}"
            )


class Noted(NamedTuple):
    """A call of an operation, from which :mod:`mp_core.gradients` finds its way back.

    Attributes
    ----------
    function : callable
        The operation, without what lets it be recorded.
    args, kwargs : tuple, dict
        As it was called. Variables are the arrays that they are read as.
    result : Any
        What it returned: a recorded array, or several.
    rule : callable or None
        How its gradient passes it. None: the rule of the operation.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    rule: Callable[..., Any] | None = None


class Held(NamedTuple):
    """What a variable is in a recording of which it is a buffer."""

    value: "Recorded"
    derived: dict[Any, Any]
    is_trained: bool


Copies = dict[Any, tuple[Any, Any]]


class Recording:
    """What notes operations, in one thread.

    Parameters
    ----------
    checks_offsets : bool
        Whether the caller of the plan checks the inputs in `offsets`: kernels do not.
    called : callable
        What gets each layer that is called with recorded arrays, before it computes.
    copies : dict
        Copies of arrays that somebody may write to; empty, or those of another recording of the same call.

    Attributes
    ----------
    tape : Tape
        The steps.
    offsets : list of Offsets
        What a run must check before its first step.
    noted : list of Noted or None
        The calls of operations, if gradients are to be found. None: they are not noted.
    whole : dict
        Operation -> what is called in its place while calls are noted, unless that returns None.
    read : dict
        The variables that were read as constants while :data:`HOLDING` has this recording, by their `id`.
    assigned : dict
        The variables that were assigned recorded arrays, and these, by their `id`.
    """

    is_eager = False
    """Whether operations run as they are called, and arrays have their values."""
    is_readable = False
    """Whether everybody may read these values: once nothing is noted any more."""

    def __init__(self, checks_offsets: bool, called: Callable[[Any], None], copies: Copies) -> None:
        self.tape = Tape()
        self.called = called
        self.offsets: list[Offsets] = []
        self.noted: list[Noted] | None = None
        self.whole: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.read: dict[int, Any] = {}
        self.assigned: dict[int, tuple[Any, Recorded]] = {}
        self._held: dict[int, Held] = {}
        self._inputs = 0
        self._checks_offsets = checks_offsets
        self._copies = copies
        self._refused: UnseenError | None = None
        self._is_over = False

    def of(self, function: Callable[[], R]) -> R:
        """Return what a function returns while this records; raise what was refused, though somebody has caught it."""
        try:
            result = called_in(_under_way, self, function)
        finally:
            self.end()
        if self._refused is not None:
            raise self._refused
        return result

    def end(self) -> None:
        """Let no array of the recording be used any more."""
        self._is_over = True
        HOLDING.pop(id(self), None)

    def begin_noting(self, whole: dict[Callable[..., Any], Callable[..., Any]]) -> list[Noted]:
        """Note calls from now on, in the list that this returns, and let variables be held; `whole`: see above."""
        HOLDING[id(self)] = self
        self.noted, self.whole = [], whole
        return self.noted

    def hold(self, variable: Any, value: "Recorded", is_trained: bool) -> None:
        """Let a variable be a recorded array from now on; one that is trained cannot be assigned."""
        self._held[id(variable)] = Held(value, {}, is_trained)

    def held(self, variable: Any) -> Held | None:
        """Return what a variable is here; None: a constant."""
        found = self._held.get(id(variable))
        if found is None:
            self.read[id(variable)] = variable
        return found

    def replaced(self, variable: Any) -> None:
        """Refuse that a variable gets a value that is no recorded array."""
        self.refuse(f"an assignment to variable '{variable.name}'")

    def assign(self, variable: Any, value: "Recorded") -> None:
        """Note that a variable gets a value at the end of each run, and is that from now on."""
        held = self._held.get(id(variable))
        if id(self) not in HOLDING or (held is not None and held.is_trained):
            self.replaced(variable)
        self.assigned[id(variable)] = variable, value
        self._held[id(variable)] = Held(value, {}, False)

    def input(self, array: np.ndarray[Any, Any]) -> "Recorded":
        """Return an array whose contents a plan is given, in the place of its example."""
        self.tape.add_buffer(array)
        self._inputs += 1
        return Recorded(self, array)

    def note_offsets(self, offsets: np.ndarray[Any, Any], rows: int, shortest: int, longest: int | None) -> None:
        """Note what an operation demands of offsets; raise unless they are an input, or do not come from one."""
        found = self.tape.find(_address(offsets))
        if found is None:
            return
        number, begin = found
        if number >= self._inputs or begin != 0 or offsets.shape != self.tape.buffers[number].shape:
            self.refuse("the computation of offsets, and a part of them,")
        self.offsets.append(Offsets(number, rows, shortest, longest))

    def refuse(self, what: str) -> NoReturn:
        """Raise, and remember to raise again, that there is something which a plan cannot see."""
        self._refused = UnseenError(
            f"{what} is not an operation of mp_core: a plan cannot see it, and would return what it returned for the "
            "example. Use the functions of mp_core, or compute it before the plan"
        )
        raise self._refused

    def check_open(self) -> None:
        """Raise if the recording is over: somebody has kept an array of it."""
        if self._is_over:
            raise UnseenError("an array of a recording that is over was used: a layer must not keep its inputs")

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Return what an operation returns for arguments among which are recorded arrays, and note it."""
        self.check_open()
        if self.noted is not None and function in self.whole:
            instead = self.whole[function](*args, **kwargs)
            if instead is not None:
                return instead
        if _out_of(function, args, kwargs) is not None:
            self.refuse(f"{function.__name__} with `out`")
        if getattr(function, "reads_offsets", False) and not self._checks_offsets:
            self.refuse(f"{function.__name__} of sequences whose lengths differ from run to run")
        args, kwargs = map_leaves(_as_read, args), map_leaves(_as_read, kwargs)
        plain = functools.partial(self._plain, numbers=hasattr(function, "takes_numbers"))
        before = len(self.tape.buffers)
        try:
            found = self.run(function, *map_leaves(plain, args), **map_leaves(plain, kwargs))
        except UnseenError as error:
            self._refused = error
            raise
        result = map_leaves(lambda part: self.wrapped(part, function.__name__), found)
        if self.noted is not None and any(type(x) is Recorded and self.place(x)[0] >= before for x in leaves(result)):
            self.noted.append(Noted(function, args, kwargs, result))
        return result

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what an operation returns for plain arrays, during which it is noted."""
        return recorded_on(self.tape, function, *args, **kwargs)

    def place(self, x: "Recorded") -> tuple[int, int]:
        """Return the number of the buffer in which an array lies, and from which byte on."""
        found = self.tape.find(_address(x._array))
        assert found is not None
        return found

    def compute(self, function: Any, *inputs: Any) -> Any:
        """Return what a function of NumPy returns, by the operation that has its bits; raise if there is none."""
        if function not in SEEN:
            self.refuse(f"numpy.{function.__name__}")
        operation, *first = SEEN[function]
        inputs = tuple(map(_as_read, inputs))
        inputs = tuple(x if type(x) is Recorded or _is_number(x) else np.asarray(x) for x in inputs)
        if function is np.where:
            first, inputs = [self._mask(inputs[0])], inputs[1:]
        dtype = _common_type(function, inputs)
        for name in (dtype.name, *(x.dtype.name for x in inputs if type(x) is Recorded)):
            if name not in _COMPUTED and not (self.is_eager and name == "float64"):
                self.refuse(f"numpy.{function.__name__} of {name}")
        inputs = tuple(x if type(x) is Recorded else np.asarray(x, _operand_type(x, dtype)) for x in inputs)
        return self.call(operation, (*first, *inputs), {"dtype": dtype})

    def _mask(self, x: Any) -> Any:
        """Return where the elements of what :func:`numpy.where` decides by are true."""
        if type(x) is Recorded and x.dtype != np.bool_:
            self.refuse(f"numpy.where by elements of {x.dtype}")
        return x if type(x) is Recorded else np.asarray(x, bool)

    def _plain(self, x: Any, numbers: bool) -> Any:
        """Return an argument as operations take it; what is no recorded array is a constant."""
        if type(x) is Recorded:
            if x.ndim == 0 and not numbers:
                self.refuse("a number of an input as an argument")
            return x._array
        if isinstance(x, np.ndarray):
            x = np.asarray(x)
            is_other = x.size and not self.is_eager and self.tape.find(_address(x)) is None
            return self._constant(x) if is_other else x
        for part in (getattr(x, name, None) for name in _PARTS):
            if type(part) is np.ndarray and part.size:
                self.tape.add_constant(part)
        return x

    def _constant(self, x: Any) -> Any:
        """Return a constant, as a copy if somebody may write to it: it may be something else at its next use."""
        if _is_writeable(x):
            key = _address(x), x.shape, x.strides, x.dtype
            original, copy = self._copies.get(key, (x, None))
            if copy is None or copy.tobytes() != x.tobytes():
                copy = x.copy()
            self._copies[key], x = (original, copy), copy  # the original is held, so that no other gets its address
        self.tape.add_constant(x)
        return x

    def wrapped(self, x: Any, name: str) -> Any:
        """Return a result as a recorded array, a constant as it is; raise if no step has made it."""
        if not isinstance(x, np.ndarray) or x.size == 0:
            return x
        if self.tape.find(_address(x)) is not None:
            return Recorded(self, x)
        if self.tape.holds(_address(x)):
            return x
        self.refuse(f"{name} by NumPy, as for these arguments,")


def _as_read(x: Any) -> Any:
    """Return an argument, a variable as it is read here."""
    return x.read_value() if hasattr(x, "read_value") else x


def _is_number(x: Any) -> bool:
    """Whether it is a number of Python, which has no type of its own beside an array; NumPy's have one."""
    return type(x) in (bool, int, float)


def _common_type(function: Any, inputs: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the type in which NumPy computes a function of arrays and numbers; those of Python have none."""
    samples = [x if _is_number(x) else np.empty(0, x.dtype) for x in inputs]
    common: Any = np.where(np.empty(0, bool), *samples) if function is np.where else functools.reduce(np.add, samples)
    return common.dtype  # type: ignore[no-any-return]


def _operand_type(x: Any, common: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which an operation takes an operand: its own, if steps read that."""
    return x.dtype.newbyteorder("=") if hasattr(x, "dtype") and x.dtype.name in _COMPUTED else common


@functools.lru_cache(maxsize=256)
def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of an operation's parameters; of a compiled one that does not tell, none."""
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:
        return ()


def _out_of(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the argument `out` of a call."""
    if "out" in kwargs:
        return kwargs["out"]
    names = names_of(function)[: len(args)]
    return args[names.index("out")] if "out" in names else None


def _is_writeable(x: Any) -> bool:
    """Whether somebody may write into an array."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return True
        x = x.base
    return False


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
        return self._recording.call(copied, (self,), {}).reshape(*shape, **kwargs)

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


def _address(x: np.ndarray[Any, Any]) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


def _array_of(x: Any) -> Any:
    """Return the array of a recorded array; all else as it is."""
    return x._array if type(x) is Recorded else x


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
        if HOLDING and (recording := _reads_held(args, kwargs)) is not None:
            return recording.call(function, args, kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    return operation


def with_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """Say of an operation that recorded arrays without axes are operands like others."""
    function.takes_numbers = True  # type: ignore[attr-defined]
    return function


def call_recorded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let the recording call an operation if one of its arguments is recorded; otherwise return None."""
    for x in (*args, *kwargs.values()):
        if type(x) is Recorded:
            return x._recording.call(function, args, kwargs)
    if HOLDING and (recording := _reads_held(args, kwargs)) is not None:
        return recording.call(function, args, kwargs)
    return None


def _reads_held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
    """Return the recording under way if one of the arguments is a variable that it holds."""
    recording = under_way()
    if recording is None:
        return None
    variables = (x for x in leaves((args, kwargs)) if hasattr(x, "read_value"))
    return recording if any(recording.held(x) is not None for x in variables) else None


def note_offsets(offsets: np.ndarray[Any, Any], rows: int, shortest: int = 0, longest: int | None = None) -> None:
    """Tell the recording, if there is one, what an operation demands of offsets: see :class:`Offsets`."""
    recording = under_way()
    if recording is not None:
        recording.note_offsets(offsets, rows, shortest, longest)


def comes_from_input(x: np.ndarray[Any, Any]) -> bool:
    """Whether the recording, if there is one, would have to repeat what reads an array: it comes from an input."""
    recording = under_way()
    return recording is not None and not recording.is_eager and recording.tape.find(_address(x)) is not None


def refuse_recorded(x: np.ndarray[Any, Any], what: str) -> None:
    """Raise UnseenError if an array, which NumPy is about to read, comes from an input of the recording."""
    recording = under_way()
    if recording is not None and comes_from_input(x):
        recording.refuse(what)


class Symbolic:
    """An array of which shape and type alone are known: it says what a layer returns that is called with it."""

    def called(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `layer` returns for arguments among which there are such arrays."""
        raise NotImplementedError


def note_call(layer: Any, arguments: Any) -> Symbolic | None:
    """Tell the recording, if one of the arguments is an array of one, that a layer is called with it.

    Returns
    -------
    Symbolic or None
        The first argument whose elements are not known.
    """
    for x in leaves(arguments):
        if type(x) is Recorded:
            x._recording.called(layer)
            return None
        if isinstance(x, Symbolic):
            return x
    return None
