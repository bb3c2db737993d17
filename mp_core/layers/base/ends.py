"""Symbolic inputs and outputs of layers and models: what Keras calls ``input``, ``output``, ``inputs``, ``outputs``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any, Protocol
from weakref import ref

from mp_core.utilities.tree import leaves_by_key

__all__ = [
    "Ends", "WithEnds", "WithOrigin", "claim", "end_of", "find_ends", "note_call_of", "origin_of",
    "replaceable_property", "set_origin", "settle",
]  # fmt: skip


_finding = RLock()


class replaceable_property:  # noqa: N801 - used as a decorator
    """A property that an attribute of the object replaces, as ``self.output = Dense(2)`` in a user's layer does."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._function(instance)


@dataclass(frozen=True, eq=False)
class Ends:
    """The symbolic inputs and outputs of a model, arranged as the arguments and results of its calls."""

    input: Any
    output: Any


@dataclass(frozen=True, eq=False)
class _Claim:
    """In the place of a layer's first call: a model can find that, by calling its layers with symbolic arrays."""

    model: Callable[[], Any]


class WithOrigin:
    """The part of a layer that knows the symbolic arrays of its first symbolic call."""

    name: str
    _origin: Any = None
    """The first call with symbolic arrays."""

    @replaceable_property
    def input(self) -> Any:
        """The symbolic array that the first symbolic call got, or a list if there were several.

        A layer's own attribute of this name comes first.

        Raises
        ------
        AttributeError
            The layer was never called with what :func:`Input` returns, and no functional model or Sequential that is
            built consists of it.

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
    """A model whose layers are known."""

    @property
    def layers(self) -> Sequence[WithOrigin]: ...


def claim(model: _OfLayers) -> None:
    """Register the model as the source of the first symbolic call of each of its layers that has none yet."""
    for layer in model.layers:
        if _has_no_origin(layer):
            vars(layer)["_origin"] = _Claim(ref(model))


def origin_of(layer: WithOrigin) -> Any:
    """Return the first symbolic call of a layer; None if there was none, or a model can find it."""
    return None if isinstance(layer._origin, _Claim) else layer._origin


def set_origin(layer: WithOrigin, call: Any) -> None:
    """Note the first symbolic call of a layer, also where a model could find one."""
    vars(layer)["_origin"] = call


def note_call_of(layer: WithOrigin, call: Any) -> None:
    """Note a symbolic call of a layer, if it is the first."""
    if _has_no_origin(layer):
        vars(layer)["_origin"] = call


def settle(model: _OfLayers, layer: WithOrigin, call: Any) -> None:
    """Note the first symbolic call of a layer that `model` has claimed."""
    origin = layer._origin
    if isinstance(origin, _Claim) and origin.model() is model:
        vars(layer)["_origin"] = call


def _has_no_origin(layer: WithOrigin) -> bool:
    origin = layer._origin
    return origin is None or (isinstance(origin, _Claim) and origin.model() is None)


def end_of(layer: WithOrigin, name: str) -> Any:
    """Return what the first symbolic call of a layer got ("input") or returned ("output"): an array, or a list.

    Raises
    ------
    AttributeError
        There was none.
    """
    if isinstance(layer._origin, _Claim):
        model = layer._origin.model()
        if model is not None:
            model.ends()
    if layer._origin is None or isinstance(layer._origin, _Claim):
        raise AttributeError(
            f"layer '{layer.name}' has no `{name}`: it was never called with what `Input` returns. "
            "Call it so, or use a layer of a functional model or of a Sequential that is built"
        )
    arrays = layer._origin.inputs() if name == "input" else layer._origin.outputs
    return arrays[0] if len(arrays) == 1 else arrays


class WithEnds:
    """A model of layers with known connections, which has symbolic inputs and outputs."""

    _ends: Ends | None = None
    """What :meth:`ends` has found, or what the model was made of."""

    def ends(self) -> Ends:
        """Return the symbolic inputs and outputs, between which other models can be made of the same layers.

        Raises
        ------
        AttributeError
            The shape of the inputs is not known yet.
        """
        with _finding:
            if self._ends is None:
                vars(self)["_ends"] = self._find_ends()
            ends: Ends = vars(self)["_ends"]
        return ends

    def _find_ends(self) -> Ends:
        raise NotImplementedError

    def count_of_outputs(self) -> int | None:
        """Return how many arrays a call returns; None if only a call says it."""
        raise NotImplementedError

    @replaceable_property
    def input(self) -> Any:
        """The symbolic inputs, arranged as arguments of a call are."""
        return self.ends().input

    @replaceable_property
    def output(self) -> Any:
        """The symbolic outputs, arranged as results of a call are."""
        return self.ends().output

    @replaceable_property
    def inputs(self) -> Any:
        """A list of the symbolic inputs; those of a dict are sorted by their keys, as in Keras."""
        return list(leaves_by_key(self.ends().input))

    @replaceable_property
    def outputs(self) -> Any:
        """A list of the symbolic outputs; those of a dict are sorted by their keys, as in Keras."""
        return list(leaves_by_key(self.ends().output))

    @replaceable_property
    def input_shape(self) -> Any:
        """The shape of the input, or a list of shapes if there are several; None is any length."""
        return _shapes(self.inputs)

    @replaceable_property
    def output_shape(self) -> Any:
        """The shape of the output, or a list of shapes if there are several; None is any length."""
        return _shapes(self.outputs)


def find_ends(model: WithEnds) -> Ends:
    """Return the symbolic inputs and outputs of a model, whose layers are called anew for that."""
    return model._find_ends()


def _shapes(arrays: list[Any]) -> Any:
    shapes = [x.shape for x in arrays]
    return shapes[0] if len(shapes) == 1 else shapes
