"""Gradient rules: how the gradient of an operation's result gives the gradients of its arguments.

A rule is a Python function composed of operations. It is called with the gradient `d` of the result, the result `out`,
and then the arguments exactly as the operation was called, so its parameters have the names, order and defaults of the
operation's. It returns a dictionary: name of a parameter -> gradient. A parameter that is absent, or None, has no
gradient. The gradient of a parameter that takes several arrays (``*operands``) is a tuple.

A gradient is one of four things:

| gradient | when |
|---|---|
| an array | It has the shape of the argument, or the shape to which that was broadcast; the walk then sums it. |
| a function ``dtype -> array`` | If it costs time: it is called only if the gradient is needed. |
| an :class:`Addable` | Another gradient can be added before the one rounding. It has the shape of the argument. |
| a :class:`RowSum` | A sum over rows in K blocks, which a batch in parts continues: :mod:`.parts`. |

The dtype passed to a function is that of the argument; but it is float32 if the argument is a float32 variable read in
16 bits, since sums for variables are not rounded to 16 bits. An array of another dtype is cast, so it has been rounded
already. An :class:`Addable` that is a sum over rows has a RowSum too.

`d` has the shape and dtype of `out`. Arrays are recorded, except constants. With float64, which is computed call by
call, all are plain. A rule gets an argument as it was given (a list, a number), and a variable as the array that was
read.

Views need no rules: the gradient of a view is the same view of the gradient. An operation without a float result has no
gradient. Any other operation without a rule raises :class:`UngradedError` if its gradient is needed.

Rules must not name a layer, nor read elements, since they run while a plan is recorded.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mp_core.arrays import F32, F64, cast

__all__ = ["MODULES", "RULES", "Addable", "RowSum", "Rule", "UngradedError", "gradient_of", "rule_of", "wide_type"]

Rule = Callable[..., dict[str, Any]]

RULES: dict[Callable[..., Any], Rule] = {}
"""Operation, without its decorators -> its rule."""

MODULES = (
    "mp_core.ops.gradients.products",
    "mp_core.ops.gradients.lookup",
    "mp_core.ops.gradients.elementwise",
    "mp_core.ops.gradients.rows",
    "mp_core.ops.gradients.sums",
    "mp_core.ops.gradients.attention",
    "mp_core.ops.gradients.pooling",
    "mp_core.ops.gradients.dropout",
    "mp_core.ops.gradients.quantization",
    "mp_core.ops.gradients.windows",
    "mp_core.ops.gradients.convolution",
)  # fmt: skip
"""The modules that define rules; they are imported when a rule is looked up."""


class UngradedError(TypeError):
    """A gradient is needed, but the operation has no rule; the message names the operation."""


@dataclass(frozen=True)
class RowSum:
    """A gradient that is a sum over rows, in K blocks that are added in order.

    Attributes
    ----------
    rows : int
        The number of rows.
    block : int
        The rows of a K block.
    after : callable
        ``after(before)`` returns `before`, the sum of earlier rows, plus the sums of the K blocks of these rows, added
        in order. ``after(None)`` returns the sum of these rows alone. Sums are float32 (float64 for float64 rows), in
        the shape of the argument.
    part : callable
        ``part(rows)`` returns the sum of one K block alone; `rows` is its slice.
    """

    rows: int
    block: int
    after: Callable[[Any], Any]
    part: Callable[[slice], Any]

    def __call__(self, dtype: Any) -> Any:
        """Return the sum of all rows, rounded to a dtype."""
        total = self.after(None)
        return total if total.dtype == dtype else cast(total, dtype)


@dataclass(frozen=True)
class Addable:
    """A gradient whose operation can add another array in the same step.

    Attributes
    ----------
    make : callable
        ``make(dtype, other)`` returns the gradient plus `other`, rounded once to `dtype`. `other` is None, or has the
        shape of the gradient and any float type.
    sum : callable or None
        Returns the gradient as a :class:`RowSum`; None if it is not a sum over rows.
    """

    make: Callable[[Any, Any], Any]
    sum: Callable[[], RowSum] | None = None


def gradient_of(*operations: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the gradient rule of operations.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core import ops
    >>> def negated(x):
    ...     return ops.multiply(x, -1.0)
    >>> @gradient_of(negated)
    ... def _(d, out, x):
    ...     return {"x": lambda dtype: ops.multiply(d, -1.0)}
    >>> RULES.pop(negated)(np.float32([1.0]), None, None)["x"](np.float32)
    array([-1.], dtype=float32)
    """

    def decorate(rule: Rule) -> Rule:
        for operation in operations:
            RULES[inspect.unwrap(operation)] = rule
        return rule

    return decorate


def rule_of(operation: Callable[..., Any]) -> Rule:
    """Return the gradient rule of an operation.

    Raises
    ------
    UngradedError
        The operation has no rule.
    """
    for module in MODULES:
        importlib.import_module(module)
    rule = RULES.get(inspect.unwrap(operation))
    if rule is None:
        raise UngradedError(
            f"{operation.__name__} has no gradient: mp_core.ops.gradients has no rule for it. Use other operations, or "
            "freeze the variables on which its arguments depend"
        )
    return rule


def wide_type(dtype: Any) -> Any:
    """Return the type in which sums and rules with several steps are computed; they are rounded once, at the end."""
    return F64 if dtype == F64 else F32
