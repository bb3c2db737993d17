"""The list of the callbacks, which calls them."""

from collections.abc import Sequence
from typing import Any

from mp_core.callbacks.base import EVENTS, Callback, History
from mp_core.callbacks.progress import ProgbarLogger

__all__ = ["CallbackList"]


class CallbackList:
    """Callbacks, each of which is called at each point.

    Parameters
    ----------
    callbacks : Callback or sequence of Callback, optional
    add_history, add_progbar : bool
        Whether to add a :class:`History` and a progress bar, unless there are some.
    model : Model
    **params
        What callbacks find in their ``params``.

    Raises
    ------
    TypeError
        Something else is among them.

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
        given = [callbacks] if isinstance(callbacks, Callback) else list(callbacks or ())
        for callback in given:
            names = ("set_model", "set_params", *EVENTS)
            if isinstance(callback, type) or not all(callable(getattr(callback, name, None)) for name in names):
                raise TypeError(f"`callbacks` must be a list of Callback; received {callback!r} in it")
        self.callbacks: list[Any] = given
        if add_progbar:
            self._add(ProgbarLogger)
        if add_history:
            model.history = self._add(History)
        self.params = params
        for callback in self.callbacks:
            callback.set_model(model)
            callback.set_params(params)
        self._called = {name: _overridden(self.callbacks, name) for name in EVENTS}

    def listens(self, name: str) -> bool:
        """Whether a callback does something in the method of this name."""
        return bool(self._called[name])

    def _add(self, kind: Any) -> Any:
        for callback in self.callbacks:
            if isinstance(callback, kind):
                return callback
        self.callbacks.append(kind())
        return self.callbacks[-1]

    def __getattr__(self, name: str) -> Any:
        called = self.__dict__.get("_called", {}).get(name)
        if called is None:
            raise AttributeError(f"CallbackList has no attribute {name!r}")

        def call(*args: Any) -> None:
            for method in called:
                method(*args)

        setattr(self, name, call)
        return call


def _overridden(callbacks: Sequence[Any], name: str) -> list[Any]:
    """Return the methods of this name that do something."""
    methods = [getattr(callback, name) for callback in callbacks]
    return [method for method in methods if getattr(method, "__func__", None) is not getattr(Callback, name)]
