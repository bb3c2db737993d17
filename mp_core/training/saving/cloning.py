"""Keras' ``clone_model``: copies of models with new weights."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from mp_core.layers import Input, InputLayer, Layer
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.state import flat_layers
from mp_core.layers.symbols import KerasTensor
from mp_core.training.graph import Source, graph_in
from mp_core.training.models import Functional, Model, takes_graph
from mp_core.training.saving.text import model_from_json
from mp_core.training.sequential import Sequential
from mp_core.utilities.registry import custom_object_scope
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["clone_model"]


def clone_model(
    model: Model,
    input_tensors: Any = None,
    clone_function: Callable[[Layer], Layer] | None = None,
    call_function: Callable[..., Any] | None = None,
    recursive: bool = False,
) -> Model:
    """Return a copy of a model with new layers and new weights.

    If the model is compiled, the copy is compiled too, with its own optimizer and metrics.

    Parameters
    ----------
    model : Model
        Functional models and Sequential are cloned layer by layer. All other models, and classes that override
        ``get_config``, are created again from their configuration; the arguments below are not allowed for them.
    input_tensors : KerasTensor, or list or dict of them, optional
        Inputs of the new model; default: new inputs with the same shapes and dtypes.
    clone_function : callable, optional
        ``clone_function(layer)`` returns the new layer; it is called once per layer, except input layers. Default:
        ``from_config(get_config())``.
    call_function : callable, optional
        Only for functional models: ``call_function(layer, *args, **kwargs)`` returns the outputs of a layer. Default:
        ``layer(*args, **kwargs)``.
    recursive : bool
        Whether to clone inner models layer by layer too, instead of passing them to `clone_function`.

    Examples
    --------
    >>> import mp_core as mp
    >>> model = mp.Sequential([mp.Input((4,)), mp.layers.Dense(2, name="head")])
    >>> again = mp.models.clone_model(model)
    >>> again.layers[0] is model.layers[0], again.get_config() == model.get_config()
    (False, True)
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` must be a model; received {model!r}")
    given = {"input_tensors": input_tensors, "clone_function": clone_function, "call_function": call_function}
    with custom_object_scope(_objects_of(model)):
        if isinstance(model, Functional | Sequential) and (
            "layers" in model.get_config() or any(value is not None for value in given.values())
        ):
            clone: Model = _Cloner(clone_function, call_function, recursive).clone(model, input_tensors)
            if model.compiled:
                clone.compile_from_config(serialize_keras_object(model.get_compile_config()))
            return clone
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"`{name}` needs a functional model or a Sequential; received {model!r}")
        return model_from_json(model.to_json())


def _objects_of(model: Model) -> dict[str, Any]:
    """Return name -> class or function of the user, for everything that a model contains."""
    trained = model.get_compile_config() if model.compiled else {}
    found = [*map(type, flat_layers(model)), *leaves(trained), *map(type, leaves(trained))]
    named = [getattr(item, "_registered", item) for item in found if callable(item) and hasattr(item, "__name__")]
    return {item.__name__: item for item in named if not is_ours(item) and item.__module__ != "builtins"}


@dataclass
class _Cloner:
    """Clones a model and its inner models; each layer once."""

    clone_function: Callable[[Layer], Layer] | None
    call_function: Callable[..., Any] | None
    recursive: bool
    done: dict[int, Any] = field(default_factory=dict)

    def clone(self, model: Functional | Sequential, inputs: Any) -> Any:
        """Return the clone of a functional model or a Sequential."""
        return self._stack(model, inputs) if isinstance(model, Sequential) else self._graph(model, inputs)

    def _layer(self, layer: Layer) -> Any:
        if id(layer) not in self.done:
            if self.recursive and isinstance(layer, Functional | Sequential):
                within = _Cloner(self.clone_function, self.call_function, True, self.done)
                if isinstance(layer, Sequential):
                    within.call_function = None
                self.done[id(layer)] = within.clone(layer, None)
            elif self.clone_function is not None:
                self.done[id(layer)] = self.clone_function(layer)
            else:
                self.done[id(layer)] = type(layer).from_config(layer.get_config())
        return self.done[id(layer)]

    def _stack(self, model: Sequential, inputs: Any) -> Any:
        if self.call_function is not None:
            raise ValueError(f"`call_function` needs a functional model; received {model!r}")
        found = list(leaves(inputs))
        if inputs is None:
            found = [] if model.input_layer is None else [_input_like(model.input_layer)]
        elif len(found) != 1 or not isinstance(found[0], KerasTensor):
            raise ValueError(f"`input_tensors` must be one KerasTensor for a Sequential; received {inputs!r}")
        parts = [*found, *map(self._layer, model.layers)]
        cls = type(model) if "layers" in inspect.signature(type(model)).parameters else Sequential
        return cls(parts, name=model.name)

    def _graph(self, model: Functional, inputs: Any) -> Any:
        graph: Any = graph_in(model)
        if inputs is None:
            inputs = map_leaves(lambda source: _input_like(graph.by_name[source.layer]), graph.inputs)
        try:
            arranged = _arranged_as(graph.inputs, inputs)
        except (TypeError, ValueError, LookupError):
            wanted = map_leaves(lambda source: source.layer, graph.inputs)
            raise ValueError(f"`input_tensors` must be arranged as {wanted}; received {inputs!r}") from None
        values = dict(zip(leaves(graph.inputs), leaves(arranged), strict=True))
        for name, index in graph.order:
            layer, node = self._layer(graph.by_name[name]), graph.nodes[name][index]
            args, kwargs = map_leaves(partial(_read, values), tuple(node))
            results = (
                layer(*args, **kwargs) if self.call_function is None else self.call_function(layer, *args, **kwargs)
            )
            values |= {Source(name, index, number): result for number, result in enumerate(leaves(results))}
        outputs = map_leaves(values.__getitem__, graph.outputs)
        cls = type(model) if takes_graph(type(model)) else Functional
        return cls(inputs, outputs, name=model.name)


def _read(values: dict[Source, Any], x: Any) -> Any:
    return values[x] if isinstance(x, Source) else x


def _arranged_as(structure: Any, given: Any) -> Any:
    """Return `given` in the arrangement of `structure`; raise TypeError, ValueError or LookupError if it differs."""
    if isinstance(structure, dict):
        if not isinstance(given, dict) or set(given) != set(structure):
            raise ValueError
        return {key: _arranged_as(part, given[key]) for key, part in structure.items()}
    if isinstance(structure, list | tuple):
        if not isinstance(given, list | tuple):
            raise ValueError
        return [_arranged_as(part, each) for part, each in zip(structure, given, strict=True)]
    if not isinstance(given, KerasTensor):
        raise TypeError
    return given


def _input_like(layer: Layer) -> KerasTensor:
    layer = cast(InputLayer, layer)
    found: KerasTensor = Input(batch_shape=layer.batch_shape, dtype=layer.dtype, name=layer.name)
    return found
