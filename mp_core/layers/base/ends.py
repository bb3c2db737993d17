"""Symbolic inputs and outputs of layers and models: Keras' ``input``, ``output``, ``inputs``, ``outputs``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol
from weakref import ref

from mp_core.utilities.tree import leaves_by_key

__all__ = [
    "Ends",
    "WithEnds",
    "WithOrigin",
    "claim",
    "end_of",
    "find_ends",
    "note_call_of",
    "origin_of",
    "replace_claim",
    "replaceable_property",
    "set_origin",
]  # fmt: skip


_finding = RLock()


class replaceable_property:  # noqa: N801 - used as a decorator
    """A property that an instance attribute overrides, as ``self.output = Dense(2)`` in a user's layer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._function(instance)


@dataclass(frozen=True, eq=False)
class Ends:
    """The symbolic inputs and outputs of a model, in the structure of its calls' arguments and results."""

    input: Any
    output: Any


@dataclass(frozen=True, eq=False)
class _Claim:
    """Placeholder for a layer's first symbolic call: `model` finds that call by calling its layers symbolically."""

    model: Callable[[], Any]


class WithOrigin:
    """Base of layers: remembers the first call with symbolic arrays."""

    name: str
    _origin: Any = None
    """The first call with symbolic arrays, or a :class:`_Claim`."""

    @replaceable_property
    def input(self) -> Any:
        """The symbolic array that the first symbolic call got, or a list if there were several.

        An attribute of this name that a user's layer sets takes precedence.

        Raises
        ------
        AttributeError
            The layer was never called with the result of :func:`Input`, and is not part of a functional model or of a
            built Sequential.

        Examples
        --------
        >>> import mp_core as mp
        >>> x = mp.Input((3,), name="x")
        >>> model = mp.Model(x, mp.layers.Dense(2)(mp.layers.Dense(4, name="features")(x)))
        >>> model.get_layer("features").input
        <KerasTensor shape=(None, 3), dtype=float32, name=x>
        """
        return end_of(self, "input")

    @replaceable_property
    def output(self) -> Any:
        """The symbolic array that the first symbolic call returned, or a list if there were several: see :attr:`input`.

        Examples
        --------
        >>> import mp_core as mp
        >>> x = mp.Input((3,), name="x")
        >>> model = mp.Model(x, mp.layers.Dense(2)(mp.layers.Dense(4, name="features")(x)))
        >>> mp.Model(model.input, model.get_layer("features").output).output_shape
        (None, 4)
        """
        return end_of(self, "output")


class _OfLayers(Protocol):
    """Any object with a list of layers."""

    @property
    def layers(self) -> Sequence[WithOrigin]: ...


def claim(model: _OfLayers) -> None:
    """Register the model as the source of the first symbolic call of each of its layers that has none yet."""
    for layer in model.layers:
        if _has_no_origin(layer):
            vars(layer)["_origin"] = _Claim(ref(model))


def origin_of(layer: WithOrigin) -> Any:
    """Return the first symbolic call of a layer; None if there was none, or a model has claimed the layer."""
    return None if isinstance(layer._origin, _Claim) else layer._origin


def set_origin(layer: WithOrigin, call: Any) -> None:
    """Set the first symbolic call of a layer, even if a model has claimed it."""
    vars(layer)["_origin"] = call


def note_call_of(layer: WithOrigin, call: Any) -> None:
    """Store a symbolic call of a layer, if it is the first."""
    if _has_no_origin(layer):
        vars(layer)["_origin"] = call


def replace_claim(model: _OfLayers, layer: WithOrigin, call: Any) -> None:
    """Replace the claim of `model` on a layer by the first symbolic call."""
    origin = layer._origin
    if isinstance(origin, _Claim) and origin.model() is model:
        vars(layer)["_origin"] = call


def _has_no_origin(layer: WithOrigin) -> bool:
    origin = layer._origin
    return origin is None or (isinstance(origin, _Claim) and origin.model() is None)


def end_of(layer: WithOrigin, name: str) -> Any:
    """Return the arguments ("input") or the results ("output") of a layer's first symbolic call; several as a list."""
    if isinstance(layer._origin, _Claim):
        model = layer._origin.model()
        if model is not None:
            model.ends()
    if layer._origin is None or isinstance(layer._origin, _Claim):
        raise AttributeError(
            f"layer '{layer.name}' has no `{name}`: it was never called with what `Input` returns. "
            "Call it with that, or use a layer of a functional model or of a built Sequential"
        )
    arrays = layer._origin.inputs() if name == "input" else layer._origin.outputs
    return arrays[0] if len(arrays) == 1 else arrays


class WithEnds:
    """Base of models whose layers are connected: they have symbolic inputs and outputs."""

    _ends: Ends | None = None
    """The cached result of :meth:`ends`, or the arrays of which the model was made."""

    def ends(self) -> Ends:
        """Return the symbolic inputs and outputs, if the shape of the inputs is known.

        Other models can be made of the arrays between them.
        """
        with _finding:
            if self._ends is None:
                vars(self)["_ends"] = self._find_ends()
            ends: Ends = vars(self)["_ends"]
        return ends

    def _find_ends(self) -> Ends:
        raise NotImplementedError

    def count_of_outputs(self) -> int | None:
        """Return how many arrays a call returns; None if that is known only after a call."""
        raise NotImplementedError

    @replaceable_property
    def input(self) -> Any:
        """The symbolic inputs, in the structure of a call's arguments."""
        return self.ends().input

    @replaceable_property
    def output(self) -> Any:
        """The symbolic outputs, in the structure of a call's results."""
        return self.ends().output

    @replaceable_property
    def inputs(self) -> Any:
        """A list of the symbolic inputs; inputs in a dict are sorted by key, as in Keras."""
        return list(leaves_by_key(self.ends().input))

    @replaceable_property
    def outputs(self) -> Any:
        """A list of the symbolic outputs; outputs in a dict are sorted by key, as in Keras."""
        return list(leaves_by_key(self.ends().output))

    @replaceable_property
    def input_shape(self) -> Any:
        """The shape of the input, or a list of shapes if there are several. None in a shape means any length."""
        return _shapes(self.inputs)

    @replaceable_property
    def output_shape(self) -> Any:
        """The shape of the output, or a list of shapes if there are several. None in a shape means any length."""
        return _shapes(self.outputs)


def find_ends(model: WithEnds) -> Ends:
    """Return new symbolic inputs and outputs of a model; its layers are called once more."""
    return model._find_ends()


def _shapes(arrays: list[Any]) -> Any:
    shapes = [x.shape for x in arrays]
    return shapes[0] if len(shapes) == 1 else shapes
