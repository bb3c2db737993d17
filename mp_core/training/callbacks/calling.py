"""CallbackList, which calls the methods of all callbacks."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from mp_core.core.changes import Contents, undone_if_it_fails
from mp_core.training.callbacks.base import ALIASES, EVENTS, Callback, History
from mp_core.training.callbacks.progress import ProgbarLogger
from mp_core.utilities.tree import leaves

__all__ = ["CallbackList"]


class CallbackList:
    """Call the methods of callbacks in their order; callbacks with `runs_last` after all others.

    Parameters
    ----------
    callbacks : Callback or nested sequence of Callback, optional
    add_history, add_progbar : bool
        Whether to add a :class:`History` and a progress bar, unless the list has one.
    model : Model
    **params
        Become the attribute ``params`` of the callbacks.

    Examples
    --------
    >>> from mp_core.callbacks import LambdaCallback
    >>> noisy = LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs["loss"]))
    >>> callbacks = CallbackList([noisy, History()])
    >>> callbacks.on_epoch_end(3, {"loss": 0.5})
    3 0.5
    >>> callbacks.listens("on_epoch_end"), callbacks.listens("on_train_batch_end")
    (True, False)
    """

    def __init__(
        self,
        callbacks: Any = None,
        add_history: bool = False,
        add_progbar: bool = False,
        model: Any = None,
        **params: Any,
    ) -> None:
        given = list(leaves(() if callbacks is None else callbacks))
        for callback in given:
            names = ("set_model", "set_params", *EVENTS)
            if isinstance(callback, type) or not all(callable(getattr(callback, name, None)) for name in names):
                raise TypeError(f"`callbacks` must be a list of Callback; received {callback!r} in it")
        self.callbacks: list[Any] = given
        if add_progbar:
            self._add(ProgbarLogger)
        if add_history:
            model.history = self._add(History)
        self.callbacks.sort(key=lambda callback: bool(getattr(callback, "runs_last", False)))
        self.params = params
        for callback in self.callbacks:
            callback.set_model(model)
            callback.set_params(params)
        self._methods = {name: _methods_that_act(self.callbacks, name) for name in EVENTS}

    def listens(self, name: str) -> bool:
        """Whether a callback overrides the method of this name."""
        return bool(self._methods[name])

    def get_states(self) -> list[list[Any]]:
        """Return class name and state of each callback that has a state, in their order."""
        return [[type(callback).__name__, state] for callback, state in self._states()]

    def set_states(self, states: Sequence[Sequence[Any]]) -> None:
        """Restore the states of :meth:`get_states`; several callbacks of one class are matched by their order.

        A callback without a stored state starts from scratch, and a state without a callback is dropped, both with a
        warning. There is no warning if `states` is empty, because the state was saved outside of ``fit``. If a callback
        rejects its state (ValueError), all callbacks keep their current states.
        """
        attributes = [vars(callback) for callback in self.callbacks]
        held = [x for part in attributes for x in part.values() if isinstance(x, list | dict | set)]
        undone_if_it_fails(Contents([*attributes, *held]), self._set_states, states)

    def _set_states(self, states: Sequence[Sequence[Any]]) -> None:
        found = _by_name_and_number((name, state) for name, state in states)
        for (name, number), callback in _by_name_and_number((type(x).__name__, x) for x, _ in self._states()).items():
            state = found.pop((name, number), None)
            if state is None and states:
                warnings.warn(f"the training state has no state of {name}, which starts from scratch", stacklevel=3)
            if state is None:
                continue
            try:
                callback.set_state(state)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"the state of training does not fit callback {name}: {error}") from error
        for name, _ in found:
            warnings.warn(f"the training state has a state of {name}, which is not among the callbacks", stacklevel=3)

    def _states(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        for callback in self.callbacks:
            state = callback.get_state() if hasattr(callback, "get_state") else {}
            if state:
                yield callback, state

    def _add(self, kind: Any) -> Any:
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        self.callbacks.append(kind())
        return self.callbacks[-1]

    def __getattr__(self, name: str) -> Any:
        called = self.__dict__.get("_methods", {}).get(name)
        if called is None:
            raise AttributeError(f"CallbackList has no attribute {name!r}")

        count = 2 if "epoch" in name or "batch" in name else 1

        def call(*args: Any, **kwargs: Any) -> None:
            if len(args) + len(kwargs) < count:
                args = (*args, {})  # no logs
            for method in called:
                method(*args, **kwargs)

        setattr(self, name, call)
        return call


def _methods_that_act(callbacks: Sequence[Any], name: str) -> list[Any]:
    """Return the methods of this name that callbacks override."""
    names = [name, ALIASES[name]] if name in ALIASES else [name]
    return [
        getattr(callback, name)
        for callback in callbacks
        if any(
            getattr(getattr(callback, each, None), "__func__", None) is not getattr(Callback, each) for each in names
        )
    ]


def _by_name_and_number(pairs: Any) -> dict[tuple[str, int], Any]:
    """Return (name, index among the values of this name) -> value."""
    counts: Counter[str] = Counter()
    found = {}
    for name, value in pairs:
        found[name, counts[name]] = value
        counts[name] += 1
    return found
