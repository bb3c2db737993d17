"""Weights that Keras holds, in memory or in a file, and their way into layers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mp_core.arrays import Array
from mp_core.core.scopes import called_in
from mp_core.layers import Layer
from mp_core.layers.base.building import are_by_argument, build_shapes_of, enclosing_path, example_shape
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.ends import WithEnds, find_ends
from mp_core.layers.base.quantization import form_under, policy_of
from mp_core.layers.base.state import cleared_by_loading, restore_extra_arrays, saved_variables
from mp_core.layers.matrix import MatrixLayer
from mp_core.layers.names_in_files import layers_by_name, layers_in, names_in_list
from mp_core.layers.operation import Operation
from mp_core.policies.autocast.variable import as_stored
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.training.models import Functional
from mp_core.training.saving.translation import TranslatedLayer

if TYPE_CHECKING:
    import keras

__all__ = ["Live", "Stored", "assign", "finish"]


class Stored(Protocol):
    """Where Keras has the weights of a layer, and of the layers in it; or those of the layers in a container."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables of this layer alone, in Keras' order."""

    def arrays(self) -> Iterator[Array]:
        """Yield these variables, as arrays that nobody else holds."""

    def named(self) -> dict[str, Array]:
        """Return these variables by their names in the file: "0", "1" ..., unless a user's layer writes others."""

    def holds_arrays(self) -> bool:
        """Whether there are variables of this layer, or of layers in it."""

    def beside(self) -> dict[str, Array]:
        """Return what mp_core has written beside these variables: what :meth:`Layer._extra_arrays` returned."""

    def member(self, name: str) -> "Stored":
        """Return what there is of an attribute of the layer, or of a layer in the container, by its name in files."""

    def parts(self, parts: Sequence[TranslatedLayer]) -> "Sequence[Stored]":
        """Return what there is of each of the layers of a model."""


class Live:
    """The weights of a layer of Keras, or of a container as `layers_by_name` returns it; anything else has none."""

    def __init__(self, layer: "keras.Layer | dict[str, Any] | None") -> None:
        self._layer: Any = layer

    def _values(self) -> list[Any]:
        """Return the variables as in a file: with int4 codes packed, and what LoRA adds in the kernel."""
        import keras

        store: dict[str, Any] = {}
        if isinstance(self._layer, keras.Layer):
            self._layer.save_own_variables(store)
        return [keras.ops.convert_to_numpy(store[key]) for key in sorted(store, key=int)]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables."""
        return [value.shape for value in self._values()]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the variables."""
        return (np.array(value) for value in self._values())

    def named(self) -> dict[str, Array]:
        """Return copies of the variables by their numbers."""
        return {str(number): value for number, value in enumerate(self.arrays())}

    def holds_arrays(self) -> bool:
        """Whether there are variables of this layer, or of layers in it."""
        below = self._layer.values() if isinstance(self._layer, dict) else ()
        return bool(getattr(self._layer, "weights", ())) or any(Live(part).holds_arrays() for part in below)

    def beside(self) -> dict[str, Array]:
        """Return what Keras has beside the variables: nothing."""
        return {}

    def member(self, name: str) -> "Live":
        """Return the weights of a layer in this layer or container."""
        import keras

        if isinstance(self._layer, dict):
            return Live(self._layer.get(name))
        return Live(layers_by_name(getattr(self._layer, name, None), keras.Layer))

    def parts(self, parts: Sequence[TranslatedLayer]) -> "list[Live]":
        """Return the weights of the layers of a model, by their names."""
        return [Live(self._layer.get_layer(part.layer.name)) for part in parts]


def assign(part: TranslatedLayer, stored: Stored) -> None:
    """Give the layers of a model their weights, each once.

    The model is called with zeros only if there are weights for a layer that has no variables yet: users' layers may
    build those in them when they are called.

    Raises
    ------
    ValueError
        A layer has another number of weights, or a weight another shape, than there are.
    """
    pairs = list(_pairs(part, stored))
    if any(_waits(*pair) for pair in pairs):
        _run(part.layer)
        pairs = list(_pairs(part, stored))
    for layer, held in pairs:
        _assign_layer(layer, held)


def _waits(layer: Layer, stored: Stored) -> bool:
    """Whether there are weights for a layer that has no variables yet, or for layers that it has yet to make."""
    return bool(not layer.own_variables() and stored.shapes()) or (not layer.built and stored.holds_arrays())


