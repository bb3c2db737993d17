"""Recordings that compute: operations run as they are called, and their calls are noted for gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np

from mp_core.arrays.recorded import Recorded, Recording

__all__ = ["EagerRecording"]


class EagerRecording(Recording):
    """A recording whose arrays have their values, of any float type, float64 too; it makes no plan."""

    is_eager = True

    def __init__(self) -> None:
        super().__init__(True, lambda layer: None, {})

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what an operation returns for plain arrays."""
        return function(*args, **kwargs)

    def wrapped(self, x: Any, name: str) -> Any:
        """Return a result as a recorded array; what is new is a buffer."""
        if not isinstance(x, np.ndarray) or x.size == 0:
            return x
        if self.tape.find(x.__array_interface__["data"][0]) is None:
            x = np.asarray(x, order="C")
            self.tape.add_buffer(x)
        return Recorded(self, x)

    def note_offsets(self, offsets: Any, rows: int, shortest: int, longest: int | None) -> None:
        """Note nothing: operations that run check what they are given."""
