"""Keras' Sequential: a model that is a stack of layers."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from mp_core.arrays.holding import run_trial
from mp_core.core.changes import undone_if_it_fails
from mp_core.core.replay import awake
from mp_core.layers.base.building import has_argument
from mp_core.layers.base.contents import contents_of
from mp_core.layers.base.ends import Ends, WithEnds, claim, replace_claim
from mp_core.layers.base.symbolic import symbolic_call
from mp_core.layers.embedding import Embedding
from mp_core.layers.input_layer import Input, InputLayer, tensor_of
from mp_core.layers.layer import Layer
from mp_core.layers.masks import mask_after, needs_inputs
from mp_core.layers.registry import layer_classes
from mp_core.layers.shapes import Shape, map_shapes
from mp_core.layers.symbols import KerasTensor
from mp_core.training.graph import Node, count_of_outputs
from mp_core.training.models import Model
from mp_core.utilities.registry import check_depth, class_and_config, custom_object_scope, known_classes
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Sequential"]


class Sequential(WithEnds, Model):
    """A stack of layers: the output of each layer is the input of the next.

    As in Keras, inputs are cast to the dtype of the :class:`InputLayer`, if there is one, and each layer casts its
    inputs by its own policy. The stack itself does not cast.

    Parameters
    ----------
    layers : sequence of (Layer or KerasTensor), or one of them, optional
        If the first is a result of :func:`Input`, or a layer with `input_shape` or `input_dim`, all layers are built at
        once, otherwise by the first call. The input becomes :attr:`input_layer`, and is not in :attr:`layers`.
    name : str, optional
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`. The policy applies to variables that a subclass adds, and casts the
        outputs if it has an output dtype; every layer keeps its own policy.

    Examples
    --------
    >>> from mp_core.layers import Dense, Input
    >>> model = Sequential([Input((4,)), Dense(8, activation="relu")])
    >>> model.add(Dense(2))
    >>> model(np.ones((3, 4), np.float32)).shape, model.count_params()
    ((3, 2), 58)
    """

    _sample_independence = "always"
    supports_masking = True
    is_made_of_layers = True
    input_layer: InputLayer | None = None
    """Casts the inputs before the first layer."""

    def __init__(self, layers: Any = None, name: str | None = None, **kwargs: Any) -> None:
        Layer.__init__(self, name=name, **kwargs)
        given = [layers] if isinstance(layers, Layer | KerasTensor) else layers
        if not isinstance(given, Iterable | None):
            raise TypeError(f"`layers` must be a sequence of layers or None; received {layers!r}")
        self.layers: list[Layer] = []
        for layer in given or ():
            self.append_unbuilt(layer)
        self._rebuild()

    def append_unbuilt(self, layer: Layer | KerasTensor) -> None:
        """Append a layer like :meth:`add`, but build nothing."""
        if isinstance(layer, KerasTensor):
            layer = layer.call.layer
            if not isinstance(layer, InputLayer):
                raise TypeError(f"`layer` must be a Layer, or what Input returns; received an output of {layer!r}")
        if not isinstance(layer, Layer):
            raise TypeError(f"`layer` must be a Layer; received {layer!r} (of type {type(layer).__name__})")
        if any(other.name == layer.name and other is not layer for other in self.layers):
            raise ValueError(f"`layer` must have a unique name: '{self.name}' has a '{layer.name}' already")
        shape = getattr(layer, "_shape_of_inputs", None)
        is_first = self.input_layer is None and not self.layers
        if shape is not None and is_first:
            self.input_layer = InputLayer(batch_shape=shape)
        if not isinstance(layer, InputLayer):
            self.layers.append(layer)
        elif is_first:
            self.input_layer = layer
        else:
            raise ValueError(f"`layer` must not be an InputLayer unless it is the first; received {layer!r}")

    def add(self, layer: Layer | KerasTensor) -> None:
        """Append a layer with a new name; a result of :func:`Input` must be the first."""
        undone_if_it_fails(contents_of([self]), self._append_and_build, layer)

    def _append_and_build(self, layer: Layer | KerasTensor) -> None:
        self.append_unbuilt(layer)
        self._rebuild()

    def pop(self) -> Layer:
        """Remove the last layer, and return it; without layers raise IndexError."""
        if not self.layers:
            raise IndexError(f"'{self.name}' has no layer to pop")
        layer: Layer = self.layers.pop()
        self._rebuild()
        return layer

    def _rebuild(self) -> None:
        """Build the changed stack if its input shape is known. The training state is dropped: compile again."""
        self.built, self._path = False, None
        vars(self).pop("_ends", None)
        self._uncompile()
        if self.input_layer is not None and self.layers:
            self.build()
        elif len(self.layers) > 1 and isinstance(self.layers[0], WithEnds) and hasattr(self.layers[0], "input"):
            self.build(map_leaves(lambda x: x.shape, self.layers[0].input))

    def _apply_policy(self) -> None:
        super()._apply_policy()
        self._casting = False, self.compute_dtype

    def _input_as_cast(self, inputs: Any) -> Any:
        """Return the inputs, cast by the input layer if there is one."""
        return inputs if self.input_layer is None else self.input_layer.fitted(inputs, self._rows_read)

    def _with_integer_inputs(self, x: Any) -> Any:
        return x if self.input_layer is None else self.input_layer.with_integers(x, self._rows_read)

    @property
    def _rows_read(self) -> int | None:
        """The number of rows of the embedding that reads the inputs; None if the first layer is not an embedding."""
        first = self.layers[0] if self.layers else None
        return first.input_dim if isinstance(first, Embedding) else None

    def build(self, input_shape: Any = None) -> None:
        """Build every layer by calling it with zeros, unless all layers are built.

        The default of `input_shape` is the shape of the :attr:`input_layer`. Unknown lengths (None) are tried with
        lengths up to 48. Pass several shapes if the first layer takes several arrays.
        """
        if not self.layers:
            raise ValueError(f"'{self.name}' has no layers: `add` one first")
        if self.built and self.input_layer is not None and input_shape is not None:
            self._check_shape(self.input_layer.batch_shape, input_shape)
        if self.input_layer is not None and not self.input_layer.built:
            self.input_layer.build(self.input_layer.batch_shape)
        if not all(layer.is_placed for layer in self.layers):
            self._build_layers(input_shape)
        claim(self)

    def _check_shape(self, own: Shape, given: Any) -> None:
        if not (len(own) == len(given) and all(map(_length_fits, own, given))):
            raise ValueError(f"`input_shape` of '{self.name}' must be {own}, the shape of its Input; received {given}")

    def _build_layers(self, input_shape: Any) -> None:
        if input_shape is None and self.input_layer is not None:
            input_shape = self.input_layer.batch_shape
        if input_shape is None:
            raise ValueError(f"`input_shape` must be a shape: '{self.name}' has no InputLayer; received None")
        if not any(leaves(map_shapes(lambda shape: None in shape[1:], input_shape))):
            zeros = map_shapes(lambda shape: np.zeros([n or 1 for n in shape], self.compute_dtype), input_shape)
            run_trial(self.call, zeros)
            return
        first = self if self.input_layer is None else self.input_layer
        x = map_shapes(lambda shape: Input(batch_shape=shape, dtype=first.compute_dtype, name=self.name), input_shape)
        for layer in self.layers:  # each gets zeros of its own: in one run, lengths shrink
            _, x = symbolic_call(layer, (x,))

    def _symbolic_calls(self) -> list[tuple[Layer, Any]]:
        if self.input_layer is None:
            return []
        x, found = tensor_of(self.input_layer), []
        for layer in self.layers:
            x = layer(x)
            found.append((layer, x))
        return found

    def count_of_outputs(self) -> int | None:
        if type(self).call is not Sequential.call:
            return None
        return count_of_outputs(self.layers[-1], Node((), {})) if self.layers else 1

    def _find_ends(self) -> Ends:
        start = self._symbolic_input()
        x: Any = start
        for layer in self.layers:
            call, x = symbolic_call(layer, (x,))
            replace_claim(self, layer, call)
        return Ends(start, x)

    def _symbolic_input(self) -> Any:
        """Return the symbolic input of a built stack, or a list or dict of them; a batch may have any size."""
        if self.input_layer is not None:
            if not self.built:
                self.build()
            return tensor_of(self.input_layer)
        shape = self._build_shapes if self.built and self.layers else None
        if shape is None:
            raise AttributeError(f"'{self.name}' has no inputs yet: start it with `Input`, or call or `build` it first")
        dtype = self.layers[0].compute_dtype
        return map_shapes(lambda each: Input(batch_shape=(None, *each[1:]), dtype=dtype), shape)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the outputs of the last layer; without an :attr:`input_layer` the first may take several arrays.

        A layer gets the mask of the inputs if its ``call`` has an argument ``mask``. The next layer gets the result of
        its :meth:`compute_mask`, if it :attr:`supports_masking`.
        """
        with awake():
            if self.input_layer is not None:
                inputs = self._input_as_cast(inputs)
            for layer in self.layers:
                masks = {"mask": mask} if mask is not None and has_argument(type(layer).call, "mask") else {}
                outputs = layer(inputs, training=training, **masks)
                inputs, mask = outputs, mask_after(layer, inputs, mask)
        return inputs

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the outputs; layers run only if a later layer computes its mask from their outputs.

        >>> from mp_core.layers import Dense
        >>> model = Sequential([Embedding(5, 2, mask_zero=True), Dense(2)])
        >>> model.compute_mask(np.array([[3, 1, 0]]))
        array([[ True,  True, False]])
        """
        mask, mask_makers = previous_mask, [needs_inputs(layer) for layer in self.layers]
        inputs = self._input_as_cast(inputs)
        for index, layer in enumerate(self.layers):
            after = mask_after(layer, inputs, mask)
            if any(mask_makers[index + 1 :]):
                masks = {"mask": mask} if mask is not None and has_argument(type(layer).call, "mask") else {}
                inputs = run_trial(layer, inputs, **masks)
            mask = after
        return mask

    def _shape_after(self, shape: Shape) -> Any:
        start = None if self.input_layer is None else self.input_layer.batch_shape
        if start is not None and not (len(start) == len(shape) and all(map(_length_fits, start, shape))):
            return None
        for layer in self.layers:
            shape = layer.compute_output_shape(shape)
        return shape

    def get_config(self) -> dict[str, Any]:
        first = [] if self.input_layer is None else [self.input_layer]
        config = super().get_config() | {"layers": [serialize_keras_object(layer) for layer in [*first, *self.layers]]}
        config.pop("forms", None)  # stored in the configurations of the layers
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, type[Layer]] | None = None) -> Self:
        """Return the stack that a configuration describes; `custom_objects` has classes that are not registered.

        The ``module`` of each entry selects mp_core's class or the one of tf.keras. An ``InputLayer`` is skipped if
        the API has no such class.
        """
        check_depth(config)
        if not isinstance(config, dict) or not isinstance(config.get("layers"), list | tuple):
            raise ValueError(f"a Sequential's config must have a list of `layers`; received {config!r}")
        has_inputs = InputLayer.__name__ in layer_classes(None, cls._face)
        entries = [entry for entry in config["layers"] if has_inputs or not _is_input(entry)]
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


def _length_fits(length: int | None, other: int | None) -> bool:
    return length is None or other is None or length == other


def _is_input(entry: Any) -> bool:
    """Whether an entry of ``layers`` describes an :class:`InputLayer`."""
    return isinstance(entry, dict) and entry.get("class_name") == InputLayer.__name__
