"""Means of the loss and the metrics over batches: the methods and properties that Keras' models have for them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mp_core.training.state import TrainingState

__all__ = ["Measured", "training_state"]


class Measured:
    """The part of a trainer that averages the loss and the metrics."""

    _state: "TrainingState | None" = None

    @property
    def _training_state(self) -> "TrainingState":
        raise NotImplementedError

    def _has_own(self, method: str) -> bool:
        raise NotImplementedError

    @property
    def metrics(self) -> list[Any]:
        """The means over batches.

        - the loss, named ``"loss"``
        - the loss of each output, if there are several
        - all metrics of :meth:`compile` as one metric, named ``"compile_metrics"``
        - the metrics among the attributes of the model and its layers

        If you override :meth:`train_step`, update ``"loss"`` with the loss, and the others with targets and outputs.

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
        """Return the direction in which a value of the logs improves, "up" or "down"; None if unknown."""
        return self._training_state.direction_of(name)

    def reset_metrics(self) -> None:
        """Reset the means of the loss and the metrics."""
        for metric in self._averaged():
            metric.reset_state()

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Update the metrics of :meth:`compile` with a batch, and return the means so far.

        A subclass may override this to update further metrics among its attributes.

        Parameters
        ----------
        x : array, or list or dict of them, or None
            The inputs; masks are computed from them. None: no mask.
        y, y_pred, sample_weight : array, or list or dict of them
            Targets, outputs and weights, arranged as the outputs; weights may be None.
        """
        self._training_state.update_metrics(x, y, y_pred, sample_weight)
        return self.get_metrics_result()

    def get_metrics_result(self) -> dict[str, Any]:
        """Return name -> mean of all :attr:`metrics`."""
        from mp_core.training.logs import results_of  # inference does not load it

        return results_of(self._averaged())

    def _averaged(self) -> list[Any]:
        """Return :attr:`metrics` without searching all layers again, unless a subclass overrides the property."""
        if self._state is None or self._has_own("metrics"):
            return self.metrics
        return self._state.trackers


def training_state(model: Measured) -> "TrainingState":
    """Return the state of a model's training, which ``compile`` makes; raise ValueError without it."""
    return model._training_state
