"""Plans: the forward pass of a layer for inputs of certain shapes, recorded once and run by compiled code."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from mp_core.arena import ARENAS, place
from mp_core.arrays import Array, asarray, cast, imported
from mp_core.arrays.recorded import Offsets, Recorded, Recording, UnseenError
from mp_core.autocast import AutoCastVariable, scope_dtype
from mp_core.core.changes import Contents, count
from mp_core.core.cpu import get_num_threads
from mp_core.core.recording import Notes
from mp_core.core.replay import Replay, c_plan, run_passes
from mp_core.core.scopes import Scope, called_in, called_under, innermost, still_have, values_of
from mp_core.dtypes import floatx, is_float
from mp_core.layers import Layer
from mp_core.layers.building import handed_training
from mp_core.layers.contents import Parts
from mp_core.sizes import Sizes
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.html import html_table
from mp_core.utilities.system import after_fork
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["ForwardPlan", "Memory", "Operation", "UnseenError", "compile", "eager", "is_eager"]

R = TypeVar("R")
T = TypeVar("T")

_eager: ContextVar[Any] = ContextVar("mp_core.eager", default=False)
_recording: ContextVar[bool] = ContextVar("mp_core.records", default=False)
_SURROUNDINGS = scope_dtype, handed_training  # what layers take over from those who call them
_locks = [RLock()]  # that of recordings: one at a time
after_fork(lambda: _locks.__setitem__(0, RLock()))


def eager() -> Scope[None]:
    """Let encoders run their layers call by call, and not by plans, within a ``with`` block: for those who look on."""
    return Scope(_eager, True)


def is_eager() -> bool:
    """Whether an :func:`eager` block is entered here."""
    return bool(innermost(_eager.get(), False))


class Memory(NamedTuple):
    """Bytes of a plan: `arena` of each run that is under way, `constants` that all runs share with the layer."""

    arena: int
    constants: int


ARITHMETICS = {0: "float32", 1: "bfloat16", 2: "int8"}
"""Number of an arithmetic in the kernels -> the type in which it multiplies."""


class Operation(NamedTuple):
    """One step of a plan.

    Attributes
    ----------
    name : str
    seconds : float
        What it took.
    arithmetic : str or None
        The type in which products multiply: float32 (float16 too), bfloat16 or int8. None: it is no product.
    operations : float
        Multiplications and additions of a product.
    moved : int
        Bytes read and written, weights included.
    tasks : int
        Into how many parts it is cut, which threads take one by one.
    """

    name: str
    seconds: float
    arithmetic: str | None
    operations: float
    moved: int
    tasks: int


class _Buffer(NamedTuple):
    """What memory a buffer needs: its contents are those of a run, not of the example."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    follows: int  # which of the sizes the first axis is, or -1
    more: int = 0  # by how many it is longer than that: 1 for offsets

    def shape_for(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in a run with so many rows for each of the sizes; the example's without any."""
        if not rows or self.follows < 0:
            return self.shape
        return rows[self.follows] + self.more, *self.shape[1:]


@dataclass(frozen=True)
class _Pass:
    """What one recording gave."""

    notes: Notes
    follows: tuple[int, ...]  # which of the sizes each step follows, or -1
    inputs: list[_Buffer]
    offsets: dict[Offsets, int]  # the inputs that say where sequences lie; which size is the number of rows
    results: dict[int, _Buffer]  # those in which outputs lie, by number: a run makes new ones
    outputs: Any  # a tree of _Found, and of what is no array
    held: dict[int, _Buffer]  # those that lie in the arena, by number
    lives: dict[int, tuple[int, int]]  # the first and the last step that uses each of them
    buffers: int
    layouts: dict[tuple[int, ...], tuple[Array, int]]  # most rows -> offset of each buffer in the arena, and its bytes
    constants: list[Array]
    state: "_State"  # of the layer, when it was recorded
    surroundings: tuple[Any, ...]  # the values of _SURROUNDINGS at that time
    replays: list[Replay]  # that no run uses now


def compile(layer: Callable[..., R], *inputs: Any, **options: Any) -> "ForwardPlan[R]":
    """Return a plan of the call ``layer(*inputs, **options)``: what it computes, for other inputs of the same shapes.

    The layer is run twice: as it is, so that it is built and its kernels are packed, and once more to note each
    operation of mp_core that it calls, with the memory that this reads and writes. A call of the plan runs the same
    kernels again on new inputs: by compiled code, without the interpreter lock, and with one team of threads for the
    whole pass. The bits are those of the layer.

    Parameters
    ----------
    layer : Layer or callable
        What its call computes from arrays must be operations of mp_core (:func:`matmul`, :func:`layer_norm`, ...),
        arithmetic (``x * scale + 1``, ``np.maximum``), and views: ``reshape``, ``transpose``, slices and NumPy's
        functions that return views. Python's numbers, ``if`` and loops count once, as they are while the example runs.
    *inputs : array-like
        Examples. Integers other than 8-bit ones are held as int32.
    **options
        Keyword arguments of the call. Arrays are examples too; all else stays as it is.

    Returns
    -------
    ForwardPlan
        ``plan(*inputs)``, and keyword arguments for the arrays among `options`.

    Raises
    ------
    UnseenError
        The layer computes something by NumPy, or decides by elements of an array; the message names it.
    TypeError, ValueError
        What the layer raises for these inputs, or there is no array among them.

    Examples
    --------
    >>> from mp_core.layers import Dense, Sequential
    >>> model = Sequential([Dense(4, activation="relu"), Dense(2)])
    >>> x = np.ones((3, 5), np.float32)
    >>> plan = compile(model, x)
    >>> np.array_equal(plan(2 * x), model(2 * x))
    True
    """
    return ForwardPlan(layer, inputs, options)


class ForwardPlan(Generic[R]):
    """A recorded forward pass; :func:`compile` makes it.

    Calls may come from several threads at once; each has its own memory for the time of the run. After a variable of
    the layer was assigned, or a policy changed, the next call records anew.

    Parameters
    ----------
    layer, inputs, options
        Those of :func:`compile`.
    sizes : tuple of int
        Numbers of rows that differ from run to run, as they are in `inputs`: :meth:`run_rows` takes others.
    others : tuple of (inputs, sizes)
        A second example, whose sizes are all different. What differs between the recordings of the two follows the
        sizes, so that a length which happens to equal a size is not taken for it.
    """

    def __init__(
        self,
        layer: Callable[..., R],
        inputs: tuple[Any, ...],
        options: dict[str, Any],
        sizes: tuple[int, ...] = (),
        others: tuple[tuple[Any, ...], tuple[int, ...]] = ((), ()),
    ) -> None:
        self._layer, self._sizes = layer, Sizes(sizes, others[1])
        self._tree: Any = map_leaves(_example, (inputs, options))
        self._other_tree: Any = map_leaves(_example, (others[0], options))
        self._last: tuple[object, _Pass | None] = None, None  # the last change that the recording has seen, and it
        if not self._examples:
            raise ValueError("`inputs` must have an array: a plan computes from arrays")
        self.refresh()

    @property
    def _examples(self) -> list[Array]:
        return [x for x in leaves(self._tree) if isinstance(x, np.ndarray)]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": (None, None)}  # a copy records anew, at its first call

    # ---- calls

    def __call__(self, *inputs: Any, **options: Any) -> R:
        """Return what the layer returns for arrays of the shapes and types of the examples.

        Raises
        ------
        TypeError
            There are more or fewer arrays than examples, or one has another type.
        ValueError
            An array has another shape.
        IndexError
            An index is outside of the table in which it is looked up.
        """
        outputs: R = self.run_rows(self._given(inputs, options), self._sizes.first)
        return outputs

    def _given(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> list[Array]:
        """Return the arrays of a call in the order of the examples, as the steps read them."""
        wanted = {name: x for name, x in self._tree[1].items() if name in options or _has_array(x)}
        pairs = list(_pairs((self._tree[0], wanted), (inputs, options)))
        return [_like(x, example, index) for index, (example, x) in enumerate(pairs)]

    def run_rows(self, arrays: list[Array], rows: tuple[int, ...]) -> Any:
        """Return the outputs for arrays with so many rows for each of the sizes.

        Arrays are of the types of the examples and C-contiguous.

        Raises
        ------
        ValueError
            An array has another shape than these rows say, or another type, or is not C-contiguous; or offsets lie
            outside of the rows, do not ascend, or are those of a longer or shorter sequence than the layer takes.
        """
        return self._run(arrays, rows, lambda replay, *memory: replay.run(*memory, get_num_threads()))[0]

    def _run(self, arrays: list[Array], rows: tuple[int, ...], run: Callable[..., T]) -> tuple[Any, T]:
        """Return the outputs, and what `run` returns for a replay, the addresses of its buffers and its rows."""
        plan = self._current()
        self._check(plan, arrays, rows)
        offsets, size = self._layout(plan, rows)
        made = {number: np.empty(x.shape_for(rows), x.dtype) for number, x in plan.results.items()}
        arena = ARENAS.take(size)
        try:
            bases = offsets + arena.address
            for number, array in (*enumerate(arrays), *made.items()):
                bases[number] = _address(array)
            replay = _taken(plan)
            found = run(replay, bases, np.array(rows, np.intp))
            plan.replays.append(replay)
        finally:
            ARENAS.give(arena)
        return map_leaves(lambda part: self._output(part, arrays, made, rows), plan.outputs), found

    def run_passes(self, passes: Sequence[tuple[list[Array], tuple[int, ...], Array]]) -> None:
        """Run several passes side by side, each on one of the threads.

        Each is (arrays, rows, out) as in :meth:`run_rows`: the plan has one output, a whole buffer, and `out` is where
        to put it, C-contiguous.

        Raises
        ------
        ValueError
            As for :meth:`run_rows`, or an `out` does not fit.
        """
        plan, threads = self._current(), min(get_num_threads(), len(passes))
        (result,) = plan.results
        for arrays, rows, out in passes:
            self._check(plan, arrays, rows)
            _check_like(plan.results[result], out, rows, "out")
        offsets, size = self._layout(plan, tuple(np.max([rows for _, rows, _ in passes], axis=0).tolist()))
        given = np.array([*range(len(self._examples)), result], np.int32)
        addresses = np.array([[_address(x) for x in (*arrays, out)] for arrays, _, out in passes], np.intp)
        size = -(-size // 64) * 64
        arena = ARENAS.take(threads * size)  # one for all: who waits for the second of two holds the first
        try:
            bases = offsets + (arena.address + size * np.arange(threads))[:, np.newaxis]
            replays = [_taken(plan) for _ in range(threads)]
            run_passes(replays, bases, given, addresses, np.array([rows for _, rows, _ in passes], np.intp))
            plan.replays.extend(replays)
        finally:
            ARENAS.give(arena)

    def _output(self, part: Any, arrays: list[Array], made: dict[int, Array], rows: tuple[int, ...]) -> Any:
        if type(part) is not _Found:
            return part
        buffer = made.get(part.buffer)
        if buffer is None:  # an input, or a view of one
            buffer = arrays[part.buffer].copy()
        return np.ndarray(part.view.shape_for(rows), part.view.dtype, buffer, part.offset, part.strides)

    def _check(self, plan: _Pass, arrays: list[Array], rows: tuple[int, ...]) -> None:
        """Raise unless arrays are those of a run with so many rows: steps read and write by these numbers alone."""
        if not rows and not self._sizes:  # of the shapes of the examples, by _like
            return
        self._sizes.check(rows)
        for index, (array, expected) in enumerate(zip(arrays, plan.inputs, strict=True)):
            _check_like(expected, array, rows, f"array {index} of the plan")
        for offsets, size in plan.offsets.items():
            offsets.check(arrays[offsets.number], rows[size] if size >= 0 else offsets.rows)

    # ---- recording

    def refresh(self) -> None:
        """Record anew, if something has changed on which the plan depends; otherwise do nothing."""
        self._current()

    def _current(self) -> _Pass:
        """Return the recording, made anew if something has changed on which it depends."""
        changes, found = self._last
        if (
            found is not None
            and changes is count()
            and still_have(_SURROUNDINGS, found.surroundings)
            and not found.state.moved()
        ):
            return found
        if _recording.get():
            raise UnseenError("a plan was called by a layer that is recorded: call a layer instead")
        return called_under(_locks[0], self._renewed)

    def _renewed(self) -> _Pass:
        """Return the recording after a change, made anew if it depends on what has changed."""
        changes, found = count(), self._last[1]
        if found is None or not still_have(_SURROUNDINGS, found.surroundings) or found.state.changed():
            changes, found = called_in(_recording, True, self._recorded)
        self._last = changes, found
        return found

    def _recorded(self) -> tuple[object, _Pass]:
        """Return a new recording, and the last change before it."""
        self._layer(*self._tree[0], **self._tree[1])  # builds the layer, packs its kernels
        return count(), self._record()

    def _record(self) -> _Pass:
        state = _State(self._layer)
        copies: dict[Any, Any] = {}
        recording, outputs = self._noted(self._tree, state, copies)
        other, other_outputs = self._noted(self._other_tree, state, copies) if self._sizes else (recording, outputs)
        tape, given, of = recording.tape, len(self._examples), self._sizes.of
        self._sizes.check_alike([note.name for note in tape.notes], [note.name for note in other.tape.notes])
        follows = tuple(
            of(note.name, note.cost["rows"], twin.cost["rows"])
            for note, twin in zip(tape.notes, other.tape.notes, strict=True)
        )
        buffers = [
            _Buffer(x.shape, x.dtype, *self._sizes.of_shapes(x.shape, y.shape, number < given))
            for number, (x, y) in enumerate(zip(tape.buffers, other.tape.buffers, strict=True))
        ]
        for note, size in zip(tape.notes, follows, strict=True):
            self._sizes.check_step(note.name, size, [buffers[number].follows for number in note.buffers])
        twins = iter(leaves(other_outputs))
        outputs = map_leaves(lambda part: self._output_of(part, next(twins)), outputs)
        found = [part.buffer for part in leaves(outputs) if type(part) is _Found]
        results = {number: buffers[number] for number in found if number >= given}
        lives: dict[int, tuple[int, int]] = {}
        for step, note in enumerate(tape.notes):
            for number in note.buffers:
                lives[number] = lives.get(number, (step, step))[0], step
        held = {number: buffers[number] for number in lives if number >= given and number not in results}
        offsets = {
            found: of("offsets", found.rows, twin.rows)
            for found, twin in zip(recording.offsets, other.offsets, strict=True)
        }
        return _Pass(
            tape.notes, follows, buffers[:given], offsets, results, outputs, held, lives, len(buffers), {},
            tape.constants, state, values_of(_SURROUNDINGS), [],
        )  # fmt: skip

    def _noted(self, tree: Any, state: "_State", copies: dict[Any, Any]) -> tuple[Recording, Any]:
        """Return the recording of a call with these arguments, and its outputs: arrays by where they lie."""
        recording = Recording(bool(self._sizes), state.add, copies)
        args, kwargs = map_leaves(lambda x: recording.input(x) if isinstance(x, np.ndarray) else x, tree)
        outputs = recording.of(lambda: map_leaves(lambda x: _found(x, recording), self._layer(*args, **kwargs)))
        recording.tape.forget()
        return recording, outputs

    def _output_of(self, part: Any, twin: Any) -> Any:
        """Return where an output lies, by its places for the two examples; what is no such place as it is."""
        if type(part) is not _Found:
            return part
        follows, _ = self._sizes.of_shapes(part.view.shape, twin.view.shape)
        return replace(part, view=part.view._replace(follows=follows))

    def _layout(self, plan: _Pass, rows: tuple[int, ...]) -> tuple[Array, int]:
        """Return where each buffer lies in an arena for so many rows or some more, and the size of the arena."""
        most = tuple(1 << (count - 1).bit_length() for count in rows)
        found = plan.layouts.get(most)
        if found is None:
            sizes = [math.prod(x.shape_for(most)) * x.dtype.itemsize for x in plan.held.values()]
            places, size = place(sizes, [plan.lives[number] for number in plan.held])
            offsets = np.zeros(plan.buffers, np.intp)
            offsets[list(plan.held)] = places
            found = plan.layouts[most] = offsets, size
        return found

    # ---- for C

    def c_plan(self) -> object:
        """Return the plan as it is now as a PyCapsule "mp_core.plan", for ``mp_core_run_plan`` of ``mp_core.h``.

        It keeps the weights and the policy with which it was recorded, and has its own memory.
        Arrays that C gives it are C-contiguous; integers of the inputs are int32.

        Returns
        -------
        object
            A capsule, which one thread at a time may run, for as long as it lives.

        Raises
        ------
        ValueError
            An output is an input, an array that no operation of mp_core computes, or no whole C-contiguous array of its
            own (a view of one, or the same one twice).

        Examples
        --------
        >>> from mp_core.layers import Dense
        >>> plan = compile(Dense(2), np.ones((3, 5), np.float32))
        >>> type(plan.c_plan()).__name__
        'PyCapsule'
        """
        if self._sizes:
            raise ValueError(f"a plan for all sizes, not only {self._sizes.first}: C cannot be given it")
        plan = self._current()
        outputs = [part for part in leaves(plan.outputs) if isinstance(part, _Found | np.ndarray)]
        numbers = [part.buffer for part in outputs if type(part) is _Found]
        for part in outputs:
            if type(part) is not _Found:
                reason = "is the same for all inputs"
            elif numbers.count(part.buffer) > 1:
                reason = "is returned twice"
            elif not _is_whole(part, plan.results.get(part.buffer)):
                reason = "is a view of another array"
            else:
                continue
            raise ValueError(f"an output of shape {part.shape} {reason}: C cannot be given it")
        offsets, size = self._layout(plan, ())
        memory = np.empty(size + 64, np.uint8)
        bases = offsets + (_address(memory) + 63) // 64 * 64
        sizes = np.array([math.prod(x.shape) * x.dtype.itemsize for x in (*self._examples, *outputs)], np.intp)
        replay = Replay(plan.notes, plan.follows)
        return c_plan(replay, bases, np.array(numbers, np.int32), sizes, (memory, plan.constants))

    # ---- what it costs

    @property
    def memory(self) -> Memory:
        """The bytes that a run needs, and those that all runs share."""
        plan = self._current()
        distinct = {_address(x): x.nbytes for x in plan.constants}
        return Memory(self._layout(plan, self._sizes.first)[1], sum(distinct.values()))

    def profile(self, *inputs: Any, repeat: int = 10, cut: int | None = None) -> list[Operation]:
        """Return each operation with its time, the median of some runs of it.

        Parameters
        ----------
        *inputs : array-like
            As in a call. Default: the examples.
        repeat : int
            How many runs.
        cut : int, optional
            For how many threads operations are cut into tasks, which a single thread then runs: what they would take
            together on a machine with more cores. Default: as many threads as run them.
        """
        arrays = self._given(inputs, {}) if inputs else self._examples
        repeat = positive_integer(repeat, "repeat")
        threads = (get_num_threads(),) * 2 if cut is None else (positive_integer(cut, "cut"), 1)
        taken = [self._run(arrays, self._sizes.first, lambda replay, *memory: replay.timed(*memory, *threads))[1]
                 for _ in range(repeat)]  # fmt: skip
        seconds = np.median([[each for each, _ in run] for run in taken], axis=0)
        return [
            Operation(note.name, float(time), ARITHMETICS.get(note.cost["arithmetic"]), note.cost["operations"],
                      note.cost["moved"], tasks)
            for note, time, (_, tasks) in zip(self._current().notes, seconds, taken[0], strict=True)
        ]  # fmt: skip

    def __repr__(self) -> str:
        steps, memory = len(self._current().notes), self.memory
        return f"<ForwardPlan of {self._layer!r}: {steps} operations, {memory.arena} bytes for each run>"

    def _repr_html_(self) -> str:
        rows = [["step", "operation", "multiplies in", "million operations", "kB moved"]]
        for step, note in enumerate(self._current().notes, 1):
            arithmetic = ARITHMETICS.get(note.cost["arithmetic"]) or ""
            figures = [f"{note.cost['operations'] / 1e6:.3f}", f"{note.cost['moved'] / 1e3:.1f}"]
            rows.append([str(step), note.name, arithmetic, *figures])
        return html_table(rows, repr(self), left=(1, 2))


@dataclass(frozen=True, slots=True)
class _Found:
    """Where an output lies: in which buffer, and from which byte on."""

    buffer: int
    offset: int
    strides: tuple[int, ...]
    view: _Buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the example."""
        return self.view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.view.dtype


def _is_whole(part: _Found, buffer: _Buffer | None) -> bool:
    """Whether an output is all of a buffer that only a run writes, C-contiguous."""
    whole = np.empty(part.shape, part.dtype)
    return (
        buffer is not None
        and (part.offset, part.strides) == (0, whole.strides)
        and math.prod(buffer.shape) * buffer.dtype.itemsize == whole.nbytes
    )


def _found(x: Any, recording: Recording) -> Any:
    """Return where an output lies; what is no array is an output as it is."""
    if type(x) is not Recorded:
        if isinstance(x, np.ndarray | np.generic | bool | int | float | complex | str | None):
            return x
        recording.refuse(f"a result of type {type(x).__name__}")
    if x.size == 0:
        return x._array.copy()
    found = recording.tape.find(_address(x._array))
    if found is None or x._recording is not recording:
        recording.refuse("an array of another recording")
    return _Found(*found, x._array.strides, _Buffer(x.shape, x.dtype, -1))


def _check_like(expected: _Buffer, array: Array, rows: tuple[int, ...], what: str) -> None:
    """Raise unless an array has the shape and type that steps read or write in a run with so many rows."""
    shape = expected.shape_for(rows)
    if array.shape != shape or array.dtype != expected.dtype or not array.flags.carray:
        raise ValueError(
            f"{what} must be a C-contiguous array of shape {shape} and type {expected.dtype} for {rows} rows; received "
            f"shape {array.shape}, type {array.dtype} and strides {array.strides}"
        )


def _example(x: Any) -> Any:
    """Return an example as a contiguous array that nobody else has; what is no array as it is."""
    if not isinstance(x, np.ndarray) and (x is None or isinstance(x, bool | int | float | str) or callable(x)):
        return x
    array = imported(x, "inputs")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        return _int32(array)
    return np.array(asarray(array, "inputs"), order="C")


def _has_array(tree: Any) -> bool:
    return any(isinstance(x, np.ndarray) for x in leaves(tree))


def _pairs(example: Any, given: Any) -> Iterator[tuple[Array, Any]]:
    """Yield each array of a tree of examples with what is given in its place; raise TypeError for another tree."""
    if isinstance(example, dict):
        if not isinstance(given, dict) or example.keys() != given.keys():
            names = ", ".join(map(str, given)) if isinstance(given, dict) else repr(given)
            raise TypeError(f"the plan was made for arguments named {', '.join(map(str, example))}; received {names}")
        for key, part in example.items():
            yield from _pairs(part, given[key])
    elif isinstance(example, tuple | list):
        if not isinstance(given, tuple | list) or len(example) != len(given):
            found = len(given) if isinstance(given, tuple | list) else repr(given)
            raise TypeError(f"the plan takes {len(example)} arguments; received {found}")
        for part, other in zip(example, given, strict=True):
            yield from _pairs(part, other)
    elif isinstance(example, np.ndarray):
        yield example, given
    elif given is not example and given != example:
        raise TypeError(f"the plan was made for the argument {example!r}; received {given!r}")


def _int32(x: Array) -> Array:
    if x.size and not -(2**31) <= int(x.min()) <= int(x.max()) < 2**31:
        raise ValueError(f"integers of a plan must fit int32; received {x.min()} to {x.max()}")
    return np.array(x, np.int32, order="C")


def _like(x: Any, example: Array, index: int) -> Array:
    """Return an array as the steps read it, which were recorded for an example like it."""
    array = x if type(x) is np.ndarray else imported(x, f"inputs[{index}]")
    if array.shape != example.shape:
        raise ValueError(f"array {index} of the plan must have shape {example.shape}; received {array.shape}")
    if array.dtype is not example.dtype:
        if example.dtype == np.int32 and array.dtype.kind in "iu":
            return _int32(array)
        if not (is_float(example.dtype) and is_float(asarray(array).dtype)):
            raise TypeError(f"array {index} of the plan must be of {example.dtype}; received {array.dtype}")
        array = cast(array, example.dtype)
    return array if array.flags.carray else np.require(array, requirements=("C", "A"))


def _taken(plan: _Pass) -> Replay:
    try:
        return plan.replays.pop()
    except IndexError:
        return Replay(plan.notes, plan.follows)


class _State:
    """What a recording depends on beside its inputs: layers, and what they consist of."""

    def __init__(self, layer: Any) -> None:
        self._known = isinstance(layer, Layer)
        self._floatx = floatx()
        self._layers: dict[int, Any] = {}
        self._attributes, self._containers = Contents(), Contents()
        self._variables: list[tuple[AutoCastVariable, object]] = []
        self._arrays: list[tuple[Array, Array]] = []  # attributes that are written in place when they are set: x *= 2
        if self._known:
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Watch a layer, and those below it, from now on: it computes afterwards."""
        layers = [part for part in layer.flatten() if id(part) not in self._layers]
        self._layers |= {id(part): part for part in layers}
        parts = Parts(layers)
        self._known &= parts.is_known
        self._attributes.add(parts.attributes)
        self._containers.add(parts.containers)
        self._variables += [(variable, variable.stamp) for variable in parts.variables]
        self._arrays += [(x, x.copy()) for x in parts.arrays if x.flags.writeable]

    def moved(self) -> bool:
        """Whether a list, a dictionary or an object of the user has changed, which nobody tells."""
        return not self._containers.same()

    def changed(self) -> bool:
        """Whether the recording must be made anew. What others than mp_core's layers depend on, nobody knows."""
        return (
            not self._known
            or self._floatx != floatx()
            or self.moved()
            or not self._attributes.same()
            or any(variable.stamp is not stamp for variable, stamp in self._variables)
            or not all(np.array_equal(now, before, equal_nan=now.dtype.kind == "f") for now, before in self._arrays)
        )


def _address(x: Array) -> int:
    address: int = x.__array_interface__["data"][0]
    return address
