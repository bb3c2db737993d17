"""The gradients of a batch part by part: in bounded memory, or on several machines.

The samples of a part run forwards (:meth:`PartGradients.start`), and backwards once the gradients of their outputs are
known. Parts are cut in one way and added in one order, so no bit depends on where they are computed, or how many at
once. There are two orders:

- :meth:`PartGradients.continued`, if these gradients are known beforehand: from the first part to the last, whose sums
  over rows go on from part to part. The gradients have the bits of a batch in one part.
- :meth:`PartGradients.added`, if they follow from the outputs of all parts: these run forwards, then backwards from the
  last part to the first. The gradients are the sums of those of each part.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, starmap
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F64, Array
from mp_core.arrays.recorded import Noted, Recorded, Recording, UnseenError
from mp_core.core.convert import filled
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, set_addresses
from mp_core.layers.plans.arena import ARENAS, LINE, Arenas, Lease
from mp_core.layers.plans.backward import Assigned, Differentiable, GradientPlan, apart, found_apart, has_wide, noting
from mp_core.layers.plans.plan import plan_key
from mp_core.layers.plans.recorded_call import Buffer, RecordedCall
from mp_core.ops.gradients.parts import Meeting, PartWalk, Sums, dependents
from mp_core.ops.gradients.reverse import gradients
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Described", "Each", "PartGradients", "PartRun", "unit_of"]

Each = Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterable[Any]]
"""What calls a method of a PartGradients with each of several arguments, here or elsewhere: it returns results in
order."""


class Described(NamedTuple):
    """What a part is like whose sums go on.

    Attributes
    ----------
    outputs : list of (shape, dtype, bool)
        Of each output, and whether it depends on samples.
    meetings : list of Meeting
        The sums over rows, in the order of the sums.
    """

    outputs: list[tuple[tuple[int, ...], Any, bool]]
    meetings: list[Meeting]


class PartGradients(Differentiable):
    """Finds the gradients of a function of samples part by part; it keeps a plan for each combination of shapes.

    Several parts may be between their two halves: each has its activations in memory of its own, which serves later
    ones.

    Parameters
    ----------
    function : callable
        It returns a list of float arrays, not of float64, and anything else. If sums go on from part to part, its first
        argument is an int32 array of shape (1,): how many samples of the batch come before those of the part; what it
        computes from one sample must not depend on the others.
    variables : sequence of AutoCastVariable
    memory : Arenas
        Where activations lie.

    Raises
    ------
    TypeError
        `variables` has something else than float variables.

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
        """Run a part forwards.

        Parameters
        ----------
        *inputs
            Those of the function: arrays, which may lie in lists and dictionaries.
        sums : Sums
            What becomes of its sums over rows.
        before : sequence of ndarray, optional
            The sums that the part before has left. None: there is none.

        Raises
        ------
        TypeError
            Arrays or variables are float64, or an operation has no gradient.
        ValueError
            A plan cannot see what the function computes. Or sums go on, and something that all samples share has a
            gradient that is no sum over rows; the message names the operation.
        """
        given = inputs, before
        return self._plan(given, sums).start(given, self._memory)

    def described(self, *inputs: Any) -> Described:
        """Return what the first of several parts with such inputs is like."""
        return self._plan((inputs, None), Sums.OPEN).described

    def forward(self, *inputs: Any) -> list[Array]:
        """Return the outputs of a part."""
        run = self.start(*inputs)
        run.end()
        return run.outputs

    def backward(self, d: Sequence[Array], *inputs: Any) -> list[Any]:
        """Return the gradients of a part alone, from those of its outputs."""
        return self.start(*inputs).gradients(d)

    def apart(self, d: Sequence[Array], *inputs: Any) -> tuple[list[Array], Any, list[list[Array]]]:
        """Return outputs and the rest of a part that knows nothing of the others, and the K blocks of each sum."""
        run, described = self.start(*inputs, sums=Sums.APART), self._plan((inputs, None), Sums.APART).described
        blocks = iter(run.gradients(d))
        return run.outputs, run.aux, [list(islice(blocks, -(-rows // block))) for rows, block in described.meetings]

    def _plan(self, given: Any, sums: Sums) -> "_PartPlan":
        found: _PartPlan = self._plans.made(plan_key(given, {"sums": sums}), lambda: _PartPlan(self, given, sums))
        return found

    # ---- all parts of a batch

    def continued(
        self, parts: Sequence[tuple[Any, ...]], each: Each | None = None
    ) -> tuple[list[list[Array]], list[Any], list[Any], Assigned]:
        """Compute parts whose sums go on; all but the last have whole K blocks of every sum (:func:`unit_of`).

        Parameters
        ----------
        parts : sequence of tuple
            The arguments of :meth:`apart` for each. The gradients of outputs that do not depend on samples count in the
            last part alone.
        each : callable, optional
            What computes all parts but the last.

        Returns
        -------
        outputs, aux : list
            Of each part.
        gradients : list of ndarray
        assigned : list of (AutoCastVariable, ndarray)
            What the variables that the function assigns are to get: every part finds the same.
        """
        found: list[tuple[list[Array], Any]] = []
        assigned: Assigned = []
        before: list[Array] | None = None
        if each is not None:
            for *made, blocks in each(self.apart, parts[:-1]):
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
        """Compute parts from whose outputs the loss of the batch follows.

        Parameters
        ----------
        parts : sequence of tuple
            The inputs of each.
        loss : callable
            From the outputs of the parts to anything, and the gradients of the outputs of each.
        kept : int, optional
            Of how many parts the activations are kept meanwhile, the last ones; the others run forwards again. None: of
            all.
        each : callable, optional
            What computes the parts; no activations are kept then.

        Returns
        -------
        value : Any
            What `loss` has returned first.
        gradients : list of ndarray or None
            Those of the parts, added from the last one to the first; None: no part depends on the variable.
        """
        again = len(parts) if each is not None else 0 if kept is None else max(len(parts) - kept, 0)
        outputs = list((each or starmap)(self.forward, parts[:again]))
        runs = list(starmap(self.start, parts[again:]))
        outputs += [run.outputs for run in runs]
        value, d = loss(outputs)
        total: list[Any] = []
        for found in self._backwards(parts[:again], runs, d, each or starmap):
            total = _added(total, found) if total else found
            del found  # while the next part is computed, there are its gradients and the sum
        return value, total

    def _backwards(
        self, parts: Sequence[tuple[Any, ...]], runs: list["PartRun"], d: list[Any], each: Each
    ) -> Iterator[list[Any]]:
        """Yield the gradients of each part, from the last one to the first; those without a run begin again."""
        while runs:
            yield runs.pop().gradients(d.pop())
        yield from each(self.backward, [(own, *part) for own, part in zip(d, parts, strict=True)][::-1])


def added_blocks(before: Sequence[Array] | None, sums: Sequence[Sequence[Array]]) -> list[Array]:
    """Return the running sums behind a part that was computed apart; `before`: those of the part before, if any.

    Examples
    --------
    >>> blocks = [[np.float32([1.0]), np.float32([2.0])]]
    >>> added_blocks(added_blocks(None, blocks), blocks)
    [array([6.], dtype=float32)]
    """
    totals = [[]] * len(sums) if before is None else [[total] for total in before]
    return [functools.reduce(np.add, [*total, *blocks]) for total, blocks in zip(totals, sums, strict=True)]


def _added(total: list[Any], found: list[Any]) -> list[Any]:
    """Return sums of gradients, in the memory of the first ones if that may be written to; None stays None."""
    with np.errstate(all="ignore"):
        return [
            None if x is None else np.add(x, part, out=x if x.flags.writeable else None)
            for x, part in zip(total, found, strict=True)
        ]


def unit_of(meetings: Sequence[Meeting], samples: int) -> int:
    """Return the smallest number of samples of which every sum has whole K blocks.

    Parameters
    ----------
    meetings : sequence of Meeting
        Those of a part.
    samples : int
        How many it has.

    Raises
    ------
    ValueError
        A sum has rows that are no multiple of the samples.

    Examples
    --------
    >>> unit_of([Meeting(6, 1024)], 6), unit_of([Meeting(6 * 28 * 28, 1024)], 6)
    (1024, 64)
    """
    unit = 1
    for rows, block in meetings:
        each, rest = divmod(rows, samples)
        if rest or not each:
            raise ValueError(
                f"a gradient sums {rows} rows of {samples} samples, not equally many of each: use passes=1"
            )
        unit = math.lcm(unit, block // math.gcd(block, each))
    return unit


# ---- one part


@dataclass(frozen=True)
class PartRun:
    """A part that has gone forwards, and holds the memory of its activations until it ends.

    Attributes
    ----------
    outputs : list of ndarray
    aux : Any
        What else the function has returned.
    assigned : list of (AutoCastVariable, ndarray)
        What the variables that the function assigns are to get.
    """

    outputs: list[Array]
    aux: Any
    assigned: Assigned
    _d: list[Array]
    _found: list[Any]
    _plan: RecordedCall
    _replay: Replay
    _cut: int
    _arrays: list[Array]  # the replay reads them by their addresses
    _memory: Arenas
    _lease: Lease

    def gradients(self, d: Sequence[Array]) -> list[Any]:
        """Run backwards and end; `d` are the gradients of the outputs, each of its shape.

        Returns
        -------
        list of ndarray or None
            The gradients of the variables; None: the outputs do not depend on it. If sums go on, the running sums. If
            they are apart, the K blocks of all sums.
        """
        for mine, given in zip(self._d, d, strict=True):
            mine[...] = given
        self._replay.run_rest(get_num_threads(), self._cut)
        self.end()
        return self._found

    def end(self) -> None:
        """Give back the memory of a run that has gone backwards, or need not."""
        self._plan.replays.append(self._replay)
        self._memory.give(self._lease)


class _PartPlan(GradientPlan):
    """A plan of the outputs of a part and of its sums; a run is given the gradients of the outputs in between."""

    described: Described  # if sums go on, or are apart
    _cut: int  # how many operations run forwards

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
            raise UnseenError(f"passes need a plan, and there is none, so `passes` must be 1: {error}") from None

    def _differentiated(self, inputs: tuple[Any, ...], values: list[Any], **options: Any) -> Any:
        """Return outputs, the rest, arrays for the gradients of outputs, sums or gradients, and what is assigned."""
        recording, held = self.begun(), dict(zip(map(id, self._held), values, strict=True))
        given, before = inputs
        noted = noting(recording, self._shared.variables, zip(self._held, values, strict=True))
        outputs, aux = self._shared.function(*given)
        recording.noted = None
        d = [recording.call(filled, (x.shape, x.dtype, 0.0), {}) for x in outputs]
        self._cut = len(recording.tape.notes)
        trained = [held[id(variable)] for variable in self._shared.variables]
        if self._sums is Sums.OWN:
            found = gradients(recording, noted, list(zip(outputs, d, strict=True)), trained)
            found = found_apart(recording, self._shared.variables, found, allows_unused=True)
        else:
            found = self._summed(recording, noted, (given[1:], before), list(zip(outputs, d, strict=True)), trained)
        return outputs, aux, d, found, self.noted_state(recording)

    def _summed(
        self, recording: Recording, noted: list[Noted], given: Any, targets: list[tuple[Any, Any]], trained: list[Any]
    ) -> list[Any]:
        """Return the running sums, or the gradients; raise if what is assigned depends on samples."""
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
        self.described = Described(described, walk.meetings)
        for variable, value in recording.assigned.values():
            if type(value) is Recorded and walk.depends(value):
                raise ValueError(f"variable '{variable.name}' is assigned what samples decide, so `passes` must be 1")
        if self._sums is Sums.LAST:
            return found_apart(recording, self._shared.variables, [walk.gradient_of(x) for x in trained])
        return apart(recording, walk.sums_after)

    def start(self, given: Any, memory: Arenas) -> PartRun:
        """Run forwards."""
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
        outputs, aux, states = map_leaves(_copied, (*given, states))  # they outlive the block, which has gradients too
        assigned = list(zip(self._assigned, states, strict=True))
        return PartRun(outputs, aux, assigned, d, found, plan, replay, cut, arrays, memory, lease)


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _in_one_block(results: dict[int, Buffer]) -> dict[int, Array]:
    """Return an array for each result: in one block, which the allocator gives back to the system as a whole."""
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in results.values()]
    *places, size = accumulate((-(-size // LINE) * LINE for size in sizes), initial=0)
    block = np.empty(size, np.uint8)
    return {
        number: block[at : at + length].view(x.dtype).reshape(x.shape)
        for (number, x), at, length in zip(results.items(), places, sizes, strict=True)
    }
