"""The gradients of a batch in several passes over its samples: in bounded memory, with the bits of the whole batch."""

import functools
import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F64, Array
from mp_core.arrays.recorded import Recorded, Recording
from mp_core.core.convert import filled
from mp_core.gradients.passes import Meeting, PassWalk, dependents
from mp_core.plans.backward import Assigned, Differentiable, GradientPlan, apart, found_apart, kept, noting
from mp_core.plans.plan import plan_key
from mp_core.utilities.tree import leaves

__all__ = ["Described", "PassGradients", "Passed", "added_blocks", "unit_of"]


class Passed(NamedTuple):
    """What one pass gives.

    Attributes
    ----------
    targets : list of ndarray
        The arrays that the function has returned first, those whose gradients the pass is given.
    aux : Any
        What else it has returned.
    sums : list of ndarray
        The running sums after the pass: of the last one, the gradients of the variables, in their order. Of one that
        was computed apart, a list for each sum: its K blocks.
    assigned : list of (AutoCastVariable, ndarray)
        What the variables that the function assigns get once the batch is done: every pass finds the same.
    """

    targets: list[Array]
    aux: Any
    sums: list[Any]
    assigned: Assigned


class PassGradients(Differentiable):
    """Finds the gradients of a function of samples pass by pass; it keeps a plan for each combination of shapes.

    The passes of a batch hand on running sums: ``sums`` of one is ``before`` of the next. If the rows of every sum in
    every pass but the last are whole K blocks (:func:`unit_of`), the gradients have the bits of one pass over all.
    Passes may also run elsewhere, in any order (:meth:`apart`): their K blocks are added by :func:`added_blocks`.

    Parameters
    ----------
    function : callable
        ``function(before, *samples)`` returns a list of arrays and anything else. `before` is an int32 array of shape
        (1,): how many samples of the batch come before the first one of the pass. What it computes from one sample must
        not depend on the others.
    variables : sequence of AutoCastVariable

    Raises
    ------
    TypeError
        `variables` has something else than float variables.

    Examples
    --------
    >>> import mp_core as mp
    >>> from mp_core import AutoCastVariable
    >>> w = AutoCastVariable(np.float32([[1.0], [2.0]]), name="w")
    >>> passes = PassGradients(lambda before, x: ([mp.matmul(x, w)], None), [w])
    >>> x, d = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)
    >>> first = passes(0, (x[:2],), [d[:2]])
    >>> passes(2, (x[2:],), [d[2:]], first.sums, is_last=True).sums
    [array([[3.],
           [3.]], dtype=float32)]
    """

    def __call__(
        self,
        samples_before: int,
        samples: tuple[Any, ...],
        upstream: Sequence[Array],
        before: Sequence[Array] | None = None,
        is_last: bool = False,
    ) -> Passed:
        """Compute one pass.

        Parameters
        ----------
        samples_before : int
            How many samples of the batch earlier passes had.
        samples : tuple
            The arrays of the samples, which may lie in lists and dictionaries.
        upstream : sequence of ndarray
            The gradient of each target, of its shape and type. Those of targets that do not depend on samples count in
            the last pass alone.
        before : sequence of ndarray, optional
            The sums that the pass before has left. None: it is the first one.
        is_last : bool

        Raises
        ------
        TypeError
            Arrays or variables are float64, or an operation has no gradient.
        ValueError
            Something that all samples share has a gradient that is no sum over rows; the message names the operation.
        """
        given = samples, list(upstream), None if before is None else list(before)
        plan = self._plan(given, is_last)
        return Passed(*plan.outputs_of((np.array([samples_before], np.int32), *given), {}))

    def apart(self, samples_before: int, samples: tuple[Any, ...], upstream: Sequence[Array]) -> Passed:
        """Compute one pass that knows nothing of the others; it is not the last one.

        Arguments and errors are those of a call. ``sums`` has a list for each sum over rows: the sums of its K blocks,
        in order.
        """
        given = samples, list(upstream), None
        plan = self._plan(given, False, is_apart=True)
        found = Passed(*plan.outputs_of((np.array([samples_before], np.int32), *given), {}))
        blocks = iter(found.sums)
        sums = [list(islice(blocks, -(-rows // block))) for rows, block in plan.described.meetings]
        return found._replace(sums=sums)

    def described(self, samples: tuple[Any, ...]) -> "Described":
        """Return what a pass over such samples is like."""
        return self._plan((samples, None, None), False).described

    def _plan(self, given: Any, is_last: bool, is_apart: bool = False) -> "_PassPlan":
        arrays = [x for x in leaves(given) if isinstance(x, np.ndarray)]
        if any(x.dtype == F64 for x in arrays) or any(v.true_dtype is F64 for v in self.variables):
            raise TypeError("float64 is computed call by call, not in passes: use passes=1")
        key = plan_key(given, {"is_last": is_last, "is_apart": is_apart})
        plan: _PassPlan = kept(self._plans, key, lambda: _PassPlan(self, given, is_last, is_apart))
        return plan


class Described(NamedTuple):
    """What a pass is like.

    Attributes
    ----------
    targets : list of (shape, dtype, bool)
        Of each target, and whether it depends on samples.
    meetings : list of Meeting
        The sums over rows, in the order of the sums.
    """

    targets: list[tuple[tuple[int, ...], Any, bool]]
    meetings: list[Meeting]


def added_blocks(before: Sequence[Array] | None, passed: Passed) -> list[Array]:
    """Return the running sums behind a pass that was computed apart; `before`: those of the pass before, if any.

    Examples
    --------
    >>> passed = Passed([], None, [[np.float32([1.0]), np.float32([2.0])]], [])
    >>> added_blocks(added_blocks(None, passed), passed)
    [array([6.], dtype=float32)]
    """
    totals = [[]] * len(passed.sums) if before is None else [[total] for total in before]
    return [functools.reduce(np.add, [*total, *blocks]) for total, blocks in zip(totals, passed.sums, strict=True)]


def unit_of(meetings: Sequence[Meeting], samples: int) -> int:
    """Return the smallest number of samples of which every sum has whole K blocks.

    Parameters
    ----------
    meetings : sequence of Meeting
        Those of a pass.
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


class _PassPlan(GradientPlan):
    """A plan of one pass: the variables that are trained, or assigned, are inputs of it."""

    described: Described

    def __init__(self, passes: PassGradients, given: Any, is_last: bool, is_apart: bool) -> None:
        self._is_last, self._is_apart = is_last, is_apart
        super().__init__(passes, (np.zeros(1, np.int32), *given), {})

    def _differentiated(self, inputs: tuple[Any, ...], values: list[Any], **options: Any) -> Any:
        """Return targets, the rest, the sums or gradients, and what is assigned."""
        recording = self.begun()
        held = dict(zip(map(id, self._held), values, strict=True))
        start, samples, upstream, before = inputs
        noted = noting(recording, self._shared.variables, zip(self._held, values, strict=True))
        targets, aux = self._shared.function(start, *samples)
        recording.noted = None
        rows = dependents(recording, noted, [x for x in leaves(samples) if type(x) is Recorded])
        walk = PassWalk(recording, rows, before, self._is_last, self._is_apart)
        walk.follow(noted, [held[id(variable)] for variable in self._shared.variables])
        self._begin(recording, walk, targets, upstream)
        for note in reversed(noted):
            walk.step(note)
        shapes = [(x.shape, x.dtype, type(x) is Recorded and walk.depends(x)) for x in targets]
        self.described = Described(shapes, walk.meetings)
        if not self._is_last:
            return targets, aux, apart(recording, walk.sums_after), self._states(recording, walk)
        found = [walk.gradient_of(held[id(variable)]) for variable in self._shared.variables]
        found = found_apart(recording, self._shared.variables, found)
        return targets, aux, found, self._states(recording, walk)

    def _begin(self, recording: Recording, walk: PassWalk, targets: Sequence[Any], upstream: Any) -> None:
        """Let the gradients of the targets be those that are given; without any, ones."""
        if upstream is None:
            upstream = [recording.call(filled, (x.shape, x.dtype, 1.0), {}) for x in targets]
        for target, d in zip(targets, upstream, strict=True):
            if type(target) is Recorded and (self._is_last or walk.depends(target)):
                walk.add(target, d)

    def _states(self, recording: Recording, walk: PassWalk) -> list[Any]:
        """Return what variables are assigned; raise if that depends on samples."""
        for variable, value in recording.assigned.values():
            if walk.depends(value):
                raise ValueError(f"variable '{variable.name}' is assigned what samples decide, so `passes` must be 1")
        return self.noted_state(recording)
