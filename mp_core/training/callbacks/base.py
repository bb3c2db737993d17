"""The base of the callbacks, and those of a few lines."""

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
"""The names of the methods; those of epochs and batches get a number first, and all of them the logs."""

COUNT: Rule = lambda x: type(x) is int and x >= 0, "an integer of at least 0"
BEST: Rule = lambda x: x is None or is_number(x), "a number or None"
NUMBERS: Rule = lambda x: isinstance(x, list) and all(map(is_number, x)), "a list of numbers"

ALIASES = {f"on_train_batch_{when}": f"on_batch_{when}" for when in ("begin", "end")}
"""Methods -> Keras' short names for them."""


class Callback:
    """What a subclass overrides is called at that point of training or evaluation.

    A callback with a state of its own tells it, so that training which was interrupted goes on with it
    (:class:`BackupAndRestore`, :meth:`~mp_core.training.trainer.Trainer.save_training_state`). The simple way is to
    name its attributes in `state_attributes`; the other one is to override :meth:`get_state` and :meth:`set_state`.
    When training goes on, :meth:`on_train_begin` is called first, in the middle of an epoch :meth:`on_epoch_begin` too,
    then :meth:`set_state`.

    Attributes
    ----------
    model : Model
    params : dict
        ``epochs``, ``steps`` and ``verbose``.
    state_attributes : tuple of str
        A class attribute: which attributes are the state.
    runs_last : bool
        A class attribute: whether it is called after all callbacks for which this is False. What saves the state of
        training needs it, because it must see what the others have done.

    Examples
    --------
    >>> class Losses(Callback):
    ...     def on_train_batch_end(self, batch, logs=None):
    ...         print(batch, logs["loss"])
    >>> class Steps(Callback):
    ...     state_attributes = ("steps",)  # an interrupted training goes on with this count
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
    """Attribute of the state -> what it may be."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.model: Any = None

    def get_state(self) -> dict[str, Any]:
        """Return the state: the values of `state_attributes`.

        Returns
        -------
        dict of str
            Of numbers, strings, None, arrays, and lists and dictionaries of them. If it is empty, there is no state.
        """
        return {name: getattr(self, name) for name in self.state_attributes}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take up a state that :meth:`get_state` returned, perhaps in another process; tuples have become lists.

        Raises
        ------
        ValueError
            It has other names, or values that are not possible.
        """
        if state.keys() != set(self.state_attributes):
            raise ValueError(f"`state` must have {', '.join(self.state_attributes)}; received {', '.join(state)}")
        self._check_state(state)
        vars(self).update(state)

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError for a value that breaks its rule."""
        for name, (is_possible, expected) in self._state_rules.items():
            if not is_possible(state[name]):
                raise ValueError(f"`{name}` of `state` must be {expected}; received {state[name]!r:.200}")

    def set_params(self, params: dict[str, Any]) -> None:
        """Take what :meth:`fit` was called with."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Take the model."""
        self.model = model

    def on_train_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before the first epoch."""

    def on_train_end(self, logs: Logs = None) -> None:
        """Do nothing: called after the last epoch, with its logs."""

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Do nothing: called before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Do nothing: called after an epoch and its validation, with the means of both."""

    def on_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: Keras' short name of :meth:`on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: Keras' short name of :meth:`on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Call :meth:`on_batch_begin`: called before a batch."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Call :meth:`on_batch_end`: called after a batch, with the means so far."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before an evaluation."""

    def on_test_end(self, logs: Logs = None) -> None:
        """Do nothing: called after an evaluation, with its means."""

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called before a batch of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called after a batch of an evaluation, with the means so far."""

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Do nothing: called before a prediction."""

    def on_predict_end(self, logs: Logs = None) -> None:
        """Do nothing: called after a prediction."""

    def on_predict_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called before a batch of a prediction."""

    def on_predict_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Do nothing: called after a batch of a prediction."""


class History(Callback):
    """The logs of all epochs: ``fit`` returns it.

    Attributes
    ----------
    epoch : list of int
        Of the last call of ``fit``, with those before an interruption.
    history : dict of list
        The values of each name in the logs.

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
        """Begin to count epochs anew."""
        self.epoch = []

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Take in the logs of an epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """Functions in the places of the methods.

    Parameters
    ----------
    **functions : callable
        By the names of the methods, such as ``on_epoch_end=lambda epoch, logs: ...``. A function may take fewer
        arguments than the method: it gets the first ones. A name that does not begin with ``on_`` becomes an attribute.

    Raises
    ------
    TypeError
        There is no such method, or a value is no function that can be called with its arguments.

    Examples
    --------
    >>> LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs)).on_epoch_end(3, {"loss": 0.5})
    3 {'loss': 0.5}
    >>> LambdaCallback(on_epoch_end=print).on_epoch_end(3, {"loss": 0.5})
    3 {'loss': 0.5}
    """

    def __init__(self, **functions: Callable[..., Any] | None) -> None:
        super().__init__()
        names = (*EVENTS, *ALIASES.values())
        for name, function in functions.items():
            if name.startswith("on_") and (name not in names or not (callable(function) or function is None)):
                raise TypeError(f"a function by one of the names {', '.join(names)}; received {name}={function!r}")
            if function is not None:
                setattr(self, name, _fitted(function, name) if name in names else function)


def _fitted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that may be called with the arguments of a method, if it takes fewer.

    Raises
    ------
    TypeError
        It needs others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that does not tell
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
    """Whether a function may be called with these arguments."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
