"""Gradients of a batch that is computed part by part, with the bits of the whole batch.

Variables, and arrays computed from variables alone, are shared by all samples. Their gradients are sums over rows: over
the samples, or over the positions of all samples. A sum is added in K blocks from the front (:class:`RowSum`), so each
part continues the sums of the part before it. If all parts except the last consist of whole blocks, the bits are those
of the whole batch.

The backward walk of a part visits the operations that depend on its samples. At each shared array that it reaches, it
adds to the running sum of that array. Only the walk of the last part continues from there, with the complete
sums.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from mp_core import ops
from mp_core.arrays.recorded import NotedCall, Recorded, Recording
from mp_core.ops.elementwise import computed
from mp_core.ops.gradients.registry import Addable, RowSum, wide_type
from mp_core.ops.gradients.reverse import Walk, recorded_in
from mp_core.ops.gradients.sums import blocks_of, summed_rows

__all__ = ["PartWalk", "SharedSum", "Sums", "dependents"]


class Sums(Enum):
    """What the sums over the rows of a part are used for."""

    OWN = auto()
    """They are the gradients of the part alone."""
    OPEN = auto()
    """They continue the sums of the part before, and the next part continues them."""
    LAST = auto()
    """They continue the sums of the part before, and give the gradients of the batch."""
    INDEPENDENT = auto()
    """The sums of their K blocks are returned one by one; the caller adds them."""


class SharedSum(NamedTuple):
    """The gradient of an array that all samples share, where the walk reaches it: a sum over rows.

    Attributes
    ----------
    rows : int
        The number of rows that a part adds.
    block : int
        The rows of a K block.
    """

    rows: int
    block: int


def dependents(recording: Recording, noted: Sequence[NotedCall], rows: Sequence[Recorded]) -> set[int]:
    """Return the numbers of the buffers that depend on the arrays `rows`, the samples of a part."""
    found = {recording.place(x)[0] for x in rows}
    for note in noted:
        if any(recording.place(x)[0] in found for x in recorded_in((note.args, note.kwargs))):
            found |= {recording.place(x)[0] for x in recorded_in(note.result)}
    return found


class PartWalk(Walk):
    """The backward walk of one part of a batch.

    Parameters
    ----------
    recording : Recording
    dependent : set of int
        The buffers that depend on the samples of the part.
    before : sequence of array or None
        The running sums after the part before, in the order of :attr:`sums_after`. None for the first part.
    sums : Sums
        Not ``OWN``. Only with ``LAST`` the walk continues to the operations that do not depend on samples.

    Attributes
    ----------
    shared_sums : list of SharedSum
    sums_after : list of array
        The running sums after this part, in float32. With ``INDEPENDENT``, the sums of the K blocks of each, in order.
    """

    def __init__(self, recording: Recording, dependent: set[int], before: Sequence[Any] | None, sums: Sums) -> None:
        super().__init__(recording)
        self.shared_sums: list[SharedSum] = []
        self.sums_after: list[Any] = []
        self._dependent, self._before = dependent, before
        self._is_last, self._is_apart = sums is Sums.LAST, sums is Sums.INDEPENDENT
        self._passed: NotedCall | None = None  # the call whose arguments get gradients now, if it depends on samples

    def depends(self, x: Recorded) -> bool:
        """Return whether an array depends on the samples of the part."""
        return self.recording.place(x)[0] in self._dependent

    def step(self, note: NotedCall) -> None:
        """Add the gradients of a call's arguments, if it depends on samples or the part is the last one."""
        is_of_samples = any(map(self.depends, recorded_in(note.result)))
        if is_of_samples or self._is_last:
            self._passed = note if is_of_samples else None
            super().step(note)
            self._passed = None

    def add(self, x: Recorded, gradient: Any) -> None:
        """Add a gradient of an array to that of its buffer; if the array is shared, to its running sum first."""
        if self._passed is not None and self.place(x) is not None and not self.depends(x):
            adds, total = isinstance(gradient, Addable), self._sum_of(x, gradient)
            self.shared_sums.append(SharedSum(total.rows, total.block))
            if self._is_apart:
                self.sums_after += map(total.part, blocks_of(total.rows, total.block))
                return
            gradient = self._summed(total, adds)
            if not self._is_last:
                return
        super().add(x, gradient)

    def _summed(self, total: RowSum, adds: bool) -> Addable:
        """Return the sum over the rows of all parts so far, as a gradient that is rounded like that of the batch."""
        number = len(self.sums_after)
        rows = total.after(None if self._before is None else self._before[number])
        self.sums_after.append(rows)

        def make(dtype: Any, other: Any) -> Any:
            if other is not None and adds:
                return computed("add", other, rows, dtype=dtype)
            rounded = rows if rows.dtype == dtype else ops.cast(rows, dtype)
            return rounded if other is None else ops.add(other, rounded)

        return Addable(make)

    def _sum_of(self, x: Recorded, gradient: Any) -> RowSum:
        """Return the gradient of a shared array as a sum over rows.

        Raises
        ------
        ValueError
            It is not such a sum.
        """
        if isinstance(gradient, RowSum):
            return gradient
        if isinstance(gradient, Addable):
            found = None if gradient.sum is None else gradient.sum()
        else:
            found = self._stretched(x, gradient)
        if found is None:
            name = getattr(self._passed and self._passed.function, "__name__", "a function")
            raise ValueError(
                f"the gradient of an array of shape {x.shape} in {name} is not a sum over the rows of a batch, so "
                "passes cannot continue it: use passes=1"
            )
        return found

    def _stretched(self, x: Recorded, gradient: Any) -> RowSum | None:
        """Return the sum over the axes along which `x` was broadcast; None if the first axis is not among them."""
        if callable(gradient):
            gradient = gradient(wide_type(x.dtype))
        more = gradient.ndim - x.ndim
        if not gradient.ndim or (more == 0 and x.shape[0] != 1):
            return None
        kept = tuple(axis for axis, n in enumerate(x.shape, more) if axis and n == gradient.shape[axis])
        return summed_rows(gradient, x.shape, kept)
