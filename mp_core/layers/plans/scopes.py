"""The scope in which encoders run without plans."""

from contextvars import ContextVar
from typing import Any

from mp_core.arrays.holding import current_recording
from mp_core.core.scopes import Scope, innermost
from mp_core.utilities.docstrings import shown

__all__ = ["eager", "is_eager"]

_eager: ContextVar[Any] = ContextVar("mp_core.eager", default=False)


def eager() -> Scope[None]:
    """Make encoders call their layers without plans inside a ``with`` block, so that the calls can be observed.

    Examples
    --------
    >>> with eager():
    ...     is_eager()
    True
    """
    return Scope(_eager, True)


@shown("{}()  # outside of all blocks", "False")
def is_eager() -> bool:
    """Return whether encoders must not use plans here: in an :func:`eager` block, and while something records."""
    return bool(innermost(_eager.get(), False)) or current_recording() is not None
