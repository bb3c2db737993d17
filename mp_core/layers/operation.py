"""Operations on symbolic arrays, such as ``x + y`` and ``x[:, 0]``, as layers of a functional model."""

from collections.abc import Mapping
from typing import Any

from mp_core.layers.layer import Layer
from mp_core.layers.shapes import WithSpecRule
from mp_core.layers.symbols import KerasTensor
from mp_core.ops.registry import OPERATIONS, Row
from mp_core.ops.specs import Spec

__all__ = ["Operation"]


class Operation(WithSpecRule, Layer):
    """A function of :mod:`mp_core.ops` as a layer, with Keras' name for it.

    `options` are fixed; the other arguments are passed to each call. Results have the dtype that the function returns.

    Parameters
    ----------
    operation : str
        A key of :data:`mp_core.ops.registry.OPERATIONS`.
    options : dict, optional
        The arguments of the constructor of Keras' operation, such as ``axis``.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> import numpy as np
    >>> Operation("Multiply")(np.array([1.0, 2.0], np.float32), 2)
    array([2., 4.], dtype=float32)
    >>> Operation("Sum", {"axis": 1})(np.ones((2, 3), np.float32))
    array([3., 3.], dtype=float32)
    """

    _options = ("operation", "options")
    _repr_arguments = ("operation",)

    def __init__(self, operation: str, options: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        if operation not in OPERATIONS:
            raise ValueError(f"`operation` must be one of {', '.join(sorted(OPERATIONS))}; received {operation!r}")
        self.operation = operation
        self.options = OPERATIONS[operation].checked_options(options or {})

    @property
    def row(self) -> Row:
        """The row of the operation in the table of operations."""
        return OPERATIONS[self.operation]

    @property
    def _returns_list(self) -> bool:  # type: ignore[override]
        return self.operation in ("Split", "TopK")

    def call(self, *operands: Any, **named: Any) -> Any:
        """Return what the function returns for arrays and numbers."""
        return self.row.function(**self.row.keywords(operands, named, self.options))

    def specs_after(self, *operands: Any, **named: Any) -> Spec | list[Spec]:
        """Return what the rule of the operation says."""
        return self.row.rule(**self.row.keywords(operands, named, self.options))

    def _cast_positional(self, x: Any) -> Any:
        return self._cast_input(x)

    def _cast_input(self, x: Any) -> Any:
        """Cast arrays and variables; return numbers and parts of an index unchanged."""
        is_plain = x is None or x is Ellipsis or isinstance(x, bool | int | float | slice)
        return x if is_plain else super()._cast_input(x)


KerasTensor.operation = Operation
