"""Losses as objects: a function, its arguments, and how the values of samples become one number."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.policies.dtype_policies import get as policy_of
from mp_core.training.losses.arrays import aligned, floats, same_rank
from mp_core.utilities.docstrings import with_sections
from mp_core.utilities.names import named, snake_case
from mp_core.utilities.registry import own_config

__all__ = ["REDUCTIONS", "FunctionLoss", "Loss", "bound_arguments", "reduced", "with_parameters"]

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)
"""Names of reductions: the first two are the mean over all values, the third divides by the sum of the weights."""


def reduced(values: Array, reduction: str | None, sample_weight: Any = None, mask: Any = None) -> Array:
    """Return the values of samples, weighted, as one number.

    Parameters
    ----------
    values : ndarray
    reduction : str or None
        Of :data:`REDUCTIONS`.
    sample_weight : array-like, optional
        Of the shape of the values, or of their first axes: a weight of shape (n,) counts for all values of its sample.
    mask : array-like of bool, optional
        What counts, of a shape as that of weights; a mean divides by the number of these.

    Raises
    ------
    ValueError
        Weights or mask do not fit the values.
    """
    values, weight = _weighed(values, reduction, sample_weight, mask)
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


def _weighed(values: Array, reduction: str | None, sample_weight: Any, mask: Any) -> tuple[Array, Array | None]:
    """Return the values, and what each of them weighs: weights times mask, None without either."""
    factors = []
    if sample_weight is not None:
        factors.append(("sample_weight", _as(floats(sample_weight, "sample_weight"), values)))
    if mask is not None:
        kept = _as(floats(mask, "mask"), values)
        if reduction in ("mean", "sum_over_batch_size") and kept.ndim:
            count = ops.sum(kept)
            kept = kept * ops.where(count == 0.0, 0.0 * count, float(kept.size) / ops.maximum(count, 1.0))
        factors.append(("mask", kept))
    for _, factor in factors:
        values, _ = same_rank(values, factor)
    parts = [aligned(factor, values.shape, name) for name, factor in factors]
    return values, functools.reduce(operator.mul, parts) if parts else None


def _as(x: Array, like: Array) -> Array:
    return x if x.dtype == like.dtype else ops.cast(x, like.dtype)


class Loss:
    """The base of the losses: ``loss(y_true, y_pred, sample_weight)`` calls :meth:`call` and reduces what it returns.

    Parameters
    ----------
    name : str, optional
    reduction : {"sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None}
        What becomes of the values of samples: their mean (the first two), their sum over that of the weights, their
        sum, or nothing.
    dtype : str or DTypePolicy, optional
        In which the loss is computed; default: float32, whatever the policy of the model.

    Examples
    --------
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
        """The dtype in which the loss is computed."""
        return self._dtype

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None, mask: Any = None) -> Array:
        """Return the loss of a batch, rounded once to the dtype of the loss.

        Parameters
        ----------
        y_true, y_pred : array-like
        sample_weight : array-like, optional
            What each sample, or each of its values, weighs.
        mask : array-like of bool, optional
            Which elements of the outputs count, of the shape of their first axes. A value counts if one of the elements
            from which it is computed does.
        """
        values = self.values(y_true, y_pred)
        if mask is not None:
            mask = self._mask_of_values(mask if hasattr(mask, "ndim") else np.asarray(mask), np.shape(y_pred), values)
        return self.reduce(values, y_true, sample_weight, mask)

    def _mask_of_values(self, mask: Array, shape: tuple[int, ...], values: Array) -> Array:
        """Return which values count, from which elements of outputs of a shape do."""
        axes = self._reduced_axes(len(shape), values)
        if not any(axis < mask.ndim for axis in axes):
            return mask
        kept = aligned(floats(mask, "mask"), shape, "mask")  # as numbers: plans have no largest of booleans
        return ops.max(kept, axes)

    def _reduced_axes(self, rank: int, values: Array) -> tuple[int, ...]:
        """Return the axes of outputs that the values have no more: the last ones."""
        return tuple(range(values.ndim, rank))

    def values(self, y_true: Any, y_pred: Any) -> Array:
        """Return the value of each sample in the dtype of the loss."""
        outputs = floats(y_pred, "y_pred")
        if outputs.dtype != self.dtype:
            outputs = ops.cast(outputs, self.dtype)
        return self.call(self.targets(y_true), outputs)

    def reduce(self, values: Array, y_true: Any, sample_weight: Any = None, mask: Any = None) -> Array:
        """Return the loss of a batch from the values of its samples; arguments as of a call."""
        valid = self.valid(y_true, values)
        if valid is not None:
            mask = (
                valid if mask is None else aligned(floats(mask, "mask"), values.shape, "mask") * floats(valid, "mask")
            )
        total = reduced(values, self.reduction, sample_weight, mask)
        return total if total.dtype == self.dtype else ops.cast(total, self.dtype)

    @property
    def mixes_samples(self) -> bool:
        """Whether the value of a sample depends on others, so that a batch cannot be computed in passes."""
        return False

    def targets(self, y_true: Any) -> Array:
        """Return targets in the type in which :meth:`call` reads them: what a trainer feeds a recorded step with."""
        wide = floats(y_true, "y_true")
        return wide if wide.dtype == self.dtype else ops.cast(wide, self.dtype)

    def valid(self, y_true: Any, values: Array) -> Any:
        """Return which values count, in their shape, or None: all."""
        return None

    def call(self, y_true: Any, y_pred: Any) -> Array:
        """Return the value of each sample: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `call(self, y_true, y_pred)`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"name": self.name, "reduction": self.reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the loss with these arguments."""
        return cls(**own_config(config, cls.__name__))


def bound_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a class that states its signature, its defaults for those that are not given."""
    bound = cls.__signature__.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


_PARAMETERS = """
    Parameters
    ----------
{own}    {common}
        Those of :class:`{base}`.

    Raises
    ------
    TypeError, ValueError
        As :class:`{base}`.
"""


def with_parameters(cls: Any, base: str, common: str) -> str:
    """Return the docstring of a class that calls a function, with its parameters: of the function, and of its base."""
    own = f"    {', '.join(cls.own)}\n        As of the function.\n" if cls.own else ""
    return with_sections(cls.__doc__, _PARAMETERS.format(own=own, common=common, base=base))


class FunctionLoss(Loss):
    """A loss that calls a function with arguments that it keeps."""

    function: ClassVar[Callable[..., Array]]
    own: ClassVar[dict[str, Any]] = {}
    """The arguments of the function, and their defaults; a default of ``inspect.Parameter.empty`` is none."""
    order: ClassVar[tuple[str, ...]] = ()
    """All arguments in Keras' order, where it is another one than the function's, then those of every loss."""
    default_name: ClassVar[str | None] = None
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        defaults = {
            **cls.own, "reduction": "sum_over_batch_size", "name": cls.default_name or snake_case(cls.__name__),
            "dtype": None,
        }  # fmt: skip
        cls.__signature__ = inspect.Signature(
            [inspect.Parameter(name, kind, default=defaults[name]) for name in cls.order or defaults]
        )
        cls.__doc__ = with_parameters(cls, "Loss", "reduction, name, dtype")

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
        """Return the value of each sample."""
        return type(self).function(y_true, y_pred, **self.arguments)

    def _reduced_axes(self, rank: int, values: Array) -> tuple[int, ...]:
        if "axis" not in self.arguments:
            return super()._reduced_axes(rank, values)
        axes = self.arguments["axis"]
        given = range(rank) if axes is None else (axes,) if isinstance(axes, int) else axes
        return tuple(axis % rank for axis in given)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return super().get_config() | self.arguments
