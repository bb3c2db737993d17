"""Losses, loss weights and metrics of ``compile``, matched with the outputs of a model."""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.arrays.recorded import is_recorded
from mp_core.layers import Layer
from mp_core.training import losses, metrics
from mp_core.training.losses import Loss
from mp_core.training.losses.arrays import same_rank
from mp_core.training.nesting import flattened, is_nest, is_nested, names_in_logs, with_replaced_parts
from mp_core.utilities.arguments import number
from mp_core.utilities.tree import has_sorted_keys, leaves, map_leaves

__all__ = ["LossTracker", "Losses", "Metrics", "Targets", "check_target", "targets_of", "weighted"]


class Targets(NamedTuple):
    """Name, target, output, weights and mask of one output of a model."""

    name: str
    y: Any
    output: Any
    weights: Any
    mask: Any = None


def targets_of(names: Sequence[str], y: Any, outputs: Any, weights: Any, masks: Any = None) -> list[Targets]:
    """Match targets, weights and masks with the outputs, which have these names.

    Targets and weights are arranged as the outputs, or a dictionary with their names; weights may be one array for all
    outputs. Masks are arranged as the outputs; an element counts if its mask is True.
    """
    arrays = list(leaves(outputs))
    given = _per_output(y, names, outputs, "y")
    if weights is not None and not isinstance(weights, list | tuple | dict):
        weights = [weights] * len(arrays)
    columns = (_per_output(weights, names, outputs, "sample_weight"), _per_output(masks, names, outputs, "mask"))
    return [Targets(*each) for each in zip(names, given, arrays, *columns, strict=True)]


def _per_output(given: Any, names: Sequence[str], outputs: Any, what: str) -> list[Any]:
    """Return the part of `given` for each output, or None; errors call `given` by the name `what`."""
    count = len(names)
    if given is None:
        return [None] * count
    if _is_arranged(given, names, outputs):
        try:
            return list(flattened(given, outputs))
        except ValueError as error:
            remaining = iter(names)
            arranged = map_leaves(lambda _: next(remaining), outputs)
            raise ValueError(f"`{what}` must be arranged as the outputs, {arranged}: {error}") from None
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
    has_order = any(part is not parts[0] for part in parts)
    if has_order and isinstance(outputs, dict) and not has_sorted_keys(outputs):
        raise ValueError(
            f"`{what}` must be a dict by the names of the outputs, {', '.join(names)}: the names are not sorted, so "
            f"the order of a list would be ambiguous; received a {type(given).__name__}"
        )
    return parts


def _is_arranged(given: Any, names: Sequence[str], outputs: Any) -> bool:
    """Whether `given` is nested like the outputs, instead of a flat list or a dict of output names."""
    if not is_nested(outputs) or not is_nest(given):
        return False
    if isinstance(given, dict):
        return (isinstance(outputs, dict) and given.keys() <= outputs.keys()) or not given.keys() <= set(names)
    return len(given) != len(names) or any(map(is_nest, given))


def _is_config(x: Any) -> bool:
    return isinstance(x, dict) and x.keys() >= {"class_name", "config"}


