"""The loops of fit and evaluate: epochs, batches, validation, callbacks."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from mp_core.callbacks import CallbackList
from mp_core.training.batches import Batch, Batches, batch_parts
from mp_core.utilities.arguments import integer, positive_integer

__all__ = ["Fit", "Place", "evaluated", "fitted"]


class Place(NamedTuple):
    """Where training is: in which epoch, behind how many of its batches."""

    epoch: int
    step: int


class Fit(NamedTuple):
    """The arguments of ``fit`` that are no data."""

    epochs: int
    verbose: Any
    callbacks: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validate: Callable[[Any], Mapping[str, Any]] | None
    """What runs the validation data under the list of callbacks, and returns the means."""
    validation_freq: Any


def fitted(model: Any, batches: Batches, how: Fit) -> Any:
    """Run the epochs, and return the History callback."""
    epochs = integer(how.epochs, "epochs")
    first = integer(how.initial_epoch, "initial_epoch")
    steps = None if how.steps_per_epoch is None else positive_integer(how.steps_per_epoch, "steps_per_epoch")
    callbacks = _listed(model, how.callbacks, how.verbose, epochs=epochs, steps=steps or batches.steps)
    compiled, source, logs = model._compiled, _Source(batches, steps), {}
    model.stop_training, compiled.resumed = False, None
    callbacks.on_train_begin()
    place = compiled.resumed or Place(first, 0)
    source.skip_to(place if compiled.resumed else None)
    for epoch in range(place.epoch, epochs):
        logs = _epoch(model, source, epoch, place.step if epoch == place.epoch else 0, callbacks)
        if how.validate is not None and _is_due(epoch, how.validation_freq):
            logs |= {f"val_{name}": value for name, value in how.validate(callbacks).items()}
        model._compiled.place = Place(epoch + 1, 0)
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    model._compiled.finish()
    callbacks.on_train_end(logs)
    return model.history


def _epoch(model: Any, source: "_Source", epoch: int, first: int, callbacks: Any) -> dict[str, Any]:
    """Run the batches of an epoch from `first` on, and return the means."""
    step, logs = first, None
    if not first:
        model.reset_metrics()
    callbacks.on_epoch_begin(epoch)
    compiled, run = model._compiled, _step_of(model, callbacks)  # callbacks may have compiled the model anew
    for batch in source.epoch(epoch, first):
        callbacks.on_train_batch_begin(step)
        logs = run(batch_parts(batch))
        step += 1
        compiled.place = Place(epoch, step)
        callbacks.on_train_batch_end(step - 1, logs)
        if model.stop_training:
            break
    if not step:
        raise ValueError("`x` has no batch for this epoch: the iterable is empty, or an earlier epoch has exhausted it")
    return dict(compiled.logs() if logs is None else logs)


def _step_of(model: Any, callbacks: Any) -> Callable[[Any], Mapping[str, Any] | None]:
    """Return the step of a model; it returns no logs if that is its own, and nobody looks at them."""
    if not model._has_own("train_step") and not callbacks.listens("on_train_batch_end"):
        return model._compiled.train  # type: ignore[no-any-return]
    return model.train_step  # type: ignore[no-any-return]


class _Source:
    """The batches of each epoch: a pass over the data, or so many steps of passes that follow one another."""

    def __init__(self, batches: Batches, steps: int | None) -> None:
        self._batches, self._steps, self._passes = batches, steps, 0
        self._current: Iterator[Batch] | None = None

    def skip_to(self, place: Place | None) -> None:
        """Leave out the batches that were used before training was interrupted."""
        if place is None or self._steps is None:
            return
        count = place.epoch * self._steps + place.step
        if self._batches.steps:
            self._passes, count = divmod(count, self._batches.steps)
        self._current = islice(self._batches.epoch(self._passes), count, None)

    def epoch(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, without the first ones."""
        if self._steps is None:
            yield from islice(self._batches.epoch(epoch), first, None)
            return
        for _ in range(first, self._steps):
            batch = self._next()
            if batch is None:
                warnings.warn(f"`x` has fewer batches than `steps_per_epoch={self._steps}`", stacklevel=6)
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


def evaluated(model: Any, batches: Batches, verbose: Any, steps: int | None, callbacks: Any) -> dict[str, Any]:
    """Run some batches, or all, without changing a weight, and return the means."""
    count = None if steps is None else positive_integer(steps, "steps")
    if not isinstance(callbacks, CallbackList):
        callbacks = _listed(model, callbacks, verbose, epochs=1, steps=count or batches.steps, add_history=False)
    model.reset_metrics()
    callbacks.on_test_begin()
    step = -1
    for step, batch in enumerate(islice(batches.epoch(0), count)):
        callbacks.on_test_batch_begin(step)
        logs = model.test_step(batch_parts(batch))
        callbacks.on_test_batch_end(step, logs)
    if step < 0:
        raise ValueError("`x` must have at least one batch; received none")
    logs = dict(logs)
    callbacks.on_test_end(logs)
    return logs


def _is_due(epoch: int, frequency: Any) -> bool:
    """Whether validation data are run after an epoch: every so many, or in a list of numbers from 1 on."""
    if isinstance(frequency, list | tuple | set):
        return epoch + 1 in frequency
    return (epoch + 1) % positive_integer(frequency, "validation_freq") == 0


def _listed(model: Any, callbacks: Any, verbose: Any, add_history: bool = True, **parameters: Any) -> Any:
    if isinstance(callbacks, CallbackList):
        return callbacks
    return CallbackList(
        callbacks, add_history=add_history, add_progbar=verbose != 0, model=model, verbose=verbose, **parameters
    )
