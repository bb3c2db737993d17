"""Eager recordings: operations compute immediately, and their calls are noted for gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays.dtypes import is_float
from mp_core.arrays.holding import ACTIVE_HOLDERS, Override, call_outside_recordings
from mp_core.arrays.recorded import Recorded, Recording
from mp_core.arrays.recorded_array import address_of
from mp_core.ops.gradients.products import REPLACEMENTS

__all__ = ["EagerRecording", "TapeRecording"]


class EagerRecording(Recording):
    """A recording whose arrays have values, of any float type including float64. It makes no plan."""

    is_eager = True

    def __init__(self) -> None:
        super().__init__(lambda layer: None, {})

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an operation with plain arrays; return its result."""
        return function(*args, **kwargs)

    def wrapped(self, x: Any, name: str) -> Any:
        """Return a result as a recorded array, in a new buffer if needed. Integers have no gradient and stay plain."""
        if isinstance(x, np.generic):
            x = np.asarray(x)
        if not isinstance(x, np.ndarray) or x.size == 0 or x.dtype.kind in "iu":
            return x
        if self.tape.find(address_of(x)) is None:
            x = np.asarray(x, order="C")
            self.tape.add_buffer(x)
        return Recorded(self, x)

    def note_offsets(self, offsets: Any, rows: int, shortest: int, longest: int | None) -> None:
        """Do nothing: the operation checks the offsets itself, since it runs now."""


class TapeRecording(EagerRecording):
    """The eager recording of a GradientTape: it notes what its thread computes from watched variables, until closed.

    Parameters
    ----------
    watches_variables : bool
        Whether reading a trainable variable starts to watch it.
    """

    def __init__(self, watches_variables: bool) -> None:
        super().__init__()
        self.variables: dict[int, Any] = {}
        self._watches = watches_variables
        self.calls = self.begin_noting(REPLACEMENTS)

    def override_of(self, variable: Any) -> Override | None:
        """Return the override of a variable; watch it first if trainable variables are watched."""
        if self._watches and variable.trainable and id(variable) not in self._overrides:
            self.watch(variable)
        return self._overrides.get(id(variable))

    def watch(self, variable: Any) -> None:
        """Make a float variable read as a recorded array until it is assigned."""
        if is_float(variable.true_dtype):
            self.variables[id(variable)] = variable
            self.override(variable, self.input(np.array(call_outside_recordings(variable.numpy), order="C")), False)

    def value_of(self, variable: Any) -> Recorded | None:
        """Return the recorded array of a watched variable; None if it is not watched."""
        found = self._overrides.get(id(variable))
        return None if found is None else found.value

    def assign(self, variable: Any, value: Any) -> Any:
        """Forget the recorded array of a variable, and return the array that it stores now."""
        self._overrides.pop(id(variable), None)
        return value.array.copy() if type(value) is Recorded else value

    def close(self) -> None:
        """Stop noting. From now on, values of recorded arrays may be read."""
        self.noted_calls, self.is_readable = None, True
        ACTIVE_HOLDERS.pop(id(self), None)
