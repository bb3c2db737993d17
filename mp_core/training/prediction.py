"""``predict``: the outputs of a model for all samples, computed batch by batch and concatenated."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mp_core.arrays import Array
from mp_core.training.batches import ArrayBatches, Batch, batches_of, concatenated, number_of_samples, outputs_like
from mp_core.training.callbacks import CallbackList
from mp_core.utilities.arguments import positive_integer
from mp_core.utilities.progress import progress
from mp_core.utilities.tree import leaves, map_leaves

if TYPE_CHECKING:
    from mp_core.training.models import Model

__all__ = ["run_prediction"]


def run_prediction(
    model: "Model", x: Any, batch_size: int | None, verbose: Any, steps: int | None, callbacks: Any
) -> Any:
    """Return the outputs of a model for all samples: see :meth:`mp_core.training.trainer.Trainer.predict`."""
    count = None if steps is None else positive_integer(steps, "steps")
    batches = batches_of(x, batch_size=batch_size, steps=count)
    found = batches.limited_to(count, "steps")
    total = batches.steps if count is None else count
    if not isinstance(callbacks, CallbackList):
        callbacks = CallbackList(callbacks, model=model, verbose=verbose, epochs=1, steps=total)
    if model.stop_predicting:
        model.stop_predicting = False
    callbacks.on_predict_begin()
    shown = progress(found, show=bool(verbose), total=total, unit="batches")
    outputs = _outputs(model, shown, callbacks)
    if isinstance(batches, ArrayBatches) and count is None:
        whole = _assembled(outputs, batches.samples)
    else:
        parts = list(outputs)
        if not parts:
            raise ValueError("`x` must have at least one batch; received none")
        whole = concatenated(parts)
    callbacks.on_predict_end()
    return whole


def _outputs(model: "Model", batches: Iterable[Batch], callbacks: CallbackList) -> Iterator[Any]:
    """Yield the outputs for each batch, until a callback sets ``model.stop_predicting``."""
    for step, batch in enumerate(batches):
        callbacks.on_predict_batch_begin(step)
        outputs = model.predict_on_batch(batch.x)
        callbacks.on_predict_batch_end(step, {"outputs": outputs})
        yield outputs
        if model.stop_predicting:
            break


def _assembled(outputs: Iterator[Any], samples: int) -> Any:
    """Allocate the outputs of all samples once, and write the outputs of each batch into them.

    Outputs without one row per sample, as after a ``reshape`` over the sample axis, are concatenated instead.
    """
    first, second = next(outputs, None), next(outputs, None)
    if first is None:
        raise ValueError("`x` must have at least one sample; received none")
    if second is None:
        return first
    whole = map_leaves(lambda x: np.empty((samples, *x.shape[1:]), x.dtype), first)
    start = 0
    parts = itertools.chain([first, second], outputs)
    for part in parts:
        count = number_of_samples(part)
        if start + count > samples or any(len(values) != count for values in leaves(part)):
            return concatenated([_first_rows(whole, start), part, *parts])
        for into, values in zip(leaves(whole), outputs_like(whole, part), strict=True):
            _write(into, values, slice(start, start + count))
        start += count
    return whole if start == samples else _first_rows(whole, start)  # a callback stopped it, or outputs have fewer rows


def _first_rows(whole: Any, count: int) -> Any:
    return map_leaves(lambda x: x[:count].copy(), whole)


def _write(into: Array, values: Array, rows: slice) -> None:
    if values.shape[1:] != into.shape[1:]:
        raise ValueError(f"the outputs of batches have different shapes: {into.shape[1:]} and {values.shape[1:]}")
    into[rows] = values
