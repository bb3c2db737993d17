"""What ``compile`` makes: an optimizer, losses, metrics, and the steps of training and evaluation."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mp_core import optimizers
from mp_core.arrays.recorded import is_recorded
from mp_core.autocast import AutoCastVariable
from mp_core.core.scopes import called_in
from mp_core.layers.building import added_losses
from mp_core.layers.randomness import next_seed
from mp_core.metrics import Metric
from mp_core.plans.backward import ValueAndGrad
from mp_core.training.batches import Batch, number_of_samples
from mp_core.training.loop import Place
from mp_core.training.objectives import Losses, LossTracker, Metrics, targets_of, weighted
from mp_core.training.planned_calls import PlannedCalls
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Compiled", "Workers", "compiled", "scale_of"]

Workers = Callable[["Compiled", str, Sequence[tuple[Any, ...]]], Iterable[Any]]
"""What calls a method of ``model.in_parts()`` on other machines, with several arguments: returns results in order."""


def compiled(
    model: Any, optimizer: Any, given: dict[str, Any], options: dict[str, Any], auto_scale_loss: bool
) -> "Compiled":
    """Return what ``compile`` makes of its arguments.

    Raises
    ------
    TypeError, ValueError
        One of them is none of those that are allowed.
    """
    boolean(options["run_eagerly"], "run_eagerly")
    positive_integer(options["steps_per_execution"], "steps_per_execution")
    if options["jit_compile"] not in ("auto", True, False, None):
        raise ValueError(f"`jit_compile` must be 'auto', a bool or None; received {options['jit_compile']!r}")
    found = optimizers.get(optimizer)
    return Compiled(model, model._wrapped_optimizer(found, boolean(auto_scale_loss, "auto_scale_loss")), given)


class Compiled:
    """The state of a model's training, beside its variables.

    Parameters
    ----------
    model : Model
    optimizer : Optimizer
        Wrapped already, if its loss is to be scaled.
    given : dict
        Losses, their weights and metrics as ``compile`` got them.
    """

    def __init__(self, model: Any, optimizer: Any, given: dict[str, Any]) -> None:
        self.model, self.optimizer, self.given = model, optimizer, given
        self.seed = next_seed()
        self.place, self.resumed, self.history = Place(0, 0), None, None
        self._losses = Losses(given["loss"], given["loss_weights"])
        self.metrics = Metrics(given["metrics"], given["weighted_metrics"])
        self._loss, self._parts = LossTracker("loss"), list[LossTracker]()
        self._current: list[Any] = []  # the losses of the outputs, without their weights, in the step under way
        self._step: ValueAndGrad | None = None
        self.passes = 1
        self.workers: Workers | None = None
        self._passes: Any = None  # what computes batches in passes
        self._adds_losses: bool | None = None  # None: that is not known yet
        self._outputs: tuple[list[str], Any] = [], None  # their names, and how they are arranged
        self._masks: PlannedCalls | None = None  # of the outputs
        self._has_masks: bool | None = None  # None: that is not known yet

    # ---- steps

    def use_passes(self, passes: int, workers: Workers | None = None) -> None:
        """Compute each batch in so many passes from now on; `workers` compute all but the last one, if there are some.

        Raises
        ------
        TypeError, ValueError
            `passes` is no positive integer, or 1 with workers; or the model has a step or a loss of its own.
        """
        if workers is not None and passes == 1:
            raise ValueError("with a `cluster`, `passes` must be at least 2; received 1")
        if positive_integer(passes, "passes") > 1:
            from mp_core.training.batch_passes import check_model

            check_model(self.model)
        self.passes, self.workers = passes, workers

    def train(self, data: Sequence[Any]) -> None:
        """Move the weights by the gradients of a batch; if it fails, nothing has changed.

        Of a model without trainable weights only the loss and the metrics are computed.
        """
        batch = self._batch(data)
        step = self._step or self._made_step(batch)
        if not step.variables:
            _, (loss, parts, outputs) = self._differentiated(batch.x, batch.y, batch.weights, None)
            self._note(batch, outputs, loss, parts)
            return
        fed = batch if self.given["loss"] is None else batch._replace(y=self._losses.fed(batch.y, *self._outputs))
        try:
            loss, parts, outputs, gradients = self._gradients(step, fed, scale_of(self.optimizer))
        except IndexError as error:  # of a look-up in a plan, which knows no names
            raise IndexError(f"`y` has a number that is no class, or `x` one that is in no table: {error}") from error
        self.move(gradients, step.variables)
        self._note(batch, outputs, loss, parts)

    def _batch(self, data: Sequence[Any]) -> Batch:
        batch = Batch(*data)
        x = self.model._whole(batch.x)
        return batch if x is batch.x else batch._replace(x=x)

    def move(self, gradients: Sequence[Any], variables: Sequence[AutoCastVariable]) -> None:
        """Move variables by gradients, which have the loss scale in them."""
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _gradients(self, step: ValueAndGrad, batch: Batch, scale: Any) -> Any:
        """Return the loss of a batch, those of the outputs, the outputs and the gradients."""
        if self.passes > 1:
            passes = self._passes = self._passes or _batch_passes(self, step.variables)
            cuts = passes.cuts(batch, self.passes)
            if len(cuts) > 1:
                return passes.step(batch, scale, cuts)
        (_, (loss, parts, outputs)), gradients = step(batch.x, batch.y, batch.weights, scale)
        return loss, parts, outputs, gradients

    def test(self, data: Sequence[Any]) -> None:
        """Take the loss and the metrics of a batch into their means."""
        batch = self._batch(data)
        outputs, loss, parts = called_in(added_losses, [], self._tested, (batch,))
        self._note(batch, outputs, loss, parts)

    def _tested(self, batch: Batch) -> tuple[Any, Any, list[Any]]:
        """Return outputs, loss and those of the outputs; a plan computes them unless layers add to the loss."""
        if self._adds_losses is False:
            outputs = self.model.predict_on_batch(batch.x)
        else:
            outputs = self.model(batch.x, training=False)
            self._adds_losses = bool(added_losses.get())
        return outputs, *self._computed(batch, outputs, training=False)

    def prepare(self) -> list[AutoCastVariable]:
        """Build the optimizer for the weights that are trainable, and return them."""
        if not self.model.built:
            raise ValueError(f"'{self.model.name}' is not built: call it once, or give it an Input")
        variables = self.model.trainable_variables
        if not getattr(self.optimizer, "built", True):
            self.optimizer.build(variables)
        return list(variables)

    def _made_step(self, batch: Batch) -> ValueAndGrad:
        """Return the step for the variables that are trainable now."""
        first = self.model._first_sample(batch.x)
        outputs = self.model(first, training=False)  # builds the model, and says how the outputs are arranged
        self._outputs = self.model._output_names(outputs), map_leaves(lambda _: None, outputs)
        variables = self.prepare()
        if not variables:
            warnings.warn(f"'{self.model.name}' has no trainable weights: nothing is trained", stacklevel=2)
        self._step = ValueAndGrad(self._differentiated, variables, has_aux=True, allows_unused=True)
        return self._step

    def _differentiated(self, x: Any, y: Any, weights: Any, scale: Any) -> Any:
        return called_in(added_losses, [], self._forward, (Batch(x, y, weights), scale))

    def _forward(self, batch: Batch, scale: Any) -> Any:
        outputs = self.model(batch.x, training=True)
        loss, parts = self._computed(batch, outputs, training=True)
        if loss is None:
            raise ValueError("there is no loss to train with: give `loss` to `compile`")
        return loss if scale is None else loss * scale, (loss, parts, outputs)

    def _computed(self, batch: Batch, outputs: Any, training: bool) -> tuple[Any, list[Any]]:
        """Return the loss, and those of the outputs if there are several."""
        self._current = []
        loss = self.model.compute_loss(batch.x, batch.y, outputs, batch.weights, training=training)
        parts, self._current = self._current, []
        return loss, parts if len(parts) > 1 else []

    def masks_of(self, x: Any) -> Any:
        """Return the masks of the outputs for some inputs, arranged as they are; None if no layer makes one."""
        if self._has_masks is False:
            return None
        if self._has_masks is None or is_recorded(*leaves(x)):
            found = called_in(added_losses, [], self.model.compute_mask, (x,))
            self._has_masks = any(mask is not None for mask in leaves(found))
            return found if self._has_masks else None
        if self._masks is None:
            self._masks = PlannedCalls(lambda x, training: self.model.compute_mask(x))
        return self._masks(x)

    def loss_of(self, y: Any, outputs: Any, weights: Any, others: Iterable[Any], masks: Any = None) -> Any:
        """Return the sum of the losses of the outputs and of `others`; None without any."""
        found, parts = None, list[Any]()
        if self.given["loss"] is not None:
            targets = targets_of(self.model._output_names(outputs), y, outputs, weights, masks)
            computed = self._losses.compute(targets, outputs)
            self._current, parts = [value for value, _ in computed], [weighted(*each) for each in computed]
        for part in (*parts, *others):
            found = part if found is None else found + part
        return found

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs; known from the first step on."""
        return self._outputs[0]

    @property
    def arrangement(self) -> Any:
        """How the outputs are arranged: lists and dictionaries of None."""
        return self._outputs[1]

    @property
    def losses_of_outputs(self) -> list[tuple[Any, float]]:
        """The loss of each output and its weight; None: it has none."""
        return self._losses.of(*self._outputs)

    def finish(self) -> None:
        """Set the variables to their averages, if the optimizer keeps such."""
        if self._step is not None and hasattr(self.optimizer, "finalize_variable_values"):
            self.optimizer.finalize_variable_values(self._step.variables)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of ``compile``, with the optimizer that was given to it."""
        return {"optimizer": getattr(self.optimizer, "inner_optimizer", self.optimizer), **self.given}

    # ---- means

    def _note(self, batch: Batch, outputs: Any, loss: Any, parts: Sequence[Any]) -> None:
        """Take the results of a batch into the means."""
        samples, names = number_of_samples(batch.x), self.model._output_names(outputs)
        if loss is not None:
            self._loss.update_state(loss, samples)
        if parts and not self._parts:
            self._parts = [LossTracker(f"{name}_loss") for name in names]
        for tracker, part in zip(self._parts, parts, strict=False):
            tracker.update_state(part, samples)
        if batch.y is not None and self.metrics.are_given:
            masks = self.masks_of(batch.x)
            self.metrics.update(targets_of(names, batch.y, outputs, batch.weights, masks), outputs)

    @property
    def losses(self) -> list[LossTracker]:
        """The means of the loss, and of those of outputs if there are several."""
        return [self._loss, *self._parts]

    @property
    def trackers(self) -> list[Any]:
        """What is averaged: the loss, those of outputs if there are several, and the metrics."""
        return [*self.losses, *self._own_metrics, *(metric for _, metric in self.metrics.named)]

    @property
    def _own_metrics(self) -> list[Any]:
        """The metrics that are attributes of the model: its own steps and layers count with them."""
        return [value for value in vars(self.model).values() if isinstance(value, Metric)]

    def logs(self) -> dict[str, Any]:
        """Return the means by their names."""
        found = {tracker.name: tracker.result() for tracker in self.losses}
        named = [*((metric.name, metric) for metric in self._own_metrics), *self.metrics.named]
        return found | {name: _number(metric.result()) for name, metric in named}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {
            "_step": None,
            "_passes": None,
            "_masks": None,
            "passes": 1,
            "workers": None,
        }  # plans are made anew


def _batch_passes(compiled: Compiled, variables: Sequence[AutoCastVariable]) -> Any:
    from mp_core.training.batch_passes import BatchPasses

    return BatchPasses(compiled, variables)


def scale_of(optimizer: Any) -> Any:
    """Return the number that multiplies the loss, as an array; None for an optimizer that scales none."""
    if type(optimizer) is optimizers.LossScaleOptimizer:
        return np.array([optimizer.dynamic_scale], np.float32)
    if hasattr(optimizer, "get_scaled_loss"):
        return np.array([optimizer.get_scaled_loss(np.float32(1))], np.float32)
    if isinstance(optimizer, optimizers.LossScaleOptimizer) or getattr(optimizer, "loss_scale_factor", None):
        return np.array([optimizer.scale_loss(np.float32(1))], np.float32)
    return None


def _number(value: Any) -> Any:
    """Return a mean as Python's number; several of them as an array."""
    array = np.asarray(value)
    return array if array.ndim else array.item()
