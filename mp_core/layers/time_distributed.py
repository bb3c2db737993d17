"""TimeDistributed: apply a layer to every time step."""

from typing import Any

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers import activations
from mp_core.layers.base.building import has_argument
from mp_core.layers.base.call import samples_are_independent
from mp_core.layers.base.state import flat_layers
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep
from mp_core.layers.shapes import Shape
from mp_core.layers.wrapping import Wrapping

__all__ = ["TimeDistributed"]


class TimeDistributed(Wrapping):
    """Apply a layer to every time step, each index of axis 1, with the same weights.

    Usually the layer is called once with the steps of all samples as one batch. It is called once per step if it mixes
    the samples of a batch, as BatchNormalization does in training, or might do so, as a user's layer.

    Parameters
    ----------
    layer : Layer
        A layer or model with one input.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> from mp_core.layers import Conv2D, GlobalMaxPooling2D, Sequential
    >>> frames = np.ones((2, 5, 8, 8, 3), np.float32)
    >>> TimeDistributed(Sequential([Conv2D(4, 3), GlobalMaxPooling2D()]))(frames).shape
    (2, 5, 4)
    """

    _sample_independence = "always"
    _arrays = ("inputs",)
    supports_masking = True

    def build(self, input_shape: Shape) -> None:
        self._check_steps(input_shape)
        if not self.layer.is_placed:
            self.layer.build((input_shape[0], *input_shape[2:]))

    def call(self, inputs: Array, training: bool | None = None, mask: Any = None) -> Array:
        """Return the outputs, shape (batch, steps, ...).

        Parameters
        ----------
        inputs : ndarray, shape (batch, steps, ...)
        training : bool, optional
        mask : array-like of bool, shape (batch, steps, ...), optional
            The layer gets the mask of each step, if its ``call`` has an argument ``mask``.
        """
        self._check_steps(inputs.shape)
        keep = None if mask is None else self._checked(mask, inputs)
        batch, steps = inputs.shape[:2]
        if steps and not all(_keeps_apart(part, bool(training)) for part in flat_layers(self.layer)):
            each = [self._returned(inputs[:, i], None if keep is None else keep[:, i], training) for i in range(steps)]
            return ops.stack(each, axis=1)
        if keep is not None:
            keep = keep.reshape(batch * steps, *keep.shape[2:])
        outputs = self._returned(inputs.reshape(batch * steps, *inputs.shape[2:]), keep, training)
        return outputs.reshape(batch, steps, *outputs.shape[1:])

    def _check_steps(self, shape: Shape) -> None:
        if len(shape) < 3:
            raise ValueError(f"`inputs` of layer '{self.name}' must have at least 3 axes; received shape {shape}")

    def _returned(self, x: Array, mask: Array | None, training: bool | None) -> Array:
        masks = {"mask": mask} if mask is not None and has_argument(type(self.layer).call, "mask") else {}
        outputs: Any = self.layer(x, training=training, **masks)
        if not isinstance(outputs, np.ndarray):
            raise TypeError(f"`layer` of '{self.name}' must return one array; received {outputs!r:.200}")
        return outputs

    def _checked(self, mask: Any, inputs: Array) -> Array:
        """Return the mask as booleans; raise ValueError if its shape is wrong."""
        keep = as_keep(mask)
        if keep.shape[:2] != inputs.shape[:2]:
            raise ValueError(f"`mask` must have shape {(*inputs.shape[:2], '...')}; received {keep.shape}")
        return keep

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) < 3:
            return None
        found = self.layer.compute_output_shape((shape[0], *shape[2:]))
        return (found[0], shape[1], *found[1:]) if isinstance(found, tuple) else None


def _keeps_apart(part: Layer, training: bool) -> bool:
    """Return whether outputs of a layer for a sample are known to be independent of the rest of the batch."""
    function = getattr(part, "activation", None)
    is_named = function is None or isinstance(activations.serialize(function), str)
    axes = np.atleast_1d(getattr(part, "axis", -1))
    return samples_are_independent(part, training) and is_named and bool(np.all((axes == -1) | (axes > 0)))
