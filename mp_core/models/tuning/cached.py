"""Gradients of a batch of texts in groups: by cached gradients, with the activations of some groups in memory."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays import Array
from mp_core.layers.plans.arena import Arenas
from mp_core.layers.plans.backward import ArrayGradients, assign_arrays
from mp_core.layers.plans.parts import PartGradients, PartRun
from mp_core.training.compiled import scale_of
from mp_core.training.measured import training_state

if TYPE_CHECKING:
    from mp_core.models.tuning.training import TunedModel

__all__ = ["CachedGradients", "joined"]


class _Groups(PartGradients):
    """The gradients of groups, with dropout from a key on."""

    def __init__(self, model: "TunedModel") -> None:
        # Without a limit: those that are kept hold their memory until all of them have run forwards.
        super().__init__(lambda group: ([model(group, training=True)], None), model.trainable_variables,
                         Arenas(np.iinfo(np.intp).max))  # fmt: skip
        self._state = model.seeds.state

    def start(self, group: dict[str, Any], key: Array) -> PartRun:  # type: ignore[override]
        """Run a group forwards, with dropout from a key on."""
        self._state.assign(key)
        run = super().start(group)
        assign_arrays(run.assigned)
        return run


class CachedGradients:
    """Computes the gradients of batches that have several groups [1]_.

    All groups run forward, the loss and its gradients with respect to the outputs are computed, and each group runs
    backward from these. The activations of some groups are kept meanwhile; the others run forward again, with the same
    dropout. The gradients of the weights are those of the groups, added from the last group to the first.

    Parameters
    ----------
    model : TunedModel

    Attributes
    ----------
    kept : int or None
        Of how many groups the activations are kept; None: of all.

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
        self._draws: int | None = None  # of a group: how many keys of dropout

    def step(self, groups: list[dict[str, Any]], y: Any) -> tuple[Array, list[Any]]:
        """Return the loss, and the gradients of the variables that are trained, with the loss scale in them."""
        *keys, following = self._keys(groups)
        parts = list(zip(groups, keys, strict=True))
        found = self.groups.added(parts, partial(self._loss_of, y), self.kept, training_state(self.model).workers)
        self.model.seeds.state.assign(following)
        return found

    @property
    def groups(self) -> _Groups:
        """What computes groups, with a plan for each combination of shapes, for the variables that are trained now."""
        if self._groups is None or self._groups.variables != self.model.trainable_variables:
            self._groups = _Groups(self.model)
        return self._groups

    def _keys(self, groups: list[dict[str, Any]]) -> list[Array]:
        """Return the key with which each group begins, and the one after the last: all groups draw as many keys."""
        first = self.model.seeds.state.numpy()
        if self._draws is None:
            self.groups.forward(groups[0], first)
            self._draws = int(self.model.seeds.state.numpy()[1]) - int(first[1])
            self.model.seeds.state.assign(first)
        return [first + np.array([0, number * self._draws], first.dtype) for number in range(len(groups) + 1)]

    def _loss_of(self, y: Any, outputs: list[list[Array]]) -> tuple[Array, list[list[Array]]]:
        """Return the loss of the outputs of groups, and its gradients to each, with the loss scale in these."""
        parts = [self.model.by_column(each) for (each,) in outputs]
        (_, loss), found = self._loss(joined(parts), y, scale_of(training_state(self.model).optimizer))
        ends = np.cumsum([len(part[0]) for part in parts])[:-1]
        of_groups = zip(*(np.split(each, ends) for each in found), strict=True)
        return loss, [[np.concatenate(columns)] for columns in of_groups]

    def _scaled_loss(self, outputs: list[Array], y: Any, scale: Any) -> Any:
        loss = self.model.text_loss(outputs, y)
        return loss if scale is None else loss * scale, loss

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_groups": None}  # its plans and its memory are those of a process


def joined(parts: list[list[Array]]) -> list[Array]:
    """Return the outputs of a batch by column, from those of its groups."""
    return list(map(np.concatenate, zip(*parts, strict=True)))
