"""A recurrent layer that processes sequences in both directions."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from mp_core import ops
from mp_core.arrays import Array
from mp_core.layers.base.building import has_argument
from mp_core.layers.base.state import flat_layers
from mp_core.layers.layer import Layer
from mp_core.layers.masks import from_masks
from mp_core.layers.shapes import Shape
from mp_core.layers.wrapping import layer_in
from mp_core.ops.elementwise import rounded
from mp_core.utilities.registry import custom_object_scope
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.tree import leaves

__all__ = ["Bidirectional"]

_MERGED: dict[str | None, Callable[[Array, Array], Any]] = {
    "sum": ops.add,
    "mul": ops.multiply,
    "ave": lambda x, y: rounded(lambda a, b: (a + b) / 2.0, x, y),
    "concat": lambda x, y: ops.concatenate([x, y], -1),
    None: lambda x, y: (x, y),
}
"""Mode -> function that merges the outputs of both directions."""
_SHARED = ("stateful", "return_sequences", "return_state")
"""Attributes that both layers must share."""


class Bidirectional(Layer):
    """A recurrent layer, and a second one with its own weights that processes sequences backwards.

    Parameters
    ----------
    layer : Layer
        Such as :class:`LSTM`, with the arguments `go_backwards`, `return_sequences`, `return_state` and `stateful`. The
        forward layer is a new layer with the same configuration, named ``forward_...``.
    merge_mode : {"concat", "sum", "mul", "ave"}, optional
        How to merge the outputs of both directions; None returns both.
    weights : None
        An argument of Keras; use :meth:`set_weights`.
    backward_layer : Layer, optional
        The layer for the backward direction. Default: a new layer with the configuration of `layer`.
    **kwargs : those of :class:`Layer`

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import LSTM
    >>> Bidirectional(LSTM(4, return_sequences=True))(np.ones((2, 5, 3), np.float32)).shape
    (2, 5, 8)
    """

    _arrays = ("sequences",)
    supports_masking = True
    _repr_arguments = ("merge_mode",)
    _options = ("merge_mode",)
    stateful: bool
    return_sequences: bool
    return_state: bool

    def __init__(
        self,
        layer: "Layer",
        merge_mode: str | None = "concat",
        weights: None = None,
        backward_layer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if merge_mode not in _MERGED:
            raise ValueError(f"`merge_mode` must be one of {list(_MERGED)}; received {merge_mode!r}")
        if weights is not None:
            raise ValueError("`weights` must be None: build the layer, and call its `set_weights`")
        checked = _checked(layer, "layer")
        self.merge_mode = merge_mode
        self.forward_layer = _renamed(checked, "forward_")
        self.backward_layer = (
            _renamed(checked, "backward_", go_backwards=True)
            if backward_layer is None
            else _checked(backward_layer, "backward_layer")
        )
        pair = self.forward_layer, self.backward_layer
        if pair[0].go_backwards == pair[1].go_backwards:
            raise ValueError(
                f"`layer` and `backward_layer` must go in different directions; received "
                f"go_backwards={pair[0].go_backwards} for both"
            )
        for name in _SHARED:
            if getattr(pair[0], name) != getattr(pair[1], name):
                raise ValueError(
                    f"`layer` and `backward_layer` must have the same `{name}`; received {getattr(pair[0], name)} and "
                    f"{getattr(pair[1], name)}"
                )
            setattr(self, name, getattr(pair[0], name))
        for part in pair:
            if hasattr(part, "zero_output_for_mask"):
                part.zero_output_for_mask = part.return_sequences

    @property
    def _returns_list(self) -> bool:  # type: ignore[override]
        return self.merge_mode is None or self.return_state

    def build(self, sequences_shape: Shape, initial_state_shape: Any = None) -> None:
        for layer in (self.forward_layer, self.backward_layer):
            if not layer.built:
                layer.build(sequences_shape)

    def call(self, sequences: Array, initial_state: Any = None, mask: Any = None, training: bool | None = None) -> Any:
        """Return the outputs of both directions, merged, in the order of the sequences.

        Parameters
        ----------
        sequences : ndarray, shape (batch, steps, ...)
        initial_state : list, optional
            The states of the forward layer, then those of the backward layer.
        mask : array-like of bool, shape (batch, steps), optional
        training : bool, optional

        Returns
        -------
        outputs : ndarray, or two of them if `merge_mode` is None
        *states : ndarray or list of them
            With `return_state`: those of the forward layer, then those of the backward layer.
        """
        half = 0 if initial_state is None else len(initial_state) // 2
        found, states = [], []
        for layer, part in ((self.forward_layer, slice(None, half)), (self.backward_layer, slice(half, None))):
            options = {"mask": mask} if has_argument(type(layer).call, "mask") else {}
            if initial_state is not None:
                options["initial_state"] = initial_state[part]
            outputs = layer(sequences, training=training, **options)
            if self.return_state:
                outputs, *after = outputs
                states += after
            found.append(outputs if outputs.dtype == self._compute else ops.cast(outputs, self._compute))
        if self.return_sequences:
            found[1] = ops.flip(found[1], axis=1)
        merged = _MERGED[self.merge_mode](*found)
        if not self.return_state:
            return merged
        return (*merged, *states) if self.merge_mode is None else (merged, *states)

    @property
    def states(self) -> tuple[Any, ...] | None:
        """The variables with the states of both layers; None unless they are stateful and built."""
        pair = self.forward_layer.states, self.backward_layer.states
        return None if None in pair else (*pair[0], *pair[1])

    def reset_state(self) -> None:
        """Set the states of a stateful layer to zero."""
        if not self.stateful:
            raise AttributeError(f"layer '{self.name}' must be stateful to have states")
        self.forward_layer.reset_state()
        self.backward_layer.reset_state()

    reset_states = reset_state

    @from_masks
    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the mask of the sequences with `return_sequences`, else None; states have no mask."""
        mask = next(leaves(previous_mask), None) if self.return_sequences else None
        masks = [mask, mask] if self.merge_mode is None else [mask]
        if self.return_state:
            masks += [None] * (2 * len(self.forward_layer.state_size))
        return masks if len(masks) > 1 else mask

    def _shape_after(self, shape: Shape) -> Any:
        found = self.forward_layer.compute_output_shape(shape)
        outputs, *states = found if self.return_state else (found,)
        if self.merge_mode == "concat":
            outputs = (*outputs[:-1], 2 * outputs[-1])
        merged = [outputs, outputs] if self.merge_mode is None else [outputs]
        if self.return_state:
            return (*merged, *states, *states)
        return merged if self.merge_mode is None else outputs

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "layer": serialize_keras_object(self.forward_layer),
            "backward_layer": serialize_keras_object(self.backward_layer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Mapping[str, Any] | None = None) -> Self:
        with custom_object_scope(custom_objects):
            parts = {"layer": layer_in(config, "layer")}
            if config.get("backward_layer") is not None:
                parts["backward_layer"] = layer_in(config, "backward_layer")
            return super().from_config(config | parts)


def _checked(layer: "Layer", argument: str) -> Any:
    """Return the layer; raise ValueError unless it has the attributes of a recurrent layer."""
    wanted = ("go_backwards", *_SHARED)
    if not isinstance(layer, Layer) or not all(hasattr(layer, name) for name in wanted):
        raise ValueError(
            f"`{argument}` must be a Layer with the attributes {', '.join(wanted)}; received {layer!r} (of type "
            f"{type(layer).__name__})"
        )
    return layer


def _renamed(layer: "Layer", prefix: str, **changes: Any) -> Any:
    """Return a new layer with the configuration of another one, a prefixed name, and `changes`."""
    known = {type(part).__name__: type(part) for part in flat_layers(layer)}
    config = layer.get_config() | {"name": f"{prefix}{layer.name.removeprefix(prefix)}"} | changes
    with custom_object_scope(known):
        return type(layer).from_config(config)
