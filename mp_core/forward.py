"""Plans: the forward pass of a layer for inputs of certain shapes, recorded once and run by compiled code."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from mp_core.arena import ARENAS, place
from mp_core.arguments import positive_integer
from mp_core.arrays import Array, asarray, cast, imported
from mp_core.core.changes import count
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, run_passes
from mp_core.dtypes import is_float
from mp_core.layers import Layer
from mp_core.recorded import Recorded, Recording, UnseenError
from mp_core.tree import leaves, map_leaves

__all__ = ["ForwardPlan", "Memory", "Operation", "UnseenError", "compile", "eager", "is_eager"]

_eager: ContextVar[bool] = ContextVar("mp_core.eager", default=False)


@contextmanager
def eager() -> Iterator[None]:
    """Let encoders run their layers call by call, and not by plans, within a ``with`` block: for those who look on."""
    token = _eager.set(True)
    try:
        yield
    finally:
        _eager.reset(token)


def is_eager() -> bool:
    """Whether an :func:`eager` block is entered here."""
    return _eager.get()


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
    """

    name: str
    seconds: float
    arithmetic: str | None
    operations: float
    moved: int


class _Buffer(NamedTuple):
    """What memory a buffer needs: its contents are those of a run, not of the example."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _Pass:
    """What one recording gave."""

    notes: list[Any]
    results: dict[int, _Buffer]  # those in which outputs lie, by number: a run makes new ones
    outputs: Any  # a tree of _Found, and of what is no array
    held: dict[int, _Buffer]  # those that lie in the arena, by number
    lives: dict[int, tuple[int, int]]  # the first and the last step that uses each of them
    buffers: int
    layouts: dict[tuple[int, ...], tuple[Array, int]]  # most rows -> offset of each buffer in the arena, and its bytes
    constants: list[Array]
    state: Any  # of the layer, when it was recorded
    replays: list[Replay]  # that no run uses now


def compile(layer: Callable[..., Any], *inputs: Any, **options: Any) -> "ForwardPlan":
    """Return a plan of the call ``layer(*inputs, **options)``: what it computes, for other inputs of the same shapes.

    The layer is run once, and each operation of mp_core that it calls is noted with the memory that it reads and
    writes. A call of the plan runs the same kernels again on new inputs: by compiled code, without the interpreter
    lock, and with one team of threads for the whole pass. The bits are those of the layer.

    Parameters
    ----------
    layer : Layer or callable
        What its call computes from arrays must be operations of mp_core (:func:`matmul`, :func:`layer_norm`, ...), and
        views: ``reshape``, ``transpose``, slices and NumPy's functions that return views. Python's numbers, ``if`` and
        loops count once, as they are while the example runs.
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


