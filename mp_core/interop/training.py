"""Compute parts of a batch on the workers of a dask cluster; gradients and weights equal those of one process."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from threading import Lock
from typing import Any

from mp_core.arrays import Array
from mp_core.layers.plans.backward import assign_arrays
from mp_core.policies.autocast import AutoCastVariable
from mp_core.training.resume import state_variables
from mp_core.training.state import TrainingState
from mp_core.utilities.arguments import integer
from mp_core.utilities.extras import needed_by

with needed_by("mp_core.interop.dask"):
    from distributed import CancelledError, Client

__all__ = ["Workers"]

_MOST_WAITING = 30
"""Seconds to wait for the first worker."""
_MOST_SENDING = 120
"""Seconds to wait until a value is on all workers."""
_PAUSE = 0.5
"""Seconds to wait until the scheduler notices that a worker has died."""


@dataclass(frozen=True, slots=True)
class _Setup:
    """A pickled model, as the workers got it at the first step."""

    name: str
    model: bytes


@dataclass(frozen=True, slots=True)
class _Values:
    """The values in a step of those variables that have changed since the setup, by index."""

    step: int
    arrays: dict[int, Array]


class Workers:
    """Computes the passes of batches on a cluster; use it as the argument `cluster` of ``fit``.

    The workers need the same version of mp_core, and the modules of your own layers and losses. Each worker gets the
    model once, the changed weights at each step, and the samples of each pass. Results are added in the order of the
    passes, so the weights have the bits of a single process, for any number of workers. The process that calls ``fit``
    computes the last pass and updates the weights.

    Parameters
    ----------
    client : distributed.Client
        A client of the cluster.
    retries : int
        How often to retry a pass that failed for another reason than its samples, for example a lost worker.

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
        """Return an object that computes the passes of one ``fit`` of a compiled model."""
        return Job(state, self._client, self._retries)


class Job:
    """Computes the passes of one ``fit``."""

    def __init__(self, state: TrainingState, client: Client, retries: int) -> None:
        self._training_state, self._client, self._retries, self._step = state, client, retries, 0
        self._variables: list[tuple[AutoCastVariable, object]] = []  # with their stamps when the model was sent
        self._stamps: list[object] = []  # stamps when the values of this step were sent
        self._sent: list[Any] = []  # the setup, and the values of this step
        self._futures: list[Any] = []  # futures of `_sent` on the workers

    def __call__(self, method: Callable[..., Any], pieces: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the results of a method of ``model.in_parts()`` for each of `pieces`, or raise the error of one."""
        self._send()
        futures = [self._submit(method.__name__, piece) for piece in pieces]
        try:
            for number, piece in enumerate(pieces):
                yield self._result(futures, number, method.__name__, piece)
        finally:
            self._client.cancel(futures)

    def _send(self) -> None:
        """Send the model to the workers at the first step, and the values of variables at each step."""
        if not self._sent:
            self._variables = [(variable, variable.stamp) for variable in state_variables(self._training_state.model)]
            self._sent = [_Setup(token_hex(8), pickle.dumps(self._training_state))]
            self._futures = [self._scatter(self._sent[0])]
        stamps = [variable.stamp for variable, _ in self._variables]
        if stamps == self._stamps:
            return
        self._step, self._stamps = self._step + 1, stamps
        numbered = enumerate(self._variables)
        arrays = {number: v.numpy() for number, (v, stamp) in numbered if v.stamp is not stamp}
        self._sent[1:] = [_Values(self._step, arrays)]
        self._futures[1:] = [self._scatter(self._sent[1])]

    def _submit(self, method: str, piece: tuple[Any, ...]) -> Any:
        key = f"mp_core-{method}-{token_hex(4)}"
        return self._client.submit(_run_pass, *self._futures, method, piece, key=key, pure=False)

    def _result(self, futures: list[Any], number: int, method: str, piece: tuple[Any, ...]) -> Any:
        """Return the result of a pass; compute the pass again if its worker died."""
        for _ in range(self._retries):
            try:
                return futures[number].result()
            except (TypeError, ValueError, IndexError):
                raise
            except (Exception, CancelledError):
                pairs = zip(self._sent, self._futures, strict=True)
                self._futures = [future if future.status == "finished" else self._scatter(x) for x, future in pairs]
                futures[number] = self._submit(method, piece)
        return futures[number].result()

    def _scatter(self, value: Any) -> Any:
        """Send a value to every worker; return its future. Try again if a worker dies meanwhile."""
        for _ in range(self._retries):
            self._client.wait_for_workers(1, timeout=_MOST_WAITING)
            with suppress(OSError):
                return self._scatter_once(value)
            time.sleep(_PAUSE)
        return self._scatter_once(value)

    def _scatter_once(self, value: Any) -> Any:
        """Send a value; raise OSError, of which TimeoutError is one, if a worker dies: the call may wait for it."""
        scatter = partial(self._client.scatter, value, broadcast=True, hash=False, asynchronous=True)
        return self._client.sync(scatter, callback_timeout=_MOST_SENDING)


# ---- on a worker


@dataclass
class _WorkerModel:
    name: str
    parts: Any
    variables: list[AutoCastVariable]
    step: int = -1
    lock: Lock = field(default_factory=Lock)


_cache_lock = Lock()
_cache: list[_WorkerModel] = []
"""The last model of this process."""


def _run_pass(setup: _Setup, values: _Values, method: str, piece: tuple[Any, ...]) -> Any:
    """Compute a part of a batch with the values of its step. A process computes one part at a time."""
    model = _model_of(setup)
    with model.lock:
        if model.step != values.step:
            model.step = -1  # after an interrupt, the next pass assigns again
            assign_arrays((model.variables[number], array.copy()) for number, array in values.arrays.items())
            model.step = values.step
        return getattr(model.parts, method)(*piece)


def _model_of(setup: _Setup) -> _WorkerModel:
    with _cache_lock:
        if not _cache or _cache[0].name != setup.name:
            state = pickle.loads(setup.model)
            _cache[:] = [_WorkerModel(setup.name, state.model.in_parts(), state_variables(state.model))]
        return _cache[0]
