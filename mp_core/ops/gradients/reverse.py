"""Reverse mode: the backward walk over the noted calls of a recording.

Every recorded array is a window of a buffer, and the gradient of an array is the same window of the gradient of its
buffer. So views need no rules. Gradients are added in the reverse order of the calls: the first gradient of a buffer
sets it, each later one is added, with one rounding to the dtype of the gradient.

This dtype is that of the buffer; but it is float32 if the buffer is a variable or the cast of one, so that gradients of
variables are never rounded to 16 bits.
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
from mp_core.arrays.recorded import NotedCall, Recorded, Recording, names_of
from mp_core.core.convert import copied, copy_into, filled
from mp_core.ops.gradients.registry import Addable, rule_of, wide_type
from mp_core.ops.gradients.sums import sum_rows
from mp_core.ops.gradients.windows import added_windows, repeats
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Walk", "gradients", "recorded_in"]

_KEEP_VALUES = {cast_any, cast_any.__wrapped__, copied}  # type: ignore[attr-defined]
"""The operations that change only the dtype or the memory order of their argument."""


def gradients(
    recording: Recording,
    noted: Sequence[NotedCall],
    targets: Sequence[tuple[Recorded, Any]],
    wanted: Sequence[Recorded],
) -> list[Any]:
    """Return the gradients of the sum of ``target * d`` over all targets, with respect to each of `wanted`.

    Parameters
    ----------
    recording : Recording
        The recording of all these arrays. The backward operations become part of it.
    noted : sequence of NotedCall
        Its noted calls up to the targets.
    targets : sequence of (Recorded, array)
        Arrays, and the gradient of each.
    wanted : sequence of Recorded
        Whole buffers: variables or inputs.

    Returns
    -------
    list of Recorded or None
        Each in the dtype of its wanted array. None: no target depends on it.

    Raises
    ------
    UngradedError
        An operation on the way has no rule.
    """
    walk = Walk(recording)
    walk.follow(noted, wanted)
    for target, d in targets:
        walk.add(target, d)
    for note in reversed(noted):
        walk.step(note)
    return [walk.gradient_of(x) for x in wanted]


@dataclass
class _BufferGradient:
    """The gradient of a buffer so far."""

    array: Any  # its elements in the order of memory
    windows: list[Any] | None  # the windows of the buffer whose gradient has been written; None: all of it


@dataclass
class Walk:
    """The state of a backward walk.

    Attributes
    ----------
    recording : Recording
    reached : dict of int and dtype
        Number of a buffer that needs a gradient -> dtype of the gradient.
    sums : dict of int and _BufferGradient
        Number of a buffer -> its gradient so far.
    """

    recording: Recording
    reached: dict[int, np.dtype[Any]] = field(default_factory=dict)
    sums: dict[int, _BufferGradient] = field(default_factory=dict)

    def follow(self, noted: Iterable[NotedCall], wanted: Iterable[Recorded]) -> None:
        """Find all buffers that depend on wanted arrays, in the order of the calls."""
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

    def step(self, note: NotedCall) -> None:
        """Apply the rule of a call: add the gradients of its arguments."""
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
        """Return (buffer number, offset in bytes) of an array; None if its buffer needs no gradient."""
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
            self._add_window(x, begin, _summed_to(_evaluated(gradient, dtype, None), x.shape, dtype))
            return
        before = None if total is None else _in_shape_of(total.array, order, x.shape)
        new = _evaluated(gradient, dtype, before)
        if before is None or not isinstance(gradient, Addable):
            new = _summed_to(new, x.shape, dtype)
            new = new if before is None else ops.add(before, new)
        self.sums[number] = _BufferGradient(new.transpose(order).reshape(-1), None)

    def _add_window(self, x: Recorded, begin: int, gradient: Any) -> None:
        """Add a gradient of a part of a buffer."""
        if not x.ndim:  # steps copy only arrays with an axis
            x, gradient = x.reshape(1), gradient.reshape(1)
        number = self.recording.place(x)[0]
        buffer, total = self.recording.tape.buffers[number], self.sums.get(number)
        if repeats(x.array):
            strides = tuple(stride // x.itemsize for stride in x.array.strides)
            whole = added_windows(gradient, buffer.size, begin // x.itemsize, strides, self.reached[number])
            self.sums[number] = _BufferGradient(whole if total is None else ops.add(total.array, whole), None)
            return
        if total is None:
            zeros = self.recording.call(filled, ((buffer.size,), self.reached[number], 0.0), {})
            total = self.sums[number] = _BufferGradient(zeros, [])
        elif total.windows is None:
            total = self.sums[number] = _BufferGradient(self.recording.call(copied, (total.array,), {}), [buffer])
        window = self._window(total.array, x, begin)
        if any(np.shares_memory(x.array, other) for other in total.windows or ()):
            gradient = ops.add(window, gradient)
        self.recording.run(copy_into, window.array, gradient.array)
        total.windows = [*(total.windows or ()), x.array]

    def _window(self, total: Recorded, x: Recorded, begin: int) -> Recorded:
        """Return the window of a buffer's gradient that corresponds to the window `x` of the buffer."""
        strides = [stride // x.itemsize * total.itemsize for stride in x.array.strides]
        return Recorded(self.recording, as_strided(total.array[begin // x.itemsize :], x.shape, strides))

    def gradient_of(self, x: Recorded) -> Any:
        """Return the gradient of an array so far; None if nothing has been added."""
        place = self.place(x)
        total = None if place is None else self.sums.get(place[0])
        if place is None or total is None:
            return None
        order = _order_of_whole(x.array, self.recording.tape.buffers[place[0]])
        return self._window(total.array, x, place[1]) if order is None else _in_shape_of(total.array, order, x.shape)


def recorded_in(tree: Any) -> Iterator[Recorded]:
    """Yield the recorded arrays among arguments or results."""
    return (x for x in leaves(tree) if type(x) is Recorded)


def _without_out(note: NotedCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call without `out` (which is None); positional ones after it become keywords."""
    kwargs = {name: x for name, x in note.kwargs.items() if name != "out"}
    names = () if note.rule is not None else names_of(note.function)
    if "out" not in names[: len(note.args)]:
        return note.args, kwargs
    place = names.index("out")
    return note.args[:place], kwargs | dict(zip(names[place + 1 :], note.args[place + 1 :], strict=False))


def _evaluated(gradient: Any, dtype: np.dtype[Any], before: Any) -> Any:
    """Return a gradient as an array. An :class:`Addable` also adds the gradient `before`, if that is not None."""
    if isinstance(gradient, Addable):
        return gradient.make(dtype, before)
    return gradient(dtype) if callable(gradient) else gradient


def _order_of_whole(x: Array, buffer: Array) -> tuple[int, ...] | None:
    """Return the axes of an array in the order of memory if it is all of a buffer; None if it is only a part."""
    if x.nbytes != buffer.nbytes:
        return None
    order = tuple(sorted(range(x.ndim), key=lambda axis: (-x.strides[axis], axis)))
    return order if x.transpose(order).flags.c_contiguous else None


def _in_shape_of(total: Any, order: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Return the gradient of a buffer as an array of `shape`; `order` is the order of its axes in memory."""
    ordered = total.reshape(tuple(shape[axis] for axis in order))
    return ordered.transpose(tuple(np.argsort(order).tolist()))


def _summed_to(gradient: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return a gradient in the shape of the argument, summed over the axes along which the argument was broadcast."""
    if gradient.shape == shape:
        return gradient if gradient.dtype == dtype else ops.cast(gradient, dtype)
    more = gradient.ndim - len(shape)
    kept = tuple(i for i, n in enumerate(shape, more) if n == gradient.shape[i])
    return sum_rows(gradient, kept, dtype=dtype).reshape(shape)