class ForwardPlan:
    """A recorded forward pass; :func:`compile` makes it.

    Calls may come from several threads at once; each has its own memory for the time of the run. After a variable of
    the layer was assigned, or a policy changed, the next call records anew.

    Parameters
    ----------
    layer, inputs, options
        Those of :func:`compile`.
    sizes : tuple of int
        Numbers of rows that differ from run to run: each operation whose result has as many rows as one of these, and
        each output and input, has another number of them in a run by :meth:`run_rows`.
    """

    def __init__(
        self, layer: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any], sizes: tuple[int, ...] = ()
    ) -> None:
        self._layer, self._sizes = layer, sizes
        self._tree: Any = map_leaves(_example, (inputs, options))
        self._examples: list[Array] = [x for x in leaves(self._tree) if isinstance(x, np.ndarray)]
        if not self._examples:
            raise ValueError("`inputs` must have an array: a plan computes from arrays")
        self._names = [name for name, x in self._tree[1].items() if isinstance(x, np.ndarray)]
        self._recording = Lock()
        self._layer(*self._tree[0], **self._tree[1])  # builds the layer, packs its kernels, and raises what is wrong
        self._changes, self._pass = count(), self._record()

    # ---- calls

    def __call__(self, *inputs: Any, **options: Any) -> Any:
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
        given = list(leaves(inputs)) + [options.pop(name) for name in self._names if name in options]
        if options or len(given) != len(self._examples):
            others = f" and {', '.join(options)}" if options else ""
            raise TypeError(f"the plan takes {len(self._examples)} arrays; received {len(given)}{others}")
        arrays = [
            _like(x, example, index) for index, (x, example) in enumerate(zip(given, self._examples, strict=True))
        ]
        return self.run_rows(arrays, ())[0]

    def run_rows(self, arrays: list[Array], rows: tuple[int, ...], timed: bool = False) -> tuple[Any, list[float]]:
        """Return the outputs for arrays with so many rows for each of the sizes; if `timed`, the seconds of each step.

        Arrays are of the types of the examples and C-contiguous.
        """
        if 0 in rows:
            raise ValueError(f"`rows` must be positive; received {rows}")
        plan = self._current()
        offsets, size = self._layout(plan, rows)
        made = {number: np.empty(self._resized(x.shape, rows), x.dtype) for number, x in plan.results.items()}
        seconds: list[float] = []
        arena = ARENAS.take(size)
        try:
            bases = offsets + _address(arena)
            for number, array in (*enumerate(arrays), *made.items()):
                bases[number] = _address(array)
            replay = _taken(plan, self._sizes)
            run = replay.timed if timed else replay.run
            seconds = run(bases, np.array(rows, np.intp), get_num_threads()) or []
            plan.replays.append(replay)
        finally:
            ARENAS.give(arena)
        return map_leaves(lambda part: self._output(part, arrays, made, rows), plan.outputs), seconds

    def run_passes(self, passes: Sequence[tuple[list[Array], tuple[int, ...], Array]]) -> None:
        """Run several passes side by side, each on one of the threads.

        Each is (arrays, rows, out) as in :meth:`run_rows`: the plan has one output, a whole buffer, and `out` is where
        to put it, C-contiguous.
        """
        plan, threads = self._current(), min(get_num_threads(), len(passes))
        (result,) = plan.results
        offsets, size = self._layout(plan, tuple(np.max([rows for _, rows, _ in passes], axis=0).tolist()))
        given = np.array([*range(len(self._examples)), result], np.int32)
        addresses = np.array([[_address(x) for x in (*arrays, out)] for arrays, _, out in passes], np.intp)
        size = -(-size // 64) * 64
        arena = ARENAS.take(threads * size)  # one for all: who waits for the second of two holds the first
        try:
            bases = offsets + (_address(arena) + size * np.arange(threads))[:, np.newaxis]
            replays = [_taken(plan, self._sizes) for _ in range(threads)]
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
        return np.ndarray(self._resized(part.shape, rows), part.dtype, buffer, part.offset, part.strides)

    def _resized(self, shape: tuple[int, ...], rows: tuple[int, ...]) -> tuple[int, ...]:
        if not rows or shape[0] not in self._sizes:
            return shape
        return rows[self._sizes.index(shape[0])], *shape[1:]

    # ---- recording

    def refresh(self) -> None:
        """Record anew, if something has changed on which the plan depends; otherwise do nothing."""
        self._current()

    def _current(self) -> _Pass:
        """Return the recording, made anew if something has changed on which it depends."""
        if self._changes != count():
            with self._recording:
                changes = count()
                if self._changes != changes:
                    if self._pass.state != _state(self._layer):
                        self._layer(*self._tree[0], **self._tree[1])
                        self._pass = self._record()
                    self._changes = changes
        return self._pass

    def _record(self) -> _Pass:
        state, recording = _state(self._layer), Recording()
        tree: Any = map_leaves(lambda x: recording.input(x) if isinstance(x, np.ndarray) else x, self._tree)
        outputs = map_leaves(lambda x: _found(x, recording), self._layer(*tree[0], **tree[1]))
        tape, given = recording.tape, len(self._examples)
        buffers = [_Buffer(x.shape, x.dtype) for x in tape.buffers]
        found = [part.buffer for part in leaves(outputs) if type(part) is _Found]
        results = {number: buffers[number] for number in found if number >= given}
        lives: dict[int, tuple[int, int]] = {}
        for step, note in enumerate(tape.notes):
            for _, number, _ in note.pointers:
                lives[number] = lives.get(number, (step, step))[0], step
        held = {number: buffers[number] for number in lives if number >= given and number not in results}
        return _Pass(tape.notes, results, outputs, held, lives, len(buffers), {}, tape.constants, state, [])

    def _layout(self, plan: _Pass, rows: tuple[int, ...]) -> tuple[Array, int]:
        """Return where each buffer lies in an arena for so many rows or some more, and the size of the arena."""
        most = tuple(1 << (count - 1).bit_length() for count in rows)
        found = plan.layouts.get(most)
        if found is None:
            sizes = [math.prod(self._resized(x.shape, most)) * x.dtype.itemsize for x in plan.held.values()]
            places, size = place(sizes, [plan.lives[number] for number in plan.held])
            offsets = np.zeros(plan.buffers, np.intp)
            offsets[list(plan.held)] = places
            found = plan.layouts[most] = offsets, size
        return found

    # ---- what it costs

    @property
    def memory(self) -> Memory:
        """The bytes that a run needs, and those that all runs share."""
        distinct = {_address(x): x.nbytes for x in self._pass.constants}
        return Memory(self._layout(self._pass, self._sizes)[1], sum(distinct.values()))

    def profile(self, *inputs: Any, repeat: int = 10) -> list[Operation]:
        """Return each operation with its time, the median of some runs of it.

        Parameters
        ----------
        *inputs : array-like
            As in a call. Default: the examples.
        repeat : int
            How many runs.
        """
        given = list(leaves(inputs)) or self._examples
        arrays = [_like(x, y, index) for index, (x, y) in enumerate(zip(given, self._examples, strict=True))]
        runs = [self.run_rows(arrays, self._sizes, timed=True)[1] for _ in range(positive_integer(repeat, "repeat"))]
        return [
            Operation(note.name, float(seconds), ARITHMETICS.get(note.cost["arithmetic"]), note.cost["operations"],
                      note.cost["moved"])
            for note, seconds in zip(self._pass.notes, np.median(runs, axis=0), strict=True)
        ]  # fmt: skip

    def __repr__(self) -> str:
        steps, memory = len(self._pass.notes), self.memory
        return f"<ForwardPlan of {self._layer!r}: {steps} operations, {memory.arena} bytes for each run>"


@dataclass(frozen=True, slots=True)
class _Found:
    """Where an output lies: in which buffer, and from which byte on."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


def _found(x: Any, recording: Recording) -> Any:
    if type(x) is not Recorded:
        return x
    found = recording.tape.find(_address(x._array))
    assert found is not None  # a Recorded is made for memory of the tape only
    buffer, offset = found
    return _Found(buffer, offset, x.shape, x.dtype, x._array.strides)


def _example(x: Any) -> Any:
    """Return an example as a contiguous array that nobody else has; what is no array as it is."""
    if x is None or isinstance(x, bool | int | float | str) or callable(x):
        return x
    array = imported(x, "inputs")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 1:
        return _int32(array)
    return np.array(asarray(array, "inputs"), order="C")


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


def _taken(plan: _Pass, sizes: tuple[int, ...]) -> Replay:
    try:
        return plan.replays.pop()
    except IndexError:
        return Replay(plan.notes, sizes)


def _state(layer: Any) -> Any:
    """Return what the operations of a layer depend on beside its inputs: policies, variables and their versions."""
    if not isinstance(layer, Layer):
        return None
    parts = [part for part in layer.flatten() if isinstance(part, Layer)]
    variables = [variable for part in parts for variable in part.own_variables()]
    forms = [vars(part).get("form") for part in parts]
    variables += [variable for form in forms if form is not None for variable in form.variables.values()]
    policies = [(id(part), part._policy(), part.autocast, id(form)) for part, form in zip(parts, forms, strict=True)]
    return policies, [(id(variable), variable.version) for variable in variables]


def _address(x: Array) -> int:
    address: int = x.__array_interface__["data"][0]
    return address
