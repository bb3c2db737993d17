"""The interface of models that can be calibrated, and the calls that a sample describes."""

from collections.abc import Iterator
from inspect import signature
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

from mp_core.arrays import Array, as_mask
from mp_core.layers import Layer
from mp_core.layers.base.state import flat_layers

__all__ = ["LayerLike", "ModelCall", "calls_of", "layers_by_path", "mask_of", "parts_of"]


@runtime_checkable
class LayerLike(Protocol):
    """The interface that calibration and the choice of policies need: a layer, or an object such as a text encoder."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights: stored codes, and floats in the dtype that calls read."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs."""

    def flatten(self) -> Iterator[Any]:
        """Yield all layers, including inner layers."""

    def with_policy(self, policy: Any) -> Self:
        """Return a copy under another policy, or under a map from paths of layers to policies."""


class ModelCall(NamedTuple):
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def parts_of(model: LayerLike) -> Iterator[Any]:
    """Yield all layers of a model, also of a layer with an attribute called `flatten`."""
    return flat_layers(model) if isinstance(model, Layer) else model.flatten()


def calls_of(model: object, sample: Any, argument: str = "sample") -> list[ModelCall]:
    """Return the calls of a sample: a list or iterator is several calls; a tuple or dict is the arguments of one call.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> calls_of(Dense(2), [(1, 2), {"inputs": 3}, 4])
    [ModelCall(args=(1, 2), kwargs={}), ModelCall(args=(), kwargs={'inputs': 3}), ModelCall(args=(4,), kwargs={})]
    """
    if not isinstance(model, LayerLike):
        raise TypeError(
            "`model` must be a Layer, or have its methods `__call__`, `flatten`, `weight_bytes` and `with_policy`; "
            f"received {type(model).__name__}"
        )
    for layer in parts_of(model):
        if isinstance(layer, Layer) and layer.quantized:
            raise ValueError(f"`model` must have unquantized weights; layer '{layer.path}' is quantized")
    inputs = list(sample) if isinstance(sample, list | Iterator) else [sample]
    if any(arguments is None for arguments in inputs):
        raise TypeError(f"`{argument}` must be the inputs of a call, or a list of them; received None")
    return [
        ModelCall(arguments, {})
        if isinstance(arguments, tuple)
        else ModelCall((), arguments)
        if isinstance(arguments, dict)
        else ModelCall((arguments,), {})
        for arguments in inputs
    ]


def mask_of(model: LayerLike, call: ModelCall) -> Array | None:
    """Return the argument ``mask`` of a call, False at padding; None if the call has no mask."""
    named = dict(zip(signature(getattr(model, "call", model)).parameters, call.args, strict=False)) | call.kwargs
    mask = named.get("mask")
    return None if mask is None else as_mask(mask)


def layers_by_path(model: LayerLike) -> dict[str, Layer]:
    """Return path -> layer of a model; raise ValueError if two layers have the same path."""
    layers: dict[str, Layer] = {}
    for part in parts_of(model):
        if isinstance(part, Layer) and layers.setdefault(str(part.path), part) is not part and part.built:
            raise ValueError(f"two layers of `model` have the path '{part.path}': give them different names")
    return layers
