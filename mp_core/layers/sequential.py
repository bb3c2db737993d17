"""A stack of layers."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from mp_core.core.replay import awake
from mp_core.dtype_policies.lookup import check_depth, class_and_config, custom_object_scope, known_classes
from mp_core.layers import (
    adaptive_pooling,
    augmentation,
    dot_attention,
    dropping,
    encoding,
    merging,
    normalization,
    pointwise,
    pooling,
    reshaping,
    resizing,
    scaling,
)
from mp_core.layers.attention import MultiHeadAttention
from mp_core.layers.batch_normalization import BatchNormalization
from mp_core.layers.building import takes
from mp_core.layers.convolution import Conv1D, Conv2D
from mp_core.layers.dense import Dense
from mp_core.layers.depthwise import DepthwiseConv1D, DepthwiseConv2D
from mp_core.layers.einsum_dense import EinsumDense
from mp_core.layers.embedding import Embedding
from mp_core.layers.ends import Ends, WithEnds, claim
from mp_core.layers.group_normalization import GroupNormalization
from mp_core.layers.input_layer import InputLayer
from mp_core.layers.layer import Layer
from mp_core.layers.masks import mask_after
from mp_core.layers.operation import Operation
from mp_core.layers.prelu import PReLU
from mp_core.layers.separable import SeparableConv1D, SeparableConv2D
from mp_core.layers.serialization import serialize_keras_object
from mp_core.layers.shapes import Shape

__all__ = ["Sequential", "add_face", "is_input", "layer_classes"]

_CLASSES = (
    BatchNormalization, Conv1D, Conv2D, Dense, DepthwiseConv1D, DepthwiseConv2D, EinsumDense, Embedding,
    GroupNormalization, InputLayer, MultiHeadAttention, Operation, PReLU, SeparableConv1D, SeparableConv2D,
    *(getattr(module, name) for module in (
        adaptive_pooling, augmentation, dot_attention, dropping, encoding, merging, normalization, pointwise, pooling,
        reshaping, resizing, scaling,
    ) for name in module.__all__ if name != "Merge"),
)  # fmt: skip


class Sequential(WithEnds, Layer):
    """Layers, each of which gets the outputs of the one before.

    As in Keras, inputs are cast to the dtype of the :class:`InputLayer`, if the first layer is one, and by each layer
    as its own policy says. The stack itself casts no inputs.

    Parameters
    ----------
    layers : sequence of Layer, optional
        An :class:`InputLayer` may come first; it becomes :attr:`input_layer` and is not among :attr:`layers`.
    **kwargs
        Those of :class:`Layer`. The policy is that of variables of a subclass, and says the dtype of the outputs if it
        names one; every layer keeps its own.

    Examples
    --------
    >>> model = Sequential([Dense(4, activation="relu"), Dense(2)])
    >>> model(np.ones((3, 5), np.float32)).shape, len(model.get_weights())
    ((3, 2), 4)
    """

    _face = "keras.layers"
    """The module whose layers a configuration means that names no other face."""
    supports_masking = True
    input_layer: InputLayer | None = None
    """What inputs are cast by before the first layer gets them."""

    def __init__(self, layers: Sequence[Layer] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(layers, Iterable | None):
            raise TypeError(f"`layers` must be a sequence of layers or None; received {layers!r}")
        self.layers: list[Layer] = []
        for layer in layers or ():
            self.add(layer)

    def add(self, layer: Layer) -> None:
        """Append a layer.

        Raises
        ------
        TypeError
            `layer` is no layer.
        ValueError
            It is an :class:`InputLayer`, and not the first layer.
        """
        if not isinstance(layer, Layer):
            raise TypeError(f"`layer` must be a Layer; received {layer!r} (of type {type(layer).__name__})")
        vars(self).pop("_ends", None)
        if not isinstance(layer, InputLayer):
            self.layers.append(layer)
        elif self.layers or self.input_layer is not None:
            raise ValueError(f"`layer` must not be an InputLayer unless it is the first; received {layer!r}")
        else:
            self.input_layer = layer

    def _apply_policy(self) -> None:
        super()._apply_policy()
        self._casting = False, self.compute_dtype

    def _taken(self, inputs: Any) -> Any:
        """Return inputs as the first layer gets them."""
        return inputs if self.input_layer is None else self.input_layer.taken(inputs, self._rows_read)

    def whole(self, inputs: Any) -> Any:
        """Return the inputs; floats become integers if the first layer reads integers."""
        return inputs if self.input_layer is None else self.input_layer.whole(inputs, self._rows_read)

    @property
    def _rows_read(self) -> int | None:
        """The rows of the embedding that reads the inputs; None: another layer does."""
        first = self.layers[0] if self.layers else None
        return first.input_dim if isinstance(first, Embedding) else None

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
        """Build every layer, by running zeros of this shape, or of lengths up to 48, through them if one is not built.

        Parameters
        ----------
        input_shape : tuple of (int or None), optional
            Default: that of the :attr:`input_layer`.
        """
        if self.input_layer is not None and not self.input_layer.built:
            self.input_layer.build(self.input_layer.batch_shape)
        if not self.layers or not all(layer.built for layer in self.layers):
            self._build_layers(input_shape)
        claim(self)

    def _build_layers(self, input_shape: tuple[int | None, ...] | None) -> None:
        if input_shape is None and self.input_layer is not None:
            input_shape = self.input_layer.batch_shape
        if input_shape is None:
            raise ValueError(f"`input_shape` must be a shape: '{self.name}' has no InputLayer; received None")
        if None not in input_shape[1:]:
            self.call(np.zeros([length or 1 for length in input_shape], self.compute_dtype))
            return
        from mp_core.layers.symbolic import Input, called_with

        first = self if self.input_layer is None else self.input_layer
        x = Input(batch_shape=input_shape, dtype=first.compute_dtype, name=self.name)
        for layer in self.layers:  # each runs zeros of its own: those of one run would shrink from layer to layer
            _, x = called_with(layer, (x,))

    def _find_ends(self) -> Ends:
        from mp_core.layers.symbolic import ends_of_stack

        return ends_of_stack(self)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the outputs of the last layer.

        Parameters
        ----------
        inputs : ndarray
        training : bool, optional
        mask : array-like, optional
            That of the inputs. A layer gets the mask of its inputs if its ``call`` has an argument ``mask``; what its
            :meth:`compute_mask` makes of it goes to the next one, if it :attr:`supports_masking`.
        """
        with awake():
            if self.input_layer is not None:
                inputs = self._taken(inputs)
            for layer in self.layers:
                masks = {"mask": mask} if mask is not None and takes(type(layer).call, "mask") else {}
                outputs = layer(inputs, training=training, **masks)
                inputs, mask = outputs, mask_after(layer, inputs, mask)
        return inputs

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the outputs; the layers run as far as one of them makes a mask from its inputs.

        Examples
        --------
        >>> model = Sequential([Embedding(5, 2, mask_zero=True), Dense(2)])
        >>> model.compute_mask(np.array([[3, 1, 0]]))
        array([[ True,  True, False]])
        """
        mask, makers = previous_mask, [type(layer).compute_mask is not Layer.compute_mask for layer in self.layers]
        inputs = self._taken(inputs)
        for index, layer in enumerate(self.layers):
            after = mask_after(layer, inputs, mask)
            if any(makers[index + 1 :]):
                masks = {"mask": mask} if mask is not None and takes(type(layer).call, "mask") else {}
                inputs = layer(inputs, **masks)
            mask = after
        return mask

    def _shape_after(self, shape: Shape) -> Any:
        start = None if self.input_layer is None else self.input_layer.batch_shape
        if start is not None and not (len(start) == len(shape) and all(map(_fits, start, shape))):
            return None
        for layer in self.layers:
            shape = layer.compute_output_shape(shape)
        return shape

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with those of the layers."""
        first = [] if self.input_layer is None else [self.input_layer]
        config = super().get_config() | {"layers": [serialize_keras_object(layer) for layer in [*first, *self.layers]]}
        config.pop("forms", None)  # the layers say their own
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, type[Layer]] | None = None) -> Self:
        """Return the stack of a configuration; layers are of the face that their ``module`` names.

        An ``InputLayer`` is left out of a face that has none.

        Raises
        ------
        ValueError
            There are no ``layers``, or a ``class_name`` is neither a layer of mp_core, nor registered, nor in
            `custom_objects`.
        """
        check_depth(config)
        if not isinstance(config, dict) or not isinstance(config.get("layers"), list | tuple):
            raise ValueError(f"a Sequential's config must have a list of `layers`; received {config!r}")
        has_inputs = InputLayer.__name__ in layer_classes(None, cls._face)
        entries = [entry for entry in config["layers"] if has_inputs or not is_input(entry)]
        with custom_object_scope(custom_objects):
            classes = [known_classes(Layer, layer_classes(entry, cls._face)) for entry in entries]
            found = [class_and_config(*pair, "layer") for pair in zip(entries, classes, strict=True)]
            layers = [layer.from_config(own) for layer, own in found]
        arguments = {key: value for key, value in config.items() if key != "build_input_shape"}
        return super().from_config(arguments | {"layers": layers})

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.built:
            claim(self)

    def __repr__(self) -> str:
        return super().__repr__().replace(", policy=", f", layers={len(self.layers)}, policy=", 1)


def _fits(length: int | None, other: int | None) -> bool:
    return length is None or other is None or length == other


def is_input(entry: Any) -> bool:
    """Whether an entry of ``layers`` is that of an :class:`InputLayer`."""
    return isinstance(entry, dict) and entry.get("class_name") == InputLayer.__name__


_faces: dict[str, dict[str, type[Layer]]] = {}


def add_face(module: str, classes: Iterable[type[Layer]]) -> None:
    """Make configurations with this ``module`` mean these layers."""
    _faces[module] = {layer.__name__: layer for layer in classes}


add_face(Sequential._face, (*_CLASSES, Sequential))


def layer_classes(config: Any, face: str = Sequential._face) -> dict[str, type[Layer]]:
    """Return name -> class of the layers of the face that a layer's configuration names: of `face` unless another.

    Raises
    ------
    ValueError
        The face is tf.keras', and :mod:`mp_core.tf_keras` is not imported.
    """
    module = config.get("module") if isinstance(config, dict) else None
    if module == "tf_keras.layers" and module not in _faces:
        raise ValueError("The configuration has layers of tf_keras: import mp_core.tf_keras to load it")
    return _faces[module if module == "tf_keras.layers" else face]
