"""What a model counts over batches, by Keras' names."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mp_core.training.compiled import TrainingState

__all__ = ["Measured", "training_state"]


class Measured:
    """The part of a trainer that counts the loss and the metrics."""

    _state: "TrainingState | None" = None

    @property
    def _training_state(self) -> "TrainingState":
        raise NotImplementedError

    def _has_own(self, method: str) -> bool:
        raise NotImplementedError

    @property
    def metrics(self) -> list[Any]:
        """What is averaged over batches.

        That is: the loss, those of outputs if there are several, the metrics of :meth:`compile` as one with the name
        ``"compile_metrics"``, and the metrics among the attributes of the model and its layers. A step of one's own
        updates the one with the name ``"loss"`` with the loss, and the others with targets and outputs.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> class Own(mp.Sequential):
        ...     def train_step(self, data):
        ...         x, y = data
        ...         def loss_of(x, y):
        ...             outputs = self(x, training=True)
        ...             return self.compute_loss(x, y, outputs), outputs
        ...         variables = self.trainable_variables
        ...         (loss, outputs), gradients = mp.value_and_grad(loss_of, variables, has_aux=True)(x, y)
        ...         self.optimizer.apply(gradients, variables)
        ...         for metric in self.metrics:
        ...             if metric.name == "loss":
        ...                 metric.update_state(loss)
        ...             else:
        ...                 metric.update_state(y, outputs)
        ...         return self.get_metrics_result()
        >>> model = Own([mp.Input((2,)), mp.layers.Dense(1)])
        >>> model.compile("sgd", "mse", metrics=["mae"])
        >>> list(model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0).history)
        ['loss', 'mae']
        """
        from mp_core.training.logs import metrics_in  # inference does not load it

        if self._state is None:
            return list[Any](metrics_in(self))
        self._state.invalidate_metrics()
        return self._state.trackers

    @property
    def metrics_names(self) -> list[str]:
        """The names of :attr:`metrics` in the logs."""
        return list(self.get_metrics_result())

    def direction_of(self, name: str) -> str | None:
        """Return "up" or "down", as values of a name in the logs get better; None if what is compiled says nothing."""
        return self._training_state.direction_of(name)

    def reset_metrics(self) -> None:
        """Begin the means of the loss and the metrics anew."""
        for metric in self._averaged():
            metric.reset_state()

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Take a batch into the metrics of :meth:`compile`, and return the means so far.

        A subclass may count with metrics of its own here, which are among its attributes.

        Parameters
        ----------
        x : array, or list or dict of them, or None
            The inputs, from which masks are made; None: there is no mask.
        y, y_pred, sample_weight : array, or list or dict of them
            Targets, outputs and weights, arranged as the outputs; weights may be None.
        """
        self._training_state.update_metrics(x, y, y_pred, sample_weight)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return the means of all :attr:`metrics` by their names."""
        from mp_core.training.logs import results_of  # inference does not load it

        return results_of(self._averaged())

    def _averaged(self) -> list[Any]:
        """Return what :attr:`metrics` has, without looking at all layers again unless a subclass has its own."""
        if self._state is None or self._has_own("metrics"):
            return self.metrics
        return self._state.trackers


def training_state(model: Measured) -> "TrainingState":
    """Return what ``compile`` made of a model.

    Raises
    ------
    ValueError
        The model is not compiled.
    """
    return model._training_state
