"""What ``compile`` is given for outputs: losses, their weights and metrics, arranged as the outputs are."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from mp_core import losses, metrics
from mp_core.arrays import Array
from mp_core.losses import Loss
from mp_core.utilities.tree import leaves

__all__ = ["LossTracker", "Losses", "Metrics", "Targets", "check_target", "targets_of", "weighted"]


class Targets(NamedTuple):
    """What belongs to one output."""

    name: str
    y: Any
    output: Any
    weights: Any
    mask: Any = None


def targets_of(names: Sequence[str], y: Any, outputs: Any, weights: Any, masks: Any = None) -> list[Targets]:
    """Return targets and weights beside the outputs that they belong to.

    Parameters
    ----------
    names : sequence of str
        Of the outputs.
    y, weights : array, or list or dict of them, or None
        Arranged as the outputs, or a dictionary by their names; weights may be one array for all.
    outputs : array, or list or dict of them
    masks : array of bool, or list or dict of them, optional
        What counts, arranged as the outputs.

    Raises
    ------
    ValueError
        They are arranged in another way.
    """
    arrays = list(leaves(outputs))
    given = _spread(y, names, outputs, "y")
    if weights is not None and not isinstance(weights, list | tuple | dict):
        weights = [weights] * len(arrays)
    columns = (_spread(weights, names, outputs, "sample_weight"), _spread(masks, names, outputs, "mask"))
    return [Targets(*each) for each in zip(names, given, arrays, *columns, strict=True)]


def _spread(given: Any, names: Sequence[str], outputs: Any, what: str) -> list[Any]:
    """Return what is given for each of some outputs, None where there is nothing."""
    count = len(names)
    if given is None:
        return [None] * count
    if isinstance(given, dict):
        unknown = [key for key in given if key not in names]
        if unknown:
            raise ValueError(
                f"`{what}` must be for the outputs {', '.join(names)}; received {', '.join(map(str, given))}"
            )
        return [given.get(name) for name in names]
    parts = list(given) if isinstance(given, list | tuple) else [given]
    if len(parts) != count:
        raise ValueError(f"`{what}` must be for {count} outputs ({', '.join(names)}); received {len(parts)}")
    return parts


class Losses:
    """The losses of the outputs, and their weighted sum.

    Parameters
    ----------
    loss : str, callable, or list or dict of them
        One for all outputs, or arranged as they are; None: an output has no loss.
    loss_weights : float, or list or dict of float, optional
    """

    def __init__(self, loss: Any, loss_weights: Any) -> None:
        self._loss, self._weights = loss, loss_weights
        self._found: list[tuple[Any, float]] | None = None

    def of(self, names: Sequence[str], outputs: Any) -> list[tuple[Any, float]]:
        """Return loss and weight of each output."""
        if self._found is None:
            loss, weights = self._loss, self._weights
            is_config = isinstance(loss, dict) and loss.keys() >= {"class_name", "config"}
            if is_config or not isinstance(loss, list | tuple | dict):
                loss = [loss] * len(names)
            if isinstance(weights, int | float):
                weights = [weights] * len(names)
            given = _spread(loss, names, outputs, "loss")
            factors = _spread(weights, names, outputs, "loss_weights")
            found = [_loss_from(each) for each in given]
            self._found = [(each, 1.0 if w is None else float(w)) for each, w in zip(found, factors, strict=True)]
        return self._found

    def fed(self, y: Any, names: Sequence[str], outputs: Any) -> Any:
        """Return targets, arranged as they are, in the types in which a recorded step reads them."""
        if y is None:
            return None
        parts = [
            part if part is None or loss is None else loss.targets(part)
            for part, (loss, _) in zip(_spread(y, names, outputs, "y"), self.of(names, outputs), strict=True)
        ]
        if isinstance(y, dict):
            return {name: part for name, part in zip(names, parts, strict=True) if name in y}
        return parts if isinstance(y, list | tuple) else parts[0]

    def compute(self, targets: Sequence[Targets], outputs: Any) -> list[tuple[Any, float]]:
        """Return the loss of each output that has one, and its weight.

        Raises
        ------
        ValueError
            Targets are missing, or do not fit the outputs.
        """
        found = []
        for target, (loss, weight) in zip(targets, self.of([t.name for t in targets], outputs), strict=True):
            if loss is not None:
                found.append((_loss_of(loss, target), weight))
        return found


def weighted(value: Any, weight: float) -> Any:
    """Return a loss by its weight."""
    return value if weight == 1.0 else value * np.float32(weight)


class _FunctionLoss(Loss):
    """The mean of what a function of targets and outputs returns."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=getattr(function, "__name__", None))
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the values of the function."""
        found = self._function(y_true, y_pred)
        if not hasattr(found, "ndim"):
            raise TypeError(f"the loss '{self.name}' must return an array; received {found!r}")
        return found


def _loss_from(identifier: Any) -> Loss | None:
    """Return the loss of a name, a configuration or a function, or of a list of one of these."""
    if isinstance(identifier, list | tuple) and len(identifier) == 1:
        (identifier,) = identifier
    found = losses.get(identifier)
    if found is None or isinstance(found, Loss):
        return found
    kinds = (kind for kind in losses.registry.CLASSES.values() if getattr(kind, "function", None) is found)
    kind = next(kinds, None)
    return _FunctionLoss(found) if kind is None else kind()


def check_target(loss: Loss, target: Targets) -> None:
    """Raise ValueError if an output with a loss has no targets."""
    if target.y is None:
        raise ValueError(f"the loss '{loss.name}' of output '{target.name}' needs targets: `y` has none for it")


def _loss_of(loss: Any, target: Targets) -> Any:
    check_target(loss, target)
    mask = {} if target.mask is None else {"mask": target.mask}
    try:
        return loss(target.y, target.output, sample_weight=target.weights, **mask)
    except ValueError as error:
        if type(error) is not ValueError:  # what a plan cannot see says so itself
            raise
        raise ValueError(
            f"the loss '{loss.name}' does not fit output '{target.name}': targets have shape {np.shape(target.y)}, "
            f"outputs {target.output.shape}: {error}"
        ) from error


class LossTracker:
    """The mean of the losses of batches, each counted by its number of samples."""

    def __init__(self, name: str = "loss") -> None:
        self.name = name
        self.reset_state()

    def reset_state(self) -> None:
        """Begin anew."""
        self._total, self._count = 0.0, 0

    def update_state(self, value: Any, samples: int = 1) -> None:
        """Take in the loss of a batch."""
        self._total += float(value) * samples
        self._count += samples

    @property
    def state(self) -> list[float]:
        """The sum, and the number of samples."""
        return [self._total, self._count]

    @state.setter
    def state(self, value: Sequence[float]) -> None:
        self._total, self._count = float(value[0]), int(value[1])

    def result(self) -> float:
        """Return the mean; 0 before the first batch, as in Keras."""
        return self._total / self._count if self._count else 0.0


class _FunctionMetric(metrics.Mean):
    """The mean of what a function of targets and outputs returns."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=getattr(function, "__name__", type(function).__name__))
        self._function = function

    def update_state(  # type: ignore[override]
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Count a batch of targets and outputs."""
        super().update_state(self._function(y_true, y_pred), sample_weight)


_BY_TARGETS = {"accuracy": "accuracy", "acc": "accuracy", "crossentropy": "crossentropy", "ce": "crossentropy"}
"""Names of metrics that mean those of the kind of the targets -> how the names of these end."""


class Metrics:
    """The metrics of the outputs.

    Parameters
    ----------
    given, weighted : list, or list or dict of lists, optional
        Names, functions or metrics of one output, or of each; the second ones count samples by their weights.
    """

    def __init__(self, given: Any, weighted: Any) -> None:
        self._given = given, weighted
        self.are_given = given is not None or weighted is not None
        self._found: list[list[tuple[str, Any, bool]]] | None = None

    def _build(self, targets: Sequence[Targets], outputs: Any) -> list[list[tuple[str, Any, bool]]]:
        """Return name, metric and whether it counts weights, for each output."""
        names = [target.name for target in targets]
        columns = [self._by_output(given, names, outputs) for given in self._given]
        prefixes = [f"{name}_" for name in names] if len(names) > 1 else [""]
        found = []
        for target, prefix, plain, weighted in zip(targets, prefixes, *columns, strict=True):
            made = [(self._made(each, target), False) for each in plain]
            made += [(self._made(each, target), True) for each in weighted]
            taken: list[str] = []
            for metric, is_weighted in made:
                taken.append(_free_name(metric.name, is_weighted, taken))
            found.append([(prefix + name, *each) for name, each in zip(taken, made, strict=True)])
        return found

    @staticmethod
    def _by_output(given: Any, names: Sequence[str], outputs: Any) -> list[list[Any]]:
        if given is None:
            return [[] for _ in names]
        if len(names) == 1 and isinstance(given, list | tuple) and not any(isinstance(x, list | tuple) for x in given):
            return [list(given)]
        parts = _spread(given, names, outputs, "metrics")
        return [list(x) if isinstance(x, list | tuple) else [] if x is None else [x] for x in parts]

    @staticmethod
    def _made(given: Any, target: Targets) -> Any:
        """Return the metric of a name, which it keeps, of a configuration or a function."""
        suffix = _BY_TARGETS.get(given) if isinstance(given, str) else None
        found = metrics.get(given if suffix is None else f"{_kind(target.y, target.output)}_{suffix}")
        if not isinstance(found, metrics.Metric):
            found = _FunctionMetric(found)
        if isinstance(given, str):
            found.name = given
        return found

    def update(self, targets: Sequence[Targets], outputs: Any) -> None:
        """Take in a batch."""
        if self._found is None:
            self._found = self._build(targets, outputs)
        for target, made in zip(targets, self._found, strict=True):
            for _, metric, is_weighted in made:
                weights = target.weights if is_weighted else None
                if target.mask is not None and isinstance(metric, metrics.Mean):
                    weights = _masked(weights, target.mask)
                metric.update_state(target.y, target.output, sample_weight=weights)

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The name in the logs of each metric, and it."""
        return [(name, metric) for made in self._found or () for name, metric, _ in made]


def _free_name(name: str, is_weighted: bool, taken: Sequence[str]) -> str:
    """Return a name that no metric of the output has yet: that of a weighted metric begins otherwise, as in Keras."""
    if is_weighted and name in taken:
        name = f"weighted_{name}"
    return name if name not in taken else next(new for n in count(1) if (new := f"{name}_{n}") not in taken)


def _masked(weights: Array | None, mask: Array) -> Array:
    """Return the weights where a mask is True, and zeros elsewhere."""
    if weights is None:
        return mask.astype(np.float32)
    return np.where(mask, weights.reshape(weights.shape + (1,) * (mask.ndim - weights.ndim)), np.float32(0))


def _kind(y: Array, output: Array) -> str:
    """Return what kind of targets are there, as Keras decides it for the metric "accuracy"."""
    if output.shape[-1] == 1:
        return "binary"
    is_sparse = y.ndim < output.ndim or y.shape[-1] == 1
    return "sparse_categorical" if is_sparse else "categorical"
