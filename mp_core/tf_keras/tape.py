"""``tf.GradientTape``: gradients of the layers, operations and arithmetic in a ``with`` block."""

from contextvars import Token
from typing import Any, Self

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.holding import begin_recording, end_recording
from mp_core.arrays.recorded import Recorded
from mp_core.core.convert import filled
from mp_core.ops.gradients.eager import TapeRecording
from mp_core.ops.gradients.reverse import gradients
from mp_core.policies.autocast import AutoCastVariable
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["GradientTape"]


class GradientTape:
    """Record the operations of a ``with`` block, to compute gradients afterwards, like ``tf.GradientTape``.

    Operations run when they are called. Inside the block, results are recorded arrays: operations, arithmetic and views
    accept them; functions through which no gradient passes (NumPy's functions, ``float(x)``) raise UnseenError. After
    the block their elements can be read. For a function that is called often, :func:`mp_core.value_and_grad` is faster,
    because it caches a plan.

    Parameters
    ----------
    persistent : bool
        Whether :meth:`gradient` may be called more than once.
    watch_accessed_variables : bool
        Whether every trainable variable that the block reads has a gradient. If False, only variables that were passed
        to :meth:`watch` have one.

    Examples
    --------
    >>> import mp_core as mp
    >>> w = mp.AutoCastVariable(np.float32([[2.0]]))
    >>> with GradientTape() as tape:
    ...     loss = mp.matmul(mp.matmul(np.float32([[3.0]]), w), w)
    >>> float(loss[0, 0]), tape.gradient(loss, w).tolist()
    (12.0, [[12.0]])
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent, self._watches = persistent, watch_accessed_variables
        self._recording: TapeRecording | None = None
        self._token: Token[Any] | None = None
        self._is_used = False

    def __enter__(self) -> Self:
        if self._token is not None:
            raise ValueError("Tape is already recording.")
        self._recording, self._is_used = TapeRecording(self._watches), False
        self._token = begin_recording(self._recording)
        return self

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        self._running().close()
        if token is not None:
            end_recording(token)

    def _running(self) -> TapeRecording:
        if self._recording is None:
            raise RuntimeError("a GradientTape records within its `with` block: enter it first")
        return self._recording

    def watch(self, tensor: Any) -> Any:
        """Let a variable or an array have a gradient; return the object to compute with.

        A NumPy array cannot be recorded in place. So, unlike in TensorFlow, use the result: ``x = tape.watch(x)``.
        """
        recording = self._running()

        def watched(x: Any) -> Any:
            if isinstance(x, AutoCastVariable):
                recording.watch(x)
                return x
            return x if type(x) is Recorded else recording.input(np.array(x, order="C"))

        return map_leaves(watched, tensor)

    def watched_variables(self) -> tuple[AutoCastVariable, ...]:
        """Return the variables that the block has read, in the order of the first read."""
        return tuple(self._running().variables.values())

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """Return d sum(targets * output_gradients) / d sources, in the structure of the sources.

        A gradient is None if the target does not depend on the source. An operation without a gradient between the two
        raises UngradedError. A tape that is not `persistent` returns gradients once.

        Parameters
        ----------
        target : array, or several in tuples, lists and dictionaries
            Results of the block.
        sources : variable or array, or several of them
            Arrays must be results of :meth:`watch`.
        output_gradients : array or several, optional
            Factors of the elements of the targets. Default: 1.
        """
        recording = self._running()
        if self._is_used and not self._persistent:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients (or jacobians)"
            )
        self._is_used = True
        targets = [x for x in leaves(target) if type(x) is Recorded and x.recording is recording]
        given = [None] * len(targets) if output_gradients is None else list(leaves(output_gradients))
        noted, readable = recording.noted_calls, recording.is_readable
        recording.noted_calls, recording.is_readable = None, False
        try:
            seeds = [(x, _seed(recording, x, d)) for x, d in zip(targets, given, strict=True)]
            places = [self._source(x) for x in leaves(sources)]
            found = gradients(recording, recording.calls, seeds, [x for x in places if x is not None])
        finally:
            recording.noted_calls, recording.is_readable = noted, readable
        values = iter(found)
        results = iter([None if place is None else _value(next(values)) for place in places])
        return map_leaves(lambda _: next(results), sources)

    def _source(self, x: Any) -> Recorded | None:
        """Return the recorded array of a source; None if the block did not read it."""
        if isinstance(x, AutoCastVariable):
            return self._running().value_of(x)
        return x if type(x) is Recorded and x.recording is self._recording else None


def _seed(recording: TapeRecording, target: Recorded, d: Any) -> Any:
    if d is None:
        return recording.call(filled, (target.shape, target.dtype, 1.0), {})
    return recording.input(np.array(np.broadcast_to(d, target.shape), target.dtype, order="C"))


def _value(x: Any) -> Array | None:
    return None if x is None else np.array(x.array)
