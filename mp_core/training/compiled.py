"""What ``compile`` makes: an optimizer, losses, metrics, and the steps of training and evaluation."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core import optimizers
from mp_core.arrays.holding import tried
from mp_core.arrays.recorded import is_recorded
from mp_core.autocast import AutoCastVariable
from mp_core.callbacks import CallbackList
from mp_core.core.scopes import called_in
from mp_core.layers.base.building import passes_on
from mp_core.layers.base.losses import added_losses
from mp_core.layers.randomness import next_seed
from mp_core.metrics import Metric
from mp_core.optimizers.loss_scale import ScaledOptimizer
from mp_core.plans.backward import ValueAndGrad, assigned_if
from mp_core.plans.parts import Each
from mp_core.training.batch_passes import BatchPasses, check_model
from mp_core.training.batches import Batch, number_of_samples
from mp_core.training.logs import metrics_in
from mp_core.training.objectives import Losses, LossTracker, Metrics, Targets, weighted
from mp_core.training.planned_calls import PlannedCalls
from mp_core.training.resume import Place, Snapshot
from mp_core.utilities.arguments import boolean, positive_integer
from mp_core.utilities.tree import leaves, map_leaves

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["TrainingState", "make_training_state", "scale_of"]


def make_training_state(
    model: "Model", optimizer: Any, given: dict[str, Any], options: dict[str, Any], auto_scale_loss: bool
) -> "TrainingState":
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
    wrapped = model._wrapped_optimizer(found, boolean(auto_scale_loss, "auto_scale_loss"))
    if isinstance(found, ScaledOptimizer):
        found = found.in_files
    return TrainingState(model, wrapped, {"optimizer": found, **given})


class TrainingState:
    """The state of a model's training, beside its variables.

    Parameters
    ----------
    model : Model
    optimizer : Optimizer
        Wrapped already, if its loss is to be scaled.
    given : dict
        The optimizer, losses, their weights and metrics as ``compile`` got them.
    """

    def __init__(self, model: "Model", optimizer: Any, given: dict[str, Any]) -> None:
        self.model, self.optimizer, self.given = model, optimizer, given
        self.seed = next_seed()
        self.place, self.history = Place(0, 0), None
        self.resumed: Snapshot | None = None  # what the next `fit` goes on from
        self.callbacks: CallbackList | None = None  # while `fit` runs
        self.last_logs: dict[str, Any] = {}  # of the last batch, or of the last epoch with its validation
        self._losses = Losses(given["loss"], given["loss_weights"])
        self.metrics = Metrics(given["metrics"], given["weighted_metrics"], self.targets_of)
        self._loss, self._parts = LossTracker("loss"), list[LossTracker]()
        self._found_metrics: tuple[list[Metric], list[Metric]] | None = None  # those of the model, of layers too
        self._current: list[Any] = []  # the losses of the outputs, without their weights, in the step under way
        self._step: ValueAndGrad | None = None
        self.passes = 1
        self.workers: Each | None = None  # what calls methods of `model.in_parts()` on other machines
        self._passes: BatchPasses | None = None
        self._adds_losses: bool | None = None  # None: that is not known yet
        self._outputs: tuple[list[str], Any] = [], None  # their names, and how they are arranged
        self._masks: PlannedCalls | None = None  # of the outputs
        self._has_masks: bool | None = None  # None: that is not known yet

    # ---- steps

    def use_passes(self, passes: int, workers: Each | None = None) -> None:
        """Compute each batch in so many passes from now on; `workers` compute all but the last one, if there are some.

        Raises
        ------
        TypeError, ValueError
            `passes` is no positive integer, or 1 with workers; or the model has a step or a loss of its own.
        """
        if workers is not None and passes == 1:
            raise ValueError("with a `cluster`, `passes` must be at least 2; received 1")
        if positive_integer(passes, "passes") > 1:
            check_model(self.model)
        self.passes, self.workers = passes, workers

    def train(self, data: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Move the weights by the gradients of a batch, and return what ``compute_metrics`` is called with.

        If it fails, nothing has changed. Of a model without trainable weights only the loss is computed.
        """
        batch = self._batch(data)
        step = self._step or self._make_step(batch)
        if not step.variables:
            _, (loss, parts, outputs) = self._loss_and_outputs(batch.x, batch.y, batch.weights, None)
            return self._update_losses(batch, outputs, loss, parts)
        recordable_targets = (
            batch
            if self.given["loss"] is None
            else batch._replace(y=self._losses.recordable_targets(batch.y, *self._outputs))
        )
        try:
            loss, parts, outputs, gradients, assigned = self._gradients(
                step, recordable_targets, scale_of(self.optimizer)
            )
        except IndexError as error:  # of a look-up in a plan, which knows no names
            raise IndexError(f"`y` has a number that is no class, or `x` one that is in no table: {error}") from error
        assigned_if(assigned, self.apply_gradients, gradients, step.variables)
        return self._update_losses(batch, outputs, loss, parts)

    def _batch(self, data: Sequence[Any]) -> Batch:
        batch = Batch(*data)
        x = self.model._with_integer_inputs(batch.x)
        return batch if x is batch.x else batch._replace(x=x)

    def apply_gradients(self, gradients: Sequence[Any], variables: Sequence[AutoCastVariable]) -> None:
        """Move variables by gradients, which have the loss scale in them."""
        if isinstance(self.optimizer, ScaledOptimizer):
            self.optimizer.apply(gradients, variables)
        else:
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _gradients(self, step: ValueAndGrad, batch: Batch, scale: Any) -> Any:
        """Return the loss of a batch, those of the outputs, the outputs, the gradients and what layers assign."""
        if self.passes > 1:
            passes = self._passes = self._passes or BatchPasses(self, step.variables)
            cuts = passes.cuts(batch, self.passes)
            if len(cuts) > 1:
                return passes.step(batch, scale, cuts)
        _, (loss, parts, outputs), gradients, assigned = step.outputs_of((batch.x, batch.y, batch.weights, scale), {})
        return loss, parts, outputs, gradients, assigned

    def test(self, data: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Take the loss of a batch into its mean, and return what ``compute_metrics`` is called with."""
        batch = self._batch(data)
        outputs, loss, parts = called_in(added_losses, [], self._evaluate, (batch,))
        return self._update_losses(batch, outputs, loss, parts)

    def _evaluate(self, batch: Batch) -> tuple[Any, Any, list[Any]]:
        """Return outputs, loss and those of the outputs; a plan computes them unless layers add to the loss."""
        if self._adds_losses is False:
            outputs = self.model.predict_on_batch(batch.x)
        else:
            outputs = self.model(batch.x, training=False)
            self._adds_losses = bool(added_losses.get())
        return outputs, *self._compute_loss(batch, outputs, training=False)

    def prepare(self) -> list[AutoCastVariable]:
        """Build the optimizer for the weights that are trainable, and return them."""
        if not self.model.built:
            raise ValueError(f"'{self.model.name}' is not built: call it once, or give it an Input")
        variables = self.model.trainable_variables
        if not getattr(self.optimizer, "built", True):
            self.optimizer.build(variables)
        return list(variables)

    def _make_step(self, batch: Batch) -> ValueAndGrad:
        """Return the step for the variables that are trainable now."""
        first = self.model._first_sample(batch.x)
        outputs = tried(self.model, first, training=False)  # builds it, and says how the outputs are arranged
        self._outputs = self.model._output_names(outputs), map_leaves(lambda _: None, outputs)
        variables = self.prepare()
        if not variables:
            warnings.warn(f"'{self.model.name}' has no trainable weights: nothing is trained", stacklevel=2)
        self._step = ValueAndGrad(self._loss_and_outputs, variables, has_aux=True, allows_unused=True)
        return self._step

    def _loss_and_outputs(self, x: Any, y: Any, weights: Any, scale: Any) -> Any:
        return called_in(added_losses, [], self._forward, (Batch(x, y, weights), scale))

    def _forward(self, batch: Batch, scale: Any) -> Any:
        outputs = self.model(batch.x, training=True)
        loss, parts = self._compute_loss(batch, outputs, training=True)
        if loss is None:
            raise ValueError("there is no loss to train with: give `loss` to `compile`")
        return loss if scale is None else loss * scale, (loss, parts, outputs)

    def _compute_loss(self, batch: Batch, outputs: Any, training: bool) -> tuple[Any, list[Any]]:
        """Return the loss, and those of the outputs if there are several."""
        self._current = []
        compute = self.model.compute_loss
        options = {"training": training} if passes_on(compute, "training") else {}  # of older models it has no such one
        loss = compute(batch.x, batch.y, outputs, batch.weights, **options)
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
            targets = self.targets_of(y, outputs, weights, masks)
            computed = self._losses.compute(targets, outputs)
            self._current, parts = [value for value, _ in computed], [weighted(*each) for each in computed]
        for part in (*parts, *others):
            found = part if found is None else found + part
        return found

    def targets_of(self, y: Any, outputs: Any, weights: Any, masks: Any = None) -> list[Targets]:
        """Return targets, weights and masks beside the outputs that they belong to."""
        return self._losses.targets(self.model._output_names(outputs), y, outputs, weights, masks)

    @property
    def arrangement(self) -> Any:
        """How the outputs are arranged: lists and dictionaries of None."""
        return self._outputs[1]

    @property
    def losses_by_output(self) -> list[tuple[Any, float]]:
        """The loss of each output and its weight; None: it has none."""
        return self._losses.of(*self._outputs)

    def finalize_variables(self) -> None:
        """Set the variables to their averages, if the optimizer keeps such."""
        if getattr(self.optimizer, "built", False) and hasattr(self.optimizer, "finalize_variable_values"):
            trained = self.model.trainable_variables if self._step is None else self._step.variables
            self.optimizer.finalize_variable_values(trained)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of ``compile``, with the optimizer that was given to it."""
        return dict(self.given)

    # ---- means

    def _update_losses(self, batch: Batch, outputs: Any, loss: Any, parts: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Take the losses of a batch into their means; return inputs, targets, outputs and weights."""
        samples = number_of_samples(batch.x)
        if loss is not None:
            self._loss.update_state(loss, samples)
        if parts and not self._parts:
            names = self._losses.names(self.model._output_names(outputs), outputs)
            self._parts = [LossTracker(f"{name}_loss") for name in names]
        for tracker, part in zip(self._parts, parts, strict=False):
            tracker.update_state(part, samples)
        return batch.x, batch.y, outputs, batch.weights

    def update_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Take a batch into the metrics that ``compile`` was given, if it has targets."""
        if y is not None and self.metrics.are_given:
            masks = None if x is None else self.masks_of(x)
            self.metrics.update_state(y, y_pred, sample_weight, masks)

    @property
    def losses(self) -> list[LossTracker]:
        """The means of the loss, and of those of outputs if there are several."""
        return [self._loss, *self._parts]

    def set_means(self, means: dict[str, list[float]]) -> None:
        """Give the losses their means: those of outputs too, which the first batch would make."""
        self._parts = [LossTracker(name) for name in means if name != self._loss.name]
        for tracker in self.losses:
            tracker.state = means.get(tracker.name, [0.0, 0])

    @property
    def named_metrics(self) -> list[tuple[str, Any]]:
        """The name in the logs of each metric, and it."""
        return [*((metric.name, metric) for metric in self._own_metrics), *self.metrics.named]

    def direction_of(self, name: str) -> str | None:
        """Return "up" or "down", as the values of a name in the logs get better; None if nothing says that."""
        directions = {named: getattr(metric, "_direction", None) for named, metric in reversed(self.named_metrics)}
        directions |= {tracker.name: "down" for tracker in self.losses}
        return directions.get(name, directions.get(name.removeprefix("val_")))

    @property
    def trackers(self) -> list[Any]:
        """What is averaged: the loss, those of outputs if there are several, the metrics, those of model and layers."""
        return [*self.losses, *([self.metrics] if self.metrics.are_given else []), *self._own_metrics]

    @property
    def _own_metrics(self) -> list[Metric]:
        """The metrics among the attributes of the model and its layers: their own steps and calls count with them.

        The model's own attributes are looked at each time, those of layers when training or evaluation begins.
        """
        own = [value for value in vars(self.model).values() if isinstance(value, Metric)]
        if self._found_metrics is None or self._found_metrics[0] != own:
            self._found_metrics = own, metrics_in(self.model)
        return self._found_metrics[1]

    def invalidate_metrics(self) -> None:
        """Find the metrics among the attributes anew, when they are needed."""
        self._found_metrics = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {
            "_step": None,
            "_passes": None,
            "_masks": None,
            "callbacks": None,
            "resumed": None,
            "passes": 1,
            "workers": None,
        }  # plans are made anew


_BY_LOSS_SCALE = (None, optimizers.Optimizer.scale_loss, ScaledOptimizer.scale_loss)
"""The methods that multiply by the number alone, which is read without a call in a fifth of the time."""


def scale_of(optimizer: Any) -> Any:
    """Return the number that multiplies the loss, as an array; None for an optimizer that scales none."""
    scale = getattr(optimizer, "loss_scale", None)  # which an optimizer of the user's own need not have
    if scale is not None and getattr(type(optimizer), "scale_loss", None) not in _BY_LOSS_SCALE:
        scale = optimizer.scale_loss(np.float32(1))
    return None if scale is None else np.array([scale], np.float32)
