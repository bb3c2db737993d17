"""Recordings, which note the operations of a call, and the arrays that stand for inputs meanwhile.

To make a plan, a layer is called with :class:`Recorded` arrays. Each has the shape and type of an array, and views of
it. A call with a Recorded is one of three things:

- An operation of mp_core: the recording notes it, and the plan repeats it.
- A function of NumPy that an operation replaces (:data:`BIT_EQUAL_FUNCTIONS`, and those of ops/of_numpy.py).
- Anything else: it raises :class:`UnseenError`, because the plan would return what NumPy computed from the example.
"""

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import numpy as np

from mp_core.arrays.dtypes import ALLOWED
from mp_core.arrays.holding import ACTIVE_HOLDERS, Override, current_holder, current_recording, run_in_recording
from mp_core.arrays.recorded_array import BIT_EQUAL_FUNCTIONS, Equivalent, Recorded, address_of, is_recorded
from mp_core.core.recording import Tape, UnseenError, constant, recorded_on
from mp_core.utilities.tree import leaves, map_leaves

__all__ = [
    "BIT_EQUAL_FUNCTIONS",
    "NotedCall",
    "Offsets",
    "Recorded",
    "Recording",
    "Symbolic",
    "SymbolicError",
    "UnseenError",
    "call_recorded",
    "comes_from_input",
    "constant",
    "current_recording",
    "dispatches",
    "is_recorded",
    "names_of",
    "note_call",
    "note_offsets",
    "recordable",
    "refuse_recorded",
    "takes_symbols",
    "with_numbers",
]

P = ParamSpec("P")
R = TypeVar("R")

_PARTS = ("data", "column_sums", "scale", "zero_point", "values")
"""Attributes of PackedMatrix and QuantizedArray that hold arrays."""
_COMPUTED = ("float32", "float16", "bfloat16")
"""The floats in which all steps of a plan compute."""

STAND_INS: dict[type, Callable[[Any, Callable[..., Any], Any, dict[str, Any]], Any]] = {}
"""Type of a stand-in for arrays -> ``call(stand_in, operation, args, kwargs)``, called in place of the operation.
``operation.__wrapped__`` is the undecorated function."""

_SYMBOLS: set[type] = {list, tuple}
"""The types of symbolic arrays, and of containers that may hold them."""


class Offsets(NamedTuple):
    """The bounds that an operation sets for an input of sequence offsets. Runs check them, since kernels do not."""

    number: int  # the number of the input
    rows: int  # the number of rows of all sequences: the last one ends at this row or before
    shortest: int  # the fewest rows that a sequence may have
    longest: int | None  # The most rows that a sequence may have. None: no limit.

    def check(self, offsets: np.ndarray[Any, Any], rows: int) -> None:
        """Raise ValueError unless `offsets` ascend within `rows` and the sequences have allowed lengths."""
        lengths = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)  # int32 would wrap around
        least, most = (lengths.min(), lengths.max()) if lengths.size else (self.shortest, 0)
        if offsets[0] < 0 or offsets[-1] > rows or least < 0:
            raise ValueError(f"`offsets` must ascend from 0 to at most the {rows} tokens; received {offsets}")
        if least < self.shortest or (self.longest is not None and most > self.longest):
            limit = "" if self.longest is None else f" and at most {self.longest}"
            raise ValueError(
                f"sequences must have at least {self.shortest}{limit} tokens; received some of {least} to {most}"
            )


class NotedCall(NamedTuple):
    """A call of an operation, as :mod:`mp_core.ops.gradients` needs it for the backward pass."""

    function: Callable[..., Any]  # the operation, without its decorators
    # args, kwargs: the arguments of the call. Variables are replaced by the arrays that were read.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any  # the result: a recorded array, or several
    rule: Callable[..., Any] | None = None  # The gradient rule of this call. None: the rule of the operation.


Copies = dict[Any, tuple[Any, Any]]


