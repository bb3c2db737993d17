"""Assign weights of Keras, from memory or from a file, to layers."""

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
from mp_core.layers.base.state import cleared_by_loading, flat_layers, restore_extra_arrays, saved_variables
from mp_core.layers.matrix import MatrixLayer
from mp_core.layers.names_in_files import layers_by_name, layers_in, names_in_list
from mp_core.layers.operation import Operation
from mp_core.policies.autocast.variable import as_stored
from mp_core.policies.dtype_policies.quantized import parse_quantized
from mp_core.training.models import Functional
from mp_core.training.saving.translation import TranslatedLayer

if TYPE_CHECKING:
    import keras

__all__ = ["KerasWeights", "WeightSource", "assign", "build_by_calling"]


class WeightSource(Protocol):
    """A source of the weights of a layer and its inner layers, or of the layers in a container."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the layer's own variables, in Keras' order."""

    def arrays(self) -> Iterator[Array]:
        """Yield these variables as new arrays."""

    def named(self) -> dict[str, Array]:
        """Return name in the file -> variable; names are "0", "1", ..., unless a user's layer writes others."""

    def holds_arrays(self) -> bool:
        """Whether the layer or one of its inner layers has variables."""

    def beside(self) -> dict[str, Array]:
        """Return mp_core's own additional arrays: the result of :func:`~mp_core.layers.base.state.extra_arrays`."""

    def member(self, name: str) -> "WeightSource":
        """Return the weights of an attribute of the layer, or of a layer in the container, by its name in files."""

    def parts(self, parts: Sequence[TranslatedLayer]) -> "Sequence[WeightSource]":
        """Return the weights of each layer of a model."""


class KerasWeights:
    """The weights of a layer of Keras, or of a container that `named` returned; other objects have no weights."""

    def __init__(self, layer: "keras.Layer | dict[str, Any] | None") -> None:
        self._layer: Any = layer

    def _values(self) -> list[Any]:
        """Return the variables as Keras saves them: int4 codes are packed, and LoRA is merged into the kernel."""
        import keras

        mode = getattr(self._layer, "quantization_mode", None)
        if mode in ("gptq", "awq") and hasattr(self._layer, "quantized_kernel"):
            return self._fitted(mode)
        store: dict[str, Any] = {}
        if isinstance(self._layer, keras.Layer):
            self._layer.save_own_variables(store)
        return [keras.ops.convert_to_numpy(store[key]) for key in sorted(store, key=int)]

    def _fitted(self, mode: str) -> list[Any]:
        """Return the variables of a layer under gptq or awq, in the order in which Keras reads them.

        What Keras 3.15 writes itself lacks the zero points of these modes.
        """
        import keras

        if not getattr(self._layer, f"is_{mode}_calibrated", False):
            raise ValueError(
                f"layer '{self._layer.name}' has policy {mode}, but no codes yet: quantize the model first"
            )
        own = (getattr(self._layer, name) for name in self._layer.variable_serialization_spec[mode])
        return [keras.ops.convert_to_numpy(variable) for variable in own if variable is not None]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the variables."""
        return [value.shape for value in self._values()]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the variables."""
        return (np.array(value) for value in self._values())

    def named(self) -> dict[str, Array]:
        """Return number -> copy of a variable."""
        return {str(number): value for number, value in enumerate(self.arrays())}

    def holds_arrays(self) -> bool:
        """Whether the layer or one of its inner layers has variables."""
        below = self._layer.values() if isinstance(self._layer, dict) else ()
        return bool(getattr(self._layer, "weights", ())) or any(KerasWeights(part).holds_arrays() for part in below)

    def beside(self) -> dict[str, Array]:
        """Return an empty dictionary: Keras has no additional arrays."""
        return {}

    def member(self, name: str) -> "KerasWeights":
        """Return the weights of an inner layer or container."""
        import keras

        if isinstance(self._layer, dict):
            return KerasWeights(self._layer.get(name))
        return KerasWeights(layers_by_name(getattr(self._layer, name, None), keras.Layer))

    def parts(self, parts: Sequence[TranslatedLayer]) -> "list[KerasWeights]":
        """Return the weights of the layers of a model, by their names."""
        return [KerasWeights(self._layer.get_layer(part.layer.name)) for part in parts]


def assign(part: TranslatedLayer, stored: WeightSource) -> None:
    """Assign the weights of all layers of a model, each once.

    If there are weights for a layer that has no variables yet, call the model with zeros first: users' layers may build
    inner layers when they are called.
    """
    pairs = list(_pairs(part, stored))
    if any(_needs_call(*pair) for pair in pairs):
        _run(part.layer)
        pairs = list(_pairs(part, stored))
    for layer, held in pairs:
        _assign_layer(layer, held)


def _needs_call(layer: Layer, stored: WeightSource) -> bool:
    """Whether there are weights for a layer that has no variables yet, or for inner layers that do not exist yet."""
    return bool(not layer.own_variables() and stored.shapes()) or (not layer.built and stored.holds_arrays())


