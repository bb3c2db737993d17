"""Parts of a batch on the workers of a dask cluster: the gradients, and so the weights, that one process computes."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Lock
from typing import Any

from mp_core.arrays import Array
from mp_core.autocast import AutoCastVariable
from mp_core.plans.backward import assign_arrays
from mp_core.training.compiled import TrainingState
from mp_core.training.resume import state_variables
from mp_core.utilities.arguments import integer
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.dask"):
    from distributed import CancelledError, Client

__all__ = ["Workers"]

_MOST_WAITING = 30
"""Seconds to wait for a first worker."""
_PAUSE = 0.5
"""Seconds until the scheduler knows of a worker that has died."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """A model as it was when the workers got it."""

    name: str
    model: bytes


@dataclass(frozen=True, slots=True)
class _Values:
    """What variables hold during a step: those that have changed since the setup, by their numbers."""

    step: int
    arrays: dict[int, Array]


class Workers:
    """Computes the passes of batches on a cluster: the argument `cluster` of ``fit``.

    The workers must have the same version of mp_core, and the modules that define layers and losses of your own.
    Each gets the model once, the weights that have changed at every step, and for each pass its samples. What it
    returns is added up in the order of the passes, so the weights have the bits that one process gives them, for any
    number of workers. The process that calls ``fit`` computes the last pass, and moves the weights.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    retries : int
        How often a pass is tried again that failed for another reason than its samples: because its worker has died,
        for example.

    Raises
    ------
    TypeError, ValueError
        `client` is no Client, or `retries` is no integer from 0 on.

    Examples
    --------
    >>> from distributed import Client  # doctest: +SKIP
    >>> cluster = Workers(Client("scheduler:8786"))  # doctest: +SKIP
    >>> model.fit(x, y, batch_size=8192, passes=8, cluster=cluster)  # doctest: +SKIP
    """

    def __init__(self, client: Client, retries: int = 2) -> None:
        if not isinstance(client, Client):
            raise TypeError(f"`client` must be a distributed.Client; received {type(client).__name__}")
        if integer(retries, "retries") < 0:
            raise ValueError(f"`retries` must be at least 0; received {retries}")
        self._client, self._retries = client, retries

    def job(self, state: TrainingState) -> "Job":
        """Return what computes the passes of one ``fit`` of a model that is compiled."""
        return Job(state, self._client, self._retries)


class Job:
    """Computes the passes of one ``fit``."""

    def __init__(self, state: TrainingState, client: Client, retries: int) -> None:
        self._training_state, self._client, self._retries, self._step = state, client, retries, 0
        self._variables: list[tuple[AutoCastVariable, object]] = []  # with their stamps when the workers got the model
        self._stamps: list[object] = []  # when the workers got the values of this step
        self._given: list[Any] = []  # the model, and the values of this step
        self._held: list[Any] = []  # the same, as futures

    def __call__(self, method: Callable[..., Any], pieces: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield what a method of ``model.in_parts()`` gives for several arguments, in their order.

        Raises
        ------
        Exception
            That of a pass which has failed, for its samples or as often as is allowed.
        """
        self._send()
        futures = [self._submitted(method.__name__, piece) for piece in pieces]
        try:
            for number, piece in enumerate(pieces):
                yield self._result(futures, number, method.__name__, piece)
        finally:
            self._client.cancel(futures)

    def _send(self) -> None:
        """Bring the model to the workers, at the first step, and what variables hold in this one."""
        if not self._given:
            self._variables = [(variable, variable.stamp) for variable in state_variables(self._training_state.model)]
            self._given = [_Setup(token_hex(8), pickle.dumps(self._training_state))]
            self._held = [self._scattered(self._given[0])]
        stamps = [variable.stamp for variable, _ in self._variables]
        if stamps == self._stamps:
            return
        self._step, self._stamps = self._step + 1, stamps
        numbered = enumerate(self._variables)
        arrays = {number: v.numpy() for number, (v, stamp) in numbered if v.stamp is not stamp}
        self._given[1:] = [_Values(self._step, arrays)]
        self._held[1:] = [self._scattered(self._given[1])]

    def _submitted(self, method: str, piece: tuple[Any, ...]) -> Any:
        key = f"mp_core-{method}-{token_hex(4)}"
        return self._client.submit(_computed, *self._held, method, piece, key=key, pure=False)

    def _result(self, futures: list[Any], number: int, method: str, piece: tuple[Any, ...]) -> Any:
        """Return what a pass gives, computed again if its worker has died."""
        for _ in range(self._retries):
            try:
                return futures[number].result()
            except (TypeError, ValueError, IndexError):
                raise
            except (Exception, CancelledError):
                pairs = zip(self._given, self._held, strict=True)
                self._held = [future if future.status == "finished" else self._scattered(x) for x, future in pairs]
                futures[number] = self._submitted(method, piece)
        return futures[number].result()

    def _scattered(self, value: Any) -> Any:
        """Return a value that is on every worker; it is sent again if one of them dies meanwhile."""
        for _ in range(self._retries):
            self._client.wait_for_workers(1, timeout=_MOST_WAITING)
            with suppress(OSError):
                return self._client.scatter(value, broadcast=True, hash=False)
            time.sleep(_PAUSE)
        return self._client.scatter(value, broadcast=True, hash=False)


# ---- what a worker does


@dataclass
class _Opened:
    """A model on a worker."""

    name: str
    parts: Any
    variables: list[AutoCastVariable]
    step: int = -1
    lock: Lock = field(default_factory=Lock)


_opening = Lock()
_opened: list[_Opened] = []
"""The model that this process has opened last."""


def _computed(setup: _Setup, values: _Values, method: str, piece: tuple[Any, ...]) -> Any:
    """Compute a part of a batch with the values that variables have in its step; a process computes one at a time."""
    opened = _open(setup)
    with opened.lock:
        if opened.step != values.step:
            opened.step = -1  # if it is interrupted, the next pass begins anew
            assign_arrays((opened.variables[number], array.copy()) for number, array in values.arrays.items())
            opened.step = values.step
        return getattr(opened.parts, method)(*piece)


def _open(setup: _Setup) -> _Opened:
    with _opening:
        if not _opened or _opened[0].name != setup.name:
            state = pickle.loads(setup.model)
            _opened[:] = [_Opened(setup.name, state.model.in_parts(), state_variables(state.model))]
        return _opened[0]
