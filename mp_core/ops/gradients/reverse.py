"""Reverse mode: the walk backwards over the calls of operations that a recording has noted.

Every array of a recording is a window of a buffer, and the gradient of an array is the same window of the gradient of
its buffer. So views need no rules. The order of sums is the reverse of the order of calls: the first gradient that
reaches a buffer sets it, each later one is added, with one rounding to the dtype of the gradient.

That dtype is the buffer's, but float32 where the buffer is a variable or its cast: what reaches a variable has not been
rounded to 16 bits.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from mp_core import ops
from mp_core.arrays import Array
from mp_core.arrays.conversion import cast_any
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.recorded import Noted, Recorded, Recording, names_of
from mp_core.core.convert import copied, copy_into, filled
from mp_core.ops.gradients.registry import Added, rule_of, wide_type
from mp_core.ops.gradients.sums import sum_rows
from mp_core.ops.gradients.windows import added_windows, repeats
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Walk", "gradients", "recorded_in"]

_KEEP_VALUES = {cast_any, cast_any.__wrapped__, copied}  # type: ignore[attr-defined]
"""The operations whose results are their arguments in another type or order."""


def gradients(
    recording: Recording, noted: Sequence[Noted], targets: Sequence[tuple[Recorded, Any]], wanted: Sequence[Recorded]
) -> list[Any]:
    """Return the gradients of the sum of ``target * d`` over targets with respect to each of some arrays.

    Parameters
    ----------
    recording : Recording
        The one of all these arrays. It goes on, and what is computed here becomes part of it.
    noted : sequence of Noted
        What it has noted up to the targets.
    targets : sequence of (Recorded, array)
        Arrays, and the gradient of each.
    wanted : sequence of Recorded
        Whole buffers: variables, inputs.

    Returns
    -------
    list of Recorded or None
        In the dtype of each wanted array. None: no operation leads from it to a target.

    Raises
    ------
    UngradedError
        An operation between them has no rule.
    """
    walk = Walk(recording)
    walk.follow(noted, wanted)
    for target, d in targets:
        walk.add(target, d)
    for note in reversed(noted):
        walk.step(note)
    return [walk.gradient_of(x) for x in wanted]


@dataclass
class _Sum:
    """The gradient of a buffer, as far as it has been added up."""

    array: Any  # its elements in the order of memory
    windows: list[Any] | None  # the parts that have been written, as they lie in the buffer; None: all of it


@dataclass
class Walk:
    """What is known during a walk.

    Attributes
    ----------
    recording : Recording
    reached : dict of int and dtype
        The buffers whose gradient is wanted, and the dtype of that.
    sums : dict of int and sum
        The gradients of buffers, as far as they have been added up.
    """

    recording: Recording
    reached: dict[int, np.dtype[Any]] = field(default_factory=dict)
    sums: dict[int, _Sum] = field(default_factory=dict)

    def follow(self, noted: Iterable[Noted], wanted: Iterable[Recorded]) -> None:
        """Find the buffers that depend on what is wanted, forwards."""
        variables = {self.recording.place(x)[0] for x in wanted}
        self.reached = {number: self.recording.tape.buffers[number].dtype for number in variables}
        for note in noted:
            sources = {self.recording.place(x)[0] for x in recorded_in((note.args, note.kwargs))}
            if not sources & self.reached.keys():
                continue
            keeps = note.function in _KEEP_VALUES and sources <= variables
            for x in recorded_in(note.result):
                number = self.recording.place(x)[0]
                if is_float(x.dtype):
                    self.reached[number] = wide_type(x.dtype) if keeps else x.dtype
                    variables |= {number} if keeps else set()

    def step(self, note: Noted) -> None:
        """Lead the gradient of a call's result on to its arguments."""
        d = map_leaves(lambda x: self.gradient_of(x) if type(x) is Recorded else None, note.result)
        if all(x is None for x in leaves(d)):
            return
        if not any(self.place(x) is not None for x in recorded_in((note.args, note.kwargs))):
            return
        rule = note.rule or rule_of(note.function)
        args, kwargs = _without_out(note)
        found = rule(d, note.result, *args, **kwargs)
        bound = inspect.signature(rule).bind(d, note.result, *args, **kwargs)
        for name, x in list(bound.arguments.items())[2:]:
            given = found.get(name)
            pairs = zip(x, given, strict=True) if isinstance(given, tuple) else [(x, given)]
            for argument, gradient in pairs:
                if gradient is not None and type(argument) is Recorded:
                    self.add(argument, gradient)

    def place(self, x: Recorded) -> tuple[int, int] | None:
        """Return where an array lies whose gradient is wanted."""
        number, begin = self.recording.place(x)
        return (number, begin) if number in self.reached else None

    # ---- sums of gradients

    def add(self, x: Recorded, gradient: Any) -> None:
        """Add a gradient of an array to the gradient of its buffer."""
        place = self.place(x)
        if place is None:
            return
        number, begin = place
        dtype, total = self.reached[number], self.sums.get(number)
        order = _order_of_whole(x.array, self.recording.tape.buffers[number])
        if order is None:
            self._add_window(x, begin, _summed_to(_made(gradient, dtype, None), x.shape, dtype))
            return
        before = None if total is None else _like_argument(total.array, order, x.shape)
        new = _made(gradient, dtype, before)
        if before is None or not isinstance(gradient, Added):
            new = _summed_to(new, x.shape, dtype)
            new = new if before is None else ops.add(before, new)
        self.sums[number] = _Sum(new.transpose(order).reshape(-1), None)

    def _add_window(self, x: Recorded, begin: int, gradient: Any) -> None:
        """Add a gradient of a part of a buffer."""
        if not x.ndim:  # one element: steps copy arrays that have an axis
            x, gradient = x.reshape(1), gradient.reshape(1)
        number = self.recording.place(x)[0]
        buffer, total = self.recording.tape.buffers[number], self.sums.get(number)
        if repeats(x.array):
            strides = tuple(stride // x.itemsize for stride in x.array.strides)
            whole = added_windows(gradient, buffer.size, begin // x.itemsize, strides, self.reached[number])
            self.sums[number] = _Sum(whole if total is None else ops.add(total.array, whole), None)
            return
        if total is None:
            zeros = self.recording.call(filled, ((buffer.size,), self.reached[number], 0.0), {})
            total = self.sums[number] = _Sum(zeros, [])
        elif total.windows is None:
            total = self.sums[number] = _Sum(self.recording.call(copied, (total.array,), {}), [buffer])
        window = self._window(total.array, x, begin)
        if any(np.shares_memory(x.array, other) for other in total.windows or ()):
            gradient = ops.add(window, gradient)
        self.recording.run(copy_into, window.array, gradient.array)
        total.windows = [*(total.windows or ()), x.array]

    def _window(self, total: Recorded, x: Recorded, begin: int) -> Recorded:
        """Return the part of the gradient of a buffer that is the part `x` of the buffer."""
        strides = [stride // x.itemsize * total.itemsize for stride in x.array.strides]
        return Recorded(self.recording, as_strided(total.array[begin // x.itemsize :], x.shape, strides))

    def gradient_of(self, x: Recorded) -> Any:
        """Return the gradient of an array as it is now; None: nothing has been added to it."""
        place = self.place(x)
        total = None if place is None else self.sums.get(place[0])
        if place is None or total is None:
            return None
        order = _order_of_whole(x.array, self.recording.tape.buffers[place[0]])
        return self._window(total.array, x, place[1]) if order is None else _like_argument(total.array, order, x.shape)


def recorded_in(tree: Any) -> Iterator[Recorded]:
    """Return the recorded arrays among arguments or results."""
    return (x for x in leaves(tree) if type(x) is Recorded)


def _without_out(note: Noted) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call without `out`, which is None; what was given behind it has its name."""
    kwargs = {name: x for name, x in note.kwargs.items() if name != "out"}
    names = () if note.rule is not None else names_of(note.function)
    if "out" not in names[: len(note.args)]:
        return note.args, kwargs
    place = names.index("out")
    return note.args[:place], kwargs | dict(zip(names[place + 1 :], note.args[place + 1 :], strict=False))


def _made(gradient: Any, dtype: np.dtype[Any], before: Any) -> Any:
    """Return a gradient as an array, that has been there `before` added if it can add."""
    if isinstance(gradient, Added):
        return gradient.make(dtype, before)
    return gradient(dtype) if callable(gradient) else gradient


def _order_of_whole(x: Array, buffer: Array) -> tuple[int, ...] | None:
    """Return the axes of an array in the order of memory if it is all of a buffer; None: it is a part."""
    if x.nbytes != buffer.nbytes:
        return None
    order = tuple(sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], axis)))
    return order if x.transpose(order).flags.c_contiguous else None


def _like_argument(total: Any, order: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return the gradient of a buffer in the shape of an array that is all of it, with its axes in another order."""
    ordered = total.reshape(tuple(shape[axis] for axis in order))
    return ordered.transpose(tuple(np.argsort(order).tolist()))


def _summed_to(gradient: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a gradient in the shape of an argument, summed over the axes along which that was broadcast."""
    if gradient.shape == shape:
        return gradient if gradient.dtype == dtype else ops.cast(gradient, dtype)
    more = gradient.ndim - len(shape)
    kept = tuple(i for i, n in enumerate(shape, more) if n == gradient.shape[i])
    return sum_rows(gradient, kept, dtype=dtype).reshape(shape)
