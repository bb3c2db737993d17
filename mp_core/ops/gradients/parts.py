"""Gradients of a batch that is computed part by part, with the bits of the whole batch.

What the samples of a batch share (variables, what is computed of them alone) gets gradients that are sums over rows:
the samples, or the places of all samples. Such a sum is added up in K blocks from the front (:class:`Summed`), so a
part can go on from where the one before it has stopped: as long as all parts but the last have whole blocks, the sums
are those of the whole batch, bit for bit.

A part goes backwards through the operations that depend on its samples. Where that leads to something shared, it adds
to the running sum of this place; only the last part goes on from there, with sums that are whole by then.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from mp_core import ops
from mp_core.arrays.recorded import Noted, Recorded, Recording
from mp_core.ops.elementwise import computed
from mp_core.ops.gradients.registry import Added, Summed, wide_type
from mp_core.ops.gradients.reverse import Walk, recorded_in
from mp_core.ops.gradients.sums import blocks_of, summed_rows

__all__ = ["Meeting", "PartWalk", "Sums", "dependents"]


class Sums(Enum):
    """What becomes of the sums over the rows of a part."""

    OWN = auto()
    """They are whole: the gradients of the part alone."""
    OPEN = auto()
    """They go on from those of the part before, and the next part goes on from them."""
    LAST = auto()
    """They go on from those of the part before, and are whole then: the gradients of the batch."""
    APART = auto()
    """Their K blocks are returned one by one, to be added elsewhere."""


class Meeting(NamedTuple):
    """A place where something that all samples share meets them: its gradient is a sum over rows.

    Attributes
    ----------
    rows : int
        How many rows the sum has in a part.
    block : int
        The rows of a K block.
    """

    rows: int
    block: int


def dependents(recording: Recording, noted: Sequence[Noted], rows: Sequence[Recorded]) -> set[int]:
    """Return the numbers of the buffers that depend on some arrays: those of the samples of a part."""
    found = {recording.place(x)[0] for x in rows}
    for note in noted:
        if any(recording.place(x)[0] in found for x in recorded_in((note.args, note.kwargs))):
            found |= {recording.place(x)[0] for x in recorded_in(note.result)}
    return found


class PartWalk(Walk):
    """The walk backwards of one part, whose sums go on or are added elsewhere.

    Parameters
    ----------
    recording : Recording
    dependent : set of int
        The buffers that depend on the samples of the part.
    before : sequence of array or None
        The running sums that the part before has left, in the order of :attr:`sums_after`. None: there was none.
    sums : Sums
        Not ``OWN``. Only with ``LAST``, the walk goes on through what the samples share.

    Attributes
    ----------
    meetings : list of Meeting
    sums_after : list of array
        The running sums after this part: float32. With ``APART``, the K blocks of each sum, in order.
    """

    def __init__(self, recording: Recording, dependent: set[int], before: Sequence[Any] | None, sums: Sums) -> None:
        super().__init__(recording)
        self.meetings: list[Meeting] = []
        self.sums_after: list[Any] = []
        self._dependent, self._before = dependent, before
        self._is_last, self._is_apart = sums is Sums.LAST, sums is Sums.APART
        self._passed: Noted | None = None  # the operation on samples through which a gradient passes

    def depends(self, x: Recorded) -> bool:
        """Whether an array depends on the samples of the part."""
        return self.recording.place(x)[0] in self._dependent

    def step(self, note: Noted) -> None:
        """Lead the gradient of a call's result on to its arguments."""
        is_of_samples = any(map(self.depends, recorded_in(note.result)))
        if is_of_samples or self._is_last:
            self._passed = note if is_of_samples else None
            super().step(note)
            self._passed = None

    def add(self, x: Recorded, gradient: Any) -> None:
        """Add a gradient of an array to that of its buffer; to the running sum if the array is shared."""
        if self._passed is not None and self.place(x) is not None and not self.depends(x):
            adds, total = isinstance(gradient, Added), self._sum_of(x, gradient)
            self.meetings.append(Meeting(total.rows, total.block))
            if self._is_apart:
                self.sums_after += map(total.part, blocks_of(total.rows, total.block))
                return
            gradient = self._summed(total, adds)
            if not self._is_last:
                return
        super().add(x, gradient)

    def _summed(self, total: Summed, adds: bool) -> Added:
        """Return the sum over the rows of all parts so far as a gradient that rounds as one of the whole batch."""
        number = len(self.sums_after)
        rows = total.after(None if self._before is None else self._before[number])
        self.sums_after.append(rows)

        def make(dtype: Any, other: Any) -> Any:
            if other is not None and adds:
                return computed("add", other, rows, dtype=dtype)
            rounded = rows if rows.dtype == dtype else ops.cast(rows, dtype)
            return rounded if other is None else ops.add(other, rounded)

        return Added(make)

    def _sum_of(self, x: Recorded, gradient: Any) -> Summed:
        """Return a gradient of something shared as a sum over rows.

        Raises
        ------
        ValueError
            It is none.
        """
        if isinstance(gradient, Summed):
            return gradient
        if isinstance(gradient, Added):
            found = None if gradient.sum is None else gradient.sum()
        else:
            found = self._stretched(x, gradient)
        if found is None:
            name = getattr(self._passed and self._passed.function, "__name__", "a function")
            raise ValueError(
                f"the gradient of an array of shape {x.shape} in {name} is no sum over the rows of a batch that can go "
                "on from pass to pass: use passes=1"
            )
        return found

    def _stretched(self, x: Recorded, gradient: Any) -> Summed | None:
        """Return the sum over the axes along which an array was broadcast, the first one among them."""
        if callable(gradient):
            gradient = gradient(wide_type(x.dtype))
        more = gradient.ndim - x.ndim
        if not gradient.ndim or (more == 0 and x.shape[0] != 1):
            return None
        kept = tuple(axis for axis, n in enumerate(x.shape, more) if axis and n == gradient.shape[axis])
        return summed_rows(gradient, x.shape, kept)
