"""Whether encoders run by plans."""

from contextvars import ContextVar
from typing import Any

from mp_core.arrays.holding import under_way
from mp_core.core.scopes import Scope, innermost

__all__ = ["eager", "is_eager"]

_eager: ContextVar[Any] = ContextVar("mp_core.eager", default=False)


def eager() -> Scope[None]:
    """Let encoders run their layers call by call, and not by plans, within a ``with`` block: for those who look on.

    Examples
    --------
    >>> with eager():
    ...     is_eager()
    True
    """
    return Scope(_eager, True)


def is_eager() -> bool:
    """Whether an :func:`eager` block is entered here, or something records: a plan is no operation for it.

    Examples
    --------
    >>> is_eager()  # outside of all blocks, encoders run by plans
    False
    """
    return bool(innermost(_eager.get(), False)) or under_way() is not None
