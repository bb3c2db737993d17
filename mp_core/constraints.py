"""Constraints: what becomes of a variable after each update of it, as in Keras 3."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, asarray
from mp_core.dtype_policies.lookup import Registry, own_config
from mp_core.utilities.arguments import axis_or_axes, number, share

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

    def __call__(self, w: Any) -> Any:
        """Return the value that takes the place of an updated one."""
        raise NotImplementedError(f"{type(self).__name__} must define `__call__`")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the constraint with these arguments.

        Raises
        ------
        TypeError, ValueError
            `config` is no dictionary of the constructor's arguments.
        """
        return cls(**own_config(config, cls.__name__))


class NonNeg(Constraint):
    """Numbers below 0 become 0.

    Examples
    --------
    >>> NonNeg()(np.float32([-1.0, 2.0]))
    array([0., 2.], dtype=float32)
    """

    def __call__(self, w: Any) -> Array:
        """Return the value that takes the place of an updated one."""
        return ops.maximum(asarray(w, "w"), 0.0)


class _OfNorms(Constraint):
    """A constraint of the Euclidean norms along an axis, or several."""

    axis: Any = 0

    def _norms(self, w: Array) -> Array:
        norms: Array = np.sqrt(ops.sum(np.square(w), axis=self.axis, keepdims=True))
        return norms


class MaxNorm(_OfNorms):
    """Vectors whose norm is above `max_value` are scaled down to it.

    Parameters
    ----------
    max_value : float
    axis : int or sequence of int
        Along which the vectors lie: 0 of the kernel of Dense.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

    Examples
    --------
    >>> MaxNorm(5.0)(np.float32([[6.0], [8.0]])).round(4)
    array([[3.],
           [4.]], dtype=float32)
    """

    def __init__(self, max_value: float = 2, axis: int | Sequence[int] = 0) -> None:
        self.max_value, self.axis = number(max_value, "max_value", 0), axis_or_axes(axis)

    def __call__(self, w: Any) -> Array:
        """Return the value that takes the place of an updated one."""
        w = asarray(w, "w")
        norms = self._norms(w)
        kind = norms.dtype.type
        result: Array = w * (np.clip(norms, kind(0), kind(self.max_value)) / (kind(_EPSILON) + norms))
        return result

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"max_value": self.max_value, "axis": self.axis}


class UnitNorm(_OfNorms):
    """Vectors are scaled to a norm of 1.

    Parameters
    ----------
    axis : int or sequence of int
        Along which the vectors lie.

    Raises
    ------
    TypeError
        It is no axis.

    Examples
    --------
    >>> UnitNorm()(np.float32([[3.0], [4.0]])).round(4)
    array([[0.6],
           [0.8]], dtype=float32)
    """

    def __init__(self, axis: int | Sequence[int] = 0) -> None:
        self.axis = axis_or_axes(axis)

    def __call__(self, w: Any) -> Array:
        """Return the value that takes the place of an updated one."""
        w = asarray(w, "w")
        norms = self._norms(w)
        result: Array = w / (norms.dtype.type(_EPSILON) + norms)
        return result

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"axis": self.axis}


class MinMaxNorm(_OfNorms):
    """Vectors are scaled, by the share `rate` of the way, to a norm between two numbers.

    Parameters
    ----------
    min_value, max_value : float
    rate : float
        From 0 to 1.
    axis : int or sequence of int
        Along which the vectors lie.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.

    Examples
    --------
    >>> MinMaxNorm(5.0, 6.0, rate=0.5)(np.float32([[1.8], [2.4]])).round(4)
    array([[2.4],
           [3.2]], dtype=float32)
    """

    def __init__(
        self, min_value: float = 0.0, max_value: float = 1.0, rate: float = 1.0, axis: int | Sequence[int] = 0
    ) -> None:
        self.min_value, self.max_value = number(min_value, "min_value", 0), number(max_value, "max_value", 0)
        self.rate, self.axis = share(rate, "rate"), axis_or_axes(axis)

    def __call__(self, w: Any) -> Array:
        """Return the value that takes the place of an updated one."""
        w = asarray(w, "w")
        norms = self._norms(w)
        kind = norms.dtype.type
        clipped = np.clip(norms, kind(self.min_value), kind(self.max_value))
        desired = kind(self.rate) * clipped + kind(1 - self.rate) * norms
        result: Array = w * (desired / (kind(_EPSILON) + norms))
        return result

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"min_value": self.min_value, "max_value": self.max_value, "rate": self.rate, "axis": self.axis}


max_norm, min_max_norm, non_neg, unit_norm = MaxNorm, MinMaxNorm, NonNeg, UnitNorm  # Keras' other names

_REGISTRY = Registry(
    Constraint, "constraint", "keras.constraints",
    {found.__name__: found for found in (MaxNorm, MinMaxNorm, NonNeg, UnitNorm)}
    | {"max_norm": max_norm, "min_max_norm": min_max_norm, "non_neg": non_neg, "nonneg": NonNeg,
       "unit_norm": unit_norm},
)  # fmt: skip


def serialize(constraint: Any) -> Any:
    """Return the class name and the configuration of a constraint, as Keras writes them; of a function its name.

    Raises
    ------
    TypeError
        It is no constraint and no function.

    Examples
    --------
    >>> serialize(NonNeg())["class_name"]
    'NonNeg'
    """
    return _REGISTRY.serialize(constraint)


def deserialize(config: Any, custom_objects: dict[str, Any] | None = None) -> Any:
    """Return the constraint of a :func:`serialize` dictionary, or the class or function of a name.

    Raises
    ------
    TypeError, ValueError
        It names no constraint; its arguments are not those of the class.

    Examples
    --------
    >>> deserialize({"class_name": "MaxNorm", "config": {"max_value": 3.0}}).max_value
    3.0
    """
    return _REGISTRY.deserialize(config, custom_objects)


def get(identifier: Any) -> Any:
    """Return the constraint of a name such as ``"non_neg"``, of a dictionary, a callable itself, or None for None.

    Raises
    ------
    ValueError
        `identifier` is none of these.

    Examples
    --------
    >>> type(get("unit_norm")).__name__
    'UnitNorm'
    """
    return _REGISTRY.get(identifier)
