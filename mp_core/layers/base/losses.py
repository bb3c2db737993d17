"""What layers add to the loss in calls outside of training steps: ``layer.losses`` has that of the latest call."""

from collections.abc import Iterable, MutableMapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from mp_core.arrays.holding import current_recording, is_in_trial
from mp_core.arrays.recorded import Symbolic
from mp_core.layers.base.penalties import penalties_in
from mp_core.layers.base.state import VariableOwner
from mp_core.layers.parts import refuse_part, samples_of_batch
from mp_core.utilities.tree import leaves

__all__ = ["LossOwner", "added_losses", "entered", "forget_added"]

added_losses: ContextVar[list[Any] | None] = ContextVar("mp_core.layers.losses", default=None)
"""What layers have added to the loss by ``add_loss`` in a step of training or evaluation in this thread or task."""

entered: ContextVar[bool] = ContextVar("mp_core.layers.entered", default=False)
"""Whether a layer is called in this thread or task: the call of another one is no outermost call then."""

_added: "WeakKeyDictionary[VariableOwner, list[Any]]" = WeakKeyDictionary()
"""Layer -> what it added itself. No attribute of the layer: plans depend on these, and copies have them."""


def _kept_in() -> "MutableMapping[VariableOwner, list[Any]] | None":
    """Return where to keep what layers add: a recording that finds gradients has its own; None: nowhere here.

    Steps of a compiled model have lists of their own: :data:`added_losses`.
    """
    if is_in_trial() or added_losses.get() is not None:
        return None
    recording = current_recording()
    if recording is None:
        return _added
    return recording.added_losses if recording.noted_calls is not None else None


def forget_added(layer: VariableOwner, arguments: Any) -> None:
    """Forget what a layer, and those below it, have added before a call, unless its arguments are symbolic."""
    kept = _kept_in()
    if kept and not any(isinstance(x, Symbolic) for x in leaves(arguments)):
        for part in layer.flatten():
            kept.pop(part, None)


class LossOwner(VariableOwner):
    """What adds to the loss, beside the variables that it owns."""

    _may_add: bool = True
    """Whether this layer or one below it may add to the loss. One that is built knows when it does not."""

    def add_loss(self, loss: Any) -> None:
        """Add a number to the loss, from :meth:`call`: a step of training counts it, and :attr:`losses` has it.

        Parameters
        ----------
        loss : array or sequence of array
            Of operations of mp_core, so that it is recorded; of an array the sum counts.
        """
        if added_losses.get() is not None:
            refuse_part(f"`add_loss` of layer '{self.name}'")
        self._add(leaves(loss))

    def _add(self, losses: Iterable[Any]) -> None:
        """Add losses to those of the step under way, or of the latest call."""
        found = added_losses.get()
        if found is None:
            kept = _kept_in()
            if kept is not None:
                kept.setdefault(self, []).extend(losses)
        else:
            found.extend(losses)

    def _add_activity(self, outputs: Any) -> None:
        """Add what the activity regularizer says of the outputs, for each sample."""
        regularizer = self._penalties.get("activity_regularizer")
        if regularizer is not None and (added_losses.get() is not None or _kept_in() is not None):
            for x in leaves(outputs):
                has_samples = x.ndim and x.shape[0]
                self._add([regularizer(x) * (1.0 / samples_of_batch(x)) if has_samples else regularizer(x)])

    @property
    def activity_regularizer(self) -> Any:
        """What is added to the loss for the outputs, a function of them; None: nothing.

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
        self._penalties, self._may_add = others | found, True

    @property
    def losses(self) -> list[Any]:
        """What this layer and those below it add to the loss.

        That is what they added in the latest call, by :meth:`add_loss` or an activity regularizer, then what the
        regularizers of their trainable variables return. Each outermost call begins anew. While a function is recorded
        for gradients, the arrays are those of the recording.

        Examples
        --------
        >>> import numpy as np
        >>> import mp_core as mp
        >>> layer = mp.layers.ReLU(activity_regularizer=mp.ops.sum)
        >>> outputs = layer(np.float32([[1.0, 2.0], [-1.0, 3.0]]))
        >>> [float(loss) for loss in layer.losses]  # for each of two samples
        [3.0]
        """
        kept = _kept_in()
        added = [loss for part in self.flatten() for loss in kept.get(part, [])] if kept else []
        return [*added, *super().losses]