def _pairs(part: TranslatedLayer, stored: WeightSource) -> Iterator[tuple[Layer, WeightSource]]:
    """Yield every layer of a model once, with the source of its weights."""
    done: set[int] = set()

    def of_part(part: TranslatedLayer, stored: WeightSource) -> Iterator[tuple[Layer, WeightSource]]:
        if part.inner is None and not part.parts:
            yield from of_layer(part.layer, stored)
        elif id(part.layer) not in done:
            done.add(id(part.layer))
            parts = [each for each in part.parts if not isinstance(each.layer, Operation)]
            yield from () if part.inner is None else of_part(part.inner, stored.member("layer"))
            for each, below in zip(parts, stored.parts(parts) if parts else (), strict=True):
                yield from of_part(each, below)

    def of_layer(layer: Layer, stored: WeightSource) -> Iterator[tuple[Layer, WeightSource]]:
        if id(layer) not in done:
            done.add(id(layer))
            yield layer, stored
            names, listed = names_in_list(layer), stored.member("layers")
            yield from of_places(layers_in(layer), stored, {key: listed.member(name) for key, name in names.items()})

    def of_places(
        places: dict[str, Any], stored: WeightSource, listed: dict[int, WeightSource]
    ) -> Iterator[tuple[Layer, WeightSource]]:
        for name, below in places.items():
            held = stored.member(name)
            if isinstance(below, dict):
                yield from of_places(below, held, listed)
            else:
                yield from of_layer(below, held if held.holds_arrays() else listed.get(id(below), held))

    return of_part(part, stored)


def build_by_calling(model: Layer) -> None:
    """Call a built model once if inner layers of users' layers are not built; ignore an error of the call."""
    parts = (layer for layer in flat_layers(model) if isinstance(layer, Layer))
    if model.built and not all(layer.built for layer in parts):
        with suppress(ValueError):
            _run(model)


def _run(model: Layer) -> None:
    """Call the layers of a model with zeros, in the order of its graph, or the model itself if it has no graph.

    Inner layers that are built get paths below the path of their layer.
    """
    parts = (layer for layer in flat_layers(model) if isinstance(layer, Layer) and not isinstance(layer, Functional))
    layers = [layer for layer in parts if layer.built]
    try:
        for layer in layers:
            vars(layer)["call"] = _call_below_path(layer)
        if isinstance(model, WithEnds):
            find_ends(model)
        else:
            _call_with_zeros(model)
    except Exception as error:  # users' layers may raise anything
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
    """Return zeros of a shape, or zeros in the arrangement of several shapes."""
    if isinstance(shapes, dict):
        return {name: _zeros(shape) for name, shape in shapes.items()}
    if not all(isinstance(n, int | None) for n in shapes):
        return [_zeros(shape) for shape in shapes]
    return np.zeros(example_shape(shapes), np.float32)


def _call_below_path(layer: Layer) -> Callable[..., Any]:
    """Return the ``call`` of a layer, run under the layer's path: the first call builds inner layers below it."""
    call, path = layer.call, layer.path or ""
    return lambda *args, **kwargs: called_in(enclosing_path, path, call, args, kwargs)


def _quantized_as(layer: Layer, stored: WeightSource) -> str | None:
    """Return the quantization mode of a stored matrix whose layer holds floats; None if it is not quantized.

    Needed because Keras' configuration of a MultiHeadAttention does not say that its inner layers are quantized.
    """
    if not isinstance(layer, MatrixLayer) or not layer.built or not layer.form.is_float:
        return None
    shapes, modes = stored.shapes(), ["int8", "float8", "int4/-1"]
    if len(shapes) > len(saved_variables(layer)) and len(shapes[-1]) == 1:  # the block of each row: 0, ..., 0, 1, ...
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


def _assign_layer(layer: Layer, stored: WeightSource) -> None:
    if not is_ours(layer.load_own_variables):
        layer.load_own_variables(stored.named())
        return
    if not layer.built and stored.holds_arrays():
        raise ValueError(f"layer '{layer.name}' has stored weights but is not built: no call of the model reaches it")
    variables, shapes = saved_variables(layer), stored.shapes()
    if len(shapes) > len(variables):
        mode = _quantized_as(layer, stored)
        if mode is not None:
            layer.quantize(mode)
            variables = saved_variables(layer)
    wanted = [variable.shape for variable in variables]
    if shapes != wanted:
        names = ", ".join(variable.name for variable in variables)
        raise ValueError(
            f"layer '{layer.name}' needs weights ({names}) of shapes {wanted}; the stored shapes are {shapes}"
        )
    for variable, value in zip(variables, stored.arrays(), strict=True):
        try:
            variable.assign(as_stored(value, variable.true_dtype, variable.name, copy=False), copy=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"layer '{layer.name}', weight '{variable.name}': {error}") from error
    for variable in cleared_by_loading(layer) if variables else ():
        variable.assign(np.zeros(variable.shape, variable.true_dtype))
    restore_extra_arrays(layer, stored.beside())
