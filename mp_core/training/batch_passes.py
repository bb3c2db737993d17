"""A training step that computes its batch in several passes, with the bits of one pass over the whole batch."""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.arrays.recorded import is_recorded
from mp_core.core.scopes import called_in
from mp_core.layers.base.losses import added_losses
from mp_core.layers.parts import BatchPart, current_part
from mp_core.layers.plans.backward import ArrayGradients, Assigned
from mp_core.layers.plans.parts import PartDescription, PartGradients, unit_of
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.batches import Batch, concatenated, number_of_samples, part_of
from mp_core.training.losses import Loss
from mp_core.training.objectives import Targets, check_target, weighted

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["BatchPasses", "check_model"]

_MIXES = "the loss '{}' is not a sum over the samples of a batch, so `passes` must be 1"


class BatchPasses:
    """Compute the gradients of batches pass by pass: each is a part of :class:`~.plans.parts.PartGradients`.

    The loss of a batch is linear in the losses of its samples. So the gradient of the batch loss with respect to each
    sample's loss depends only on targets and weights, and is computed before the first pass. Each pass gets its slice.
    """

    def __init__(self, state: Any, variables: Sequence[AutoCastVariable]) -> None:
        self._training_state, self._pairs = state, state.losses_by_output
        _check_losses([loss for loss, _ in self._pairs if loss is not None])
        self.gradients = PartGradients(self._forward, variables)
        self._total_gradients = ArrayGradients(self._total)

    def cuts(self, batch: Batch, passes: int) -> list[tuple[int, int]]:
        """Return (start, end) of each pass: about equal parts of the batch, cut between K blocks of sums over rows.

        With workers, which compute all passes but the last and wait for that one, the last is as short as possible.
        """
        if self._training_state.masks_of(batch.x) is not None:
            raise ValueError(f"'{self._training_state.model.name}' has outputs with a mask, so `passes` must be 1")
        count = number_of_samples(batch.x)
        size = -(-count // passes)
        unit = unit_of(self._described(batch, size).shared_sums, size)
        last = count if self._training_state.workers is None else (count - 1) // unit * unit
        return list(pairwise(sorted({*range(0, last, -(-size // unit) * unit), last, count})))

    def step(
        self, batch: Batch, scale: Any, cuts: Sequence[tuple[int, int]]
    ) -> tuple[Any, list[Any], Any, list[Array], Assigned]:
        """Compute a batch in passes with these `cuts`, (start, end) in samples; targets have the dtypes of the losses.

        Return the loss, the losses of the outputs if there are several (otherwise none), the outputs, the gradients and
        the values that layers assign to their variables.
        """
        targets = self._targets(batch.y, self._training_state.arrangement, batch.weights)
        described = self._described(batch, cuts[0][1]).outputs
        of_values, of_rest = described[: len(targets)], described[len(targets) :]
        values = [np.zeros((number_of_samples(batch.x), *shape[1:]), F32) for shape, _, _ in of_values]
        upstream = self._total_gradients(values, [t.y for *_, t in targets], [t.weights for *_, t in targets], scale)[1]
        rest = [np.full(shape, 1.0 if scale is None else scale[0], F32) for shape, _, _ in of_rest]
        parts = [([*(d[a:b] for d in upstream), *rest], *_samples(batch, a, b)) for a, b in cuts]
        found, outputs, gradients, assigned = self.gradients.continued(parts, self._training_state.workers)
        columns = list(zip(*found, strict=True))
        whole = [np.concatenate(column) for column in columns[: len(targets)]]
        losses = [loss.reduce(x, t.y, t.weights) for x, (loss, _, t) in zip(whole, targets, strict=True)]
        others = [
            functools.reduce(ops.add, column) if is_of_samples else column[-1]
            for column, (_, _, is_of_samples) in zip(columns[len(targets) :], of_rest, strict=True)
        ]
        shares = [weighted(loss, weight) for loss, (_, weight, _) in zip(losses, targets, strict=True)]
        loss = functools.reduce(ops.add, [*shares, *others])
        return loss, losses if len(losses) > 1 else [], concatenated(outputs), gradients, assigned

    def _described(self, batch: Batch, size: int) -> PartDescription:
        """Return shapes and dtypes of a pass of `size` samples."""
        return self.gradients.describe(*_samples(batch, 0, size))

    # ---- one pass

    def _forward(self, before: Array, x: Any, y: Any, count: int) -> tuple[list[Any], Any]:
        """Return the losses of samples for each output, then all other terms of the loss; and the outputs."""
        part = BatchPart(before, number_of_samples(x), count)
        inner: Any = added_losses, [], self._values, (x, y, part.samples)
        return called_in(current_part, part, called_in, inner)  # type: ignore[no-any-return]

    def _values(self, x: Any, y: Any, samples: int) -> tuple[list[Any], Any]:
        outputs = self._training_state.model(x, training=True)
        values = []
        for loss, _, target in self._targets(y, outputs, None):
            value = loss.values(target.y, target.output)
            if value.ndim == 0 or value.shape[0] != samples:
                raise ValueError(_MIXES.format(loss.name))
            values.append(value)
        return [*values, *(x for x in self._training_state.model.losses if is_recorded(x))], outputs

    def _targets(self, y: Any, outputs: Any, weights: Any) -> list[tuple[Loss, float, Targets]]:
        """Return (loss, weight, target) of each output that has a loss."""
        found = self._training_state.targets_of(y, outputs, weights)
        pairs = zip(self._pairs, found, strict=True)
        given = [(loss, weight, target) for (loss, weight), target in pairs if loss is not None]
        for loss, _, target in given:
            check_target(loss, target)
        return given

    def _total(self, values: list[Any], y: list[Any], weights: list[Any], scale: Any) -> tuple[Any, None]:
        """Return the loss of a batch: a linear function of the losses of its samples."""
        given = (pair for pair in self._pairs if pair[0] is not None)
        parts = [
            weighted(loss.reduce(value, *each), weight)
            for (loss, weight), value, *each in zip(given, values, y, weights, strict=True)
        ]
        total = functools.reduce(ops.add, parts)
        return total if scale is None else total * scale, None


def check_model(model: "Model") -> None:
    """Raise ValueError if a model overrides its step or its loss: these may compute anything of a batch."""
    for name in ("train_step", "compute_loss"):
        if model._has_own(name):
            raise ValueError(f"'{model.name}' overrides `{name}`, so `passes` must be 1")


def _check_losses(losses: Sequence[Any]) -> None:
    """Raise ValueError unless there is a loss, and all losses are sums over samples."""
    if not losses:
        raise ValueError("there is no loss to train with: give `loss` to `compile`")
    for loss in losses:
        if type(loss).__call__ is not Loss.__call__ or loss.mixes_samples:
            raise ValueError(_MIXES.format(loss.name))


def _samples(batch: Batch, start: int, end: int) -> tuple[Array, Any, Any, int]:
    """Return `start` as an array, inputs and targets of the samples start:end, and the size of the batch."""
    part = part_of(batch, slice(start, end))
    return np.array([start], np.int32), part.x, part.y, number_of_samples(batch.x)
