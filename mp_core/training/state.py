"""The state of a model's training: optimizer, losses, metrics, and the steps of training and evaluation."""

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays.holding import run_trial
from mp_core.arrays.recorded import is_recorded
from mp_core.core.scopes import called_in
from mp_core.layers.base.building import accepts_argument
from mp_core.layers.base.losses import added_losses
from mp_core.layers.plans.backward import ValueAndGrad, assign_and_call
from mp_core.layers.plans.parts import Each
from mp_core.layers.randomness import next_seed
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training import optimizers
from mp_core.training.batch_passes import BatchPasses, check_model
from mp_core.training.batches import Batch, number_of_samples
from mp_core.training.callbacks import CallbackList
from mp_core.training.logs import metrics_in
from mp_core.training.metrics import Metric
from mp_core.training.objectives import Losses, LossTracker, Metrics, Targets, weighted
from mp_core.training.optimizers.loss_scale import ScaledOptimizer
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
    """Check the arguments of ``compile``, and return the state of the model's training."""
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
    """The state of a model's training, without the model's variables.

    If the loss is scaled, `optimizer` is the :class:`~mp_core.optimizers.LossScaleOptimizer` around the user's
    optimizer. `given` has the optimizer, losses, loss weights and metrics that the user passed to ``compile``.
    """

    def __init__(self, model: "Model", optimizer: Any, given: dict[str, Any]) -> None:
        self.model, self.optimizer, self.given = model, optimizer, given
        self.seed = next_seed()
        self.place, self.history = Place(0, 0), None
        self.resumed: Snapshot | None = None  # the next `fit` continues from here
        self.callbacks: CallbackList | None = None  # set only while `fit` runs
        self.last_logs: dict[str, Any] = {}  # logs of the last batch, or of the last epoch with its validation
        self._losses = Losses(given["loss"], given["loss_weights"])
        self.metrics = Metrics(given["metrics"], given["weighted_metrics"], self.targets_of)
        self._loss, self._parts = LossTracker("loss"), list[LossTracker]()
        self._found_metrics: tuple[list[Metric], list[Metric]] | None = None  # metrics of the model; of layers too
        self._current: list[Any] = []  # unweighted losses of the outputs in the current step
        self._step: ValueAndGrad | None = None
        self.passes = 1
        self.workers: Each | None = None  # calls methods of `model.in_parts()` on other machines
        self._passes: BatchPasses | None = None
        self._adds_losses: bool | None = None  # whether layers call `add_loss`; None: not known yet
        self._outputs: tuple[list[str], Any] = [], None  # names of the outputs, and their arrangement
        self._masks: PlannedCalls | None = None  # computes the masks of the outputs
        self._has_masks: bool | None = None  # None: not known yet

    # ---- steps

    def use_passes(self, passes: int, workers: Each | None = None) -> None:
        """Set the number of passes for all later batches; `workers`, if given, compute all passes but the last.

        A model that overrides its step or its loss raises an error: see :func:`~.batch_passes.check_model`.
        """
        if workers is not None and passes == 1:
            raise ValueError("with a `cluster`, `passes` must be at least 2; received 1")
        if positive_integer(passes, "passes") > 1:
            check_model(self.model)
        self.passes, self.workers = passes, workers

    def train(self, data: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Update the weights with the gradients of a batch; return the arguments for ``compute_metrics``.

        If it fails, nothing has changed. A model without trainable weights only computes its loss.
        """
        batch = self._batch(data)
        step = self._step or self._make_step(batch)
        if not step.variables:
            _, (loss, parts, outputs) = self._loss_and_outputs(batch.x, batch.y, batch.weights, None)
            return self._update_losses(batch, outputs, loss, parts)
        recordable = batch
        if self.given["loss"] is not None:
            recordable = batch._replace(y=self._losses.recordable_targets(batch.y, *self._outputs))
        try:
            loss, parts, outputs, gradients, assigned = self._gradients(step, recordable, scale_of(self.optimizer))
        except IndexError as error:  # raised by a look-up in a plan, which does not know the names of arguments
            raise IndexError(
                f"`y` has an integer that is not a class, or `x` one that is not a row of its table: {error}"
            ) from error
        assign_and_call(assigned, self.apply_gradients, gradients, step.variables)
        return self._update_losses(batch, outputs, loss, parts)

    def _batch(self, data: Sequence[Any]) -> Batch:
        batch = Batch(*data)
        x = self.model._with_integer_inputs(batch.x)
        return batch if x is batch.x else batch._replace(x=x)

    def apply_gradients(self, gradients: Sequence[Any], variables: Sequence[AutoCastVariable]) -> None:
        """Update variables with gradients that are still multiplied by the loss scale."""
        if isinstance(self.optimizer, ScaledOptimizer):
            self.optimizer.apply(gradients, variables)
            return
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def _gradients(self, step: ValueAndGrad, batch: Batch, scale: Any) -> Any:
        """Return loss, losses of the outputs, outputs, gradients, and the assignments of layers for a batch."""
        if self.passes > 1:
            passes = self._passes = self._passes or BatchPasses(self, step.variables)
            cuts = passes.cuts(batch, self.passes)
            if len(cuts) > 1:
                return passes.step(batch, scale, cuts)
        _, (loss, parts, outputs), gradients, assigned = step.outputs_of((batch.x, batch.y, batch.weights, scale), {})
        return loss, parts, outputs, gradients, assigned

    def test(self, data: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Add the loss of a batch to its mean, and return the arguments for ``compute_metrics``."""
        batch = self._batch(data)
        outputs, loss, parts = called_in(added_losses, [], self._evaluate, (batch,))
        return self._update_losses(batch, outputs, loss, parts)

    def _evaluate(self, batch: Batch) -> tuple[Any, Any, list[Any]]:
        """Return outputs, loss and losses of the outputs; a plan computes the outputs unless layers add losses."""
        if self._adds_losses is False:
            outputs = self.model.predict_on_batch(batch.x)
        else:
            outputs = self.model(batch.x, training=False)
            self._adds_losses = bool(added_losses.get())
        return outputs, *self._compute_loss(batch, outputs, training=False)

    def prepare(self) -> list[AutoCastVariable]:
        """Build the optimizer for the trainable weights, and return these."""
        if not self.model.built:
            raise ValueError(f"'{self.model.name}' is not built: call it once, or give it an Input")
        variables = self.model.trainable_variables
        if not getattr(self.optimizer, "built", True):
            self.optimizer.build(variables)
        return list(variables)

    def _make_step(self, batch: Batch) -> ValueAndGrad:
        """Return the training step for the variables that are trainable now."""
        first = self.model._first_sample(batch.x)
        outputs = run_trial(self.model, first, training=False)  # builds the model, and arranges its outputs
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
        """Return the loss, and the losses of the outputs if there are several."""
        self._current = []
        compute = self.model.compute_loss
        options = {"training": training} if accepts_argument(compute, "training") else {}  # older models lack it
        loss = compute(batch.x, batch.y, outputs, batch.weights, **options)
        parts, self._current = self._current, []
        return loss, parts if len(parts) > 1 else []

    def masks_of(self, x: Any) -> Any:
        """Return the masks of the outputs, arranged as the outputs; None if no layer makes a mask."""
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
        """Return the sum of the losses of the outputs and of `others`; None if there is no loss."""
        found, parts = None, list[Any]()
        if self.given["loss"] is not None:
            targets = self.targets_of(y, outputs, weights, masks)
            computed = self._losses.compute(targets, outputs)
            self._current, parts = [value for value, _ in computed], [weighted(*each) for each in computed]
        for part in (*parts, *others):
            found = part if found is None else found + part
        return found

    def targets_of(self, y: Any, outputs: Any, weights: Any, masks: Any = None) -> list[Targets]:
        """Return target, weights and mask of each output."""
        return self._losses.targets(self.model._output_names(outputs), y, outputs, weights, masks)

    @property
    def arrangement(self) -> Any:
        """The arrangement of the outputs: lists and dictionaries with None in the place of arrays."""
        return self._outputs[1]

    @property
    def losses_by_output(self) -> list[tuple[Any, float]]:
        """Loss and weight of each output; the loss is None if an output has none."""
        return self._losses.of(*self._outputs)

    def finalize_variables(self) -> None:
        """Assign the moving averages to the variables, if the optimizer keeps averages."""
        if getattr(self.optimizer, "built", False) and hasattr(self.optimizer, "finalize_variable_values"):
            trained = self.model.trainable_variables if self._step is None else self._step.variables
            self.optimizer.finalize_variable_values(trained)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of ``compile``, with the optimizer that the user passed."""
        return dict(self.given)

    # ---- means

    def _update_losses(self, batch: Batch, outputs: Any, loss: Any, parts: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Add the losses of a batch to their means; return inputs, targets, outputs and weights."""
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
        """Update the metrics of ``compile`` with a batch, if the batch has targets."""
        if y is not None and self.metrics.are_given:
            masks = None if x is None else self.masks_of(x)
            self.metrics.update_state(y, y_pred, sample_weight, masks)

    @property
    def losses(self) -> list[LossTracker]:
        """The mean of the loss, then the mean of each output's loss if there are several outputs."""
        return [self._loss, *self._parts]

    def set_means(self, means: dict[str, list[float]]) -> None:
        """Restore the means of the losses; also those of the outputs, which otherwise the first batch creates."""
        self._parts = [LossTracker(name) for name in means if name != self._loss.name]
        for tracker in self.losses:
            tracker.state = means.get(tracker.name, [0.0, 0])

    @property
    def named_metrics(self) -> list[tuple[str, Any]]:
        """Pairs of name in the logs and metric."""
        return [*((metric.name, metric) for metric in self._own_metrics), *self.metrics.named]

    def direction_of(self, name: str) -> str | None:
        """Return the direction in which a value of the logs improves, "up" or "down"; None if unknown."""
        directions = {named: getattr(metric, "_direction", None) for named, metric in reversed(self.named_metrics)}
        directions |= {tracker.name: "down" for tracker in self.losses}
        return directions.get(name, directions.get(name.removeprefix("val_")))

    @property
    def trackers(self) -> list[Any]:
        """All means: loss, losses of several outputs, metrics of ``compile``, metrics of the model and its layers."""
        return [*self.losses, *([self.metrics] if self.metrics.are_given else []), *self._own_metrics]

    @property
    def _own_metrics(self) -> list[Metric]:
        """The metrics among the attributes of the model and its layers, which user code updates itself.

        The model's attributes are read each time, those of its layers when training or evaluation begins.
        """
        own = [value for value in vars(self.model).values() if isinstance(value, Metric)]
        if self._found_metrics is None or self._found_metrics[0] != own:
            self._found_metrics = own, metrics_in(self.model)
        return self._found_metrics[1]

    def invalidate_metrics(self) -> None:
        """Drop the cached list of metrics among the attributes of layers."""
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
        }  # plans are recorded again


def scale_of(optimizer: Any) -> Any:
    """Return the loss scale of an optimizer as an array of one number; None if it does not scale the loss.

    A user's class scales the loss by ``scale_loss`` (Keras 3), ``get_scaled_loss`` (tf.keras) or an attribute
    ``loss_scale``. The number of mp_core's own ``scale_loss`` is read without a call, 5 times as fast.
    """
    method = getattr(type(optimizer), "scale_loss", None)
    if method is optimizers.Optimizer.scale_loss:
        scale = optimizer.loss_scale_factor  # a subclass may use `loss_scale` for something else
    elif method is not None and method is not ScaledOptimizer.scale_loss:
        scale = optimizer.scale_loss(np.float32(1))
    elif method is None and hasattr(optimizer, "get_scaled_loss"):
        scale = optimizer.get_scaled_loss(np.float32(1))
    else:
        scale = getattr(optimizer, "loss_scale", None)
    return None if scale is None else np.array([scale], np.float32)
