"""Who answers for variables in a thread or task: a recording, or a trial whose assignments end with it."""

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from mp_core.core.scopes import called_in

if TYPE_CHECKING:
    from mp_core.arrays.recorded import Recording

__all__ = [
    "HOLDING",
    "Held",
    "Holder",
    "begin",
    "finish",
    "holder",
    "is_tried",
    "recorded_by",
    "substituted",
    "tried",
    "under_way",
    "unheld",
]

P = ParamSpec("P")
R = TypeVar("R")


class Held(NamedTuple):
    """What a variable is for its holder: its value, what is derived from that, and whether it is trained."""

    value: Any
    derived: dict[Any, Any]
    is_trained: bool


class Holder(Protocol):
    """What reads and assignments of variables ask first."""

    def held(self, variable: Any) -> Held | None:
        """Return what a variable is here; None: what it is everywhere."""

    def assign(self, variable: Any, value: Any) -> Any:
        """Take note of a new value; return the array that the variable gets at once, or None."""


HOLDING: dict[int, Holder] = {}
"""The holders, of any thread, for which variables may have other values, by their `id`."""

_holder: ContextVar[Holder | None] = ContextVar("mp_core.holder", default=None)


def holder() -> Holder | None:
    """Return who answers for variables in this thread or task, if anybody does."""
    return _holder.get()


def under_way() -> "Recording | None":
    """Return the recording that this thread or task makes, if any."""
    found: Any = _holder.get()
    return found.recording if isinstance(found, _Trial) else found


def recorded_by(recording: "Recording", function: Callable[[], R]) -> R:
    """Return what a function returns, during which a recording is under way."""
    return called_in(_holder, recording, function)


def begin(recording: "Recording") -> Token[Any]:
    """Let a recording be under way in this thread or task until :func:`finish` is called with what this returns."""
    return _holder.set(recording)


def finish(token: Token[Any]) -> None:
    """Let the recording be under way that was before :func:`begin`."""
    _holder.reset(token)


class _Trial:
    """Holds what variables are assigned; for the others the holder around it answers."""

    def __init__(self) -> None:
        self.recording = under_way()
        self._outer = _holder.get()
        self._assigned: dict[int, tuple[Any, Held]] = {}  # the variables are kept, so that no other gets their `id`

    def held(self, variable: Any) -> Held | None:
        """Return the value that a variable was assigned, or what it is outside."""
        found = self._assigned.get(id(variable))
        if found is not None:
            return found[1]
        return None if self._outer is None else self._outer.held(variable)

    def assign(self, variable: Any, value: Any) -> None:
        """Let a variable have a value until the trial ends."""
        self._assigned[id(variable)] = variable, Held(value, {}, False)
        HOLDING[id(self)] = self


def tried(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a function returns; the variables that it assigns have their values of before afterwards.

    So layers run for the shape, the dtype or the mask of their outputs without counting that as a call.
    """
    trial = _Trial()
    try:
        return called_in(_holder, trial, function, args, kwargs)
    finally:
        HOLDING.pop(id(trial), None)


def is_tried() -> bool:
    """Whether this thread or task runs something by :func:`tried`."""
    found: Any = _holder.get()
    while type(found) is _Substitution:
        found = found._outer
    return type(found) is _Trial


class _Substitution(_Trial):
    """Lets one variable have another value; the holder around it answers for the others, and for assignments."""

    def __init__(self, variable: Any, value: Any) -> None:
        super().__init__()
        super().assign(variable, value)

    def assign(self, variable: Any, value: Any) -> Any:
        return value if self._outer is None else self._outer.assign(variable, value)


def substituted(variable: Any, value: Any, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Return what a function returns to which a variable reads as another value; nothing is assigned.

    Parameters
    ----------
    variable : AutoCastVariable
    value : ndarray
        Of its shape and stored dtype. A recorded one hands gradients on to what it was computed from.
    function : callable
    *args, **kwargs
        Its arguments.
    """
    substitution = _Substitution(variable, value)
    try:
        return called_in(_holder, substitution, function, args, kwargs)
    finally:
        HOLDING.pop(id(substitution), None)


def unheld(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Return what a function returns that is no part of a recording or trial around it, as building a layer is none."""
    return called_in(_holder, None, function, args, kwargs)
