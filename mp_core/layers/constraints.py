"""Constraints: functions that replace a variable's value after each update, as in Keras 3."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import F32, F64, Array, asarray
from mp_core.arrays.dtypes import is_float
from mp_core.files.family import Family
from mp_core.ops.norms import length
from mp_core.utilities.arguments import axis_or_axes, number, share
from mp_core.utilities.docstrings import shown
from mp_core.utilities.registry import own_config

__all__ = ["Constraint", "MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm", "deserialize", "get", "serialize"]


def __dir__() -> list[str]:
    return __all__


_EPSILON = 1e-7


class Constraint:
    """The base of the constraints: a subclass defines ``__call__(w)`` and ``get_config()``.

    Examples
    --------
    >>> class Symmetric(Constraint):
    ...     def __call__(self, w):
    ...         return (w + w.T) / 2
    >>> Symmetric()(np.float32([[1, 2], [4, 1]]))
    array([[1., 3.],
           [3., 1.]], dtype=float32)
    """

    _arguments: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor; attributes have the same names."""

    def __call__(self, w: Any) -> Any:
        """Return the constrained value."""
        raise NotImplementedError(f"{type(self).__name__} must define `__call__`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in type(self)._arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the constraint with these arguments."""
        return cls(**own_config(config, cls.__name__))


@shown("{}()(np.float32([-1.0, 2.0]))", "array([0., 2.], dtype=float32)")
class NonNeg(Constraint):
    """Replace negative numbers by 0."""

    def __call__(self, w: Any) -> Array:
        return ops.maximum(asarray(w, "w"), 0.0)


class _NormConstraint(Constraint):
    """The base of constraints of Euclidean norms along one or several axes."""

    axis: Any = 0

    def __call__(self, w: Any) -> Array:
        """Return the constrained value, computed in float32 (float64 for float64)."""
        w = asarray(w, "w")
        wide = w if w.dtype == F64 else ops.cast(w, F32)
        scaled = self._scaled(wide, length(wide, self.axis))
        return ops.cast(scaled, w.dtype) if is_float(w.dtype) else scaled

    def _scaled(self, w: Array, norms: Array) -> Array:
        """Return the scaled vectors; `norms` are their norms."""
        raise NotImplementedError


@shown("{}(5.0)(np.float32([[6.0], [8.0]])).round(4)", "array([[3.],\n       [4.]], dtype=float32)")
class MaxNorm(_NormConstraint):
    """Scale vectors down to the norm `max_value` if theirs is larger.

    Parameters
    ----------
    max_value : float
    axis : int or sequence of int
        The axes over which norms are computed: 0 for the kernel of Dense.
    """

    _arguments = ("max_value", "axis")

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        self.max_value, self.axis = number(max_value, "max_value", 0), axis_or_axes(axis)

    def _scaled(self, w: Array, norms: Array) -> Array:
        kind = norms.dtype.type
        result: Array = w * (np.clip(norms, kind(0), kind(self.max_value)) / (kind(_EPSILON) + norms))
        return result


@shown("{}()(np.float32([[3.0], [4.0]])).round(4)", "array([[0.6],\n       [0.8]], dtype=float32)")
class UnitNorm(_NormConstraint):
    """Scale vectors to a norm of 1.

    Parameters
    ----------
    axis : int or sequence of int
        The axes over which norms are computed.
    """

    _arguments = ("axis",)

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        self.axis = axis_or_axes(axis)

    def _scaled(self, w: Array, norms: Array) -> Array:
        result: Array = w / (norms.dtype.type(_EPSILON) + norms)
        return result


@shown("{}(5.0, 6.0, rate=0.5)(np.float32([[1.8], [2.4]])).round(4)", "array([[2.4],\n       [3.2]], dtype=float32)")
class MinMaxNorm(_NormConstraint):
    """Scale vectors to the norm ``rate * clip(norm, min_value, max_value) + (1 - rate) * norm``.

    Parameters
    ----------
    min_value, max_value : float
    rate : float
        From 0 to 1.
    axis : int or sequence of int
        The axes over which norms are computed.
    """

    _arguments = ("min_value", "max_value", "rate", "axis")

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: int | Sequence[int] = 0
    ) -> None:
        self.min_value, self.max_value = number(min_value, "min_value", 0), number(max_value, "max_value", 0)
        self.rate, self.axis = share(rate, "rate"), axis_or_axes(axis)

    def _scaled(self, w: Array, norms: Array) -> Array:
        kind = norms.dtype.type
        clipped = np.clip(norms, kind(self.min_value), kind(self.max_value))
        desired = kind(self.rate) * clipped + kind(1 - self.rate) * norms
        result: Array = w * (desired / (kind(_EPSILON) + norms))
        return result


max_norm, min_max_norm, non_neg, unit_norm = MaxNorm, MinMaxNorm, NonNeg, UnitNorm  # Keras' other names

serialize, deserialize, get = Family(
    Constraint, "constraint",
    {found.__name__: found for found in (MaxNorm, MinMaxNorm, NonNeg, UnitNorm)}
    | {"max_norm": max_norm, "min_max_norm": min_max_norm, "non_neg": non_neg, "nonneg": NonNeg,
       "unit_norm": unit_norm},
).functions(__name__)  # fmt: skip
