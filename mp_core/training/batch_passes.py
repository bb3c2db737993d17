"""A step of training whose batch is computed in several passes, with the bits of the whole batch."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import is_recorded
from mp_core.autocast import AutoCastVariable
from mp_core.core.scopes import called_in
from mp_core.layers.building import added_losses
from mp_core.layers.parts import Part, part_under_way
from mp_core.losses import Loss
from mp_core.plans.backward import ValueAndGrad, assign_arrays
from mp_core.plans.batch_passes import Passed, PassGradients, added_blocks, unit_of
from mp_core.training.batches import Batch, joined, number_of_samples, part_of
from mp_core.training.objectives import Targets, check_target, targets_of, weighted

__all__ = ["BatchPasses", "Piece", "Stepped", "check_model"]

_MOST_TOTALS = 8
_MIXES = "the loss '{}' is no sum over the samples of a batch, so `passes` must be 1"


class Stepped(NamedTuple):
    """What a step of training finds.

    Attributes
    ----------
    loss : float
    parts : list of float
        The losses of the outputs, if there are several.
    outputs : array, or list or dict of arrays
    gradients : list of ndarray
    """

    loss: Any
    parts: list[Any]
    outputs: Any
    gradients: list[Array]


class Piece(NamedTuple):
    """The samples of a pass.

    Attributes
    ----------
    start : int
        How many samples of the batch come before.
    samples : tuple
        Their inputs and targets, and how many samples the batch has.
    upstream : list of ndarray
        The gradients of their values, and of what else adds to the loss.
    """

    start: int
    samples: tuple[Any, Any, int]
    upstream: list[Array]


class BatchPasses:
    """Computes the gradients of batches pass by pass.

    The loss of a batch is linear in the values of its samples, so their gradients follow from targets and weights of
    the whole batch before any sample is computed. Each pass is given those of its samples.

    Parameters
    ----------
    compiled : Compiled
        What ``compile`` has made of the model.
    variables : list of AutoCastVariable
        Those that are trained.

    Raises
    ------
    ValueError
        There is no loss, or one that is no sum over samples.
    """

    def __init__(self, compiled: Any, variables: Sequence[AutoCastVariable]) -> None:
        self._compiled, self._pairs = compiled, compiled.losses_of_outputs
        _check_losses([loss for loss, _ in self._pairs if loss is not None])
        self._gradients = PassGradients(self._forward, variables)
        self._totals: dict[Any, _Total] = {}

    def cuts(self, batch: Batch, passes: int) -> list[tuple[int, int]]:
        """Return the samples of each pass: a share of the batch, with whole K blocks of every sum over rows.

        If others compute all passes but the last, they wait for that one, so it is as short as it may be.
        """
        if self._compiled.masks_of(batch.x) is not None:
            raise ValueError(f"'{self._compiled.model.name}' has outputs with a mask, so `passes` must be 1")
        count = number_of_samples(batch.x)
        size = -(-count // passes)
        unit = unit_of(self._gradients.described(_samples(batch, 0, size)).meetings, size)
        last = count if self._compiled.workers is None else (count - 1) // unit * unit
        return list(pairwise(sorted({*range(0, last, -(-size // unit) * unit), last, count})))

    def step(self, batch: Batch, scale: Any, cuts: Sequence[tuple[int, int]]) -> Stepped:
        """Compute a batch in passes of so many samples, and assign what its layers assign.

        Parameters
        ----------
        batch : Batch
            Its targets are what losses read.
        scale : ndarray or None
            What multiplies the loss.
        cuts : sequence of (int, int)
            Where passes begin and end.
        """
        count, targets = number_of_samples(batch.x), self._targets(batch.y, self._compiled.arrangement, batch.weights)
        described = self._gradients.described(_samples(batch, *cuts[0])).targets
        total = self._total_of([(count, *shape[1:]) for shape, _, _ in described[: len(targets)]])
        upstream = total.upstream(targets, scale)
        rest = [np.full(shape, 1.0 if scale is None else scale[0], F32) for shape, _, _ in described[len(targets) :]]
        pieces = [Piece(a, _samples(batch, a, b), [*(d[a:b] for d in upstream), *rest]) for a, b in cuts]
        passes = self._passed(pieces)
        assign_arrays(passes[-1].assigned)
        columns = list(zip(*(each.targets for each in passes), strict=True))
        parts = total.losses([np.concatenate(column) for column in columns[: len(targets)]], targets)
        others = [
            functools.reduce(ops.add, column) if is_of_samples else column[-1]
            for column, (_, _, is_of_samples) in zip(columns[len(targets) :], described[len(targets) :], strict=True)
        ]
        shares = [weighted(part, weight) for part, (_, weight, _) in zip(parts, targets, strict=True)]
        loss = functools.reduce(ops.add, [*shares, *others])
        outputs = joined([each.aux for each in passes])
        return Stepped(loss, parts if len(parts) > 1 else [], outputs, passes[-1].sums)

    def apart(self, start: int, samples: tuple[Any, Any, int], upstream: list[Array]) -> Passed:
        """Compute one pass that knows nothing of the others; variables are as they are when the batch begins."""
        return self._gradients.apart(start, samples, upstream)._replace(assigned=[])

    def _passed(self, pieces: Sequence[Piece]) -> list[Passed]:
        """Compute the passes: one after the other, or all but the last elsewhere."""
        passes: list[Passed] = []
        before: list[Array] | None = None
        if self._compiled.workers is not None:
            for passed in self._compiled.workers(self._compiled, "apart", pieces[:-1]):
                before = added_blocks(before, passed)
                passes.append(passed._replace(sums=[]))
        for number, piece in enumerate(pieces[len(passes) :], len(passes) + 1):
            passes.append(self._gradients(*piece, before, number == len(pieces)))
            before = passes[-1].sums
        return passes

    # ---- one pass

    def _forward(self, before: Array, x: Any, y: Any, count: int) -> tuple[list[Any], Any]:
        """Return the values of samples for each loss, then all else that adds to the loss; and the outputs."""
        part = Part(before, number_of_samples(x), count)
        inner: Any = added_losses, [], self._values, (x, y, part.samples)
        return called_in(part_under_way, part, called_in, inner)  # type: ignore[no-any-return]

    def _values(self, x: Any, y: Any, samples: int) -> tuple[list[Any], Any]:
        outputs = self._compiled.model(x, training=True)
        values = []
        for loss, _, target in self._targets(y, outputs, None):
            value = loss.values(target.y, target.output)
            if value.ndim == 0 or value.shape[0] != samples:
                raise ValueError(_MIXES.format(loss.name))
            values.append(value)
        return [*values, *(x for x in self._compiled.model.losses if is_recorded(x))], outputs

    def _targets(self, y: Any, outputs: Any, weights: Any) -> list[tuple[Loss, float, Targets]]:
        """Return the outputs that have a loss, with it and its weight."""
        found = targets_of(self._compiled.output_names, y, outputs, weights)
        pairs = zip(self._pairs, found, strict=True)
        given = [(loss, weight, target) for (loss, weight), target in pairs if loss is not None]
        for loss, _, target in given:
            check_target(loss, target)
        return given

    def _total_of(self, shapes: list[tuple[int, ...]]) -> "_Total":
        found = self._totals.get(tuple(shapes))
        if found is None:
            if len(self._totals) >= _MOST_TOTALS:
                self._totals.clear()
            found = self._totals[tuple(shapes)] = _Total(shapes)
        return found


class _Total:
    """The loss of a batch as a function of the values of its samples, in which it is linear.

    Parameters
    ----------
    shapes : list of tuple
        Those of the values of each loss.
    """

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self._values = [AutoCastVariable(np.zeros(shape, F32), autocast=False, name="values") for shape in shapes]
        self._losses: list[Loss] = []
        self._find = ValueAndGrad(self._total, self._values, has_aux=False)

    def upstream(self, targets: Any, scale: Any) -> list[Array]:
        """Return the gradient of the loss, times the scale, with respect to the values of the samples."""
        self._given = [(loss, weight) for loss, weight, _ in targets]
        return self._find([t.y for _, _, t in targets], [t.weights for _, _, t in targets], scale)[1]

    def _total(self, y: list[Any], weights: list[Any], scale: Any) -> Any:
        parts = [
            weighted(loss.reduce(value.read_value(), *each), weight)
            for (loss, weight), value, *each in zip(self._given, self._values, y, weights, strict=True)
        ]
        total = functools.reduce(ops.add, parts)
        return total if scale is None else total * scale

    @staticmethod
    def losses(values: Sequence[Array], targets: Any) -> list[Any]:
        """Return the loss of each output that has one."""
        return [loss.reduce(x, target.y, target.weights) for x, (loss, _, target) in zip(values, targets, strict=True)]


def check_model(model: Any) -> None:
    """Raise ValueError if a model has a step or a loss of its own, which may compute anything of a batch."""
    for name in ("train_step", "compute_loss"):
        if model._has_own(name):
            raise ValueError(f"'{model.name}' has a `{name}` of its own, so `passes` must be 1")


def _check_losses(losses: Sequence[Any]) -> None:
    """Raise unless there are losses, which are sums over samples."""
    if not losses:
        raise ValueError("there is no loss to train with: give `loss` to `compile`")
    for loss in losses:
        if type(loss).__call__ is not Loss.__call__ or loss.mixes_samples:
            raise ValueError(_MIXES.format(loss.name))


def _samples(batch: Batch, start: int, end: int) -> tuple[Any, Any, int]:
    """Return inputs and targets of some samples of a batch, and how many it has."""
    part = part_of(batch, slice(start, end))
    return part.x, part.y, number_of_samples(batch.x)
