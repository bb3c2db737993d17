"""Values that hold inside a ``with`` block, in one thread or task, and for nobody once the block is left."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Scopes", "innermost", "replace_innermost", "scope"]

_UNSET: Any = object()


class _Block:
    """One entered ``with`` block."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = False


class Scopes(tuple[tuple[_Block, Any], ...]):
    """What a context variable holds inside blocks: each of them with its value, the innermost one last."""

    __slots__ = ()


# Stands for a value that was set without a block: a call sets it, and resets it before it returns.
_CALL = _Block()


@contextmanager
def scope(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give `variable` a value, which :func:`innermost` reads, until the block is left.

    Blocks may be left in any order and, where a generator holds one, by another thread or task than entered it: only
    the thread or task that entered can reset its variable, so the others mark the block as left.
    """
    block = _Block()
    token = variable.set(Scopes((*_entered(variable), (block, value))))
    try:
        yield
    finally:
        entered = _entered(variable)
        others = Scopes(pair for pair in entered if pair[0] is not block)
        try:
            variable.reset(token)
        except ValueError:  # the block was entered in another thread or task
            block.left = True
        else:
            if others == entered:  # a call hides the blocks now, and will set the variable back to them
                block.left = True
            if _entered(variable) != others:  # blocks were left in another order than entered
                variable.set(others)


def _entered(variable: ContextVar[Any]) -> Scopes:
    """Return the blocks around here, each with its value."""
    held = variable.get(_UNSET)
    if held is _UNSET:
        return Scopes()
    if type(held) is not Scopes:
        return Scopes([(_CALL, held)])
    return Scopes(pair for pair in held if not pair[0].left)


def innermost(held: Any, default: Any) -> Any:
    """Return the value of the innermost block that is not left; `held` is what a context variable holds."""
    if type(held) is not Scopes:
        return held
    return next((value for block, value in reversed(held) if not block.left), default)


def replace_innermost(variable: ContextVar[Any], value: Any) -> bool:
    """Give the innermost block another value, in this thread or task; return whether there is one."""
    entered = _entered(variable)
    if entered:
        variable.set(Scopes((*entered[:-1], (entered[-1][0], value))))
    return bool(entered)
