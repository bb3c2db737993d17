"""Keras' functions of arrays, such as ``x + y``, that stand between the layers of a functional model."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import F32, F64, Array
from mp_core.layers.elementwise import rounded
from mp_core.layers.layer import Layer

__all__ = ["OPERATIONS", "Operation"]

OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Subtract": np.subtract,
    "Multiply": np.multiply,
    "Divide": np.true_divide,
    "TrueDivide": np.true_divide,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "NotEqual": np.not_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
}
"""Keras' name of an operation of two arrays -> NumPy's function."""
_BOOLEAN = ("NotEqual", "LogicalAnd", "LogicalOr")


class Operation(Layer):
    """A function of two arrays, or of an array and a number, in the type that Keras' rules give for both.

    Parameters
    ----------
    operation : str
        One of ``OPERATIONS``.
    constants : sequence of (float or None), optional
        A number for each argument that is none of the inputs, None for each other one.
    **kwargs
        Those of :class:`Layer`.

    Examples
    --------
    >>> Operation("Multiply", [None, 2])(np.array([1.0, 2.0], np.float32))
    array([2., 4.], dtype=float32)
    """

    _options = ("operation", "constants")
    _told = ("operation",)

    def __init__(self, operation: str, constants: Sequence[Any] = (None, None), **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        if operation not in OPERATIONS:
            raise ValueError(f"`operation` must be one of {', '.join(OPERATIONS)}; received {operation!r}")
        numbers = [value for value in constants if value is not None]
        if len(constants) != 2 or len(numbers) == 2 or not all(isinstance(n, int | float) for n in numbers):
            raise ValueError(f"`constants` must be two, at most one of them a number; received {constants!r}")
        self.operation = operation
        self.constants = list(constants)

    def call(self, *inputs: Array) -> Array:
        """Return the function of the inputs, computed in float32 and rounded once; of integers as NumPy does."""
        if len(inputs) != self.constants.count(None):
            raise ValueError(f"'{self.name}' takes {self.constants.count(None)} arrays; received {len(inputs)}")
        waiting, function = iter(inputs), OPERATIONS[self.operation]
        kind = reduce(dtypes.result_type, (x.dtype for x in inputs))
        wide = None if not dtypes.is_float(kind) else F64 if kind is F64 else F32
        both = [next(waiting) if value is None else np.asarray(value, wide) for value in self.constants]
        if self.operation in _BOOLEAN or wide is None:
            return np.asarray(function(*both))
        return rounded(function, *both, dtype=kind)
