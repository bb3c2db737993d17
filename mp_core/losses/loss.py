"""Losses as objects: a function, its arguments, and how the values of samples become one number."""

import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.dtype_policies import get as policy_of
from mp_core.dtype_policies.lookup import own_config
from mp_core.losses.arrays import floats, same_rank
from mp_core.utilities.docstrings import with_sections

__all__ = ["REDUCTIONS", "FunctionLoss", "Loss", "bound_arguments", "reduced", "snake_case", "with_parameters"]

REDUCTIONS = ("sum_over_batch_size", "mean", "mean_with_sample_weight", "sum", "none", None)
"""Names of reductions: the first two are the mean over all values, the third divides by the sum of the weights."""


def snake_case(name: str) -> str:
    """Return the default name of an object of a class: ``mean_squared_error``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def reduced(values: Array, reduction: str | None, sample_weight: Any = None, mask: Any = None) -> Array:
    """Return the values of samples, weighted, as one number.

    Parameters
    ----------
    values : ndarray
    reduction : str or None
        Of :data:`REDUCTIONS`.
    sample_weight : array-like, optional
        Of a shape that broadcasts to that of the values; an axis of length 1 may be missing at its end, or more.
    mask : array-like of bool, optional
        What counts; a mean divides by the number of these.

    Raises
    ------
    ValueError
        The weights do not broadcast to the values.
    """
    weight = None if sample_weight is None else _as(floats(sample_weight, "sample_weight"), values)
    if mask is not None:
        kept = _as(floats(mask, "mask"), values)
        if reduction in ("mean", "sum_over_batch_size"):
            count = ops.sum(kept)
            kept = kept * ops.where(count == 0.0, 0.0 * count, float(kept.size) / ops.maximum(count, 1.0))
        if weight is None:
            weight = kept
        else:
            kept, weight = same_rank(kept, weight)
            weight = weight * kept
    if weight is not None:
        values, weight = same_rank(values, weight)
        _check_weights(weight, values)
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
    return ops.where(divisor == 0.0, 0.0 * divisor, total / divisor)


def _as(x: Array, like: Array) -> Array:
    return x if x.dtype == like.dtype else ops.cast(x, like.dtype)


def _check_weights(weight: Array, values: Array) -> None:
    try:
        fits = np.broadcast_shapes(weight.shape, values.shape) == values.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`sample_weight` must broadcast to the values of the loss, {values.shape}; received {weight.shape}"
        )


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

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

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
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be a string; received name={name!r}")
        if reduction not in REDUCTIONS:
            raise ValueError(f"`reduction` must be one of {REDUCTIONS}; received reduction={reduction!r}")
        self.name, self.reduction = name or snake_case(type(self).__name__), reduction
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
            What counts.
        """
        return self.reduce(self.values(y_true, y_pred), y_true, sample_weight, mask)

    def values(self, y_true: Any, y_pred: Any) -> Array:
        """Return the value of each sample in the dtype of the loss."""
        outputs = floats(y_pred, "y_pred")
        if outputs.dtype != self.dtype:
            outputs = ops.cast(outputs, self.dtype)
        return self.call(self.targets(y_true), outputs)

    def reduce(self, values: Array, y_true: Any, sample_weight: Any = None, mask: Any = None) -> Array:
        """Return the loss of a batch from the values of its samples; arguments as of a call."""
        valid = self.valid(y_true)
        if valid is not None:
            mask = valid if mask is None else np.logical_and(mask, valid)
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

    def valid(self, y_true: Any) -> Any:
        """Return which values count, or None: all."""
        return None

    def call(self, y_true: Any, y_pred: Any) -> Array:
        """Return the value of each sample: subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define `call(self, y_true, y_pred)`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"name": self.name, "reduction": self.reduction}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the loss with these arguments.

        Raises
        ------
        TypeError, ValueError
            `config` is no dictionary of the constructor's arguments.
        """
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
    default_name: ClassVar[str | None] = None
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        arguments = {
            **cls.own, "reduction": "sum_over_batch_size", "name": cls.default_name or snake_case(cls.__name__),
            "dtype": None,
        }  # fmt: skip
        cls.__signature__ = inspect.Signature(
            [inspect.Parameter(name, kind, default=value) for name, value in arguments.items()]
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

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return super().get_config() | self.arguments
