"""Values that hold inside a ``with`` block, in the thread or task that entered it, and end with the block."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Scopes", "innermost", "is_in_block", "replace_innermost", "scope"]

_UNSET: Any = object()


class _Block:
    """One entered ``with`` block."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = False


class Scopes(tuple[tuple[_Block, Any], ...]):
    """What a context variable holds inside blocks: pairs of a block and its value, the innermost block last."""

    __slots__ = ()


# Stands for the block of a value that was set without a ``with`` block: it holds until it is set again.
_CALL = _Block()


@contextmanager
def scope(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Give `variable` a value, which :func:`innermost` reads, until the block is left.

    Blocks may be left in any order. If a generator holds a block, another thread or task than the one that entered it
    may leave it. Only the thread or task that entered can reset the variable; any other marks the block as left.
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
            if others == entered:  # a value without a block has replaced it: should it come back, it has been left
                block.left = True
            if _entered(variable) != others:  # blocks were left in another order than entered
                variable.set(others)


def _entered(variable: ContextVar[Any]) -> Scopes:
    """Return the blocks that are entered here and not left, each with its value."""
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


def is_in_block(variable: ContextVar[Any]) -> bool:
    """Return whether this thread or task is in a block of the variable, whatever was set without one."""
    return any(block is not _CALL for block, _ in _entered(variable))


def replace_innermost(variable: ContextVar[Any], value: Any) -> bool:
    """Give the innermost block another value, in this thread or task; return whether there is one."""
    entered = _entered(variable)
    if entered:
        variable.set(Scopes((*entered[:-1], (entered[-1][0], value))))
    return bool(entered)
