"""What becomes of outputs that are infinite or NaN: they are told in a warning, refused by an error, or left alone."""

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
        Which of the inputs it belongs to, counted from 0.
    cause : str
        Where it comes from: a sentence.
    reason : str
        What the input has, and its cause: a sentence without its subject.
    """

    def __init__(self, position: int, cause: str) -> None:
        super().__init__(f"the output of input {position} is not finite: {cause}")
        self.position, self.cause = position, cause
        self.reason = f"has an output that is not finite: {cause}"


def nonfinite(action: Action) -> AbstractContextManager[None]:
    """Return a block in which such outputs are told once by each model, raise :class:`NonFiniteError`, or pass.

    Parameters
    ----------
    action : {"warn", "raise", "ignore"}

    Examples
    --------
    >>> with nonfinite("ignore"):
    ...     action_here()
    'ignore'
    """
    return Scope(_action, action)


def action_here() -> Action:
    """Return what is done with them here."""
    found: Action = innermost(_action.get(), "warn")
    return found
