"""The gradients of a batch in parts: with bounded memory, or on several machines.

A part runs forwards (:meth:`PartGradients.start`), and backwards when the gradients of its outputs are known. The cuts
and the order of sums are fixed, so no bit depends on where parts are computed, or how many at once. There are two
methods:

- :meth:`PartGradients.continued`: the gradients of outputs are known beforehand. Parts run from the first to the last,
  each continuing the sums of the one before. The bits are those of the batch in one part.
- :meth:`PartGradients.added`: the gradients of outputs depend on the outputs of all parts. All parts run forwards, then
  backwards from the last to the first. The result is the sum of the gradients of the parts.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, starmap
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F64, Array
from mp_core.arrays.recorded import NotedCall, Recorded, Recording, UnseenError
from mp_core.core.convert import filled
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, set_addresses
from mp_core.layers.plans.arena import ARENAS, LINE, Arenas, Lease
from mp_core.layers.plans.backward import (
    Assigned,
    Differentiable,
    GradientPlan,
    checked_gradients,
    has_wide,
    start_noting,
    without_shared_memory,
)
from mp_core.layers.plans.plan import plan_key
from mp_core.layers.plans.recorded_call import Buffer, RecordedCall
from mp_core.ops.gradients.parts import PartWalk, SharedSum, Sums, dependents
from mp_core.ops.gradients.reverse import gradients
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.docstrings import shown
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Each", "PartDescription", "PartGradients", "PartRun", "unit_of"]

Each = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterable[Any]]
"""Calls a method of a PartGradients with each of several tuples of arguments, here or on workers; returns the results
in order."""


class PartDescription(NamedTuple):
    """The outputs and sums of a part."""

    # list of (shape, dtype, bool): For each output; the bool says whether it depends on samples.
    outputs: list[tuple[tuple[int, ...], Any, bool]]
    shared_sums: list[SharedSum]  # The sums over rows, in the order of the running sums.


class PartGradients(Differentiable):
    """Computes the gradients of a function of samples part by part; caches a plan for each combination of shapes.

    The function returns (list of float arrays, except float64; any other result). If parts continue sums, its first
    argument is an int32 array of shape (1,), the number of samples of the batch before the part. Then its results for
    one sample must not depend on other samples. Several parts may have run forwards but not yet backwards: the
    activations of each are in a block of `memory` of their own, which later parts reuse.

    Examples
    --------
    >>> import mp_core as mp
    >>> from mp_core import AutoCastVariable
    >>> w = AutoCastVariable(np.float32([[1.0], [2.0]]), name="w")
    >>> run = PartGradients(lambda x: ([mp.matmul(x, w)], None), [w]).start(np.float32([[3.0, 4.0]]))
    >>> run.outputs
    [array([[11.]], dtype=float32)]
    >>> run.gradients([np.float32([[2.0]])])
    [array([[6.],
           [8.]], dtype=float32)]
    """

    def __init__(
        self, function: Callable[..., Any], variables: Sequence[AutoCastVariable], memory: Arenas = ARENAS
    ) -> None:
        super().__init__(function, variables)
        self._memory = memory

    # ---- one part

    def start(self, *inputs: Any, sums: Sums = Sums.OWN, before: Sequence[Array] | None = None) -> "PartRun":
        """Run a part forwards with the arguments of the function: arrays, also in lists and dictionaries.

        `sums` says what the sums over rows are used for, and `before` are the running sums after the part before. Raise
        TypeError for float64, and ValueError, which names the operation, if parts continue sums and the gradient of a
        shared array is not a sum over rows.
        """
        given = inputs, before
        return self._plan(given, sums).start(given, self._memory)

    def describe(self, *inputs: Any) -> PartDescription:
        """Describe the first of several parts with such inputs."""
        return self._plan((inputs, None), Sums.OPEN).description

    def forward(self, *inputs: Any) -> list[Array]:
        """Return the outputs of a part."""
        run = self.start(*inputs)
        run.end()
        return run.outputs

    def backward(self, d: Sequence[Array], *inputs: Any) -> list[Any]:
        """Return the gradients of a part alone, from the gradients of its outputs."""
        return self.start(*inputs).gradients(d)

    def independent_part(self, d: Sequence[Array], *inputs: Any) -> tuple[list[Array], Any, list[list[Array]]]:
        """Compute a part independently of the others; return outputs, other result, and the K blocks of each sum."""
        run, described = (
            self.start(*inputs, sums=Sums.INDEPENDENT),
            self._plan((inputs, None), Sums.INDEPENDENT).description,
        )
        blocks = iter(run.gradients(d))
        return run.outputs, run.aux, [list(islice(blocks, -(-rows // block))) for rows, block in described.shared_sums]

    def _plan(self, given: Any, sums: Sums) -> "_PartPlan":
        found: _PartPlan = self._plans.get_or_make(
            plan_key(given, {"sums": sums}), lambda: _PartPlan(self, given, sums)
        )
        return found

    # ---- all parts of a batch

    def continued(
        self, parts: Sequence[tuple[Any, ...]], each: Each | None = None
    ) -> tuple[list[list[Array]], list[Any], list[Any], Assigned]:
        """Compute parts that continue sums. All parts except the last must have whole K blocks (:func:`unit_of`).

        A part is the arguments of :meth:`independent_part`. Gradients of outputs that do not depend on samples count
        only in the last part. `each` may compute all parts except the last. Return the outputs and the other results of
        each part, the gradients, and the assignments, which are the same in every part.
        """
        found: list[tuple[list[Array], Any]] = []
        assigned: Assigned = []
        before: list[Array] | None = None
        if each is not None:
            for *made, blocks in each(self.independent_part, parts[:-1]):
                before = added_blocks(before, blocks)
                found.append((made[0], made[1]))
        for d, *inputs in parts[len(found) :]:
            sums = Sums.LAST if len(found) == len(parts) - 1 else Sums.OPEN
            run = self.start(*inputs, sums=sums, before=before)
            before = run.gradients(d)
            found.append((run.outputs, run.aux))
            assigned = run.assigned
        return [outputs for outputs, _ in found], [aux for _, aux in found], before or [], assigned

    def added(
        self, parts: Sequence[tuple[Any, ...]], loss: Callable[[list[list[Array]]], tuple[Any, list[Any]]],
        kept: int | None = None, each: Each | None = None,
    ) -> tuple[Any, list[Any]]:  # fmt: skip
        """Compute the gradients of a loss that depends on the outputs of all parts.

        `loss` takes the outputs of all parts, and returns any value and the gradients of the outputs of each part. The
        activations of the last `kept` parts (None: all) are kept until these run backwards; the other parts run
        forwards a second time. If `each` computes the parts, no activations are kept. Return the value, and the
        gradients, added from the last part to the first; None for a variable on which no part depends.
        """
        again = len(parts) if each is not None else 0 if kept is None else max(len(parts) - kept, 0)
        outputs = list((each or starmap)(self.forward, parts[:again]))
        runs = list(starmap(self.start, parts[again:]))
        outputs += [run.outputs for run in runs]
        value, d = loss(outputs)
        total: list[Any] = []
        for found in self._backwards(parts[:again], runs, d, each or starmap):
            total = _added(total, found) if total else found
            del found  # free it before the next part allocates its gradients
        return value, total

    def _backwards(
        self, parts: Sequence[tuple[Any, ...]], runs: list["PartRun"], d: list[Any], each: Each
    ) -> Iterator[list[Any]]:
        """Yield the gradients of each part, from the last one to the first; parts without a run start again."""
        while runs:
            yield runs.pop().gradients(d.pop())
        yield from each(self.backward, [(own, *part) for own, part in zip(d, parts, strict=True)][::-1])


def added_blocks(before: Sequence[Array] | None, sums: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the running sums after a part that was computed independently; `before` are those of the part before.

    Examples
    --------
    >>> blocks = [[np.float32([1.0]), np.float32([2.0])]]
    >>> added_blocks(added_blocks(None, blocks), blocks)
    [array([6.], dtype=float32)]
    """
    totals = [[]] * len(sums) if before is None else [[total] for total in before]
    return [functools.reduce(np.add, [*total, *blocks]) for total, blocks in zip(totals, sums, strict=True)]


