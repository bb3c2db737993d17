"""The classes of losses: a function, its arguments, and the reduction of sample losses to one number."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.policies.dtype_policies import get as policy_of
from mp_core.training.losses.arrays import broadcastable, floats, same_rank
from mp_core.utilities.docstrings import documented, parameters_of, with_sections
from mp_core.utilities.names import named, snake_case
from mp_core.utilities.registry import own_config

__all__ = ["REDUCTIONS", "FunctionLoss", "Loss", "bound_arguments", "reduce_values"]

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)
"""Names of reductions. The first two: sum / number of values. The third: sum / sum of the weights."""


def reduce_values(values: Array, reduction: str | None, sample_weight: Any = None, mask: Any = None) -> Array:
    """Multiply values by weights, and reduce them to one number, as one of :data:`REDUCTIONS` says.

    Weights and mask have the shape of the values, or of their first axes: a weight of shape (n,) applies to all values
    of its sample. A value counts if its mask is True; a mean divides by the number of values that count.
    """
    values, weight = _weighted_values(values, reduction, sample_weight, mask)
    if weight is not None:
        values = values * weight
    if reduction in (None, "none") or values.ndim == 0:
        return values
    total = ops.sum(values)
    if reduction == "sum" or not values.size:
        return total
    if reduction != "mean_with_sample_weight" or weight is None:
        mean: Array = total / float(values.size)
        return mean
    divisor = ops.sum(weight)
    return ops.where(divisor == 0.0, 0.0 * divisor, total / ops.where(divisor == 0.0, 1.0 + divisor, divisor))


def _weighted_values(values: Array, reduction: str | None, sample_weight: Any, mask: Any) -> tuple[Array, Array | None]:
    """Return the values, and the product of weights and mask; None without both."""
    factors = []
    if sample_weight is not None:
        factors.append(("sample_weight", _cast_like(floats(sample_weight, "sample_weight"), values)))
    if mask is not None:
        kept = _cast_like(floats(mask, "mask"), values)
        if reduction in ("mean", "sum_over_batch_size") and kept.ndim:
            count = ops.sum(kept)
            kept = kept * ops.where(count == 0.0, 0.0 * count, float(kept.size) / ops.maximum(count, 1.0))
        factors.append(("mask", kept))
    for _, factor in factors:
        values, _ = same_rank(values, factor)
    parts = [broadcastable(factor, values.shape, name) for name, factor in factors]
    return values, functools.reduce(operator.mul, parts) if parts else None


def _cast_like(x: Array, like: Array) -> Array:
    return x if x.dtype == like.dtype else ops.cast(x, like.dtype)


_PARAMETERS = """
    Parameters
    ----------
    name : str, optional
    reduction : {"sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None}
        ``"sum_over_batch_size"`` and ``"mean"``: the mean of the values. ``"mean_with_sample_weight"``: sum of the
        weighted values / sum of the weights. ``"sum"``: the sum. ``"none"`` and None: the values.
    dtype : str or DTypePolicy, optional
        Dtype of the computation; default: float32, whatever the policy of the model.
"""


@documented(_PARAMETERS)
class Loss:
    """The base of the losses: ``loss(y_true, y_pred, sample_weight)`` calls :meth:`call` and reduces its result.

    >>> class Quartic(Loss):
    ...     def call(self, y_true, y_pred):
    ...         return (y_true - y_pred) ** 4
    >>> Quartic()([[1.0], [0.0]], [[0.0], [2.0]])  # (1 + 16) / 2
    np.float32(8.5)
    """

    def __init__(
        self, name: str | None = None, reduction: str | None = "sum_over_batch_size", dtype: Any = None
    ) -> None:
        if reduction not in REDUCTIONS:
            raise ValueError(f"`reduction` must be one of {REDUCTIONS}; received reduction={reduction!r}")
        self.name, self.reduction = named(name, type(self)), reduction
        self._dtype = policy_of("float32" if dtype is None else dtype).compute_dtype

    @property
    def dtype(self) -> str:
        """The dtype of the computation."""
        return self._dtype

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> Array:
        """Return the loss of a batch, rounded once to the dtype of the loss.

        Parameters
        ----------
        y_true, y_pred : array-like
        sample_weight : array-like, optional
            The weight of each sample, or of each value.
        mask : array-like of bool, optional
            Shape of the first axes of the outputs. A value counts if the mask is True for at least one of the elements
            that it is computed from.
        """
        values = self.values(y_true, y_pred)
        if mask is not None:
            mask = self._mask_of_values(mask if hasattr(mask, "ndim") else np.asarray(mask), np.shape(y_pred), values)
        return self.reduce(values, y_true, sample_weight, mask)

    def _mask_of_values(self, mask: Array, shape: tuple[int, ...], values: Array) -> Array:
        """Reduce a mask of outputs with this shape to a mask of the values."""
        axes = self._reduced_axes(len(shape), values)
        if not any(axis < mask.ndim for axis in axes):
            return mask
        kept = broadcastable(floats(mask, "mask"), shape, "mask")  # as numbers: plans have no maximum of booleans
        return ops.max(kept, axes)

    def _reduced_axes(self, rank: int, values: Array) -> tuple[int, ...]:
        """Return the axes of outputs over which :meth:`call` reduces: the last ones."""
        return tuple(range(values.ndim, rank))

    def values(self, y_true: Any, y_pred: Any) -> Array:
        """Return the loss of each sample in the dtype of the loss."""
        outputs = floats(y_pred, "y_pred")
        if outputs.dtype != self.dtype:
            outputs = ops.cast(outputs, self.dtype)
        return self.call(self.targets(y_true), outputs)

    def reduce(self, values: Array, y_true: Any, sample_weight: Any = None, mask: Any = None) -> Array:
        """Reduce the losses of samples to the loss of a batch; arguments as for a call."""
        valid = self.valid(y_true, values)
        if valid is not None and mask is None:
            mask = valid
        elif valid is not None:
            mask = broadcastable(floats(mask, "mask"), values.shape, "mask") * floats(valid, "mask")
        total = reduce_values(values, self.reduction, sample_weight, mask)
        return total if total.dtype == self.dtype else ops.cast(total, self.dtype)

    @property
    def mixes_samples(self) -> bool:
        """Whether the loss of a sample depends on other samples, so that a batch cannot be computed in passes."""
        return False

    def targets(self, y_true: Any) -> Array:
        """Convert targets to the dtype that :meth:`call` reads; a trainer does this before a recorded step."""
        found = floats(y_true, "y_true")
        return found if found.dtype == self.dtype else ops.cast(found, self.dtype)

    def valid(self, y_true: Any, values: Array) -> Any:
        """Return a mask of the values that count, with their shape; None: all."""
        return None

    def call(self, y_true: Any, y_pred: Any) -> Array:
        """Return the loss of each sample."""
        raise NotImplementedError(f"{type(self).__name__} must define `call(self, y_true, y_pred)`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"name": self.name, "reduction": self.reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the loss with these arguments."""
        return cls(**own_config(config, cls.__name__))


def bound_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Bind arguments to ``cls.__signature__``, with its defaults."""
    bound = cls.__signature__.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


class FunctionLoss(Loss):
    """A loss that calls a function with stored arguments."""

    function: ClassVar[Callable[..., Array]]
    function_arguments: ClassVar[dict[str, Any]] = {}
    """Argument of the function -> default; ``inspect.Parameter.empty``: required."""
    order: ClassVar[tuple[str, ...]] = ()
    """All arguments in Keras' order; empty: arguments of the function, then reduction, name and dtype."""
    default_name: ClassVar[str | None] = None
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {
            **cls.function_arguments, "reduction": "sum_over_batch_size",
            "name": cls.default_name or snake_case(cls.__name__), "dtype": None,
        }  # fmt: skip
        cls.__signature__ = inspect.Signature(
            [inspect.Parameter(name, kind, default=defaults[name]) for name in cls.order or defaults]
        )
        parameters = parameters_of(cls.function) + _PARAMETERS
        cls.__doc__ = with_sections(cls.__doc__, parameters, signature=cls.__signature__)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        arguments = bound_arguments(type(self), args, kwargs)
        common = {name: arguments.pop(name) for name in ("name", "reduction", "dtype")}
        super().__init__(**common)
        self.arguments = arguments

    def __getattr__(self, name: str) -> Any:
        if name != "arguments" and name in self.__dict__.get("arguments", {}):
            return self.arguments[name]
        raise AttributeError(f"'{type(self).__name__}' object has no attribute {name!r}")

    def call(self, y_true: Any, y_pred: Any) -> Array:
        return type(self).function(y_true, y_pred, **self.arguments)

    def _reduced_axes(self, rank: int, values: Array) -> tuple[int, ...]:
        if "axis" not in self.arguments:
            return super()._reduced_axes(rank, values)
        axes = self.arguments["axis"]
        given = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
        return tuple(axis % rank for axis in given)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.arguments
