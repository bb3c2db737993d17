"""Forward plans: :func:`compile` records a call of a layer, and :class:`ForwardPlan` runs it on other inputs."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from threading import RLock
from typing import Any, Generic, TypeVar

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.holding import run_trial
from mp_core.arrays.recorded import UnseenError
from mp_core.arrays.recorded_array import address_of
from mp_core.core.changes import count
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, c_plan, run_passes, set_addresses
from mp_core.core.scopes import called_in, called_under, still_have
from mp_core.layers.plans.arena import ARENAS
from mp_core.layers.plans.costs import ARITHMETICS, Memory, Operation
from mp_core.layers.plans.examples import as_example, has_array, matching, pairs
from mp_core.layers.plans.recorded_call import OutputPlace, RecordedCall, record
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
_locks = lock_for_forks(RLock)  # its only lock lets one thread at a time record


def compile(layer: Callable[..., R], *inputs: Any, **options: Any) -> "ForwardPlan[R]":
    """Record the call ``layer(*inputs, **options)`` and return a plan that runs it on other inputs of the same shapes.

    The layer is called twice: first to build it and pack its kernels, then to note each operation of mp_core that it
    calls, and the memory that the operation reads and writes. A call of the plan runs the same kernels on new inputs,
    in compiled code, without the interpreter lock, and with one team of threads for the whole pass. The bits are those
    of the layer.

    Parameters
    ----------
    layer : Layer or callable
        It may compute from arrays by operations of mp_core (:func:`matmul`, :func:`layer_norm`, ...), arithmetic
        (``x * scale + 1``, ``np.maximum``) and views (``reshape``, ``transpose``, slices, and NumPy functions that
        return views). Python numbers, ``if`` and loops are evaluated once, with the example inputs.
    *inputs : array-like
        Examples. Integers keep their type: runs take integers of other types if the values fit.
    **options
        Keyword arguments of the call. Arrays are examples too; other values are constants of the plan.

    Returns
    -------
    ForwardPlan
        Call it as ``plan(*inputs)``, with keyword arguments for the arrays among `options`.

    Raises
    ------
    UnseenError
        The layer computes something with NumPy, or makes a decision by elements of an array; the message names it.

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
    """A recorded forward pass; create it with :func:`compile`.

    Several threads may call it at once; each run has its own memory. If a variable of the layer has been assigned or a
    policy has changed, the next call records again.

    Parameters
    ----------
    layer, inputs, options
        As in :func:`compile`.
    sizes : tuple of int
        The numbers of rows in `inputs` that may differ between runs; :meth:`run_rows` takes others.
    others : tuple of (inputs, sizes)
        A second example with other sizes. A length depends on a size if it differs between both recordings; so a length
        that equals a size by chance is not mistaken for it.

    Examples
    --------
    >>> import mp_core as mp
    >>> x = np.ones((4, 3), np.float32)
    >>> layer = mp.layers.Dense(2)
    >>> plan = mp.compile(layer, x)
    >>> np.array_equal(plan(-x), layer(-x))
    True
    >>> layer.set_weights([np.zeros((3, 2)), np.ones(2)])  # the next call records again
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
        self._tree: Any = self._with_integers(map_leaves(as_example, inputs)), map_leaves(as_example, options)
        self._other_tree: Any = map_leaves(as_example, (others[0], options))
        self._last: tuple[object, RecordedCall | None] = None, None  # (count() when it was checked last, the recording)
        self.refresh()

    @property
    def _examples(self) -> list[Array]:
        return [x for x in leaves(self._tree) if isinstance(x, np.ndarray)]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_last": (None, None)}  # a copy records again at its first call

    # ---- calls

    def __call__(self, *inputs: Any, **options: Any) -> R:
        """Return the layer's result for arrays of the shapes and types of the examples."""
        outputs: R = self.run_rows(self._given(inputs, options), self._sizes.first)
        return outputs

    def _given(self, inputs: tuple[Any, ...], options: dict[str, Any]) -> list[Array]:
        """Return the arrays of a call in the order of the examples, converted to their dtypes and layouts."""
        wanted = {name: x for name, x in self._tree[1].items() if name in options or has_array(x)}
        found = list(pairs((self._tree[0], wanted), (self._with_integers(inputs), options)))
        return [matching(x, example, index) for index, (example, x) in enumerate(found)]

    def _with_integers(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs of a call, with floats converted to integers where the model itself converts them."""
        convert = getattr(self._layer, "_with_integer_inputs", None)
        return inputs if convert is None or len(inputs) != 1 else (convert(inputs[0]),)

    def run_rows(self, arrays: list[Array], rows: tuple[int, ...]) -> Any:
        """Return the outputs for arrays with `rows`, one number for each of the plan's sizes.

        The arrays must be C-contiguous and have the types of the examples.

        Raises
        ------
        ValueError
            An array does not fit `rows`, or offsets do not ascend or give a sequence a length that the layer does not
            take.
        """
        return self._run(arrays, rows, lambda replay, *memory: replay.run(*memory, get_num_threads()))[0]

    def _run(self, arrays: list[Array], rows: tuple[int, ...], run: Callable[..., T]) -> tuple[Any, T]:
        """Return the outputs, and the result of ``run(replay, addresses of its buffers, rows)``."""
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
        """Run several passes concurrently, each on one thread.

        Each pass is (arrays, rows, out): arrays and rows as in :meth:`run_rows`, and a C-contiguous array for the
        output. The plan must have one output, which is a whole buffer.
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
        arena = ARENAS.take(threads * size)  # a single block: waiting for a second one while holding one could deadlock
        try:
            bases = offsets + (arena.address + size * np.arange(threads))[:, np.newaxis]
            replays = [plan.replay() for _ in range(threads)]
            run_passes(replays, bases, given, addresses, np.array([rows for _, rows, _ in passes], np.intp))
            plan.replays.extend(replays)
        finally:
            ARENAS.give(arena)

    def _output(self, part: Any, arrays: list[Array], made: dict[int, Array], rows: tuple[int, ...]) -> Any:
        if type(part) is not OutputPlace:
            return part.copy() if isinstance(part, np.ndarray) else part
        buffer = made.get(part.buffer)
        if buffer is None:  # an input, or a view of one
            buffer = arrays[part.buffer].copy()
        if part.is_whole:
            return buffer
        return np.ndarray(part.view.shape_for(rows), part.view.dtype, buffer, part.offset, part.strides)

    def _check(self, plan: RecordedCall, arrays: list[Array], rows: tuple[int, ...]) -> None:
        """Raise ValueError unless the arrays fit `rows`: the steps compute addresses from `rows` without checks."""
        if rows or self._sizes:  # otherwise arrays have the shapes of the examples, by _given
            self._sizes.check(rows)
            for index, (array, expected) in enumerate(zip(arrays, plan.inputs, strict=True)):
                expected.check(array, rows, f"array {index} of the plan")
        for offsets, size in plan.offsets.items():
            offsets.check(arrays[offsets.number], rows[size] if size >= 0 else offsets.rows)

    # ---- recording

    def refresh(self) -> None:
        """Record again if a dependency has changed; otherwise do nothing."""
        self._current()

    def _current(self) -> RecordedCall:
        """Return the recording; record again if a dependency may have changed."""
        changes, found = self._last
        if (
            found is not None
            and changes is count()
            and still_have(SURROUNDINGS, found.surroundings)
            and not found.state.containers_changed()
        ):
            return found
        if _recording.get():
            raise UnseenError("a plan was called while a layer was recorded: call the layer of the plan instead")
        return called_under(_locks[0], self._renewed)

    def _renewed(self) -> RecordedCall:
        """Return the recording after some change in the process; record again if the plan depends on it."""
        changes, found = count(), self._last[1]
        if found is None or not still_have(SURROUNDINGS, found.surroundings) or found.state.is_outdated():
            changes, found = called_in(_recording, True, self._recorded)
        self._last = changes, found
        return found

    def _recorded(self) -> tuple[object, RecordedCall]:
        if not self._examples:
            raise ValueError("`inputs` must have at least one array, from which the plan computes; received none")
        run_trial(self._layer, *self._tree[0], **self._tree[1])  # builds the layer and packs its kernels
        return count(), record(self._layer, self._tree, self._other_tree, self._sizes, State(self._layer))

    # ---- for C

    def c_plan(self) -> object:
        """Return the current plan as a PyCapsule "mp_core.plan", for ``mp_core_run_plan`` of ``mp_core.h``.

        The capsule keeps the weights and the policy of the recording, and has its own memory. One thread at a time may
        run it. Arrays passed from C must be C-contiguous and have the types of the examples.

        Raises
        ------
        ValueError
            An output is an input, an array that no operation of mp_core computes, a view of another array, or returned
            twice.

        Examples
        --------
        >>> from mp_core.layers import Dense
        >>> plan = compile(Dense(2), np.ones((3, 5), np.float32))
        >>> type(plan.c_plan()).__name__
        'PyCapsule'
        """
        if self._sizes:
            raise ValueError(f"a plan for all sizes, not only {self._sizes.first}, cannot be passed to C")
        plan = self._current()
        outputs = [part for part in leaves(plan.outputs) if isinstance(part, OutputPlace | np.ndarray)]
        numbers = [part.buffer for part in outputs if type(part) is OutputPlace]
        for part in outputs:
            if type(part) is not OutputPlace:
                reason = "is the same for all inputs"
            elif numbers.count(part.buffer) > 1:
                reason = "is returned twice"
            elif not part.is_all_of(plan.results.get(part.buffer)):
                reason = "is a view of another array"
            else:
                continue
            raise ValueError(f"an output of shape {part.shape} {reason}: such a plan cannot be passed to C")
        offsets, size = plan.layout(())
        memory = np.empty(size + 64, np.uint8)
        bases = offsets + (address_of(memory) + 63) // 64 * 64
        sizes = np.array([math.prod(x.shape) * x.dtype.itemsize for x in (*self._examples, *outputs)], np.intp)
        replay = Replay(plan.notes, plan.follows)
        return c_plan(replay, bases, np.array(numbers, np.int32), sizes, (memory, plan.constants))

    # ---- costs

    @property
    def memory(self) -> Memory:
        """The bytes that each run needs, and the bytes of constants, which all runs share."""
        plan = self._current()
        distinct = {address_of(x): x.nbytes for x in plan.constants}
        return Memory(plan.layout(self._sizes.first)[1], sum(distinct.values()))

    def profile(self, *inputs: Any, repeat: int = 10, cut: int | None = None) -> list[Operation]:
        """Return each operation with its time, the median of several runs.

        Parameters
        ----------
        *inputs : array-like
            As in a call. Default: the examples.
        repeat : int
            The number of runs.
        cut : int, optional
            Cut operations into tasks for this many threads, but run them on one thread: this gives the total CPU time
            on a machine with more cores. Default: cut for the threads that run.
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
    """Return the cache key of a plan: shapes and dtypes of arrays, the structure of the arguments, and other values."""
    return _key(inputs), _key(options)


def _key(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.shape, x.dtype
    if isinstance(x, dict):
        return type(x), tuple((name, _key(value)) for name, value in x.items())
    return (type(x), *map(_key, x)) if isinstance(x, list | tuple) else (type(x), x)
