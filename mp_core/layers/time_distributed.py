"""A layer that is applied to every time step."""

from typing import Any, Self

import numpy as np

from mp_core import ops
from mp_core.arrays import Array
from mp_core.dtype_policies.lookup import check_depth, class_and_config, known_classes
from mp_core.layers import activations
from mp_core.layers.building import takes
from mp_core.layers.layer import Layer
from mp_core.layers.masks import as_keep
from mp_core.layers.sequential import Sequential, add_face, layer_classes
from mp_core.layers.serialization import serialize_keras_object
from mp_core.layers.shapes import Shape

__all__ = ["TimeDistributed"]

_IN_INFERENCE = frozenset({
    "AlphaDropout", "BatchNormalization", "Dropout", "GaussianDropout", "GaussianNoise", "SpatialDropout1D",
    "SpatialDropout2D",
})  # fmt: skip
"""Layers that mix the samples of a batch in training only, or draw for all of them at once."""
_ALWAYS = frozenset({
    "Activation", "AveragePooling1D", "AveragePooling2D", "Conv1D", "Conv2D", "Cropping1D", "Cropping2D", "Dense",
    "DepthwiseConv1D", "DepthwiseConv2D", "ELU", "Embedding", "Flatten", "Functional", "GlobalAveragePooling1D",
    "GlobalAveragePooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GroupNormalization", "InputLayer",
    "LayerNormalization", "LeakyReLU", "MaxPooling1D", "MaxPooling2D", "RMSNormalization", "ReLU", "Reshape",
    "SeparableConv1D", "SeparableConv2D", "Sequential", "Softmax", "TimeDistributed", "UpSampling1D", "UpSampling2D",
    "ZeroPadding1D", "ZeroPadding2D",
})  # fmt: skip
"""Layers that compute each sample of a batch by itself, if none of their axes is that of the samples."""


class TimeDistributed(Layer):
    """A layer, applied to every time step: to each index of axis 1, with the same weights.

    Of the usual layers the steps of all samples are one batch. Where a layer mixes the samples of its batch, as
    BatchNormalization does in training, or may do so, as those of users, each step is a batch of its own.

    Parameters
    ----------
    layer : Layer
        Of one array; a model too.
    **kwargs
        Those of :class:`Layer`.

    Raises
    ------
    ValueError
        `layer` is no layer.

    Examples
    --------
    >>> from mp_core.layers import Conv2D, GlobalMaxPooling2D
    >>> frames = np.ones((2, 5, 8, 8, 3), np.float32)
    >>> TimeDistributed(Sequential([Conv2D(4, 3), GlobalMaxPooling2D()]))(frames).shape
    (2, 5, 4)
    """

    _arrays = ("inputs",)
    _told = ("layer",)
    supports_masking = True

    def __init__(self, layer: Layer, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layer, Layer):
            raise ValueError(f"`layer` must be a Layer; received {layer!r} (of type {type(layer).__name__})")
        self.layer = layer

    def build(self, input_shape: Shape) -> None:
        """Build the layer for one step of inputs of this shape."""
        self._check_steps(input_shape)
        if not self.layer.built:
            self.layer.build((input_shape[0], *input_shape[2:]))

    def call(self, inputs: Array, training: bool | None = None, mask: Any = None) -> Array:
        """Return the outputs, shape (batch, steps, ...).

        Parameters
        ----------
        inputs : ndarray, shape (batch, steps, ...)
        training : bool, optional
        mask : array-like of bool, shape (batch, steps, ...), optional
            The layer gets the part of each step, if its ``call`` has an argument ``mask``.
        """
        self._check_steps(inputs.shape)
        keep = None if mask is None else self._checked(mask, inputs)
        batch, steps = inputs.shape[:2]
        if steps and not all(_keeps_apart(part, bool(training)) for part in self.layer.flatten()):
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
        masks = {"mask": mask} if mask is not None and takes(type(self.layer).call, "mask") else {}
        outputs: Any = self.layer(x, training=training, **masks)
        if not isinstance(outputs, np.ndarray):
            raise TypeError(f"`layer` of '{self.name}' must return one array; received {outputs!r:.200}")
        return outputs

    def _checked(self, mask: Any, inputs: Array) -> Array:
        """Return a mask as booleans."""
        keep = as_keep(mask)
        if keep.shape[:2] != inputs.shape[:2]:
            raise ValueError(f"`mask` must have shape {(*inputs.shape[:2], '...')}; received {keep.shape}")
        return keep

    def _shape_after(self, shape: Shape) -> Shape | None:
        if len(shape) < 3:
            return None
        found = self.layer.compute_output_shape((shape[0], *shape[2:]))
        return (found[0], shape[1], *found[1:]) if isinstance(found, tuple) else None

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with that of the layer."""
        config = super().get_config() | {"layer": serialize_keras_object(self.layer)}
        config.pop("forms", None)  # the layer says its own
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the layer of a configuration.

        Raises
        ------
        ValueError
            There is no ``layer``, or its ``class_name`` is neither a layer of mp_core, nor registered, nor in scope.
        """
        check_depth(config)
        if not isinstance(config, dict) or not isinstance(config.get("layer"), dict | Layer):
            raise ValueError(f"the config of a TimeDistributed must have a `layer`; received {config!r:.200}")
        inner = config["layer"]
        if isinstance(inner, dict):
            found, own = class_and_config(inner, known_classes(Layer, layer_classes(inner)), "layer")
            inner = found.from_config(own)
        return super().from_config(config | {"layer": inner})


def _keeps_apart(part: Any, training: bool) -> bool:
    """Whether what a layer returns for a sample depends on no other one of its batch, as far as is known."""
    name, function = type(part).__name__, getattr(part, "activation", None)
    is_ours = type(part).__module__.startswith("mp_core.")
    is_named = function is None or isinstance(activations.serialize(function), str)
    axes = np.atleast_1d(getattr(part, "axis", -1))
    is_known = is_ours and (name in _ALWAYS or (name in _IN_INFERENCE and not training))
    return is_known and is_named and bool(np.all((axes == -1) | (axes > 0)))


add_face(Sequential._face, (*layer_classes(None).values(), TimeDistributed))
