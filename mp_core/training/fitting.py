"""``fit``: turn its arguments into batches for training and validation, then run the loop."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mp_core.training.batches import Batch, Batches, KeptBatches, batches_of, split
from mp_core.training.callbacks import History
from mp_core.training.loop import FitOptions, run_evaluation, run_fit
from mp_core.training.measured import training_state
from mp_core.training.order import order_of
from mp_core.utilities.arguments import boolean, positive_integer

if TYPE_CHECKING:
    from mp_core.training.models import Model
    from mp_core.training.state import TrainingState

__all__ = ["fit", "job_of"]


def fit(
    model: "Model", data: Any, batch_size: int | None, class_weight: Any, shuffle: Any, passes: tuple[int, Any],
    how: dict[str, Any], validation: dict[str, Any],
) -> History:  # fmt: skip
    """Train a model, and return the History callback.

    `data` is ``x``, ``y`` and the weights of samples; `passes` are ``passes`` and ``cluster`` of ``fit``; `how` has the
    arguments of :class:`~mp_core.training.loop.FitOptions` except those for validation, which are in `validation`:
    ``split`` (share of the samples), ``data``, ``steps`` and ``batch_size``.
    """
    state = training_state(model)
    order = order_of(lambda: state.seed) if boolean(shuffle, "shuffle") else None
    data, validation_data = Batch(*data), validation["data"]
    if validation["split"] and validation_data is None:
        data, validation_data = split(data, validation["split"])
    steps = None if how["steps_per_epoch"] is None else positive_integer(how["steps_per_epoch"], "steps_per_epoch")
    batches = batches_of(*data, batch_size=batch_size, class_weight=class_weight, order=order, steps=steps)
    batches.check_end(steps, "steps_per_epoch")
    validation_batches: Batches | None = None
    validate: Callable[[Any], Any] | None = None
    if validation_data is not None:
        validation_batches, validate = _validation(model, validation_data, validation)
    state.use_passes(passes[0], job_of(passes[1], state))
    try:
        return run_fit(model, batches, FitOptions(**how, validate=validate, validation_batches=validation_batches))
    finally:
        state.use_passes(1)


def job_of(cluster: Any, state: "TrainingState") -> Any:
    """Return the object that computes parts of batches on a cluster; None without a cluster."""
    if cluster is not None and not hasattr(cluster, "job"):
        raise TypeError(f"`cluster` must be mp_core.interop.dask.Workers(client); received {type(cluster).__name__}")
    return None if cluster is None else cluster.job(state)


def _validation(model: "Model", data: Any, how: dict[str, Any]) -> tuple[Batches, Callable[[Any], Any]]:
    """Return the batches of the validation data, and a function that evaluates them."""
    steps = None if how["steps"] is None else positive_integer(how["steps"], "validation_steps")
    try:
        batches = _validation_batches(data, how["batch_size"], steps)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError  # a subclass may need more arguments
        raise kind(f"in `validation_data` {error}") from error
    batches.check_end(steps, "validation_steps")
    return batches, lambda callbacks: run_evaluation(model, batches, 0, steps, callbacks, "validation_steps")


def _validation_batches(data: Any, batch_size: int | None, steps: int | None) -> Batches:
    """Return the batches of the validation data; batches of an iterator are kept in memory."""
    if not isinstance(data, list | tuple):
        batches = batches_of(data)
        return KeptBatches(batches, steps) if hasattr(data, "__next__") else batches
    if not 1 <= len(data) <= 3:
        raise ValueError(f"there must be (x, y) or (x, y, sample_weight); received {len(data)} parts")
    return batches_of(*data, batch_size=batch_size, steps=steps)