class Recording:
    """Notes the operations that one thread calls.

    Parameters
    ----------
    on_call : callable
        Called with each layer that is called with recorded arrays, before the layer computes.
    copies : dict
        Copies of writeable constants. Pass an empty dict, or that of another recording of the same call.

    Attributes
    ----------
    tape : Tape
        The steps.
    offsets : list of Offsets
        What a run must check before its first step.
    noted_calls : list of NotedCall or None
        The calls of operations so far, for gradients. None: they are not noted.
    replacements : dict
        Operation -> function that is called in its place while calls are noted. If it returns None, the operation is
        called after all.
    read_variables : dict
        ``id`` -> variable that was read as a constant, for as long as this recording is in :data:`ACTIVE_HOLDERS`.
    assigned : dict
        ``id`` -> (variable, its last value) of assigned variables.
    added_losses : dict
        Layer -> the losses that it added in its latest call, while calls are noted.
    packed_transposes : dict
        Cache of packed constants, unpacked and transposed for gradients; the recordings of one training step share it.
    """

    is_eager = False
    """Whether operations compute their values immediately."""
    is_readable = False
    """Whether values may be read, which is allowed once nothing is noted any more."""

    def __init__(self, on_call: Callable[[Any], None], copies: Copies) -> None:
        self.tape = Tape()
        self.on_call = on_call
        self.offsets: list[Offsets] = []
        self.noted_calls: list[NotedCall] | None = None
        self.replacements: dict[Callable[..., Any], Callable[..., Any]] = {}
        self.read_variables: dict[int, Any] = {}
        self.assigned: dict[int, tuple[Any, Any]] = {}
        self.added_losses: dict[Any, list[Any]] = {}
        self.packed_transposes: dict[Any, tuple[Any, Any]] = {}
        self._overrides: dict[int, Override] = {}
        self._input_count = 0
        self._copies = copies
        self._refused: UnseenError | None = None
        self._is_over = False

    def record(self, function: Callable[[], R]) -> R:
        """Call a function while this records; return its result. A refusal is raised again even if it was caught."""
        try:
            result = run_in_recording(self, function)
        finally:
            self.end()
        if self._refused is not None:
            raise self._refused
        return result

    def end(self) -> None:
        """End the recording: any later use of its arrays raises UnseenError."""
        self._is_over = True
        ACTIVE_HOLDERS.pop(id(self), None)

    def begin_noting(self, replacements: dict[Callable[..., Any], Callable[..., Any]]) -> list[NotedCall]:
        """Start to note calls and to override variables; return the list of noted calls, which grows."""
        ACTIVE_HOLDERS[id(self)] = self
        self.noted_calls, self.replacements = [], replacements
        return self.noted_calls

    def override(self, variable: Any, value: "Recorded", is_trained: bool) -> None:
        """Make a variable read as a recorded array from now on. A trained variable must not be assigned."""
        self._overrides[id(variable)] = Override(value, {}, is_trained)

    def override_of(self, variable: Any) -> Override | None:
        """Return the override of a variable; None if the recording reads it as a constant."""
        found = self._overrides.get(id(variable))
        if found is None:
            self.read_variables[id(variable)] = variable
        return found

    def assign(self, variable: Any, value: Any) -> Any:
        """Note that a variable is assigned at the end of each run, and reads as the new value from now on; return None.

        If the recording read the variable as a constant before, the caller must record again with it as an input.
        """
        override = self._overrides.get(id(variable))
        if id(self) not in ACTIVE_HOLDERS or (override is not None and override.is_trained):
            self.refuse(f"an assignment to variable '{variable.name}'")
        self.assigned[id(variable)] = variable, value
        self._overrides[id(variable)] = Override(value, {}, False)

    def input(self, array: np.ndarray[Any, Any]) -> "Recorded":
        """Return a recorded array for an example input; each run of the plan gets other contents for it."""
        self.tape.add_buffer(array)
        self._input_count += 1
        return Recorded(self, array)

    def note_offsets(self, offsets: np.ndarray[Any, Any], rows: int, shortest: int, longest: int | None) -> None:
        """Note the bounds that an operation sets for offsets, if they are an input; raise if they depend on an input.

        Offsets that depend on no input are constants, which need no check.
        """
        found = self.tape.find(address_of(offsets))
        if found is None:
            return
        number, begin = found
        if number >= self._input_count or begin != 0 or offsets.shape != self.tape.buffers[number].shape:
            self.refuse("a computation or a slice of `offsets`", "Pass all offsets as an input")
        self.offsets.append(Offsets(number, rows, shortest, longest))

    def refuse(self, what: str, advice: str = "Use the functions of mp_core.ops, or compute it before") -> NoReturn:
        """Raise UnseenError for something that a plan cannot see; :meth:`record` raises it again at the end."""
        self._refused = UnseenError(
            f"{what} is not an operation of mp_core: a plan cannot record it, and each run would use its result for "
            f"the example inputs. {advice}"
        )
        raise self._refused

    def check_open(self) -> None:
        """Raise if the recording is over, which means that some code has kept one of its arrays."""
        if self._is_over:
            raise UnseenError("an array was used after its recording had ended: a layer must not keep its inputs")

    def call(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operation with recorded arrays among its arguments, note it, and return its result."""
        self.check_open()
        if self.noted_calls is not None and function in self.replacements:
            instead = self.replacements[function](*args, **kwargs)
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
        if self.noted_calls is not None and any(
            type(x) is Recorded and self.place(x)[0] >= before for x in leaves(result)
        ):
            self.noted_calls.append(NotedCall(function, args, kwargs, result))
        return result

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operation with plain arrays while the tape notes its steps; return its result."""
        return recorded_on(self.tape, function, *args, **kwargs)

    def place(self, x: "Recorded") -> tuple[int, int]:
        """Return (number of its buffer, offset in bytes) of a recorded array."""
        found = self.tape.find(address_of(x.array))
        assert found is not None
        return found

    def compute(self, function: Any, *inputs: Any) -> Any:
        """Compute a function of NumPy by the operation with the same bits; raise UnseenError if there is none."""
        if function not in BIT_EQUAL_FUNCTIONS:
            self.refuse(f"numpy.{function.__name__}")
        operation, *first = BIT_EQUAL_FUNCTIONS[function]
        inputs = tuple(map(_as_read, inputs))
        inputs = tuple(x if type(x) is Recorded or _is_number(x) else np.asarray(x) for x in inputs)
        if function is np.where:
            first, inputs = [self._mask(inputs[0])], inputs[1:]
        dtype = _common_type(function, inputs)
        for name in (dtype.name, *(x.dtype.name for x in inputs if type(x) is Recorded)):
            if "float8" in name:
                self.refuse(f"numpy.{function.__name__} of {name}")
        inputs = tuple(x if type(x) is Recorded else np.asarray(x, _operand_type(x, dtype)) for x in inputs)
        return self.call(operation, (*first, *inputs), {"dtype": dtype})

    def compute_equivalent(self, same: Equivalent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a function of NumPy, or a method of an array, by the equivalent operation.

        Raise UnseenError if NumPy's result would have another dtype, or if the operation lacks one of the arguments.
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

    def _takes(self, same: Equivalent, given: str, is_recorded: bool) -> bool:
        """Return whether the operation's result has the dtype of NumPy's result for an argument of dtype `given`."""
        if given in (*_COMPUTED, "float64"):
            return True
        is_operand = is_recorded or same.is_ufunc
        return not is_operand or (ALLOWED[given].kind if given in ALLOWED else "V") in same.others

    def _mask(self, x: Any) -> Any:
        """Return the condition of :func:`numpy.where` as booleans."""
        if type(x) is Recorded and x.dtype != np.bool_:
            self.refuse(f"numpy.where with a condition of dtype {x.dtype}")
        return x if type(x) is Recorded else np.asarray(x, bool)

    def _plain(self, x: Any, numbers: bool) -> Any:
        """Return an argument as the operation takes it: the array of a recorded one; other arrays become constants.

        `numbers`: whether the operation takes recorded arrays without axes.
        """
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
        """Add a constant to the tape and return it. If it is writeable, use a copy, since it may change later."""
        if _is_writeable(x):
            key = address_of(x), x.shape, x.strides, x.dtype
            original, copy = self._copies.get(key, (x, None))
            if copy is None or copy.tobytes() != x.tobytes():
                copy = x.copy()
            self._copies[key], x = (original, copy), copy  # keep the original too, so that no other gets its address
        self.tape.add_constant(x)
        return x

    def wrapped(self, x: Any, name: str) -> Any:
        """Return a result as a recorded array, or as it is if it is a constant; raise if no step computed it."""
        if not isinstance(x, np.ndarray) or x.size == 0:
            return x
        if self.tape.find(address_of(x)) is not None:
            return Recorded(self, x)
        if self.tape.holds(address_of(x)):
            return x
        self.refuse(f"{name} by NumPy (mp_core has no step for these arguments)")


def _call_recorded(x: Recorded, operation: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return x.recording.call(operation.__wrapped__, args, kwargs)  # type: ignore[attr-defined]


STAND_INS[Recorded] = _call_recorded


def _as_read(x: Any) -> Any:
    """Return the value of a variable as it reads here; other arguments as they are."""
    return x.read_value() if hasattr(x, "read_value") else x


def _is_number(x: Any) -> bool:
    """Return whether `x` is a Python number: it gets the dtype of the other operand. NumPy scalars have their own."""
    return type(x) in (bool, int, float)


def _common_type(function: Any, inputs: tuple[Any, ...]) -> np.dtype[Any]:
    """Return the dtype in which NumPy computes a function of these arrays and Python numbers."""
    samples: Any = [x if _is_number(x) else np.empty(0, x.dtype) for x in inputs]
    if function is np.where:
        samples.insert(0, np.empty(0, bool))
    common = function(*samples)
    if common.dtype == np.bool_:  # of a comparison
        common = functools.reduce(np.add, samples)
    return common.dtype  # type: ignore[no-any-return]


def _operand_type(x: Any, common: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which an operation takes an operand: its own if steps compute in it, else `common`."""
    return x.dtype.newbyteorder("=") if hasattr(x, "dtype") and x.dtype.name in _COMPUTED else common


@functools.lru_cache(maxsize=256)
def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameter names of an operation; () for a compiled function without a signature."""
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:
        return ()


def _path(operation: Callable[..., Any]) -> str:
    """Return the public name of an operation."""
    return f"mp_core.ops.{operation.__name__.lstrip('_')}"


def _out_of(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the argument `out` of a call; None if there is none."""
    if "out" in kwargs:
        return kwargs["out"]
    names = names_of(function)[: len(args)]
    return args[names.index("out")] if "out" in names else None


def _is_writeable(x: Any) -> bool:
    """Return whether an array, or an array that it is a view of, is writeable."""
    while isinstance(x, np.ndarray):
        if x.flags.writeable:
            return True
        x = x.base
    return False


def recordable(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function an operation that recordings note.

    If an argument is a recorded array, its recording calls the operation. If an argument is symbolic, the result is
    symbolic.
    """
    return _dispatching(function, STAND_INS, is_noted=True)


def takes_symbols(function: Callable[P, R]) -> Callable[P, R]:
    """Give a function composed of operations a symbolic result if an argument, or an item of a list, is symbolic."""
    return _dispatching(function, _SYMBOLS, is_noted=False)


def _dispatching(function: Callable[P, R], kinds: Container[type], is_noted: bool) -> Callable[P, R]:
    """Wrap a function so that the first argument whose type is in `kinds` handles the call, if there is one."""

    @functools.wraps(function)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        for x in (*args, *kwargs.values()) if kwargs else args:
            if type(x) in kinds:
                found: Any = x if type(x) in STAND_INS else next((y for y in x if isinstance(y, Symbolic)), None)  # type: ignore[attr-defined]
                if found is not None:
                    return STAND_INS[type(found)](found, operation, args, kwargs)  # type: ignore[no-any-return]
        if is_noted and ACTIVE_HOLDERS and (recording := _overriding_recording(args, kwargs)) is not None:
            return recording.call(function, args, kwargs)  # type: ignore[no-any-return]
        return function(*args, **kwargs)

    operation.dispatches = operation  # type: ignore[attr-defined]
    return operation


def dispatches(function: Callable[..., Any]) -> bool:
    """Return whether a function itself handles symbolic arguments, rather than a function that it wraps."""
    return getattr(function, "dispatches", None) is function


def with_numbers(function: Callable[P, R]) -> Callable[P, R]:
    """Mark an operation as one that takes recorded arrays of shape ()."""
    function.takes_numbers = True  # type: ignore[attr-defined]
    return function


def call_recorded(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation by its recording if an argument is recorded; otherwise return None. For compiled functions."""
    for x in (*args, *kwargs.values()):
        if type(x) is Recorded:
            return x.recording.call(function, args, kwargs)
    if ACTIVE_HOLDERS and (recording := _overriding_recording(args, kwargs)) is not None:
        return recording.call(function, args, kwargs)
    return None


def _overriding_recording(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording | None:
    """Return the current recording if an argument is a variable that is overridden here, else None."""
    recording, here = current_recording(), current_holder()
    if recording is None or here is None:
        return None
    variables = (x for x in leaves((args, kwargs)) if hasattr(x, "read_value"))
    return recording if any(here.override_of(x) is not None for x in variables) else None


def note_offsets(offsets: np.ndarray[Any, Any], rows: int, shortest: int = 0, longest: int | None = None) -> None:
    """Note the bounds that an operation sets for offsets, if something records: see :class:`Offsets`."""
    recording = current_recording()
    if recording is not None:
        recording.note_offsets(offsets, rows, shortest, longest)


def comes_from_input(x: np.ndarray[Any, Any]) -> bool:
    """Return whether a plan is being recorded and `x` depends on one of its inputs, so that runs must read it again."""
    recording = current_recording()
    return recording is not None and not recording.is_eager and recording.tape.find(address_of(x)) is not None


def refuse_recorded(x: np.ndarray[Any, Any], what: str) -> None:
    """Raise UnseenError if NumPy is about to read an array that depends on an input of the recording."""
    recording = current_recording()
    if recording is not None and comes_from_input(x):
        recording.refuse(what)


class Symbolic:
    """Base of arrays of which only shape and dtype are known. Operations and layers called with one return others."""

    def __init_subclass__(cls) -> None:
        _SYMBOLS.add(cls)
        STAND_INS[cls] = cls.computed

    def computed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the symbolic result of a function of :mod:`mp_core.ops` with symbolic arguments."""
        raise NotImplementedError


class SymbolicError(TypeError):
    """The elements of a symbolic array were read."""


def note_call(layer: object, arguments: Any) -> Symbolic | None:
    """Report a layer call to the recording if an argument is recorded; return the first symbolic argument, if any."""
    for x in leaves(arguments):
        if type(x) is Recorded:
            x.recording.on_call(layer)
            return None
        if isinstance(x, Symbolic):
            return x
    return None
