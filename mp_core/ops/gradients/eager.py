"""Recordings that compute: operations run as they are called, and their calls are noted for gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays.dtypes import is_float
from mp_core.arrays.holding import HOLDING, Held, unheld
from mp_core.arrays.recorded import Recorded, Recording
from mp_core.arrays.recorded_array import address_of
from mp_core.ops.gradients.products import WHOLE

__all__ = ["EagerRecording", "TapeRecording"]


class EagerRecording(Recording):
    """A recording whose arrays have their values, of any float type, float64 too; it makes no plan."""

    is_eager = True

    def __init__(self) -> None:
        super().__init__(lambda layer: None, {})

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what an operation returns for plain arrays."""
        return function(*args, **kwargs)

    def wrapped(self, x: Any, name: str) -> Any:
        """Return a result as a recorded array, which may be a new buffer; integers have no gradient, and stay plain."""
        if isinstance(x, np.generic):
            x = np.asarray(x)
        if not isinstance(x, np.ndarray) or x.size == 0 or x.dtype.kind in "iu":
            return x
        if self.tape.find(address_of(x)) is None:
            x = np.asarray(x, order="C")
            self.tape.add_buffer(x)
        return Recorded(self, x)

    def note_offsets(self, offsets: Any, rows: int, shortest: int, longest: int | None) -> None:
        """Note nothing: operations that run check what they are given."""


class TapeRecording(EagerRecording):
    """A recording of whatever its thread computes from variables that are trained, until it is closed.

    Parameters
    ----------
    watches_variables : bool
        Whether each variable that is trainable is one of them as soon as it is read.
    """

    def __init__(self, watches_variables: bool) -> None:
        super().__init__()
        self.variables: dict[int, Any] = {}
        self._watches = watches_variables
        self.calls = self.begin_noting(WHOLE)

    def held(self, variable: Any) -> Held | None:
        """Return what a variable is here, which it is from its first reading on."""
        if self._watches and variable.trainable and id(variable) not in self._held:
            self.watch(variable)
        return self._held.get(id(variable))

    def watch(self, variable: Any) -> None:
        """Let a variable be a recorded array until it is assigned."""
        if is_float(variable.true_dtype):
            self.variables[id(variable)] = variable
            self.hold(variable, self.input(np.array(unheld(variable.numpy), order="C")), False)

    def value_of(self, variable: Any) -> Recorded | None:
        """Return what a variable was when it was read last; None: it was not read."""
        found = self._held.get(id(variable))
        return None if found is None else found.value

    def assign(self, variable: Any, value: Any) -> Any:
        """Let a variable be read anew, and return the values that it gets at once."""
        self._held.pop(id(variable), None)
        return value.array.copy() if type(value) is Recorded else value

    def close(self) -> None:
        """Note no more; arrays can be read from now on."""
        self.noted, self.is_readable = None, True
        HOLDING.pop(id(self), None)
