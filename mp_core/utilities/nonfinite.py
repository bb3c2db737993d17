"""Choose what happens if an output is infinite or NaN: a warning, an error, or nothing."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal

from mp_core.core.scopes import Scope, innermost

__all__ = ["NonFiniteError", "action_here", "nonfinite"]

Action = Literal["warn", "raise", "ignore"]
_action: ContextVar[Action] = ContextVar("mp_core.nonfinite", default="warn")


class NonFiniteError(ValueError):
    """An output is infinite or NaN.

    Attributes
    ----------
    position : int
        The index of the input, counted from 0.
    cause : str
        Where the value comes from: a sentence.
    reason : str
        "has an output that is not finite: CAUSE", to follow the name of an input.
    """

    def __init__(self, position: int, cause: str) -> None:
        super().__init__(f"the output of input {position} is not finite: {cause}")
        self.position, self.cause = position, cause
        self.reason = f"has an output that is not finite: {cause}"


def nonfinite(action: Action) -> AbstractContextManager[None]:
    """Set the action for outputs that are infinite or NaN, inside a ``with`` block: "warn", "raise" or "ignore".

    ``"warn"`` warns once per model; ``"raise"`` raises :class:`NonFiniteError`.

    >>> with nonfinite("ignore"):
    ...     action_here()
    'ignore'
    """
    return Scope(_action, action)


def action_here() -> Action:
    """Return the action that is set here."""
    found: Action = innermost(_action.get(), "warn")
    return found
