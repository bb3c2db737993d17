"""SwapEMAWeights: evaluate a model with the moving averages of its weights."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mp_core.training.callbacks.base import Callback, Logs, Rule
from mp_core.utilities.arguments import boolean

__all__ = ["SwapEMAWeights"]


class SwapEMAWeights(Callback):
    """Evaluate a model with the moving averages of its weights; the optimizer must have ``use_ema=True``.

    Weights and averages are exchanged before an evaluation, a validation or a prediction, and exchanged back after it.

    Parameters
    ----------
    swap_on_epoch : bool
        Whether to exchange them also from the end of an epoch to the begin of the next: for callbacks such as
        :class:`ModelCheckpoint`, which must come after this one in the list.

    Examples
    --------
    >>> import numpy as np
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((1,)), mp.layers.Dense(1, use_bias=False)])
    >>> model.compile(mp.optimizers.SGD(0.1, use_ema=True), "mse")
    >>> x = np.ones((4, 1), np.float32)
    >>> history = model.fit(x, x, validation_data=(x, x), epochs=2, verbose=0, callbacks=[SwapEMAWeights()])
    >>> history.history["val_loss"][-1] == model.evaluate(x, x, verbose=0)  # the averages are the weights in the end
    True
    """

    _state_rules: ClassVar[Mapping[str, Rule]] = {"swapped": (lambda x: type(x) is bool, "true or false")}

    def __init__(self, swap_on_epoch: bool = False) -> None:
        super().__init__()
        self.swap_on_epoch = boolean(swap_on_epoch, "swap_on_epoch")

    def get_state(self) -> dict[str, Any]:
        return {"swapped": self._optimizer().averages_swapped}

    def set_state(self, state: dict[str, Any]) -> None:
        self._check_state(state)
        self._optimizer().averages_swapped = state["swapped"]

    def on_train_begin(self, logs: Logs = None) -> None:
        """Exchange weights and averages back if an evaluation was interrupted."""
        self._swap(False)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._swap(False)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.swap_on_epoch:
            self._swap(True)

    def on_test_begin(self, logs: Logs = None) -> None:
        self._swap(True)

    def on_test_end(self, logs: Logs = None) -> None:
        self._swap(False)

    def on_predict_begin(self, logs: Logs = None) -> None:
        self._swap(True)

    def on_predict_end(self, logs: Logs = None) -> None:
        self._swap(False)

    def _swap(self, swapped: bool) -> None:
        optimizer = self._optimizer()
        if optimizer.averages_swapped != swapped:
            optimizer.swap_averages()

    def _optimizer(self) -> Any:
        """Return the optimizer that has the averages: the inner one of a loss scale optimizer."""
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if not getattr(optimizer, "use_ema", False):
            raise ValueError(
                "SwapEMAWeights needs an optimizer with `use_ema=True`; the model trains with "
                f"{type(optimizer).__name__} without it"
            )
        return optimizer
