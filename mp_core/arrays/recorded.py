"""Arrays of a recording: what layers are called with while a plan of their operations is made.

A :class:`Recorded` has the shape and type of an array, and views of it. What computes with it is either an operation of
mp_core, which the recording notes and repeats, or a function of NumPy that such an operation stands for (:data:`SEEN`),
or raises :class:`UnseenError`: a plan would otherwise return what NumPy computed from the example.
"""

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import numpy as np

from mp_core.arrays.holding import HOLDING, Held, holder, recorded_by, under_way
from mp_core.arrays.recorded_array import SEEN, Recorded, Same, address_of, is_recorded
from mp_core.core.recording import Tape, UnseenError, constant, recorded_on
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "SEEN",
    "Noted",
    "Offsets",
    "Recorded",
    "Recording",
    "Symbolic",
    "SymbolicError",
    "UnseenError",
    "call_recorded",
    "comes_from_input",
    "constant",
    "dispatches",
    "is_recorded",
    "names_of",
    "note_call",
    "note_offsets",
    "recordable",
    "refuse_recorded",
    "takes_symbols",
    "under_way",
    "with_numbers",
]

P = ParamSpec("P")
R = TypeVar("R")

_PARTS = ("data", "column_sums", "scale", "zero_point", "values")
"""The arrays of a packed matrix and of a QuantizedArray."""
_COMPUTED = ("float32", "float16", "bfloat16")
"""The types in which steps compute."""

STAND_INS: dict[type, Callable[[Any, Callable[..., Any], Any, dict[str, Any]], Any]] = {}
"""Type of what stands for an array -> what calls an operation with such an argument: with the argument, the operation
(which has the function itself as ``__wrapped__``), and its arguments."""

