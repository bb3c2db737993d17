"""Statistics of the inputs of a layer, which its form gathers while a sample runs."""

from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.layers.forms.form import Float, Form
from mp_core.ops import cast, matmul
from mp_core.ops.convolution import rows_of_windows

__all__ = ["InputStatistics", "ObservedFloat"]

_ROWS = 512  # rows per product: constant, so that sums do not depend on how the sample is cut into calls


class InputStatistics(NamedTuple):
    """Statistics of the inputs of a layer on a sample.

    Attributes
    ----------
    low, high : ndarray, shape (inputs,)
        The range of each input, which always contains 0.
    moments : ndarray, shape (inputs, inputs)
        ``sum x x'`` over the inputs x, in float64.
    """

    low: Array
    high: Array
    moments: Array

    def with_ranges_of(self, other: "InputStatistics") -> "InputStatistics":
        """Return a copy with ranges that also contain the ranges of `other`."""
        return self._replace(low=np.minimum(self.low, other.low), high=np.maximum(self.high, other.high))


class _RunningStatistics:
    """The statistics so far; `waiting` buffers the last rows, which are not included yet."""

    def __init__(self, depth: int) -> None:
        self.rows = 0
        self.seen = InputStatistics(np.zeros(depth), np.zeros(depth), np.zeros((depth, depth)))
        self.waiting = np.empty((_ROWS, depth), F32)

    def add(self, rows: Array) -> None:
        """Add rows of shape (n, inputs)."""
        while len(rows):
            start = self.rows % _ROWS
            taken = rows[: _ROWS - start]
            self.waiting[start : start + len(taken)] = taken
            self.rows, rows = self.rows + len(taken), rows[len(taken) :]
            if self.rows % _ROWS == 0:
                self.add_up(_ROWS)

    def add_up(self, count: int) -> None:
        """Add the first `count` waiting rows to the statistics."""
        rows, (low, high, moments) = self.waiting[:count], self.seen
        np.minimum(low, rows.min(axis=0, initial=0.0), out=low)
        np.maximum(high, rows.max(axis=0, initial=0.0), out=high)
        # A float32 product has the same bits on every machine. First scale inputs by a power of two to below 1.
        exponent = int(np.frexp(max(-rows.min(initial=0.0), rows.max(initial=0.0)))[1])
        small = np.ldexp(rows, -exponent)
        moments += cast(matmul(small.T, small), "float64") * 4.0**exponent

    def result(self) -> InputStatistics:
        """Return the statistics of all rows."""
        self.add_up(self.rows % _ROWS)
        return self.seen


class ObservedFloat(Float):
    """A Float form that records the rows it multiplies; with a `mask` of their axes, only rows where it is True.

    Parameters
    ----------
    form : Form
        The replaced form, a Float; its variables are shared.
    """

    def __init__(self, form: Form) -> None:
        vars(self).update(vars(form))
        self.sums = _RunningStatistics(form.geometry.rows)
        self.mask: Array | None = None

    def multiply(self, rows: Array, *args: Any, **kwargs: Any) -> Array:
        """Return the product."""
        windows = kwargs.get("windows")
        if windows is not None:
            for part in (part for x in rows for part in np.split(x[np.newaxis], self.geometry.groups, axis=-1)):
                self.sums.add(rows_of_windows(part, windows).reshape(-1, self.geometry.rows))
        else:
            kept = self.mask is not None and self.mask.shape == rows.shape[:-1]
            self.sums.add((rows[self.mask] if kept else rows).reshape(-1, rows.shape[-1]))
        return super().multiply(rows, *args, **kwargs)