def _resolved(given: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to each name, configuration or object in nested lists and dictionaries."""
    if isinstance(given, dict) and not _is_config(given):
        return {name: _resolved(part, function) for name, part in given.items()}
    return [_resolved(part, function) for part in given] if isinstance(given, list | tuple) else function(given)


class Losses:
    """The losses of the outputs, with their weights.

    `loss` is one for all outputs, or arranged as the outputs; None: an output has no loss.
    """

    def __init__(self, loss: Any, loss_weights: Any) -> None:
        self._loss, self._weights = _resolved(loss, _resolve_loss), _resolved(loss_weights, _loss_weight)
        self._pairs: list[tuple[Any, float]] | None = None

    def of(self, names: Sequence[str], outputs: Any) -> list[tuple[Any, float]]:
        """Return loss and weight of each output."""
        if self._pairs is None:
            loss, weights = self._loss, self._weights
            if not is_nest(loss):
                loss = [loss] * len(names)
            if isinstance(weights, float):
                weights = [weights] * len(names)
            found = [_single_loss(each) for each in _per_output(loss, names, outputs, "loss")]
            factors = _per_output(weights, names, outputs, "loss_weights")
            self._pairs = [(each, 1.0 if w is None else w) for each, w in zip(found, factors, strict=True)]
        return self._pairs

    def targets(self, names: Sequence[str], y: Any, outputs: Any, weights: Any, masks: Any = None) -> list[Targets]:
        """Return :func:`targets_of`; `y` may also be a list with targets only for the outputs that have a loss."""
        return targets_of(names, self._with_missing_targets(y, names, outputs), outputs, weights, masks)

    def _with_missing_targets(self, y: Any, names: Sequence[str], outputs: Any) -> Any:
        """Insert None for each output without a loss, if `y` has targets only for outputs with a loss."""
        counts = [loss is not None for loss, _ in self.of(names, outputs)]
        given = list(leaves(y))
        if y is None or isinstance(y, dict) or not len(given) == sum(counts) < len(counts):
            return y
        parts = iter(given)
        found = [next(parts) if counts_here else None for counts_here in counts]
        return dict(zip(names, found, strict=True)) if len(given) == 1 and isinstance(outputs, dict) else found

    def names(self, names: Sequence[str], outputs: Any) -> list[str]:
        """Return the names of the outputs that have a loss, as the logs show them."""
        pairs = zip(names_in_logs(names, outputs), self.of(names, outputs), strict=True)
        return [name for name, (loss, _) in pairs if loss is not None]

    def recordable_targets(self, y: Any, names: Sequence[str], outputs: Any) -> Any:
        """Return targets in the same arrangement, converted to the dtypes that a recorded step reads."""
        if y is None:
            return None
        y = self._with_missing_targets(y, names, outputs)
        parts = [
            part if part is None or loss is None else loss.targets(part)
            for part, (loss, _) in zip(_per_output(y, names, outputs, "y"), self.of(names, outputs), strict=True)
        ]
        if _is_arranged(y, names, outputs):
            return with_replaced_parts(y, outputs, iter(parts))
        if isinstance(y, dict):
            return {name: part for name, part in zip(names, parts, strict=True) if name in y}
        return parts if isinstance(y, list | tuple) else parts[0]

    def compute(self, targets: Sequence[Targets], outputs: Any) -> list[tuple[Any, float]]:
        """Return (value, weight) of each output that has a loss."""
        found = []
        for target, (loss, weight) in zip(targets, self.of([t.name for t in targets], outputs), strict=True):
            if loss is not None:
                found.append((_compute_loss(loss, target), weight))
        return found


def weighted(value: Any, weight: float) -> Any:
    """Return loss * weight."""
    return value if weight == 1.0 else value * np.float32(weight)


class _FunctionLoss(Loss):
    """The mean of the values of a function of targets and outputs."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__(name=getattr(function, "__name__", None))
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        found = self._function(y_true, y_pred)
        if not hasattr(found, "ndim"):
            raise TypeError(f"the loss '{self.name}' must return an array; received {found!r}")
        return found


class _Crossentropy(Loss):
    """Binary, categorical or sparse categorical cross-entropy, selected by the shapes of targets and outputs."""

    def targets(self, y_true: Any) -> Any:
        """Return integers as class indices; floats as other losses convert them."""
        if is_recorded(y_true):
            return y_true
        is_whole = np.asarray(y_true).dtype.kind in "biu"
        return losses.classification.indices(y_true) if is_whole else super().targets(y_true)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return losses.get(f"{_target_kind(y_true, y_pred)}_crossentropy")(y_true, y_pred)


def _resolve_loss(identifier: Any) -> Loss | None:
    """Return the loss object for a name, a configuration, a function or a loss."""
    if _depends_on_targets(identifier) and _TARGET_DEPENDENT[identifier.lower()] == "crossentropy":
        return _Crossentropy(identifier)
    kind = identifier if isinstance(identifier, type) else type(identifier)
    if issubclass(kind, metrics.Metric | Layer):
        word = "metric" if issubclass(kind, metrics.Metric) else "layer"
        raise TypeError(f"`loss` must be a Loss, a function or a name; received the {word} {identifier!r}")
    found = losses.get(identifier)
    if found is None or isinstance(found, Loss):
        return found
    kinds = (kind for kind in losses.registry.CLASSES.values() if getattr(kind, "function", None) is found)
    known = next(kinds, None)
    return _FunctionLoss(found) if known is None else known()


def _single_loss(given: Any) -> Loss | None:
    """Return the loss of one output; a list of one loss is unpacked."""
    if isinstance(given, dict) or (is_nest(given) and len(given) != 1):
        raise ValueError(f"`loss` must be one loss for each output; received {given!r} for one of them")
    found: Loss | None = given[0] if is_nest(given) else given
    return found


def _loss_weight(weight: Any) -> float | None:
    return None if weight is None else number(weight, "loss_weights")


def check_target(loss: Loss, target: Targets) -> None:
    """Raise ValueError if an output with a loss has no targets."""
    if target.y is None:
        raise ValueError(f"the loss '{loss.name}' of output '{target.name}' needs targets: `y` has none for it")


def _compute_loss(loss: Any, target: Targets) -> Any:
    check_target(loss, target)
    mask = {} if target.mask is None else {"mask": target.mask}
    try:
        found = loss(target.y, target.output, sample_weight=target.weights, **mask)
    except ValueError as error:
        if type(error) is not ValueError:  # a subclass is raised by recording, which explains itself
            raise
        raise ValueError(
            f"the loss '{loss.name}' does not fit output '{target.name}': targets have shape {np.shape(target.y)}, "
            f"outputs {target.output.shape}: {error}"
        ) from error
    if math.prod(np.shape(found)) != 1:
        raise ValueError(
            f"the loss '{loss.name}' must be one number for a batch; received shape {np.shape(found)}: its `reduction` "
            f"is {loss.reduction!r}"
        )
    return found


class LossTracker(metrics.Metric):
    """The mean of the losses of batches, weighted by their numbers of samples, in Python floats."""

    _direction = "down"

    def __init__(self, name: str = "loss") -> None:
        super().__init__(name=name)
        self.reset_state()

    def reset_state(self) -> None:
        self._total, self._count = 0.0, 0

    def update_state(self, value: Any, sample_weight: int = 1) -> None:
        """Add the loss of a batch; `sample_weight` is its number of samples."""
        self._total += float(value) * sample_weight
        self._count += sample_weight

    @property
    def state(self) -> list[float]:
        """Weighted sum of the losses, and number of samples."""
        return [self._total, self._count]

    @state.setter
    def state(self, value: Sequence[float]) -> None:
        self._total, self._count = float(value[0]), int(value[1])

    def result(self) -> float:
        """Return the mean; 0 before the first batch, as in Keras."""
        return self._total / self._count if self._count else 0.0


_TARGET_DEPENDENT = {"accuracy": "accuracy", "acc": "accuracy", "crossentropy": "crossentropy", "ce": "crossentropy"}
"""Names whose metric depends on the kind of the targets -> the last part of that metric's name."""


def _depends_on_targets(given: Any) -> bool:
    """Whether `given` is a name whose metric or loss depends on the kind of the targets."""
    return isinstance(given, str) and given.lower() in _TARGET_DEPENDENT


class Metrics(metrics.Metric):
    """The metrics of all outputs as one metric, an element of ``model.metrics``; its result is a dictionary.

    `given` and `weighted` are lists of names, functions or metrics of one output, or of each. Only `weighted` metrics
    use sample weights. ``targets_of(y, outputs, weights, masks)`` returns the :class:`Targets` of each output.
    """

    def __init__(self, given: Any, weighted: Any, targets_of: Callable[..., list[Targets]]) -> None:
        super().__init__(name="compile_metrics")
        named = {"metrics": given, "weighted_metrics": weighted}
        self._specs, self._targets_of = [self._resolve(*each) for each in named.items()], targets_of
        self.are_given = given is not None or weighted is not None
        self.example: Any = None
        """The argument of :meth:`rebuild`; None until the first batch."""
        self._by_output: list[list[tuple[str, Any, bool]]] | None = None

    def _build(self, targets: Sequence[Targets], outputs: Any) -> list[list[tuple[str, Any, bool]]]:
        """Return (name in the logs, metric, whether it uses weights) of each metric of each output."""
        names = [target.name for target in targets]
        if isinstance(outputs, dict) and len(outputs) == len(names):
            names = list(outputs)
        columns = [self._for_outputs(given, names, outputs) for given in self._specs]
        prefixes = [f"{name}_" for name in names] if len(names) > 1 else [""]
        found = []
        for target, prefix, plain, weighted in zip(targets, prefixes, *columns, strict=True):
            if None in plain or None in weighted:
                raise ValueError(f"`metrics` must be names, functions or metrics; received None for '{target.name}'")
            made = [(self._make_metric(each, target), False) for each in plain]
            made += [(self._make_metric(each, target), True) for each in weighted]
            taken: list[str] = []
            for metric, is_weighted in made:
                metric.reset_state()  # it may have been updated after an earlier `compile`
                taken.append(_unique_name(metric.name, is_weighted, taken))
            found.append([(prefix + name, *each) for name, each in zip(taken, made, strict=True)])
        return found

    @classmethod
    def _resolve(cls, argument: str, given: Any) -> Any:
        """Replace names, configurations and functions by metrics; "accuracy" etc. wait for the first targets."""
        if given is not None and (not is_nest(given) or _is_config(given)):
            raise TypeError(f"`{argument}` must be a list, tuple or dict of metrics; received {given!r}")
        return _resolved(
            given, lambda each: each if each is None or _depends_on_targets(each) else cls._make_metric(each, None)
        )

    @staticmethod
    def _for_outputs(given: Any, names: Sequence[str], outputs: Any) -> list[list[Any]]:
        if given is None:
            return [[] for _ in names]
        if len(names) == 1 and isinstance(given, list | tuple) and not any(isinstance(x, list | tuple) for x in given):
            return [list(given)]
        parts = _per_output(given, names, outputs, "metrics")
        return [list(x) if isinstance(x, list | tuple) else [] if x is None else [x] for x in parts]

    @staticmethod
    def _make_metric(given: Any, target: Any) -> Any:
        """Return the metric for a name, a configuration or a function; a name becomes the metric's name."""
        suffix = _TARGET_DEPENDENT[given.lower()] if _depends_on_targets(given) else None
        found = metrics.get(given if suffix is None else f"{_target_kind(target.y, target.output)}_{suffix}")
        if not isinstance(found, metrics.Metric):
            found = metrics.MeanMetricWrapper(found)
        if isinstance(given, str):
            found.name = given
        return found

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> None:
        """Update all metrics with a batch; targets, weights and masks are arranged as the outputs."""
        self.update(self._targets_of(y_true, y_pred, sample_weight, mask), y_pred)

    def update(self, targets: Sequence[Targets], outputs: Any) -> None:
        """Update all metrics with a batch."""
        if self._by_output is None:
            self._by_output = self._build(targets, outputs)
            self.example = _example_of(targets, outputs)
        for target, made in zip(targets, self._by_output, strict=True):
            for _, metric, is_weighted in made:
                weights = target.weights if is_weighted else None
                with _explaining_mismatch(metric, target):
                    if target.mask is not None and isinstance(metric, metrics.Mean):
                        weights = _masked_weights(weights, target.mask)
                    metric.update_state(target.y, target.output, sample_weight=weights)

    def rebuild(self, example: Any, counts: Mapping[str, int]) -> None:
        """Create the metrics like the first batch of an interrupted training did: `example` is its attribute `example`.

        `counts` maps the name of a metric to the number of its variables. A metric that creates variables in its first
        update is updated with one sample of zeros.
        """
        if self._by_output is None:
            parts, arrangement = example
            targets = [Targets(name, _zeros_of_spec(y), _zeros_of_spec(output), None) for name, y, output in parts]
            found = self._build(targets, arrangement)
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                for target, made in zip(targets, found, strict=True):
                    for name, metric, _ in made:
                        if len(metric.variables) < counts.get(name, 0):
                            metric.update_state(target.y, target.output)
            self._by_output, self.example = found, example

    @property
    def named(self) -> list[tuple[str, Any]]:
        """Pairs of name in the logs and metric; empty before the first batch."""
        return [(name, metric) for made in self._by_output or () for name, metric, _ in made]

    @property
    def metrics(self) -> list[Any]:
        """The metrics; empty before the first batch."""
        return [metric for _, metric in self.named]

    def result(self) -> dict[str, Any]:
        """Return name in the logs -> value of the metric."""
        return {name: metric.result() for name, metric in self.named}

    def reset_state(self) -> None:
        for metric in self.metrics:
            metric.reset_state()


@contextmanager
def _explaining_mismatch(metric: Any, target: Targets) -> Iterator[None]:
    """Add the names of metric and output, and the shapes, to errors that an update raises."""
    if target.y is None:
        raise ValueError(f"the metric '{metric.name}' of output '{target.name}' needs targets: `y` has none for it")
    try:
        yield
    except (ValueError, IndexError) as error:
        if type(error) not in (ValueError, IndexError):  # a subclass is raised by recording, which explains itself
            raise
        shapes = {"targets": target.y, "outputs": target.output, "the mask": target.mask, "weights": target.weights}
        have = ", ".join(f"{name} {np.shape(x)}" for name, x in shapes.items() if x is not None)
        raise type(error)(
            f"the metric '{metric.name}' does not fit output '{target.name}': shapes are {have}: {error}"
        ) from error


def _example_of(targets: Sequence[Targets], outputs: Any) -> Any:
    """Return name and sample shapes and dtypes of each target and output, and the arrangement of the outputs."""
    parts = [[target.name, _sample_spec(target.y), _sample_spec(target.output)] for target in targets]
    return [parts, map_leaves(lambda _: None, outputs)]


def _sample_spec(x: Any) -> Any:
    return None if x is None else [list(x.shape[1:]), x.dtype.name]


def _zeros_of_spec(described: Any) -> Any:
    if described is None:
        return None
    shape, dtype = tuple(described[0]), np.dtype(described[1])
    if math.prod(shape) > _MAX_SAMPLE_SIZE or (dtype.kind not in "biuf" and not dtypes.is_float(dtype)):
        raise ValueError(f"a sample of shape {shape} and dtype {dtype} cannot be a target or an output")
    return np.zeros((1, *shape), dtype)


_MAX_SAMPLE_SIZE = 1 << 26
"""Limit of elements of a sample that a file describes, because it is allocated."""


def _unique_name(name: str, is_weighted: bool, taken: Sequence[str]) -> str:
    """Return a name that is not taken, as in Keras: ``weighted_{name}`` for weighted metrics, then ``{name}_{n}``."""
    if is_weighted and name in taken:
        name = f"weighted_{name}"
    return name if name not in taken else next(new for n in count(1) if (new := f"{name}_{n}") not in taken)


def _masked_weights(weights: Array | None, mask: Array) -> Array:
    """Return the weights where a mask is True, and zeros elsewhere; the first axis of both is samples."""
    if weights is None:
        return mask.astype(np.float32)
    weights, mask = same_rank(weights, mask)
    rank = max(weights.ndim, mask.ndim)
    mask, weights = (x.reshape(x.shape + (1,) * (rank - x.ndim)) for x in (mask, weights))
    return np.where(mask, weights, np.float32(0))


def _target_kind(y: Array, output: Array) -> str:
    """Return the kind of the targets; the rule is Keras' for the metric "accuracy"."""
    if output.shape[-1] == 1:
        return "binary"
    is_sparse = y.ndim < output.ndim or y.shape[-1] == 1
    return "sparse_categorical" if is_sparse else "categorical"