_SYMBOLS: set[type] = {list, tuple}
"""The types of symbolic arrays, and of what may have them for elements."""


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
    """A call of an operation, from which :mod:`mp_core.ops.gradients` finds its way back.

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


Copies = dict[Any, tuple[Any, Any]]


class Recording:
    """What notes operations, in one thread.

    Parameters
    ----------
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
        The variables that were assigned, and their last values, by their `id`.
    added : dict
        Layer -> what it has added to the loss in the latest call, while calls are noted.
    transposed : dict
        What rules have made of constants that are packed, which the recordings of one step share.
    """

    is_eager = False
    """Whether operations run as they are called, and arrays have their values."""
    is_readable = False
    """Whether everybody may read these values: once nothing is noted any more."""

    def __init__(self, called: Callable[[Any], None], copies: Copies) -> None:
        self.tape = Tape()
        self.called = called
        self.offsets: list[Offsets] = []
        self.noted: list[Noted] | None = None
        self.whole: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.read: dict[int, Any] = {}
        self.assigned: dict[int, tuple[Any, Any]] = {}
        self.added: dict[Any, list[Any]] = {}
        self.transposed: dict[Any, tuple[Any, Any]] = {}
        self._held: dict[int, Held] = {}
        self._inputs = 0
        self._copies = copies
        self._refused: UnseenError | None = None
        self._is_over = False

    def of(self, function: Callable[[], R]) -> R:
        """Return what a function returns while this records; raise what was refused, though somebody has caught it."""
        try:
            result = recorded_by(self, function)
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

    def assign(self, variable: Any, value: Any) -> Any:
        """Note that a variable gets a value at the end of each run, and is that from now on; return None.

        What depends on a variable that is a constant here is another constant: the recording is made anew then, with
        the variable as an input.
        """
        held = self._held.get(id(variable))
        if id(self) not in HOLDING or (held is not None and held.is_trained):
            self.refuse(f"an assignment to variable '{variable.name}'")
        self.assigned[id(variable)] = variable, value
        self._held[id(variable)] = Held(value, {}, False)

    def input(self, array: np.ndarray[Any, Any]) -> "Recorded":
        """Return an array whose contents a plan is given, in the place of its example."""
        self.tape.add_buffer(array)
        self._inputs += 1
        return Recorded(self, array)

    def note_offsets(self, offsets: np.ndarray[Any, Any], rows: int, shortest: int, longest: int | None) -> None:
        """Note what an operation demands of offsets; raise unless they are an input, or do not come from one."""
        found = self.tape.find(address_of(offsets))
        if found is None:
            return
        number, begin = found
        if number >= self._inputs or begin != 0 or offsets.shape != self.tape.buffers[number].shape:
            self.refuse("the computation of offsets, and a part of them,")
        self.offsets.append(Offsets(number, rows, shortest, longest))

    def refuse(self, what: str, advice: str = "Use the functions of mp_core.ops, or compute it before") -> NoReturn:
        """Raise, and remember to raise again, that there is something which a plan cannot see."""
        self._refused = UnseenError(
            f"{what} is not an operation of mp_core: a plan cannot see it, and would return what it returned for the "
            f"example. {advice}"
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
        found = self.tape.find(address_of(x.array))
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

    def compute_same(self, same: Same, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the operation returns that computes the same as a function of NumPy or a method of arrays.

        It is refused where NumPy would give another type, and with arguments that the operation does not have.
        """
        has_variable = any(hasattr(x, "read_value") for x in leaves((args, kwargs)))
        operation = same.operation if has_variable or same.of_arrays is None else same.of_arrays
        args, kwargs = map_leaves(_as_read, args), map_leaves(_as_read, kwargs)
        if same.is_ufunc:
            args = tuple(x if type(x) is Recorded or _is_number(x) else np.asarray(x) for x in args)
        for x in leaves((args, kwargs)):
            given = x.dtype.name if type(x) is Recorded or isinstance(x, np.ndarray | np.generic) else "float32"
            if not self._takes(same, given, type(x) is Recorded):
                self.refuse(f"{same.name} of {given}", "Cast it to float32 before, by mp_core.ops.cast")
        try:
            inspect.signature(same.operation).bind(*args, **kwargs)
        except TypeError:
            self.refuse(f"{same.name} with these arguments", f"Use {_path(same.operation)}")
        return operation(*args, **kwargs)

    def _takes(self, same: Same, given: str, is_recorded: bool) -> bool:
        """Whether NumPy's result for an array of this type has the type of the operation's."""
        if given in _COMPUTED or same.takes_all or (given == "float64" and self.is_eager):
            return True
        return given == "bool" if same.takes_bools else not (is_recorded or same.is_ufunc or given == "float64")

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
            return x.array
        if isinstance(x, np.ndarray):
            x = np.asarray(x)
            is_other = x.size and not self.is_eager and self.tape.find(address_of(x)) is None
            return self._constant(x) if is_other else x
        for part in (getattr(x, name, None) for name in _PARTS):
            if type(part) is np.ndarray and part.size:
                self.tape.add_constant(part)
        return x

    def _constant(self, x: Any) -> Any:
        """Return a constant, as a copy if somebody may write to it: it may be something else at its next use."""
        if _is_writeable(x):
            key = address_of(x), x.shape, x.strides, x.dtype
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
        if self.tape.find(address_of(x)) is not None:
            return Recorded(self, x)
        if self.tape.holds(address_of(x)):
            return x
        if x.dtype.kind in "iu":
            self.refuse(f"{name} with integers for results (cast integers to floats first)")
        self.refuse(f"{name} by NumPy, as for these arguments,")


