"""The training of an encoder: its network as a model of the loop of mp_core.training, and its cached gradients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, Array
from mp_core.autocast import AutoCastVariable
from mp_core.core.scopes import called_in
from mp_core.layers.seeds import SeedGenerator
from mp_core.models.blocks import Padding, dropping, padding
from mp_core.models.model import Model as Network
from mp_core.models.steps import Step, in_training
from mp_core.models.tuning.dropout import drops_of
from mp_core.models.tuning.losses import TextLoss
from mp_core.plans.backward import ValueAndGrad
from mp_core.training.compiled import scale_of
from mp_core.training.models import Model

__all__ = ["TunedEncoder", "TunedModel", "vectors_of"]


class TunedModel(Model):
    """A network of texts that is trained.

    Parameters
    ----------
    network : Model
        Of :mod:`mp_core.models`.
    rates : mapping of str to float
        The rate of dropout of each place.
    seed : int, optional
        Of the dropout.
    text_loss : callable
        From the outputs of a batch, an array for each column of texts, and its labels to the loss.
    columns : int
        How many texts an example has that the network takes one by one.
    """

    def __init__(
        self, network: Network, rates: Mapping[str, float], seed: int | None,
        text_loss: Callable[[list[Array], Any], Any], columns: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(name="tuned", dtype=network.dtype_policy, autocast=False)
        self.network, self.seeds = network, SeedGenerator(seed)
        self.text_loss, self.columns = text_loss, columns
        self._drops = drops_of(rates, self.seeds)
        self._of_outputs: dict[Any, ValueAndGrad] = {}
        self._of_chunk: ValueAndGrad | None = None
        self._draws: int | None = None  # of a chunk: how many keys of dropout
        self.build(())

    def call(self, x: Any, training: bool | None = False) -> Any:
        """Return the outputs for the texts of a batch."""
        return called_in(dropping, self._drops if training else None, self._padded, (x,))

    def _padded(self, x: dict[str, Any]) -> Any:
        return called_in(padding, x["padding"], self.outputs_of, (x,))

    def outputs_of(self, x: dict[str, Any]) -> Array:
        """Return the outputs for ragged texts, without that of the last one, which only fills up."""
        raise NotImplementedError

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of the outputs of a batch, and what regularizers add."""
        return self._compiled.loss_of(None, y_pred, None, [self.text_loss(self._by_column(y_pred), y), *self.losses])

    def _by_column(self, outputs: Array) -> list[Array]:
        size = len(outputs) // self.columns
        return [outputs[place * size : (place + 1) * size] for place in range(self.columns)]

    def _first_sample(self, x: dict[str, Any]) -> dict[str, Any]:
        """Return the first text of a batch, with no text behind it that fills up."""
        tokens, how = x["lengths"][0], x["padding"]
        return {
            "lengths": x["lengths"][:1], "ids": x["ids"][:tokens], "places": x["places"][:tokens],
            "offsets": x["offsets"][:2],
            "padding": None if how is None else Padding(how.tokens[:1], how.places[:tokens], how.keep[:1]),
        }  # fmt: skip

    # ---- cached gradients

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train with one batch, and return the means so far; a batch in chunks by cached gradients [1]_.

        All chunks run forward, the loss and its gradients with respect to the outputs are computed, and each chunk runs
        forward again, with the same dropout, to lead these gradients on to the weights. So the memory is that of one
        chunk, and the outputs and the loss have the bits of the whole batch.

        References
        ----------
        .. [1] L. Gao, Y. Zhang, J. Han, J. Callan, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
           Setup", RepL4NLP 2021.
        """
        if not isinstance(data[0], list):
            return super().train_step(data)
        chunks, y = data[0], data[1] if len(data) > 1 else None
        variables = self._compiled.prepare()
        loss, gradients = self._gradients(chunks, y)
        self._compiled.move(gradients, variables)
        self._compiled.losses[0].update_state(loss, sum(len(chunk["lengths"]) for chunk in chunks))
        return self._compiled.logs()

    def _gradients(self, chunks: list[dict[str, Any]], y: Any) -> tuple[Array, list[Array]]:
        """Return the loss, and the gradients of the variables that are trained, with the loss scale in them."""
        *keys, following = self._keys(chunks)
        parts = list(self._of_each("forward", zip(chunks, keys, strict=True)))
        loss, of_outputs = self._loss_of(list(map(np.concatenate, zip(*parts, strict=True))), y)
        ends = np.cumsum([len(part[0]) for part in parts])[:-1]
        d = map(np.concatenate, zip(*(np.split(each, ends) for each in of_outputs), strict=True))
        total: list[Array] = []
        for found in self._of_each("led_on", zip(chunks, keys, d, strict=True)):
            total = _added(total, found) if total else found
            del found  # while the next chunk is computed, there are its gradients and the sum
        self.seeds.state.assign(following)
        return loss, total

    def _of_each(self, name: str, pieces: Iterable[tuple[Any, ...]]) -> Iterable[Any]:
        """Return what a method gives for each chunk, here or on workers."""
        workers = self._compiled.workers
        return starmap(getattr(self, name), pieces) if workers is None else workers(self._compiled, name, [*pieces])

    def _keys(self, chunks: list[dict[str, Any]]) -> list[Array]:
        """Return the key of the first random numbers of each chunk, and that behind the last: all draw as many."""
        first = self.seeds.state.numpy()
        if self._draws is None:
            self.forward(chunks[0], first)
            self._draws = int(self.seeds.state.numpy()[1]) - int(first[1])
            self.seeds.state.assign(first)
        return [first + np.array([0, number * self._draws], first.dtype) for number in range(len(chunks) + 1)]

    def in_parts(self) -> "TunedModel":
        """Return what computes chunks of a batch on another machine: :meth:`forward` and :meth:`led_on`."""
        return self

    def forward(self, chunk: dict[str, Any], key: Array) -> list[Array]:
        """Return the outputs for the texts of a chunk, by column, with dropout from a key on."""
        self.seeds.state.assign(key)
        return self._by_column(self(chunk, training=True))

    def led_on(self, chunk: dict[str, Any], key: Array, d: Array) -> list[Array]:
        """Return the gradients of the variables that are trained; `d` are those of the outputs."""
        variables = self.trainable_variables
        if self._of_chunk is None or self._of_chunk.variables != variables:
            self._of_chunk = ValueAndGrad(self._led_on, variables, has_aux=False)
        self.seeds.state.assign(key)
        return self._of_chunk(chunk, d)[1]

    def _led_on(self, chunk: dict[str, Any], d: Array) -> Any:
        """Return a number whose gradients are those of the loss, of which `d` are those of the outputs."""
        return ops.sum(ops.multiply(self(chunk, training=True), d))

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
        (_, loss), found = step(y, scale_of(self._compiled.optimizer))
        return loss, found

    def _scaled_loss(self, variables: list[AutoCastVariable], y: Any, scale: Any) -> Any:
        loss = self.text_loss([variable.read_value() for variable in variables], y)
        return loss if scale is None else loss * scale, loss


def vectors_of(
    network: Network, x: dict[str, Any], poolings: Sequence[str], steps: Sequence[Step], skipped: int
) -> Array:
    """Return the vectors of ragged texts, of :func:`laid_out`, float32: what an encoder makes of its network's."""
    hidden = network(x["ids"], places=x["places"], offsets=x["offsets"])
    pooled = ops.ragged_pool(hidden, x["offsets"], poolings, skipped, network.settings.max_length)
    return in_training(steps, pooled[: len(x["lengths"])])