def _added(total: list[Any], found: list[Any]) -> list[Any]:
    """Add gradients, in the memory of `total` if it is writeable; None stays None."""
    with np.errstate(all="ignore"):
        return [
            None if x is None else np.add(x, part, out=x if x.flags.writeable else None)
            for x, part in zip(total, found, strict=True)
        ]


@shown("{}([SharedSum(6, 1024)], 6), unit_of([SharedSum(6 * 28 * 28, 1024)], 6)", "(1024, 64)")
def unit_of(shared_sums: Sequence[SharedSum], samples: int) -> int:
    """Return the smallest number of samples with which every sum of a part of `samples` samples has whole K blocks."""
    unit = 1
    for rows, block in shared_sums:
        each, rest = divmod(rows, samples)
        if rest or not each:
            raise ValueError(
                f"the rows that a gradient sums must be a multiple of the samples; received {rows} rows and {samples} "
                "samples: use passes=1"
            )
        unit = math.lcm(unit, block // math.gcd(block, each))
    return unit


# ---- one part


@dataclass(frozen=True)
class PartRun:
    """A part that has run forwards. It holds the memory of its activations until it runs backwards, or :meth:`end`."""

    outputs: list[Array]
    aux: Any  # The other result of the function.
    assigned: Assigned  # The assignments that the function makes.
    _d: list[Array]
    _found: list[Any]
    _plan: RecordedCall
    _replay: Replay
    _cut: int
    _arrays: list[Array]  # the replay reads them by their addresses
    _memory: Arenas
    _lease: Lease

    def gradients(self, d: Sequence[Array]) -> list[Any]:
        """Run backwards and free the memory; `d` are the gradients of the outputs, of the same shapes.

        Return the gradients of the variables with ``Sums.OWN`` or ``LAST``, None for one on which no output depends;
        with ``OPEN`` the running sums; with ``INDEPENDENT`` the K blocks of all sums.
        """
        for mine, given in zip(self._d, d, strict=True):
            mine[...] = given
        self._replay.run_rest(get_num_threads(), self._cut)
        self.end()
        return self._found

    def end(self) -> None:
        """Free the memory of the activations; the part cannot run backwards any more."""
        self._plan.replays.append(self._replay)
        self._memory.give(self._lease)


class _PartPlan(GradientPlan):
    """A plan of a part, forwards and backwards; the caller sets the gradients of the outputs in between."""

    description: PartDescription  # not with Sums.OWN
    _cut: int  # the number of operations of the forward pass

    def __init__(self, shared: PartGradients, given: Any, sums: Sums) -> None:
        self._sums = sums
        if sums is Sums.OWN:
            super().__init__(shared, given, {})
            return
        if has_wide(given) or any(variable.true_dtype is F64 for variable in shared.variables):
            raise TypeError("float64 is computed call by call, not in passes: use passes=1")
        try:
            super().__init__(shared, given, {})
        except UnseenError as error:
            raise UnseenError(f"`passes` must be 1, since no plan can be recorded: {error}") from None

    def _differentiated(self, inputs: tuple[Any, ...], values: list[Any], **options: Any) -> Any:
        """Return outputs, other result, arrays for the gradients of outputs, sums or gradients, and assigned values."""
        recording, held = self.shared_recording(), dict(zip(map(id, self._held), values, strict=True))
        given, before = inputs
        noted = start_noting(recording, self._shared.variables, zip(self._held, values, strict=True))
        outputs, aux = self._shared.function(*given)
        recording.noted_calls = None
        d = [recording.call(filled, (x.shape, x.dtype, 0.0), {}) for x in outputs]
        self._cut = len(recording.tape.notes)
        trained = [held[id(variable)] for variable in self._shared.variables]
        if self._sums is Sums.OWN:
            found = gradients(recording, noted, list(zip(outputs, d, strict=True)), trained)
            found = checked_gradients(recording, self._shared.variables, found, allows_unused=True)
        else:
            found = self._summed(recording, noted, (given[1:], before), list(zip(outputs, d, strict=True)), trained)
        return outputs, aux, d, found, self.assigned_values(recording)

    def _summed(
        self,
        recording: Recording,
        noted: list[NotedCall],
        given: Any,
        targets: list[tuple[Any, Any]],
        trained: list[Any],
    ) -> list[Any]:
        """Return the running sums, or the gradients; raise ValueError if an assigned value depends on samples."""
        samples, before = given
        rows = dependents(recording, noted, [x for x in leaves(samples) if type(x) is Recorded])
        walk = PartWalk(recording, rows, before, self._sums)
        walk.follow(noted, trained)
        is_of_samples = [type(x) is Recorded and walk.depends(x) for x, _ in targets]
        for (x, d), is_own in zip(targets, is_of_samples, strict=True):
            if type(x) is Recorded and (is_own or self._sums is Sums.LAST):
                walk.add(x, d)
        for note in reversed(noted):
            walk.step(note)
        described = [(x.shape, x.dtype, is_own) for (x, _), is_own in zip(targets, is_of_samples, strict=True)]
        self.description = PartDescription(described, walk.shared_sums)
        for variable, value in recording.assigned.values():
            if type(value) is Recorded and walk.depends(value):
                raise ValueError(
                    f"variable '{variable.name}' is assigned a value that depends on samples, so `passes` must be 1"
                )
        if self._sums is Sums.LAST:
            return checked_gradients(recording, self._shared.variables, [walk.gradient_of(x) for x in trained])
        return without_shared_memory(recording, walk.sums_after)

    def start(self, given: Any, memory: Arenas) -> PartRun:
        """Run the forward pass."""
        self.refresh()
        arrays = self._arrays(given, {})
        plan, cut = self._current(), self._cut
        self._check(plan, arrays, ())
        places, size = plan.layout(())
        made, replay, lease = _in_one_block(plan.results), plan.replay(), memory.take(size)
        bases = places + lease.address
        set_addresses(bases, arrays, made)
        replay.run_first(bases, np.zeros(0, np.intp), get_num_threads(), cut)
        *given, d, found, states = map_leaves(lambda part: self._output(part, arrays, made, ()), plan.outputs)
        outputs, aux, states = map_leaves(_copied, (*given, states))  # they outlive the block
        assigned = list(zip(self._assigned, states, strict=True))
        return PartRun(outputs, aux, assigned, d, found, plan, replay, cut, arrays, memory, lease)


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _in_one_block(results: dict[int, Buffer]) -> dict[int, Array]:
    """Return an array for each result, all in one block, so that the allocator returns it to the system as a whole."""
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in results.values()]
    *places, size = accumulate((-(-size // LINE) * LINE for size in sizes), initial=0)
    block = np.empty(size, np.uint8)
    return {
        number: block[at : at + length].view(x.dtype).reshape(x.shape)
        for (number, x), at, length in zip(results.items(), places, sizes, strict=True)
    }
