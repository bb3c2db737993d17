"""The loops of fit and evaluate: epochs, batches, validation, callbacks."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from mp_core.training.batches import Batch, Batches, batch_parts
from mp_core.training.callbacks import CallbackList, History
from mp_core.training.logs import flat_logs
from mp_core.training.measured import training_state
from mp_core.training.resume import Place
from mp_core.utilities.arguments import integer, positive_integer

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["FitOptions", "run_evaluation", "run_fit"]


_STEP_METHODS = ("train_step", "compute_metrics", "get_metrics_result")


class FitOptions(NamedTuple):
    """The arguments of ``fit`` that are not data."""

    epochs: int
    verbose: Any
    callbacks: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validate: Callable[[Any], Mapping[str, Any]] | None
    """Evaluates the validation data with the list of callbacks, and returns the means."""
    validation_freq: Any
    validation_batches: Batches | None = None
    """The validation data."""


def run_fit(model: "Model", batches: Batches, how: FitOptions) -> History:
    """Run the epochs, and return the History callback."""
    epochs = integer(how.epochs, "epochs")
    first = integer(how.initial_epoch, "initial_epoch")
    if first < 0:
        raise ValueError(f"`initial_epoch` must be an epoch from 0 on; received {first}")
    steps = None if how.steps_per_epoch is None else positive_integer(how.steps_per_epoch, "steps_per_epoch")
    callbacks = _callback_list(model, how.callbacks, how.verbose, epochs=epochs, steps=steps or batches.steps)
    model.stop_training, state = False, training_state(model)
    state.callbacks, state.last_logs = callbacks, {}
    state.invalidate_metrics()
    try:
        _run_epochs(model, _EpochSource(batches, steps), range(first, epochs), how, callbacks)
    finally:
        training_state(model).callbacks = None
    history: History = model.history
    return history


def _run_epochs(model: "Model", source: "_EpochSource", epochs: range, how: FitOptions, callbacks: Any) -> None:
    """Run the epochs; of an interrupted training, the epochs that it has not completed."""
    callbacks.on_train_begin()
    state = training_state(model)
    resumed, state.resumed = state.resumed, None
    place = Place(epochs.start, 0)
    if resumed is not None:
        place = resumed.place
        resumed.begin(model, callbacks)
        if place.epoch > epochs.stop:
            text = f"{place.epoch} epochs are over, `epochs` is {epochs.stop}; give more epochs to continue"
            warnings.warn(f"nothing is trained: {text}", stacklevel=5)
        else:
            source.skip_to(place, epochs.start)
            over = range(epochs.start, place.epoch)
            if how.validation_batches is not None:
                how.validation_batches.skip_epochs(sum(_is_due(epoch, how.validation_freq) for epoch in over))
        if model.stop_training and not place.step:
            epochs = range(0)
    for epoch in range(place.epoch, epochs.stop):
        logs = _run_epoch(model, source, epoch, place.step if epoch == place.epoch else 0, callbacks)
        if how.validate is not None and _is_due(epoch, how.validation_freq):
            logs |= {f"val_{name}": value for name, value in how.validate(callbacks).items()}
        state = training_state(model)  # a callback may have compiled the model again
        state.place, state.last_logs = Place(epoch + 1, 0), logs
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    training_state(model).finalize_variables()
    callbacks.on_train_end(training_state(model).last_logs)


def _run_epoch(model: "Model", source: "_EpochSource", epoch: int, first: int, callbacks: Any) -> dict[str, Any]:
    """Run the batches of an epoch from index `first` on, and return the means."""
    step, logs = first, None
    if not first:
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
    state, run = training_state(model), _step_of(model, callbacks)  # a callback may have compiled the model again
    state.callbacks = callbacks
    for batch in () if first and model.stop_training else source.epoch(epoch, first):
        callbacks.on_train_batch_begin(step)
        logs = run(batch_parts(batch))
        logs = None if logs is None else flat_logs(logs)
        step += 1
        state.place, state.last_logs = Place(epoch, step), logs or {}
        callbacks.on_train_batch_end(step - 1, logs)
        if model.stop_training:
            break
    if not step:
        raise ValueError("`x` has no batch for this epoch: the iterable is empty, or an earlier epoch has exhausted it")
    if first and step == first:  # the interruption came after the epoch's last batch: use the logs of that batch
        logs = state.last_logs or None
    return dict(model.get_metrics_result() if logs is None else logs)


def _step_of(model: "Model", callbacks: Any) -> Callable[[Any], Mapping[str, Any] | None]:
    """Return the function of one step; it skips the logs if the model overrides nothing and no callback reads them."""
    state = training_state(model)
    if any(map(model._has_own, _STEP_METHODS)) or callbacks.listens("on_train_batch_end"):
        return model.train_step
    return lambda data: state.update_metrics(*state.train(data))


class _EpochSource:
    """The batches of each epoch: one pass over the data, or a given number of steps of consecutive passes."""

    def __init__(self, batches: Batches, steps: int | None) -> None:
        self._batches, self._steps, self._passes = batches, steps, 0
        self._current: Iterator[Batch] | None = None

    def skip_to(self, place: Place, first: int) -> None:
        """Skip the batches that were used before the interruption of a training that began with epoch `first`.

        The hooks of completed epochs are called: a data set may shuffle itself in them.
        """
        self._batches.skip_epochs(place.epoch - first)
        if self._steps is None:
            return
        count = (place.epoch - first) * self._steps + place.step
        if self._batches.steps:
            self._passes, count = divmod(count, self._batches.steps)
            self._current = islice(self._batches.epoch(self._passes), count, None)
            return
        for _ in range(count):
            self._next()

    def epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from index `first` on."""
        return self._batches.between_hooks(self._batches_of_epoch(epoch, first))

    def _batches_of_epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        if self._steps is None:
            yield from islice(self._batches.epoch(epoch), first, None)
            return
        for _ in range(first, self._steps):
            batch = self._next()
            if batch is None:
                warnings.warn(f"`x` has fewer batches than `steps_per_epoch={self._steps}`", stacklevel=7)
                return
            yield batch

    def _next(self) -> Batch | None:
        for _ in range(2):
            if self._current is None:
                self._current = self._batches.epoch(self._passes)
            batch = next(self._current, None)
            if batch is not None:
                return batch
            self._current, self._passes = None, self._passes + 1
        return None