class TunedEncoder(TunedModel):
    """The network of an encoder, with what makes vectors of texts of its outputs.

    Parameters
    ----------
    network, rates, seed
        Those of :class:`TunedModel`.
    poolings : sequence of str
    steps : sequence of Step
        What is done with the pooled vectors. Their weights are not trained.
    skipped : int
        How many tokens of a prompt are not pooled.
    columns : int
        How many texts an example has.
    text_loss : TextLoss
    """

    def __init__(
        self, network: Network, rates: Mapping[str, float], seed: int | None, *, poolings: Sequence[str],
        steps: Sequence[Step], skipped: int, columns: int, text_loss: TextLoss,
    ) -> None:  # fmt: skip
        super().__init__(network, rates, seed, text_loss, columns)
        self.poolings, self.steps, self.skipped = tuple(poolings), tuple(steps), skipped

    def outputs_of(self, x: dict[str, Any]) -> Array:
        """Return the vectors of ragged texts, float32."""
        return vectors_of(self.network, x, self.poolings, self.steps, self.skipped)


def _added(total: list[Array], found: list[Array]) -> list[Array]:
    """Return sums of gradients, in the memory of the first ones if that may be written to."""
    with np.errstate(all="ignore"):
        return [np.add(x, part, out=x if x.flags.writeable else None) for x, part in zip(total, found, strict=True)]
