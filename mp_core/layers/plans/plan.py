"""Plans: the forward pass of a layer for inputs of certain shapes, recorded once and run by compiled code."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from threading import RLock
from typing import Any, Generic, TypeVar

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.holding import tried
from mp_core.arrays.recorded import UnseenError
from mp_core.arrays.recorded_array import address_of
from mp_core.core.changes import count
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, c_plan, run_passes, set_addresses
from mp_core.core.scopes import called_in, called_under, still_have
from mp_core.layers.plans.arena import ARENAS
from mp_core.layers.plans.costs import ARITHMETICS, Memory, Operation
from mp_core.layers.plans.examples import as_example, has_array, like, pairs
from mp_core.layers.plans.recorded_call import Found, RecordedCall, record
from mp_core.layers.plans.sizes import Sizes
from mp_core.layers.plans.state import SURROUNDINGS, State
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.html import html_table
from mp_core.utilities.system import lock_for_forks
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["ForwardPlan", "compile", "plan_key"]

R = TypeVar("R")
T = TypeVar("T")

_recording: ContextVar[bool] = ContextVar("mp_core.records", default=False)
_locks = lock_for_forks(RLock)  # that of recordings: one at a time


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

    Examples
    --------
    >>> import mp_core as mp
    >>> x = np.ones((4, 3), np.float32)
    >>> layer = mp.layers.Dense(2)
    >>> plan = mp.compile(layer, x)
    >>> np.array_equal(plan(-x), layer(-x))
    True
    >>> layer.set_weights([np.zeros((3, 2)), np.ones(2)])  # the next call records anew
    >>> plan(x).tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
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
        self._tree: Any = self._whole(map_leaves(as_example, inputs)), map_leaves(as_example, options)
        self._other_tree: Any = map_leaves(as_example, (others[0], options))
        # The last change that the recording has seen, and the recording.
        self._last: tuple[object, RecordedCall | None] = None, None
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
        wanted = {name: x for name, x in self._tree[1].items() if name in options or has_array(x)}
        found = list(pairs((self._tree[0], wanted), (self._whole(inputs), options)))
        return [like(x, example, index) for index, (example, x) in enumerate(found)]

    def _whole(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a call; floats become integers where a model reads integers, as in its own calls."""
        whole = getattr(self._layer, "whole", None)
        return inputs if whole is None or len(inputs) != 1 else (whole(inputs[0]),)

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
        offsets, size = plan.layout(rows)
        made = {number: np.empty(x.shape_for(rows), x.dtype) for number, x in plan.results.items()}
        arena = ARENAS.take(size)
        try:
            bases = offsets + arena.address
            set_addresses(bases, arrays, made)
            replay = plan.replay()
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
            plan.results[result].check(out, rows, "out")
        offsets, size = plan.layout(tuple(np.max([rows for _, rows, _ in passes], axis=0).tolist()))
        given = np.array([*range(len(self._examples)), result], np.int32)
        addresses = np.array([[address_of(x) for x in (*arrays, out)] for arrays, _, out in passes], np.intp)
        size = -(-size // 64) * 64
        arena = ARENAS.take(threads * size)  # one for all: who waits for the second of two holds the first
        try:
            bases = offsets + (arena.address + size * np.arange(threads))[:, np.newaxis]
            replays = [plan.replay() for _ in range(threads)]
            run_passes(replays, bases, given, addresses, np.array([rows for _, rows, _ in passes], np.intp))
            plan.replays.extend(replays)
        finally:
            ARENAS.give(arena)

    def _output(self, part: Any, arrays: list[Array], made: dict[int, Array], rows: tuple[int, ...]) -> Any:
        if type(part) is not Found:
            return part
        buffer = made.get(part.buffer)
        if buffer is None:  # an input, or a view of one
            buffer = arrays[part.buffer].copy()
        if part.is_whole:
            return buffer
        return np.ndarray(part.view.shape_for(rows), part.view.dtype, buffer, part.offset, part.strides)

    def _check(self, plan: RecordedCall, arrays: list[Array], rows: tuple[int, ...]) -> None:
        """Raise unless arrays are those of a run with so many rows: steps read and write by these numbers alone."""
        if rows or self._sizes:  # otherwise arrays have the shapes of the examples, by _given
            self._sizes.check(rows)
            for index, (array, expected) in enumerate(zip(arrays, plan.inputs, strict=True)):
                expected.check(array, rows, f"array {index} of the plan")
        for offsets, size in plan.offsets.items():
            offsets.check(arrays[offsets.number], rows[size] if size >= 0 else offsets.rows)

    # ---- recording

    def refresh(self) -> None:
        """Record anew, if something has changed on which the plan depends; otherwise do nothing."""
        self._current()

    def _current(self) -> RecordedCall:
        """Return the recording, made anew if something has changed on which it depends."""
        changes, found = self._last
        if (
            found is not None
            and changes is count()
            and still_have(SURROUNDINGS, found.surroundings)
            and not found.state.moved()
        ):
            return found
        if _recording.get():
            raise UnseenError("a plan was called by a layer that is recorded: call a layer instead")
        return called_under(_locks[0], self._renewed)

    def _renewed(self) -> RecordedCall:
        """Return the recording after a change, made anew if it depends on what has changed."""
        changes, found = count(), self._last[1]
        if found is None or not still_have(SURROUNDINGS, found.surroundings) or found.state.changed():
            changes, found = called_in(_recording, True, self._recorded)
        self._last = changes, found
        return found

    def _recorded(self) -> tuple[object, RecordedCall]:
        """Return a new recording, and the last change before it."""
        if not self._examples:
            raise ValueError("`inputs` must have an array: a plan computes from arrays")
        tried(self._layer, *self._tree[0], **self._tree[1])  # builds the layer, packs its kernels
        return count(), record(self._layer, self._tree, self._other_tree, self._sizes, State(self._layer))

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
        outputs = [part for part in leaves(plan.outputs) if isinstance(part, Found | np.ndarray)]
        numbers = [part.buffer for part in outputs if type(part) is Found]
        for part in outputs:
            if type(part) is not Found:
                reason = "is the same for all inputs"
            elif numbers.count(part.buffer) > 1:
                reason = "is returned twice"
            elif not part.is_all_of(plan.results.get(part.buffer)):
                reason = "is a view of another array"
            else:
                continue
            raise ValueError(f"an output of shape {part.shape} {reason}: C cannot be given it")
        offsets, size = plan.layout(())
        memory = np.empty(size + 64, np.uint8)
        bases = offsets + (address_of(memory) + 63) // 64 * 64
        sizes = np.array([math.prod(x.shape) * x.dtype.itemsize for x in (*self._examples, *outputs)], np.intp)
        replay = Replay(plan.notes, plan.follows)
        return c_plan(replay, bases, np.array(numbers, np.int32), sizes, (memory, plan.constants))

    # ---- what it costs

    @property
    def memory(self) -> Memory:
        """The bytes that a run needs, and those that all runs share."""
        plan = self._current()
        distinct = {address_of(x): x.nbytes for x in plan.constants}
        return Memory(plan.layout(self._sizes.first)[1], sum(distinct.values()))

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

    @property
    def _recorded_function(self) -> Any:
        return self._layer

    def __repr__(self) -> str:
        steps, memory = len(self._current().notes), self.memory
        name, function = type(self).__name__, self._recorded_function
        return f"<{name} of {function!r}: {steps} operations, {memory.arena} bytes for each run>"

    def _repr_html_(self) -> str:
        rows = [["step", "operation", "multiplies in", "million operations", "kB moved"]]
        for step, note in enumerate(self._current().notes, 1):
            arithmetic = ARITHMETICS.get(note.cost["arithmetic"]) or ""
            figures = [f"{note.cost['operations'] / 1e6:.3f}", f"{note.cost['moved'] / 1e3:.1f}"]
            rows.append([str(step), note.name, arithmetic, *figures])
        return html_table(rows, repr(self), left=(1, 2))


def plan_key(inputs: Any, options: dict[str, Any]) -> Any:
    """Return the key of a plan: shapes and types of arrays, how they are arranged, and all other arguments."""
    return _key(inputs), _key(options)


def _key(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype
    if isinstance(x, dict):
        return type(x), tuple((name, _key(value)) for name, value in x.items())
    return (type(x), *map(_key, x)) if isinstance(x, list | tuple) else (type(x), x)
