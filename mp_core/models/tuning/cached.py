"""Gradients of a batch of texts in groups: by cached gradients, with the activations of some groups in memory."""

from collections.abc import Iterator
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.autocast import AutoCastVariable
from mp_core.plans.backward import ValueAndGrad
from mp_core.plans.suspended import Suspended, SuspendedGrad
from mp_core.training.compiled import scale_of

__all__ = ["CachedGradients", "joined"]


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

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kept: int | None = None
        self._of_outputs: dict[Any, ValueAndGrad] = {}
        self._of_group: SuspendedGrad | None = None
        self._draws: int | None = None  # of a group: how many keys of dropout

    def step(self, groups: list[dict[str, Any]], y: Any) -> tuple[Array, list[Any]]:
        """Return the loss, and the gradients of the variables that are trained, with the loss scale in them."""
        *keys, following = self._keys(groups)
        pieces = list(zip(groups, keys, strict=True))
        outputs, kept = self._forwards(pieces)
        parts = list(map(self.model.by_column, outputs))
        loss, of_outputs = self._loss_of(joined(parts), y)
        ends = np.cumsum([len(part[0]) for part in parts])[:-1]
        d = list(map(np.concatenate, zip(*(np.split(each, ends) for each in of_outputs), strict=True)))
        total: list[Any] = []
        for found in self._backwards(pieces, d, kept):
            total = _added(total, found) if total else found
            del found  # while the next group is computed, there are its gradients and the sum
        self.model.seeds.state.assign(following)
        return loss, total

    def _forwards(self, pieces: list[tuple[Any, ...]]) -> tuple[list[Array], list[Suspended]]:
        """Return the outputs of groups, and the runs of the last ones, whose activations are kept."""
        workers = self.model._compiled.workers
        if workers is not None:
            return list(workers(self.model._compiled, "forward", pieces)), []
        again = 0 if self.kept is None else max(len(pieces) - self.kept, 0)
        outputs = list(starmap(self.forward, pieces[:again]))
        kept = list(starmap(self._started, pieces[again:]))
        return [*outputs, *(run.outputs for run in kept)], kept

    def _backwards(self, pieces: list[tuple[Any, ...]], d: list[Array], kept: list[Suspended]) -> Iterator[list[Any]]:
        """Yield the gradients of the weights of each group, from the last one to the first."""
        while kept:
            yield kept.pop().gradients(d.pop())
        rest = [(*piece, each) for piece, each in zip(pieces, d, strict=False)][::-1]
        workers = self.model._compiled.workers
        yield from starmap(self.led_on, rest) if workers is None else workers(self.model._compiled, "led_on", rest)

    def _keys(self, groups: list[dict[str, Any]]) -> list[Array]:
        """Return the key with which each group begins, and the one after the last: all groups draw as many keys."""
        first = self.model.seeds.state.numpy()
        if self._draws is None:
            self.forward(groups[0], first)
            self._draws = int(self.model.seeds.state.numpy()[1]) - int(first[1])
            self.model.seeds.state.assign(first)
        return [first + np.array([0, number * self._draws], first.dtype) for number in range(len(groups) + 1)]

    def _started(self, group: dict[str, Any], key: Array) -> Suspended:
        """Run a group forward, with dropout from a key on."""
        variables = self.model.trainable_variables
        if self._of_group is None or self._of_group.variables != variables:
            self._of_group = SuspendedGrad(partial(self.model, training=True), variables)
        self.model.seeds.state.assign(key)
        return self._of_group.start(group)

    def forward(self, group: dict[str, Any], key: Array) -> Array:
        """Return the outputs for the texts of a group, with dropout from a key on."""
        run = self._started(group, key)
        run.end()
        return run.outputs

    def led_on(self, group: dict[str, Any], key: Array, d: Array) -> list[Any]:
        """Run a group forward and backward; return the gradients of the variables from `d`, those of the outputs."""
        return self._started(group, key).gradients(d)

    def _loss_of(self, outputs: list[Array], y: Any) -> tuple[Array, list[Array]]:
        """Return the loss of outputs, and its gradients with respect to them, with the loss scale in these."""
        shape = outputs[0].shape
        step = self._of_outputs.get(shape)
        if step is None:
            variables = [AutoCastVariable(np.zeros(shape, F32), name=f"outputs_{i}") for i in range(len(outputs))]
            function = partial(self._scaled_loss, variables)
            step = self._of_outputs[shape] = ValueAndGrad(function, variables, has_aux=True)
        for variable, rows in zip(step.variables, outputs, strict=True):
            variable.assign(rows)
        (_, loss), found = step(y, scale_of(self.model._compiled.optimizer))
        return loss, found

    def _scaled_loss(self, variables: list[AutoCastVariable], y: Any, scale: Any) -> Any:
        loss = self.model.text_loss([variable.read_value() for variable in variables], y)
        return loss if scale is None else loss * scale, loss

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_of_group": None}  # its plans and its memory are those of a process


def joined(parts: list[list[Array]]) -> list[Array]:
    """Return the outputs of a batch by column, from those of its groups."""
    return list(map(np.concatenate, zip(*parts, strict=True)))


def _added(total: list[Any], found: list[Any]) -> list[Any]:
    """Return sums of gradients, in the memory of the first ones if that may be written to; None stays None."""
    with np.errstate(all="ignore"):
        return [
            None if x is None else np.add(x, part, out=x if x.flags.writeable else None)
            for x, part in zip(total, found, strict=True)
        ]
