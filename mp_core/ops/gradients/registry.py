"""The rules: how the gradient of an operation's result becomes the gradients of its arguments.

A rule is a Python function made of operations. It is called with the gradient `d` of the result, the result `out`, and
then with the arguments exactly as the operation was called, so its own parameters have the names, the order and the
defaults of the operation's. It returns a dictionary: name of a parameter -> gradient. What is absent, or None, has no
gradient. The gradient of a parameter that takes several arrays (``*operands``) is a tuple.

A gradient is one of four things:

- an array. It has the shape of the argument, or one against which the argument was broadcast: the walk sums it over the
  axes along which the argument was stretched.
- a function of a dtype, which returns such an array of that dtype: ``lambda dtype: ...``. It is called only if somebody
  wants this gradient, so whatever costs time should be one. The dtype is that of the argument, but float32 where the
  argument is a float32 variable read in 16 bits: sums for variables are not rounded to 16 bits. (A plain array of
  another dtype than the wanted one is cast, so it would have been rounded already.)
- an :class:`Added`: a function of a dtype and of an array or None, which it adds to its result, in one step and with
  one rounding. It is for results that have the shape of the argument.
- a :class:`Summed`: a sum over rows in K blocks, which can go on from the sum of earlier rows, so that a batch can be
  computed part by part (:mod:`mp_core.ops.gradients.parts`). An :class:`Added` that is such a sum has one.

`d` has the shape and dtype of `out`. Arrays are those of the recording, or plain ndarrays: constants, and all of them
where float64 runs call by call. What an argument was given as (a list, a number) is what the rule gets.
Arguments that are variables come as the arrays that the operation has read.

Views need no rules: the gradient of a view is that view of the gradient. An operation whose result is not float has no
gradient either. Any other operation without a rule raises :class:`UngradedError` if a gradient has to pass it.

Rules never name a layer, and never read elements: they run while a plan is recorded.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mp_core.arrays import F32, F64, cast

__all__ = ["MODULES", "RULES", "Added", "Rule", "Summed", "UngradedError", "gradient_of", "rule_of", "wide_type"]

Rule = Callable[..., dict[str, Any]]

RULES: dict[Callable[..., Any], Rule] = {}
"""Operation, without the wrapper that lets it be recorded -> its rule."""

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
)  # fmt: skip
"""The modules that add rules, which are imported when a rule is looked up."""


class UngradedError(TypeError):
    """A gradient was asked for that no rule gives; the message names the operation."""


@dataclass(frozen=True)
class Summed:
    """A gradient that is a sum over rows, in K blocks that are added in order.

    Attributes
    ----------
    rows : int
        How many rows are summed.
    block : int
        The rows of a K block.
    after : callable
        ``after(before)`` returns `before`, the float32 sum of earlier rows, and these: the blocks are added to it in
        order. Of None it returns the sum of these rows. Both are float32 (float64 where the rows are) and have the
        shape of the argument.
    part : callable
        ``part(rows)`` returns the sum of some rows alone, like those of ``after``: `rows` is the slice of a K block.
    """

    rows: int
    block: int
    after: Callable[[Any], Any]
    part: Callable[[slice], Any]

    def __call__(self, dtype: Any) -> Any:
        """Return the sum of these rows, rounded to a dtype."""
        total = self.after(None)
        return total if total.dtype == dtype else cast(total, dtype)


@dataclass(frozen=True)
class Added:
    """A gradient that something else is added to without a step of its own.

    Attributes
    ----------
    make : callable
        ``make(dtype, other)`` returns the gradient in `dtype`; `other` is added to it before the one rounding, if it
        is not None. It has the shape of the gradient and any float type.
    sum : callable or None
        It returns the sum over rows that the gradient is, a :class:`Summed`, if it is one.
    """

    make: Callable[[Any, Any], Any]
    sum: Callable[[], Summed] | None = None


def gradient_of(*operations: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Return a decorator that makes a function the rule of operations.

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
    """Return the rule of an operation.

    Raises
    ------
    UngradedError
        There is none.
    """
    for module in MODULES:
        importlib.import_module(module)
    rule = RULES.get(inspect.unwrap(operation))
    if rule is None:
        raise UngradedError(
            f"{operation.__name__} has no gradient: mp_core.ops.gradients has no rule for it. Compute what depends on "
            "variables by other operations, or freeze the variables above it"
        )
    return rule


def wide_type(dtype: Any) -> Any:
    """Return the type in which sums are added and rules of several steps compute; they round once, at the end."""
    return F64 if dtype == F64 else F32
