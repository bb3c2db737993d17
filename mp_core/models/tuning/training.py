"""The training of encoders: a network wrapped as a model of :mod:`mp_core.training`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mp_core import ops
from mp_core.arrays import Array
from mp_core.core.scopes import called_in
from mp_core.layers.plans.parts import PartGradients
from mp_core.layers.seeds import SeedGenerator
from mp_core.models.blocks import Padding, dropping, padding
from mp_core.models.network import TextNetwork
from mp_core.models.steps import Step, apply_steps_in_training
from mp_core.models.tuning.cached import CachedGradients, join_groups
from mp_core.models.tuning.dropout import drops_of
from mp_core.training.losses.texts import TextLoss
from mp_core.training.measured import training_state
from mp_core.training.models import Model

__all__ = ["TunedEncoder", "TunedModel", "vectors_of"]


class TunedModel(Model):
    """A text network wrapped for training; `rates` maps places to dropout rates, whose seed is `seed`.

    ``text_loss(outputs, labels)`` gets a list of outputs, one for each of the `columns` texts of an example.
    """

    def __init__(
        self, network: TextNetwork, rates: Mapping[str, float], seed: int | None,
        text_loss: Callable[[list[Array], Any], Any], columns: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(name="tuned", dtype=network.dtype_policy, autocast=False)
        self.network, self.seeds = network, SeedGenerator(seed)
        self.text_loss, self.columns = text_loss, columns
        self._drops = drops_of(rates, self.seeds)
        self.cached = CachedGradients(self)
        self.build(())

    def call(self, x: Any, training: bool | None = False) -> Any:
        """Return the outputs for the texts of a batch."""
        return called_in(dropping, self._drops if training else None, self._padded, (x,))

    def _padded(self, x: dict[str, Any]) -> Any:
        return called_in(padding, x["padding"], self.outputs_of, (x,))

    def outputs_of(self, x: dict[str, Any]) -> Array:
        """Return the outputs for ragged texts, without the filler text."""
        raise NotImplementedError

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the loss of a batch plus the losses of regularizers."""
        others = [self.text_loss(self.by_column(y_pred), y), *self.losses]
        return training_state(self).loss_of(None, y_pred, None, others)

    def by_column(self, outputs: Array) -> list[Array]:
        """Split the outputs of a batch by text column."""
        size = len(outputs) // self.columns
        return [outputs[place * size : (place + 1) * size] for place in range(self.columns)]

    def _first_sample(self, x: dict[str, Any]) -> dict[str, Any]:
        """Return the first text of a batch, without a filler text."""
        tokens, how = x["lengths"][0], x["padding"]
        return {
            "lengths": x["lengths"][:1], "ids": x["ids"][:tokens], "places": x["places"][:tokens],
            "offsets": x["offsets"][:2],
            "padding": None if how is None else Padding(how.tokens[:1], how.places[:tokens], how.keep[:1]),
        }  # fmt: skip

    # ---- batches of several groups

    def train_step(self, data: Any) -> dict[str, Any]:
        """Train on a batch, with cached gradients if it has several groups, and return the running metrics."""
        if not isinstance(data[0], list):
            return super().train_step(data)
        groups, y = data[0], data[1] if len(data) > 1 else None
        variables = training_state(self).prepare()
        if not variables:
            raise ValueError(f"'{self.name}' has no trainable weights")
        loss, gradients = self.cached.step(groups, y)
        training_state(self).apply_gradients(gradients, variables)
        return self._updated_metrics(loss, groups)

    def test_step(self, data: Any) -> dict[str, Any]:
        if not isinstance(data[0], list):
            return super().test_step(data)
        groups, y = data[0], data[1] if len(data) > 1 else None
        parts = [self.by_column(self.predict_on_batch(group)) for group in groups]
        return self._updated_metrics(self.text_loss(join_groups(parts), y), groups)

    def _updated_metrics(self, loss: Any, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """Update the mean loss with that of a batch, and return the running metrics."""
        training_state(self).losses[0].update_state(loss, sum(len(group["lengths"]) for group in groups))
        return self.get_metrics_result()

    def in_parts(self) -> PartGradients:
        """Return the object that computes groups of a batch on other machines."""
        return self.cached.groups


def vectors_of(
    network: TextNetwork, x: dict[str, Any], poolings: Sequence[str], steps: Sequence[Step], skipped: int
) -> Array:
    """Return the vectors of ragged texts `x` from :func:`ragged_inputs`, after pooling and `steps`, float32."""
    hidden = network(x["ids"], places=x["places"], offsets=x["offsets"])
    pooled = ops.ragged_pool(hidden, x["offsets"], poolings, skipped, network.settings.max_length)
    return apply_steps_in_training(steps, pooled[: len(x["lengths"])])


class TunedEncoder(TunedModel):
    """The network of an encoder, with its poolings and steps, wrapped for training as in :class:`TunedModel`.

    The weights of the steps are not trained, and the first `skipped` tokens of a text, its prompt's, are not pooled.
    """

    def __init__(
        self, network: TextNetwork, rates: Mapping[str, float], seed: int | None, *, poolings: Sequence[str],
        steps: Sequence[Step], skipped: int, columns: int, text_loss: TextLoss,
    ) -> None:  # fmt: skip
        super().__init__(network, rates, seed, text_loss, columns)
        self.poolings, self.steps, self.skipped = tuple(poolings), tuple(steps), skipped

    def outputs_of(self, x: dict[str, Any]) -> Array:
        """Return the vectors of ragged texts, float32."""
        return vectors_of(self.network, x, self.poolings, self.steps, self.skipped)
