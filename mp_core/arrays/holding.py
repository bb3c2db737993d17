"""Holders replace the values of variables in one thread or task.

A holder is a recording, or a trial run. While it is current, reads and assignments of variables ask it first. If it has
an :class:`Override` for a variable, that is read instead of the stored value; other threads see no difference.
"""

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar

from mp_core.core.scopes import called_in

if TYPE_CHECKING:
    from mp_core.arrays.recorded import Recording

__all__ = [
    "ACTIVE_HOLDERS",
    "Holder",
    "Override",
    "begin_recording",
    "call_outside_recordings",
    "call_with_value",
    "current_holder",
    "current_recording",
    "end_recording",
    "is_in_trial",
    "run_in_recording",
    "run_trial",
]

P = ParamSpec("P")
R = TypeVar("R")


class Override(NamedTuple):
    """The state of a variable in a holder; it replaces the variable's own state."""

    value: Any
    derived: dict[Any, Any]  # the cache of :meth:`AutoCastVariable.derived` for this value
    is_trained: bool  # whether gradients with respect to the variable are computed


class Holder(Protocol):
    """A recording or a trial run, which reads and assignments of variables ask first."""

    def override_of(self, variable: Any) -> Override | None:
        """Return the state that replaces a variable's own; None if nothing replaces it."""

    def assign(self, variable: Any, value: Any) -> Any:
        """Note a new value; return the array that the variable stores at once, or None if it stores nothing."""


ACTIVE_HOLDERS: dict[int, Holder] = {}
"""All holders, of any thread, that may override variables, by their `id`. If empty, reads need not ask."""

_holder: ContextVar[Holder | None] = ContextVar("mp_core.holder", default=None)


def current_holder() -> Holder | None:
    """Return the holder of this thread or task, if any."""
    return _holder.get()


def current_recording() -> "Recording | None":
    """Return the recording of this thread or task, also from within a trial run; None if nothing records."""
    found: Any = _holder.get()
    return found.recording if isinstance(found, _Trial) else found


def run_in_recording(recording: "Recording", function: Callable[[], R]) -> R:
    """Call a function while a recording is current; return its result."""
    return called_in(_holder, recording, function)


def begin_recording(recording: "Recording") -> Token[Any]:
    """Make a recording current in this thread or task; pass the token to :func:`end_recording`."""
    return _holder.set(recording)


def end_recording(token: Token[Any]) -> None:
    """Make the holder current again that was current before :func:`begin_recording`."""
    _holder.reset(token)


class _Trial:
    """Keeps the values that variables are assigned; asks the enclosing holder about the other variables."""

    def __init__(self) -> None:
        self.recording = current_recording()
        self._outer = _holder.get()
        # The key is the variable's `id`. The variable is kept too, so that no other object gets this `id`.
        self._assigned: dict[int, tuple[Any, Override]] = {}

    def override_of(self, variable: Any) -> Override | None:
        """Return the value that a variable was assigned, else its override in the enclosing holder."""
        found = self._assigned.get(id(variable))
        if found is not None:
            return found[1]
        return None if self._outer is None else self._outer.override_of(variable)

    def assign(self, variable: Any, value: Any) -> None:
        """Keep the value of a variable until the trial ends."""
        self._assigned[id(variable)] = variable, Override(value, {}, False)
        ACTIVE_HOLDERS[id(self)] = self


def run_trial(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function and return its result, but undo its assignments of variables.

    A trial run of a layer finds the shape, dtype or mask of its outputs. It does not count as a call.
    """
    trial = _Trial()
    try:
        return called_in(_holder, trial, function, args, kwargs)
    finally:
        ACTIVE_HOLDERS.pop(id(trial), None)


def is_in_trial() -> bool:
    """Return whether this thread or task is inside of :func:`run_trial`."""
    found: Any = _holder.get()
    while type(found) is _Substitution:
        found = found._outer
    return type(found) is _Trial


class _Substitution(_Trial):
    """Replaces the value of one variable; the enclosing holder gets all other reads, and all assignments."""

    def __init__(self, variable: Any, value: Any) -> None:
        super().__init__()
        super().assign(variable, value)

    def assign(self, variable: Any, value: Any) -> Any:
        return value if self._outer is None else self._outer.assign(variable, value)


def call_with_value(variable: Any, value: Any, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function that reads `value` in place of a variable's own; return its result. Nothing is assigned.

    The value has the variable's shape and stored dtype. If it is recorded, gradients pass through it.
    """
    substitution = _Substitution(variable, value)
    try:
        return called_in(_holder, substitution, function, args, kwargs)
    finally:
        ACTIVE_HOLDERS.pop(id(substitution), None)


def call_outside_recordings(function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Call a function without a holder: no recording notes it, and no trial run undoes it. Layers are built so."""
    return called_in(_holder, None, function, args, kwargs)
