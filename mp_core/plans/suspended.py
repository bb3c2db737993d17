"""Gradients in two halves: a function runs forwards now, and backwards once the gradients of its outputs are known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.core.convert import filled
from mp_core.core.cpu import get_num_threads
from mp_core.core.replay import Replay, set_addresses
from mp_core.gradients.reverse import gradients
from mp_core.plans.arena import Arenas, Lease, place
from mp_core.plans.backward import Differentiable, GradientPlan, assign_arrays, found_apart, kept, noting
from mp_core.plans.plan import plan_key
from mp_core.plans.recorded_call import Buffer, RecordedCall
from mp_core.utilities.tree import map_leaves

__all__ = ["Suspended", "SuspendedGrad"]


class SuspendedGrad(Differentiable):
    """Runs a function forwards, and later backwards; it keeps a plan for each combination of shapes.

    Several runs may be suspended at once: each has its activations in memory of its own, which serves later runs.

    Parameters
    ----------
    function : callable
        It returns an array of floats, not of float64, made of what :func:`mp_core.value_and_grad` records.
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
    >>> run = SuspendedGrad(lambda x: mp.matmul(x, w), [w]).start(np.float32([[3.0, 4.0]]))
    >>> run.outputs
    array([[11.]], dtype=float32)
    >>> run.gradients(np.float32([[2.0]]))
    [array([[6.],
           [8.]], dtype=float32)]
    """

    def __init__(self, function: Callable[..., Any], variables: Sequence[AutoCastVariable]) -> None:
        super().__init__(function, variables)
        self._memory = Arenas(np.iinfo(np.intp).max)

    def start(self, *inputs: Any) -> "Suspended":
        """Run forwards, and assign what the function assigns.

        Raises
        ------
        ValueError, TypeError
            As :class:`~mp_core.plans.backward.ValueAndGrad` raises them.
        """
        plan: _SuspendedPlan = kept(self._plans, plan_key(inputs, {}), lambda: _SuspendedPlan(self, inputs, {}))
        return plan.start(inputs, self._memory)


@dataclass(frozen=True)
class Suspended:
    """A run that has gone forwards, and holds the memory of its activations until it ends.

    Attributes
    ----------
    outputs : ndarray
    """

    outputs: Array
    _d: Array
    _found: list[Any]
    _run: "_Run"

    def gradients(self, d: Array) -> list[Any]:
        """Run backwards and end; `d` is the gradient of the outputs.

        Returns
        -------
        list of ndarray or None
            The gradients of the variables; None: the outputs do not depend on it.
        """
        self._d[...] = d
        self._run.replay.run_rest(get_num_threads(), self._run.cut)
        self.end()
        return self._found

    def end(self) -> None:
        """Give back the memory of a run that has gone backwards, or need not."""
        self._run.plan.replays.append(self._run.replay)
        self._run.memory.give(self._run.lease)


class _Run(NamedTuple):
    """What a run needs to go on."""

    plan: RecordedCall
    replay: Replay
    cut: int
    arrays: list[Array]  # the replay reads them by their addresses
    memory: Arenas
    lease: Lease


class _SuspendedPlan(GradientPlan):
    """A plan of outputs, and of the gradients of variables; a run is given those of the outputs in between."""

    _cut: int  # how many operations run forwards

    def _differentiated(self, inputs: tuple[Any, ...], values: list[Any], **options: Any) -> Any:
        """Return the outputs, the array for their gradients, the gradients of variables, and what is assigned."""
        recording, held = self.begun(), list(zip(self._held, values, strict=True))
        noted = noting(recording, self._shared.variables, held)
        outputs = self._shared.function(*inputs)
        recording.noted = None
        d = recording.call(filled, (outputs.shape, outputs.dtype, 0.0), {})
        self._cut = len(recording.tape.notes)
        values_of = {id(variable): value for variable, value in held}
        found = gradients(recording, noted, [(outputs, d)], [values_of[id(v)] for v in self._shared.variables])
        found = found_apart(recording, self._shared.variables, found, allows_unused=True)
        return outputs, d, found, self.noted_state(recording)

    def start(self, inputs: tuple[Any, ...], memory: Arenas) -> Suspended:
        """Run forwards, and assign what is assigned."""
        self.refresh()
        arrays = self._given((inputs, [variable.numpy() for variable in self._held]), {})
        plan, cut = self._current(), self._cut
        self._check(plan, arrays, ())
        places, size = plan.layout(())
        made = _in_one_block(plan.results)
        run = _Run(plan, plan.replay(), cut, arrays, memory, memory.take(size))
        bases = places + run.lease.address
        set_addresses(bases, arrays, made)
        run.replay.run_first(bases, np.zeros(0, np.intp), get_num_threads(), cut)
        outputs, d, found, assigned = map_leaves(lambda part: self._output(part, arrays, made, ()), plan.outputs)
        assign_arrays(zip(self._assigned, [x.copy() for x in assigned], strict=True))  # copies: they outlive the block
        return Suspended(outputs.copy(), d, found, run)


def _in_one_block(results: dict[int, Buffer]) -> dict[int, Array]:
    """Return an array for each result: in one block, which the allocator gives back to the system as a whole."""
    sizes = [math.prod(x.shape) * x.dtype.itemsize for x in results.values()]
    places, size = place(sizes, [(0, 0)] * len(sizes))
    block = np.empty(size, np.uint8)
    return {
        number: block[at : at + length].view(x.dtype).reshape(x.shape)
        for (number, x), at, length in zip(results.items(), places, sizes, strict=True)
    }
