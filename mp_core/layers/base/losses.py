"""Losses that layers add: to the training step that runs, or to ``layer.losses`` of the latest call."""

from collections.abc import Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from mp_core.arrays.holding import current_recording, is_in_trial
from mp_core.arrays.recorded import Symbolic
from mp_core.layers.base.penalties import penalties_in
from mp_core.layers.base.state import VariableOwner, flat_layers
from mp_core.layers.parts import batch_size_of, require_whole_batch
from mp_core.utilities.tree import leaves

__all__ = ["LossOwner", "added_losses", "forget_added", "in_layer_call"]

added_losses: ContextVar[list[Any] | None] = ContextVar("mp_core.layers.losses", default=None)
"""The losses that layers have added in the training or evaluation step that runs in this thread or task."""

in_layer_call: ContextVar[bool] = ContextVar("mp_core.layers.in_layer_call", default=False)
"""Whether a layer's call is running in this thread or task, so that calls of other layers are nested."""

_added: "WeakKeyDictionary[VariableOwner, list[Any]]" = WeakKeyDictionary()
"""Layer -> losses it added. Not stored in an attribute: copies would include it, and plans would be invalidated."""


def _loss_store() -> "MutableMapping[VariableOwner, list[Any]] | None":
    """Return the mapping that stores added losses; None if they are not stored.

    A recording for gradients has a mapping of its own. In steps of a compiled model, :data:`added_losses` is used.
    """
    if is_in_trial() or added_losses.get() is not None:
        return None
    recording = current_recording()
    if recording is None:
        return _added
    return recording.added_losses if recording.noted_calls is not None else None


def forget_added(layer: VariableOwner, arguments: Any) -> None:
    """Drop the losses of earlier calls of a layer and those below it, unless `arguments` are symbolic."""
    kept = _loss_store()
    if kept and not any(isinstance(x, Symbolic) for x in leaves(arguments)):
        for part in flat_layers(layer):
            kept.pop(part, None)


class LossOwner(VariableOwner):
    """Base of layers: adds to the loss."""

    _may_add_loss: bool = True
    """Whether this layer or one below it may add to the loss; :meth:`build` sets it to False if none can."""

    def add_loss(self, loss: Any) -> None:
        """Add a number to the loss, from :meth:`call`: training adds it, and :attr:`losses` includes it.

        Parameters
        ----------
        loss : array or sequence of array
            Computed by operations of mp_core, so that it is recorded. If it is an array, its sum is added.
        """
        if added_losses.get() is not None:
            require_whole_batch(f"`add_loss` of layer '{self.name}'")
        self._add(leaves(loss))

    def _add(self, losses: Iterable[Any]) -> None:
        """Add losses to those of the running step, or of the latest call."""
        found = added_losses.get()
        if found is None:
            kept = _loss_store()
            if kept is not None:
                kept.setdefault(self, []).extend(losses)
        else:
            found.extend(losses)

    def _add_activity(self, outputs: Any) -> None:
        """Add the activity regularizer of the outputs, divided by the number of samples."""
        regularizer = self._penalties.get("activity_regularizer")
        if regularizer is not None and (added_losses.get() is not None or _loss_store() is not None):
            for x in leaves(outputs):
                has_samples = x.ndim and x.shape[0]
                self._add([regularizer(x) * (1.0 / batch_size_of(x)) if has_samples else regularizer(x)])

    @property
    def activity_regularizer(self) -> Any:
        """The function of the outputs whose result is added to the loss, or None.

        Examples
        --------
        >>> import mp_core as mp
        >>> mp.layers.Dense(2, activity_regularizer="l2").activity_regularizer.get_config()
        {'l2': 0.01}
        """
        return self._penalties.get("activity_regularizer")

    @activity_regularizer.setter
    def activity_regularizer(self, value: Any) -> None:
        others = {name: each for name, each in self._penalties.items() if name != "activity_regularizer"}
        found = penalties_in({"activity_regularizer": value}, ())
        self._penalties, self._may_add_loss = others | found, True

    @property
    def losses(self) -> list[Any]:
        """The losses of this layer and those below it.

        First the losses that the latest outermost call added, by :meth:`add_loss` or an activity regularizer; then the
        results of the regularizers of trainable variables. While a function is recorded for gradients, the arrays are
        recorded ones.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> layer = mp.layers.ReLU(activity_regularizer=mp.ops.sum)
        >>> outputs = layer(np.float32([[1.0, 2.0], [-1.0, 3.0]]))
        >>> [float(loss) for loss in layer.losses]  # for each of two samples
        [3.0]
        """
        kept = _loss_store()
        added = [loss for part in flat_layers(self) for loss in kept.get(part, [])] if kept else []
        return [*added, *super().losses]
