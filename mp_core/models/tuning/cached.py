"""Gradients of a batch in groups (gradient caching): only some groups keep their activations in memory."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers.plans.arena import Arenas
from mp_core.layers.plans.backward import ArrayGradients, assign_arrays
from mp_core.layers.plans.parts import PartGradients, PartRun
from mp_core.training.measured import training_state
from mp_core.training.state import scale_of

if TYPE_CHECKING:
    from mp_core.models.tuning.training import TunedModel

__all__ = ["CachedGradients", "join_groups"]


class _Groups(PartGradients):
    """The gradients of groups; the dropout of each group starts from a given key."""

    def __init__(self, model: "TunedModel") -> None:
        # No limit on arenas: groups that keep their activations need theirs until all groups have run forward.
        super().__init__(lambda group: ([model(group, training=True)], None), model.trainable_variables,
                         Arenas(np.iinfo(np.intp).max))  # fmt: skip
        self._state = model.seeds.state

    def start(self, group: dict[str, Any], key: Array) -> PartRun:  # type: ignore[override]
        """Run a group forward, with dropout keys from `key` on."""
        self._state.assign(key)
        run = super().start(group)
        assign_arrays(run.assigned)
        return run


class CachedGradients:
    """Computes the gradients of batches of several groups [1]_.

    1. All groups run forward.
    2. The loss of the whole batch and its gradients to the outputs are computed.
    3. Each group runs backward from its output gradients. Groups whose activations were not kept (all but `kept`; None:
       all are) first run forward again, with the same dropout.

    The gradients of the weights are summed from the last group to the first.

    References
    ----------
    .. [1] L. Gao, Y. Zhang, J. Han, J. Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
       Setup", RepL4NLP 2021.
    """

    def __init__(self, model: "TunedModel") -> None:
        self.model = model
        self.kept: int | None = None
        self._loss = ArrayGradients(self._scaled_loss)
        self._groups: _Groups | None = None
        self._draws: int | None = None  # the number of dropout keys that a group draws

    def step(self, groups: list[dict[str, Any]], y: Any) -> tuple[Array, list[Any]]:
        """Return the loss, and the gradients of the trainable variables, multiplied by the loss scale."""
        *keys, following = self._keys(groups)
        parts = list(zip(groups, keys, strict=True))
        found = self.groups.added(parts, partial(self._loss_of, y), self.kept, training_state(self.model).workers)
        self.model.seeds.state.assign(following)
        return found

    @property
    def groups(self) -> _Groups:
        """The gradients of groups for the currently trainable variables; it caches a plan for each set of shapes."""
        if self._groups is None or self._groups.variables != self.model.trainable_variables:
            self._groups = _Groups(self.model)
        return self._groups

    def _keys(self, groups: list[dict[str, Any]]) -> list[Array]:
        """Return the first dropout key of each group, and the next one; all groups draw the same number of keys."""
        first = self.model.seeds.state.numpy()
        if self._draws is None:
            self.groups.forward(groups[0], first)
            self._draws = int(self.model.seeds.state.numpy()[1]) - int(first[1])
            self.model.seeds.state.assign(first)
        return [first + np.array([0, number * self._draws], first.dtype) for number in range(len(groups) + 1)]

    def _loss_of(self, y: Any, outputs: list[list[Array]]) -> tuple[Array, list[list[Array]]]:
        """Return the loss of a batch, and its gradients to each group's outputs, multiplied by the loss scale."""
        parts = [self.model.by_column(each) for (each,) in outputs]
        (_, loss), found = self._loss(join_groups(parts), y, scale_of(training_state(self.model).optimizer))
        ends = np.cumsum([len(part[0]) for part in parts])[:-1]
        of_groups = zip(*(np.split(each, ends) for each in found), strict=True)
        return loss, [[np.concatenate(columns)] for columns in of_groups]

    def _scaled_loss(self, outputs: list[Array], y: Any, scale: Any) -> Any:
        loss = self.model.text_loss(outputs, y)
        return loss if scale is None else loss * scale, loss

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_groups": None}  # plans and their memory belong to a process


def join_groups(parts: list[list[Array]]) -> list[Array]:
    """Concatenate the outputs of groups, column by column."""
    return list(map(np.concatenate, zip(*parts, strict=True)))
