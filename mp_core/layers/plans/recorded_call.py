"""A recorded call: its operations, the memory that they read and write, and what a run needs to allocate."""

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

__all__ = ["Buffer", "OutputPlace", "RecordedCall", "record"]


class Buffer(NamedTuple):
    """The shape and dtype of a buffer, memory whose contents change from run to run."""

    shape: tuple[int, ...]  # in the example
    dtype: np.dtype[Any]
    follows: int  # index of the size that the first axis depends on, or -1
    more: int = 0  # how much longer the first axis is than this size: 1 for offsets

    def shape_for(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in a run with `rows`, one number for each size; without sizes, that of the example."""
        if not rows or self.follows < 0:
            return self.shape
        return rows[self.follows] + self.more, *self.shape[1:]

    def check(self, array: Array, rows: tuple[int, ...], what: str) -> None:
        """Raise ValueError unless an array has the right shape, dtype and layout for a run with `rows`."""
        shape = self.shape_for(rows)
        if array.shape != shape or array.dtype != self.dtype or not array.flags.carray:
            raise ValueError(
                f"{what} must be a C-contiguous array of shape {shape} and type {self.dtype} for {rows} rows; received "
                f"shape {array.shape}, type {array.dtype} and strides {array.strides}"
            )


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """The place of an output: number of its buffer, offset in bytes, and strides."""

    buffer: int
    offset: int
    strides: tuple[int, ...]
    view: Buffer
    is_whole: bool = False  # whether the output is the array that a run allocates for the buffer

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape for the example."""
        return self.view.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.view.dtype

    def is_all_of(self, buffer: Buffer | None) -> bool:
        """Return whether the output is all of `buffer`, C-contiguous; False for None, the buffer of an input."""
        whole = np.empty(self.shape, self.dtype)
        return (
            buffer is not None
            and (self.offset, self.strides) == (0, whole.strides)
            and math.prod(buffer.shape) * buffer.dtype.itemsize == whole.nbytes
        )


@dataclass(frozen=True)
class RecordedCall:
    """The result of a recording."""

    notes: Notes
    follows: tuple[int, ...]  # for each step, index of the size that it depends on, or -1
    inputs: list[Buffer]
    offsets: dict[Offsets, int]  # bounds of an input of offsets -> index of the size that is its number of rows, or -1
    results: dict[int, Buffer]  # number -> buffer that contains outputs; each run allocates new ones
    outputs: Any  # tree of OutputPlace, constant arrays, and values that are not arrays
    held: dict[int, Buffer]  # number -> buffer in the arena
    lives: dict[int, tuple[int, int]]  # number -> first and last step that uses the buffer
    buffers: int  # the number of all buffers
    layouts: dict[tuple[int, ...], tuple[Array, int]]  # largest rows -> (offsets of buffers in the arena, its bytes)
    constants: list[Array]
    state: State  # the dependencies, as they were
    surroundings: tuple[Any, ...]  # the values of SURROUNDINGS at the recording
    replays: list[Replay]  # not in use by a run

    def layout(self, rows: tuple[int, ...]) -> tuple[Array, int]:
        """Return the offsets of buffers in an arena that suffices for `rows`, and the size of the arena."""
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
        """Return a replay that no other run uses; create one if needed."""
        try:
            return self.replays.pop()
        except IndexError:
            return Replay(self.notes, self.follows)


def record(layer: Callable[..., Any], tree: Any, other_tree: Any, sizes: Sizes, state: State) -> RecordedCall:
    """Record a call with the arguments `tree`; if there are sizes, record it with `other_tree` too, and compare.

    Lengths that differ between both recordings depend on the sizes. `state` collects the dependencies.
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
    found = [part.buffer for part in leaves(outputs) if type(part) is OutputPlace]
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
    """Record a call; return the recording, and the outputs with an :class:`OutputPlace` for each recorded array."""
    recording = Recording(state.add, copies)
    args, kwargs = map_leaves(lambda x: recording.input(x) if isinstance(x, np.ndarray) else x, tree)
    outputs = recording.record(lambda: map_leaves(lambda x: _output_place(x, recording), layer(*args, **kwargs)))
    recording.tape.forget()
    return recording, outputs


def _output_place(x: Any, recording: Recording) -> Any:
    """Return the place of an output; constants, and values that are not arrays, as they are."""
    if type(x) is not Recorded:
        if isinstance(x, str) and NO_VALUES in x:
            recording.refuse("the text of an array")
        if isinstance(x, np.ndarray | np.generic | bool | int | float | complex | str | None):
            return x
        recording.refuse(f"a result of type {type(x).__name__}")
    if x.size == 0:
        return x.array.copy()
    found = recording.tape.find(address_of(x.array))
    if found is None or x.recording is not recording:
        recording.refuse("an array of another recording")
    return OutputPlace(*found, x.array.strides, Buffer(x.shape, x.dtype, -1))


def _output_of(part: Any, twin: Any, sizes: Sizes) -> Any:
    """Return the place of an output with the size that it depends on, from its places in both recordings."""
    if type(part) is not OutputPlace:
        return part
    follows, _ = sizes.of_shapes(part.view.shape, twin.view.shape)
    return replace(part, view=part.view._replace(follows=follows))


def _marked(part: Any, results: dict[int, Buffer]) -> Any:
    """Return the place of an output, marked as whole if it is all of an array that a run allocates."""
    if type(part) is not OutputPlace or part.buffer not in results:
        return part
    buffer = results[part.buffer]
    return replace(part, is_whole=part.view == buffer and part.is_all_of(buffer))