def _call_recorded(x: Recorded, operation: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return x.recording.call(operation.__wrapped__, args, kwargs)  # type: ignore[attr-defined]


STAND_INS[Recorded] = _call_recorded


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


def _path(operation: Callable[..., Any]) -> str:
    """Return the public name of an operation."""
    return f"mp_core.ops.{operation.__name__.lstrip('_')}"


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


def recordable(function: Callable[P, R]) -> Callable[P, R]:
    """Let an operation be noted: with recorded arrays among its arguments, its recording calls it.

    With symbolic arrays among them, these say what it returns.
    """
    return _dispatching(function, STAND_INS, is_noted=True)


def takes_symbols(function: Callable[P, R]) -> Callable[P, R]:
    """Let symbolic arrays, in lists too, say what a function returns that is made up of operations."""
    return _dispatching(function, _SYMBOLS, is_noted=False)


def _dispatching(function: Callable[P, R], kinds: Container[type], is_noted: bool) -> Callable[P, R]:
    """Return a function that the first argument among the `kinds` of stand-ins calls, if there is one."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        for x in (*args, *kwargs.values()) if kwargs else args:
            if type(x) in kinds:
                found: Any = x if type(x) in STAND_INS else next((y for y in x if isinstance(y, Symbolic)), None)  # type: ignore[attr-defined]
                if found is not None:
                    return STAND_INS[type(found)](found, operation, args, kwargs)  # type: ignore[no-any-return]
        if is_noted and HOLDING and (recording := _reads_held(args, kwargs)) is not None:
            return recording.call(function, args, kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    operation.dispatches = operation  # type: ignore[attr-defined]
    return operation


def dispatches(function: Callable[..., Any]) -> bool:
    """Whether symbolic arrays among its arguments say what a function returns: it is no wrapper of one that does."""
    return getattr(function, "dispatches", None) is function


def with_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """Say of an operation that recorded arrays without axes are operands like others."""
    function.takes_numbers = True  # type: ignore[attr-defined]
    return function


def call_recorded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let the recording call an operation if one of its arguments is recorded; otherwise return None."""
    for x in (*args, *kwargs.values()):
        if type(x) is Recorded:
            return x.recording.call(function, args, kwargs)
    if HOLDING and (recording := _reads_held(args, kwargs)) is not None:
        return recording.call(function, args, kwargs)
    return None


def _reads_held(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
    """Return the recording under way if one of the arguments is a variable that it holds."""
    recording, here = under_way(), holder()
    if recording is None or here is None:
        return None
    variables = (x for x in leaves((args, kwargs)) if hasattr(x, "read_value"))
    return recording if any(here.held(x) is not None for x in variables) else None


def note_offsets(offsets: np.ndarray[Any, Any], rows: int, shortest: int = 0, longest: int | None = None) -> None:
    """Tell the recording, if there is one, what an operation demands of offsets: see :class:`Offsets`."""
    recording = under_way()
    if recording is not None:
        recording.note_offsets(offsets, rows, shortest, longest)


def comes_from_input(x: np.ndarray[Any, Any]) -> bool:
    """Whether the recording, if there is one, would have to repeat what reads an array: it comes from an input."""
    recording = under_way()
    return recording is not None and not recording.is_eager and recording.tape.find(address_of(x)) is not None


def refuse_recorded(x: np.ndarray[Any, Any], what: str) -> None:
    """Raise UnseenError if an array, which NumPy is about to read, comes from an input of the recording."""
    recording = under_way()
    if recording is not None and comes_from_input(x):
        recording.refuse(what)


class Symbolic:
    """An array of which shape and type alone are known: it says what a layer returns that is called with it."""

    def __init_subclass__(cls) -> None:
        _SYMBOLS.add(cls)
        STAND_INS[cls] = cls.computed

    def computed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function of :mod:`mp_core.ops` returns for arguments among which there are such arrays."""
        raise NotImplementedError


class SymbolicError(TypeError):
    """The elements of a symbolic array were asked for."""


def note_call(layer: object, arguments: Any) -> Symbolic | None:
    """Tell the recording, if one of the arguments is an array of one, that a layer is called with it.

    Returns
    -------
    Symbolic or None
        The first argument whose elements are not known.
    """
    for x in leaves(arguments):
        if type(x) is Recorded:
            x.recording.called(layer)
            return None
        if isinstance(x, Symbolic):
            return x
    return None
