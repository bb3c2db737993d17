"""What ``fit`` is given, made into batches for training and validation."""

from collections.abc import Callable
from typing import Any

from mp_core.training.batches import Batch, Batches, KeptBatches, batches_of, split
from mp_core.training.loop import Fit, evaluated, fitted
from mp_core.training.order import order_of
from mp_core.utilities.arguments import boolean

__all__ = ["fit", "job_of"]


def fit(
    model: Any, data: Any, batch_size: int | None, class_weight: Any, shuffle: Any, passes: tuple[int, Any],
    how: dict[str, Any], validation: dict[str, Any],
) -> Any:  # fmt: skip
    """Train a model, and return the History callback.

    Parameters
    ----------
    model : Model
    data : tuple
        ``x``, ``y`` and the weights of samples.
    batch_size, class_weight, shuffle
        Those of ``fit``.
    passes : tuple
        ``passes`` and ``cluster`` of ``fit``.
    how : dict
        The arguments of :class:`~mp_core.training.loop.Fit` but that of validation.
    validation : dict
        The share of samples ``split``, the other ``data``, ``steps`` and ``batch_size``.
    """
    compiled = model._compiled
    order = order_of(lambda: compiled.seed) if boolean(shuffle, "shuffle") else None
    data, held = Batch(*data), validation["data"]
    if validation["split"] and held is None:
        data, held = split(data, validation["split"])
    batches = batches_of(*data, batch_size=batch_size, class_weight=class_weight, order=order)
    validate = None if held is None else _validation(model, held, validation)
    compiled.use_passes(passes[0], job_of(passes[1]))
    try:
        return fitted(model, batches, Fit(**how, validate=validate))
    finally:
        compiled.use_passes(1)


def job_of(cluster: Any) -> Any:
    """Return what computes parts of batches on a cluster; None without one.

    Raises
    ------
    TypeError
        It is no :class:`mp_core.interop.dask.Workers`.
    """
    if cluster is not None and not hasattr(cluster, "job"):
        raise TypeError(f"`cluster` must be mp_core.interop.dask.Workers(client); received {type(cluster).__name__}")
    return None if cluster is None else cluster.job()


def _validation(model: Any, data: Any, how: dict[str, Any]) -> Callable[[Any], Any]:
    """Return a function that evaluates the validation data."""
    batches: Batches
    if isinstance(data, list | tuple):
        if not 1 <= len(data) <= 3:
            raise ValueError(f"`validation_data` must be (x, y) or (x, y, sample_weight); received {len(data)} parts")
        batches = batches_of(*data, batch_size=how["batch_size"])
    else:
        batches = batches_of(data)
        if hasattr(data, "__next__"):
            batches = KeptBatches(batches, how["steps"])
    return lambda callbacks: evaluated(model, batches, 0, how["steps"], callbacks)
