"""Observe the inputs of layers while a sample runs: their ranges, and the sums of their products."""

from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, Array
from mp_core.layers.forms import Float
from mp_core.layers.plans import eager
from mp_core.models.fitting.running import LayerLike, ModelCall, mask_of
from mp_core.ops import cast, matmul

__all__ = ["InputStatistics", "observe"]

_ROWS = 512  # rows per product: constant, so that sums do not depend on how the sample is cut into calls


class InputStatistics(NamedTuple):
    """Statistics of the inputs of a layer on a sample."""

    low: Array  # `low`, `high`: shape (inputs,): The range of each input, which always contains 0.
    high: Array
    moments: Array  # shape (inputs, inputs): ``sum x x'`` over the inputs x, in float64.

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


class _ObservedFloat(Float):
    """A Float form that records the rows it multiplies; with a `mask` of their axes, only rows where it is True."""

    def __init__(self, form: Float) -> None:
        vars(self).update(vars(form))
        self.sums = _RunningStatistics(form.geometry.rows)
        self.mask: Array | None = None

    def multiply(self, rows: Array, *args: Any, **kwargs: Any) -> Array:
        """Return the product."""
        kept = self.mask is not None and self.mask.shape == rows.shape[:-1]
        self.sums.add((rows[self.mask] if kept else rows).reshape(-1, rows.shape[-1]))
        return super().multiply(rows, *args, **kwargs)


def observe(
    model: LayerLike, calls: list[ModelCall], layers: dict[str, Any], argument: str = "sample"
) -> dict[str, InputStatistics]:
    """Run a copy of the caller's model, and return path -> statistics of the inputs of some layers with float kernels.

    Raise ValueError, which calls the calls `argument`, if a layer got no inputs, or inputs that are not finite.
    """
    forms = {path: layer.form for path, layer in layers.items()}
    observing = {path: _ObservedFloat(form) for path, form in forms.items()}
    for path, layer in layers.items():
        layer.form = observing[path]
    for call in calls:
        mask = mask_of(model, call)
        for form in observing.values():
            form.mask = mask
        with eager():
            model(*call.args, **call.kwargs)
    for path, layer in layers.items():
        layer.form = forms[path]
    found = {path: form.sums.result() for path, form in observing.items()}
    for path, seen in found.items():
        if not (observing[path].sums.rows and np.isfinite(seen.low).all() and np.isfinite(seen.high).all()):
            what = "has Inf or NaN there" if observing[path].sums.rows else "is empty or does not reach it"
            raise ValueError(f"`{argument}` must give layer '{path}' finite inputs; it {what}")
    return found
