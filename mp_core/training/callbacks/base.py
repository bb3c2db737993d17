"""The base of the callbacks, History and LambdaCallback."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from mp_core.utilities.arguments import Rule, is_number

__all__ = ["ALIASES", "BEST", "COUNT", "EVENTS", "NUMBERS", "Callback", "History", "LambdaCallback", "Rule"]

Logs = Mapping[str, Any] | None

EVENTS = tuple(
    f"on_{what}_{when}"
    for what in ("train", "epoch", "train_batch", "test", "test_batch", "predict", "predict_batch")
    for when in ("begin", "end")
)
"""The names of the methods. Methods of epochs and batches are called with (number, logs), the others with (logs)."""

COUNT: Rule = lambda x: type(x) is int and x >= 0, "an integer of at least 0"
BEST: Rule = lambda x: x is None or is_number(x), "a number or None"
NUMBERS: Rule = lambda x: isinstance(x, list) and all(map(is_number, x)), "a list of numbers"

ALIASES = {f"on_train_batch_{when}": f"on_batch_{when}" for when in ("begin", "end")}
"""Method -> Keras' short name."""


class Callback:
    """The base of the callbacks: a subclass overrides the methods of the events that it handles; others do nothing.

    If a callback has a state, an interrupted training can restore it (:class:`BackupAndRestore`,
    :meth:`~mp_core.training.trainer.Trainer.save_training_state`). List the attributes in `state_attributes`, or
    override :meth:`get_state` and :meth:`set_state`. A resumed training calls :meth:`on_train_begin`, in mid-epoch
    :meth:`on_epoch_begin` too, then :meth:`set_state`.

    Attributes
    ----------
    model : Model
    params : dict
        ``epochs``, ``steps`` and ``verbose``.
    state_attributes : tuple of str
        A class attribute: names of the attributes that are the state.
    runs_last : bool
        A class attribute: whether to call this callback after all callbacks with False. A callback that saves the state
        of training needs it, because it must see the changes of the others.

    Examples
    --------
    >>> class Steps(Callback):
    ...     state_attributes = ("steps",)  # an interrupted training restores this count
    ...     steps = 0
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         self.steps += 1
    >>> counter = Steps()
    >>> counter.on_train_batch_end(0)
    >>> counter.get_state()
    {'steps': 1}
    """

    state_attributes: ClassVar[tuple[str, ...]] = ()
    runs_last: ClassVar[bool] = False
    _state_rules: ClassVar[Mapping[str, Rule]] = {}
    """Attribute of the state -> check of its value, and description of allowed values."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.model: Any = None

    def get_state(self) -> dict[str, Any]:
        """Return the state: names and values of `state_attributes`; empty: no state.

        Values may be numbers, strings, None, arrays, and lists and dictionaries of them.
        """
        return {name: getattr(self, name) for name in self.state_attributes}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`get_state` returned; tuples have become lists. Others raise ValueError."""
        if state.keys() != set(self.state_attributes):
            raise ValueError(f"`state` must have {', '.join(self.state_attributes)}; received {', '.join(state)}")
        self._check_state(state)
        vars(self).update(state)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if a value violates its rule."""
        for name, (is_possible, expected) in self._state_rules.items():
            if not is_possible(state[name]):
                raise ValueError(f"`{name}` of `state` must be {expected}; received {state[name]!r:.200}")

    def set_params(self, params: dict[str, Any]) -> None:
        """Store the parameters of :meth:`fit`."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Store the model."""
        self.model = model

    def on_train_begin(self, logs: Logs = None) -> None:
        """Act before the first epoch."""

    def on_train_end(self, logs: Logs = None) -> None:
        """Act after the last epoch, with its logs."""

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Act before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Act after an epoch and its validation, with the means of both."""

    def on_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Act as :meth:`on_train_batch_begin`, whose short name in Keras this is."""

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Act as :meth:`on_train_batch_end`, whose short name in Keras this is."""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Act before a batch; call :meth:`on_batch_begin`."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Act after a batch, with the means so far; call :meth:`on_batch_end`."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Act before an evaluation."""

    def on_test_end(self, logs: Logs = None) -> None:
        """Act after an evaluation, with its means."""

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Act before a batch of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Act after a batch of an evaluation, with the means so far."""

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Act before a prediction."""

    def on_predict_end(self, logs: Logs = None) -> None:
        """Act after a prediction."""

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Act before a batch of a prediction."""

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Act after a batch of a prediction."""


class History(Callback):
    """The logs of all epochs; ``fit`` returns it.

    Attributes
    ----------
    epoch : list of int
        The epochs of the last call of ``fit``, including those before an interruption.
    history : dict of list
        Name in the logs -> value of each epoch.

    Examples
    --------
    >>> history = History()
    >>> history.on_epoch_end(0, {"loss": 0.5})
    >>> history.epoch, history.history
    ([0], {'loss': [0.5]})
    """

    state_attributes = ("epoch", "history")
    _state_rules: ClassVar[Mapping[str, Rule]] = {
        "epoch": (lambda x: isinstance(x, list) and all(COUNT[0](n) for n in x), "a list of integers"),
        "history": (lambda x: isinstance(x, dict) and all(isinstance(n, list) for n in x.values()), "lists by names"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.epoch: list[int] = []
        self.history: dict[str, list[Any]] = {}

    def on_train_begin(self, logs: Logs = None) -> None:
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """A callback made of functions.

    Parameters
    ----------
    **functions : callable
        Method name -> function, such as ``on_epoch_end=lambda epoch, logs: ...``. A function that takes fewer arguments
        than the method gets the first ones. A name that does not start with ``on_`` becomes an attribute.

    Examples
    --------
    >>> LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs)).on_epoch_end(3, {"loss": 0.5})
    3 {'loss': 0.5}
    """

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        super().__init__()
        names = (*EVENTS, *ALIASES.values())
        for name, function in functions.items():
            if name.startswith("on_") and (name not in names or not (callable(function) or function is None)):
                raise TypeError(
                    f"an argument on_... must be a function and one of {', '.join(names)}; received {name}={function!r}"
                )
            if function is not None:
                setattr(self, name, _with_fewer_arguments(function, name) if name in names else function)


def _with_fewer_arguments(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that accepts the arguments of a method, and passes only as many as `function` takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # the function has no signature
        return function
    wanted = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
    if _binds(signature, *wanted):
        return function
    if _binds(signature, *wanted[:-1], **{wanted[-1]: None}):
        return lambda *args: function(*args[:-1], **{wanted[-1]: args[-1]})
    for count in range(len(wanted) - 1, -1, -1):
        if _binds(signature, *wanted[:count]):
            return lambda *args, count=count: function(*args[:count])
    raise TypeError(f"`{name}` must be callable with ({', '.join(wanted)}); received a function of {signature}")


def _binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    """Whether a signature accepts these arguments."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
