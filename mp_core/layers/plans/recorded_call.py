"""A recorded call: its operations, where the arrays lie that they read and write, and what a run needs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.recorded import Offsets, Recorded, Recording
from mp_core.arrays.recorded_array import NO_VALUES, address_of
from mp_core.core.recording import Notes
from mp_core.core.replay import Replay
from mp_core.core.scopes import values_of
from mp_core.layers.plans.arena import place
from mp_core.layers.plans.sizes import Sizes
from mp_core.layers.plans.state import SURROUNDINGS, State
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Buffer", "Found", "RecordedCall", "record"]


class Buffer(NamedTuple):
    """What memory a buffer needs: its contents are those of a run, not of the example."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    follows: int  # which of the sizes the first axis is, or -1
    more: int = 0  # by how many it is longer than that: 1 for offsets

    def shape_for(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in a run with so many rows for each of the sizes; the example's without any."""
        if not rows or self.follows < 0:
            return self.shape
        return rows[self.follows] + self.more, *self.shape[1:]

    def check(self, array: Array, rows: tuple[int, ...], what: str) -> None:
        """Raise unless an array has the shape and type that steps read or write in a run with so many rows."""
        shape = self.shape_for(rows)
        if array.shape != shape or array.dtype != self.dtype or not array.flags.carray:
            raise ValueError(
                f"{what} must be a C-contiguous array of shape {shape} and type {self.dtype} for {rows} rows; received "
                f"shape {array.shape}, type {array.dtype} and strides {array.strides}"
            )


@dataclass(frozen=True, slots=True)
class Found:
    """Where an output lies: in which buffer, and from which byte on."""

    buffer: int
    offset: int
    strides: tuple[int, ...]
    view: Buffer
    is_whole: bool = False  # whether the array of a run that has the buffer is this output

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the example."""
        return self.view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.view.dtype

    def is_all_of(self, buffer: Buffer | None) -> bool:
        """Whether an output is all of a buffer that only a run writes, C-contiguous."""
        whole = np.empty(self.shape, self.dtype)
        return (
            buffer is not None
            and (self.offset, self.strides) == (0, whole.strides)
            and math.prod(buffer.shape) * buffer.dtype.itemsize == whole.nbytes
        )


@dataclass(frozen=True)
class RecordedCall:
    """What one recording gave."""

    notes: Notes
    follows: tuple[int, ...]  # which of the sizes each step follows, or -1
    inputs: list[Buffer]
    offsets: dict[Offsets, int]  # the inputs that say where sequences lie; which size is the number of rows
    results: dict[int, Buffer]  # those in which outputs lie, by number: a run makes new ones
    outputs: Any  # a tree of Found, and of what is no array
    held: dict[int, Buffer]  # those that lie in the arena, by number
    lives: dict[int, tuple[int, int]]  # the first and the last step that uses each of them
    buffers: int
    layouts: dict[tuple[int, ...], tuple[Array, int]]  # most rows -> offset of each buffer in the arena, and its bytes
    constants: list[Array]
    state: State  # of the layer, when it was recorded
    surroundings: tuple[Any, ...]  # the values of SURROUNDINGS at that time
    replays: list[Replay]  # that no run uses now

    def layout(self, rows: tuple[int, ...]) -> tuple[Array, int]:
        """Return where each buffer lies in an arena for so many rows or some more, and the size of the arena."""
        most = tuple(1 << (count - 1).bit_length() for count in rows)
        found = self.layouts.get(most)
        if found is None:
            sizes = [math.prod(x.shape_for(most)) * x.dtype.itemsize for x in self.held.values()]
            places, size = place(sizes, [self.lives[number] for number in self.held])
            offsets = np.zeros(self.buffers, np.intp)
            offsets[list(self.held)] = places
            found = self.layouts[most] = offsets, size
        return found

    def replay(self) -> Replay:
        """Return a replay that no other run uses."""
        try:
            return self.replays.pop()
        except IndexError:
            return Replay(self.notes, self.follows)


def record(layer: Callable[..., Any], tree: Any, other_tree: Any, sizes: Sizes, state: State) -> RecordedCall:
    """Record a call with the arguments of `tree`; what differs with the arguments of `other_tree` depends on the sizes.

    `state` watches the layer, and from now on what the layer calls.
    """
    copies: dict[Any, Any] = {}
    recording, outputs = _noted(layer, tree, sizes, state, copies)
    other, other_outputs = _noted(layer, other_tree, sizes, state, copies) if sizes else (recording, outputs)
    tape, given = recording.tape, sum(isinstance(x, np.ndarray) for x in leaves(tree))
    sizes.check_alike([note.name for note in tape.notes], [note.name for note in other.tape.notes])
    follows = tuple(
        sizes.of(note.name, note.cost["rows"], twin.cost["rows"])
        for note, twin in zip(tape.notes, other.tape.notes, strict=True)
    )
    buffers = [
        Buffer(x.shape, x.dtype, *sizes.of_shapes(x.shape, y.shape, number < given))
        for number, (x, y) in enumerate(zip(tape.buffers, other.tape.buffers, strict=True))
    ]
    for note, size in zip(tape.notes, follows, strict=True):
        sizes.check_step(note.name, size, [buffers[number].follows for number in note.buffers])
    twins = iter(leaves(other_outputs))
    outputs = map_leaves(lambda part: _output_of(part, next(twins), sizes), outputs)
    found = [part.buffer for part in leaves(outputs) if type(part) is Found]
    results = {number: buffers[number] for number in found if number >= given}
    outputs = map_leaves(lambda part: _marked(part, results), outputs)
    lives: dict[int, tuple[int, int]] = {}
    for step, note in enumerate(tape.notes):
        for number in note.buffers:
            lives[number] = lives.get(number, (step, step))[0], step
    held = {number: buffers[number] for number in lives if number >= given and number not in results}
    offsets = {
        found: sizes.of("offsets", found.rows, twin.rows)
        for found, twin in zip(recording.offsets, other.offsets, strict=True)
    }
    return RecordedCall(
        tape.notes, follows, buffers[:given], offsets, results, outputs, held, lives, len(buffers), {},
        tape.constants, state, values_of(SURROUNDINGS), [],
    )  # fmt: skip


def _noted(
    layer: Callable[..., Any], tree: Any, sizes: Sizes, state: State, copies: dict[Any, Any]
) -> tuple[Recording, Any]:
    """Return the recording of a call with these arguments, and its outputs: arrays by where they lie."""
    recording = Recording(state.add, copies)
    args, kwargs = map_leaves(lambda x: recording.input(x) if isinstance(x, np.ndarray) else x, tree)
    outputs = recording.of(lambda: map_leaves(lambda x: _found(x, recording), layer(*args, **kwargs)))
    recording.tape.forget()
    return recording, outputs


def _found(x: Any, recording: Recording) -> Any:
    """Return where an output lies; what is no array is an output as it is."""
    if type(x) is not Recorded:
        if isinstance(x, str) and NO_VALUES in x:
            recording.refuse("a text of elements")
        if isinstance(x, np.ndarray | np.generic | bool | int | float | complex | str | None):
            return x
        recording.refuse(f"a result of type {type(x).__name__}")
    if x.size == 0:
        return x.array.copy()
    found = recording.tape.find(address_of(x.array))
    if found is None or x.recording is not recording:
        recording.refuse("an array of another recording")
    return Found(*found, x.array.strides, Buffer(x.shape, x.dtype, -1))


def _output_of(part: Any, twin: Any, sizes: Sizes) -> Any:
    """Return where an output lies, by its places for the two examples; what is no such place as it is."""
    if type(part) is not Found:
        return part
    follows, _ = sizes.of_shapes(part.view.shape, twin.view.shape)
    return replace(part, view=part.view._replace(follows=follows))


def _marked(part: Any, results: dict[int, Buffer]) -> Any:
    """Return where an output lies, marked if it is all of an array that a run makes."""
    if type(part) is not Found or part.buffer not in results:
        return part
    buffer = results[part.buffer]
    return replace(part, is_whole=part.view == buffer and part.is_all_of(buffer))