def run_evaluation(
    model: "Model", batches: Batches, verbose: Any, steps: int | None, callbacks: Any, argument: str = "steps"
) -> dict[str, Any]:
    """Evaluate `steps` batches, default all, and return the means; errors call `steps` by the name `argument`."""
    count = None if steps is None else positive_integer(steps, argument)
    found = batches.limited_to(count, argument)
    if not isinstance(callbacks, CallbackList):
        callbacks = _callback_list(model, callbacks, verbose, epochs=1, steps=count or batches.steps, add_history=False)
    training_state(model).invalidate_metrics()
    model.reset_metrics()
    callbacks.on_test_begin()
    step = -1
    if model.stop_evaluating:
        model.stop_evaluating = False
    for step, batch in enumerate(found):
        callbacks.on_test_batch_begin(step)
        logs = flat_logs(model.test_step(batch_parts(batch)))
        callbacks.on_test_batch_end(step, logs)
        if model.stop_evaluating:
            break
    if step < 0:
        raise ValueError("`x` must have at least one batch; received none")
    logs = dict(logs)
    callbacks.on_test_end(logs)
    return logs


def _is_due(epoch: int, frequency: Any) -> bool:
    """Whether to validate after an epoch: `frequency` is a period, or a collection of epoch numbers counted from 1."""
    if isinstance(frequency, list | tuple | set):
        return epoch + 1 in frequency
    return (epoch + 1) % positive_integer(frequency, "validation_freq") == 0


def _callback_list(model: "Model", callbacks: Any, verbose: Any, add_history: bool = True, **parameters: Any) -> Any:
    if isinstance(callbacks, CallbackList):
        return callbacks
    return CallbackList(
        callbacks, add_history=add_history, add_progbar=verbose != 0, model=model, verbose=verbose, **parameters
    )
