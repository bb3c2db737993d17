"""Regularizers: penalties that are added to the loss, as in Keras 3, computed in the dtype of the variable."""

from typing import Any, ClassVar, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array, asarray
from mp_core.files.family import Family
from mp_core.utilities.arguments import number
from mp_core.utilities.docstrings import shown
from mp_core.utilities.registry import own_config

__all__ = ["L1", "L1L2", "L2", "OrthogonalRegularizer", "Regularizer", "deserialize", "get", "serialize"]


def __dir__() -> list[str]:
    return __all__


class Regularizer:
    """The base of the regularizers: a subclass defines ``__call__(x)``, made of operations, and ``get_config()``.

    Examples
    --------
    >>> import mp_core as mp
    >>> class OfSum(Regularizer):
    ...     def __call__(self, x):
    ...         return 0.5 * mp.sum(x) ** 2
    >>> float(OfSum()(np.float32([1, 3])))  # 0.5 * 4**2
    8.0
    """

    _arguments: ClassVar[tuple[str, ...] | None] = None
    """The arguments of the constructor; attributes have the same names. None: a subclass defines ``get_config``."""

    def __call__(self, x: Any) -> Any:
        """Return the penalty of a variable or an array, a number."""
        return 0.0

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        arguments = type(self)._arguments
        if arguments is None:
            raise NotImplementedError(f"{type(self).__name__} must define `get_config`")
        return {name: getattr(self, name) for name in arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the regularizer with these arguments."""
        return cls(**own_config(config, cls.__name__))


def _value(x: Any) -> Array:
    """Return the value of a variable in its read dtype; convert anything else to an array."""
    if hasattr(x, "read_value"):
        x = x.read_value()
    return x if hasattr(x, "dtype") and hasattr(x, "shape") else asarray(x, "x")


@shown("{}(l1=0.5, l2=0.25)(np.float32([1.0, -2.0]))", "np.float32(2.75)")
class L1L2(Regularizer):
    """``l1 * sum(abs(x)) + l2 * sum(x**2)``.

    Parameters
    ----------
    l1, l2 : float
        At least 0.
    """

    _arguments: ClassVar[tuple[str, ...] | None] = ("l1", "l2")

    def __init__(self, l1: float = 0.0, l2: float = 0.0) -> None:
        self.l1, self.l2 = number(l1, "l1", 0), number(l2, "l2", 0)

    def __call__(self, x: Any) -> Any:
        x = _value(x)
        parts = []
        if self.l1:
            parts.append(ops.sum(ops.absolute(x)) * self.l1)
        if self.l2:
            parts.append(ops.sum(ops.square(x)) * self.l2)
        return sum(parts[1:], parts[0]) if parts else x.dtype.type(0)


@shown("{}(0.5)(np.float32([1.0, -2.0]))", "np.float32(1.5)")
class L1(L1L2):
    """``l1 * sum(abs(x))``.

    Parameters
    ----------
    l1 : float
        At least 0.
    """

    _arguments = ("l1",)

    def __init__(self, l1: float = 0.01) -> None:
        super().__init__(l1=l1)


@shown("{}(0.5)(np.float32([1.0, -2.0]))", "np.float32(2.5)")
class L2(L1L2):
    """``l2 * sum(x**2)``.

    Parameters
    ----------
    l2 : float
        At least 0.
    """

    _arguments = ("l2",)

    def __init__(self, l2: float = 0.01) -> None:
        super().__init__(l2=l2)


@shown("{}(1.0)(np.float32([[1.0, 0.0], [0.0, 2.0]]))", "np.float32(0.0)")
class OrthogonalRegularizer(Regularizer):
    """``factor * mean(|cosine|)`` over all pairs of rows, or of columns, of a matrix.

    Parameters
    ----------
    factor : float
    mode : {"rows", "columns"}
    """

    _arguments = ("factor", "mode")

    def __init__(self, factor: float = 0.01, mode: str = "rows") -> None:
        if mode not in ("rows", "columns"):
            raise ValueError(f'`mode` must be "rows" or "columns"; received mode={mode!r}')
        self.factor, self.mode = number(factor, "factor"), mode

    def __call__(self, x: Any) -> Any:
        x = _value(x)
        if x.ndim != 2:
            raise ValueError(f"Inputs to OrthogonalRegularizer must have two axes; received the shape {x.shape}")
        rows = ops.normalize(x if self.mode == "rows" else x.T)
        n = rows.shape[0]
        cosines = ops.absolute(ops.matmul(rows, rows.T) * (1 - np.eye(n, dtype=rows.dtype)))
        return ops.sum(cosines) * (self.factor * 0.5 / max(n * (n - 1) / 2, 1))


l1, l2, l1_l2, orthogonal_regularizer = L1, L2, L1L2, OrthogonalRegularizer  # Keras' other names

serialize, deserialize, get = Family(
    Regularizer, "regularizer",
    {found.__name__: found for found in (L1, L2, L1L2, OrthogonalRegularizer)}
    | {"l1": l1, "l2": l2, "l1l2": L1L2, "l1_l2": l1_l2, "orthogonal_regularizer": orthogonal_regularizer},
).functions(__name__)  # fmt: skip
