"""``tf.GradientTape``: gradients of what a block of Python computes with layers, operations and arithmetic."""

from contextvars import Token
from typing import Any, Self

import numpy as np

from mp_core.arrays import Array
from mp_core.arrays.holding import begin_recording, end_recording
from mp_core.arrays.recorded import Recorded
from mp_core.autocast import AutoCastVariable
from mp_core.core.convert import filled
from mp_core.gradients.eager import TapeRecording
from mp_core.gradients.reverse import gradients
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["GradientTape"]


class GradientTape:
    """A ``with`` block whose operations are noted, as ``tf.GradientTape`` does.

    Operations run as they are called. Results inside the block are arrays of a recording: operations, arithmetic and
    views take them, and what a gradient cannot pass (NumPy's functions, ``float(x)``) raises an UnseenError there.
    After the block their elements can be read. A function of variables that is called often is faster by
    :func:`mp_core.value_and_grad`, which keeps a plan.

    Parameters
    ----------
    persistent : bool
        Whether :meth:`gradient` may be called more than once.
    watch_accessed_variables : bool
        Whether every trainable variable that is read in the block has a gradient. Otherwise those that
        :meth:`watch` is given.

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
        """Let a variable or an array have a gradient.

        An array of NumPy cannot be told apart from its elements, so unlike TensorFlow's method this one returns the
        array to compute with: ``x = tape.watch(x)``.
        """
        recording = self._running()

        def watched(x: Any) -> Any:
            if isinstance(x, AutoCastVariable):
                recording.watch(x)
                return x
            return x if type(x) is Recorded else recording.input(np.array(x, order="C"))

        return map_leaves(watched, tensor)

    def watched_variables(self) -> tuple[AutoCastVariable, ...]:
        """Return the variables that have been read, in the order of their first reading."""
        return tuple(self._running().variables.values())

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """Return the gradients of the sum of the elements of targets with respect to sources.

        Parameters
        ----------
        target : array, or several in tuples, lists and dictionaries
            What the block has computed.
        sources : variable or array, or several of them
            Arrays are those that :meth:`watch` has returned.
        output_gradients : array or several, optional
            What elements of the targets are multiplied by in this sum. Default: 1.

        Returns
        -------
        ndarray or None, or several in the structure of `sources`
            None: the target does not depend on it.

        Raises
        ------
        RuntimeError
            The tape is not persistent and was used before.
        UngradedError
            An operation between them has no gradient.
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
        """Return the array of the recording that a source is, None if it was not read in the block."""
        if isinstance(x, AutoCastVariable):
            return self._running().value_of(x)
        return x if type(x) is Recorded and x.recording is self._recording else None


def _seed(recording: TapeRecording, target: Recorded, d: Any) -> Any:
    if d is None:
        return recording.call(filled, (target.shape, target.dtype, 1.0), {})
    return recording.input(np.array(np.broadcast_to(d, target.shape), target.dtype, order="C"))


def _value(x: Any) -> Array | None:
    return None if x is None else np.array(x.array)