def _pairs(part: TranslatedLayer, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
    """Yield every layer of a model, each once, beside where its weights are."""
    done: set[int] = set()

    def of_part(part: TranslatedLayer, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
        if part.inner is None and not part.parts:
            yield from of_layer(part.layer, stored)
        elif id(part.layer) not in done:
            done.add(id(part.layer))
            parts = [each for each in part.parts if not isinstance(each.layer, Operation)]
            yield from () if part.inner is None else of_part(part.inner, stored.member("layer"))
            for each, below in zip(parts, stored.parts(parts) if parts else (), strict=True):
                yield from of_part(each, below)

    def of_layer(layer: Layer, stored: Stored) -> Iterator[tuple[Layer, Stored]]:
        if id(layer) not in done:
            done.add(id(layer))
            yield layer, stored
            names, listed = names_in_list(layer), stored.member("layers")
            yield from of_places(layers_in(layer), stored, {key: listed.member(name) for key, name in names.items()})

    def of_places(places: dict[str, Any], stored: Stored, listed: dict[int, Stored]) -> Iterator[tuple[Layer, Stored]]:
        for name, below in places.items():
            held = stored.member(name)
            if isinstance(below, dict):
                yield from of_places(below, held, listed)
            else:
                yield from of_layer(below, held if held.holds_arrays() else listed.get(id(below), held))

    return of_part(part, stored)


def finish(model: Layer) -> None:
    """Build what users' layers build when they are called, if a model is built and such a call succeeds."""
    parts = (layer for layer in model.flatten() if isinstance(layer, Layer))
    if model.built and not all(layer.built for layer in parts):
        with suppress(ValueError):
            _run(model)


def _run(model: Layer) -> None:
    """Call the layers of a model with zeros, as its graph does, or the model itself if it has none.

    What a layer builds meanwhile is below its path.
    """
    parts = (layer for layer in model.flatten() if isinstance(layer, Layer) and not isinstance(layer, Functional))
    layers = [layer for layer in parts if layer.built]
    try:
        for layer in layers:
            vars(layer)["call"] = _below(layer)
        if isinstance(model, WithEnds):
            find_ends(model)
        else:
            _call_with_zeros(model)
    except Exception as error:  # of users' layers
        raise ValueError(f"layers in '{model.name}' are built when they are called, which failed: {error}") from error
    finally:
        for layer in layers:
            vars(layer).pop("call", None)


def _call_with_zeros(model: Layer) -> None:
    """Call a model of a user's class with zeros of the shapes for which it was built."""
    shapes = build_shapes_of(model)
    if shapes is None:
        raise ValueError("no shape is known")
    if are_by_argument(model, shapes):
        model(**{name.removesuffix("_shape"): _zeros(shape) for name, shape in shapes.items()})
    else:
        model(_zeros(shapes))


def _zeros(shapes: Any) -> Any:
    """Return zeros of a shape, or arranged as several shapes are."""
    if isinstance(shapes, dict):
        return {name: _zeros(shape) for name, shape in shapes.items()}
    if not all(isinstance(n, int | None) for n in shapes):
        return [_zeros(shape) for shape in shapes]
    return np.zeros(example_shape(shapes), np.float32)


def _below(layer: Layer) -> Callable[..., Any]:
    """Return a ``call`` that runs under the path of its layer, as a first one does: what it builds is below."""
    call, path = layer.call, layer.path or ""
    return lambda *args, **kwargs: called_in(enclosing_path, path, call, args, kwargs)


def _quantized_as(layer: Layer, stored: Stored) -> str | None:
    """Return the mode in which a file has the matrix of a layer of floats; None if it is in none.

    Keras' configuration of a MultiHeadAttention does not say that the layers in it are quantized.
    """
    if not isinstance(layer, MatrixLayer) or not layer.built or not layer.form.is_float:
        return None
    shapes, modes = stored.shapes(), ["int8", "float8", "int4/-1"]
    if len(shapes) > len(saved_variables(layer)) and len(shapes[-1]) == 1:  # the block of each row begins with zeros
        *_, blocks = stored.arrays()
        modes.append(f"int4/{int((blocks == 0).sum())}")
    for mode in modes:
        try:
            form = form_under(layer, parse_quantized(f"{mode}_from_{policy_of(layer).name}"))
        except (NotImplementedError, ValueError):  # the layer does not compute in this mode
            continue
        matrix, *rest = (variable.shape for variable in form.variables_of().values())
        biases = [variable.shape for variable in saved_variables(layer)[1:]]
        if shapes == [matrix, *biases, *rest]:
            return mode
    return None


def _assign_layer(layer: Layer, stored: Stored) -> None:
    if not is_ours(layer.load_own_variables):
        layer.load_own_variables(stored.named())
        return
    if not layer.built and stored.holds_arrays():
        raise ValueError(f"layer '{layer.name}' has weights there, and is not built: no call of the model reaches it")
    variables, shapes = saved_variables(layer), stored.shapes()
    if len(shapes) > len(variables):
        mode = _quantized_as(layer, stored)
        if mode is not None:
            layer.quantize(mode)
            variables = saved_variables(layer)
    wanted = [variable.shape for variable in variables]
    if shapes != wanted:
        names = ", ".join(variable.name for variable in variables)
        raise ValueError(f"layer '{layer.name}' needs weights ({names}) of shapes {wanted}; there are {shapes}")
    for variable, value in zip(variables, stored.arrays(), strict=True):
        try:
            variable.assign(as_stored(value, variable.true_dtype, variable.name, copy=False), copy=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"layer '{layer.name}', weight '{variable.name}': {error}") from error
    for variable in cleared_by_loading(layer) if variables else ():
        variable.assign(np.zeros(variable.shape, variable.true_dtype))
    restore_extra_arrays(layer, stored.beside())
