"""Keras' Model and Functional: layers with the methods of a trainer."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Self, cast

import numpy as np

from mp_core.arrays.holding import run_trial
from mp_core.core.replay import awake
from mp_core.core.scopes import called_in
from mp_core.layers import Input, InputLayer, Layer
from mp_core.layers.base.building import enclosing_path, has_argument
from mp_core.layers.base.call import array_arguments
from mp_core.layers.base.configuration import constructor_arguments, is_ours
from mp_core.layers.base.ends import Ends, WithEnds, claim, replace_claim, replaceable_property
from mp_core.layers.base.state import children_of
from mp_core.layers.base.symbolic import spec_of
from mp_core.layers.masks import mask_after
from mp_core.layers.registry import KERAS, layer_classes
from mp_core.training.graph import TENSOR, Graph, Source, Values, graph_of, store_results
from mp_core.training.nesting import is_nested
from mp_core.training.tracing import graph_between, symbolic_outputs, symbolic_values
from mp_core.training.trainer import Trainer
from mp_core.utilities.registry import class_and_config, custom_object_scope, known_classes
from mp_core.utilities.serialization import serialize_keras_object
from mp_core.utilities.tree import has_sorted_keys, leaves, map_leaves

__all__ = ["Functional", "Model", "functional_class", "further_arguments", "rebuilt_by", "takes_graph"]


class Model(Trainer, Layer):
    """A layer that can be trained: ``compile``, ``fit``, ``evaluate``, ``predict``, ``save``.

    Call ``Model(inputs, outputs)``, which returns a :class:`Functional`, or write a subclass with a method ``call`` and
    layers as attributes.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list or dict of them, optional
        Results of :func:`Input`, and of layers called with them. A subclass that gets both is :class:`Functional` too.
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`.

    Raises
    ------
    TypeError
        `inputs` or `outputs` are not symbolic arrays, or one of them is missing.

    Examples
    --------
    >>> from mp_core.layers import Dense
    >>> class Twice(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.dense = Dense(3)
    ...
    ...     def call(self, x):
    ...         return self.dense(self.dense(x))
    >>> import numpy as np
    >>> Twice().predict(np.ones((2, 3)), verbose=0).shape
    (2, 3)
    """

    _face = KERAS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if args or "inputs" in kwargs or "outputs" in kwargs:
            self.__class__ = functional_class(cast(Any, type(self)))  # `__new__` gets a user's arguments
            Functional.__init__(cast(Functional, self), *args, **kwargs)
        else:
            super().__init__(**kwargs)

    @replaceable_property
    def layers(self) -> Any:
        """The layers among the attributes, or the list that a subclass assigns."""
        return [part for part in children_of(self) if isinstance(part, Layer)]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, type[Layer]] | None = None) -> Self:
        """Return the model that a configuration describes: a functional model if it has ``layers`` and their calls."""
        if not (isinstance(config, dict) and {"layers", "input_layers", "output_layers"} <= config.keys()):
            with custom_object_scope(custom_objects):
                return super().from_config(config)
        nodes, inputs, outputs = graph_of(config)
        with custom_object_scope(custom_objects):
            known = known_classes(Layer, layer_classes(None))
            found = [class_and_config(entry, known, "layer") for entry in config["layers"]]
            layers = [layer.from_config(own) for layer, own in found]
        own = cls._with_policy_of_config({key: config[key] for key in ("name", "trainable", "dtype") if key in config})
        model = cls.of_graph(Graph(layers, nodes, inputs, outputs), **own)
        model.build()
        return cast(Self, rebuilt_by(cls, model, config))

    @classmethod
    def of_graph(cls, graph: Graph, **kwargs: Any) -> "Functional":
        """Return a functional model of a graph, with the methods of this class; its constructor is not called."""
        kind = functional_class(cast(Any, cls))
        model: Functional = kind.__new__(kind)
        Functional.set_graph(model, graph, **kwargs)
        return model


class Functional(WithEnds, Model):
    """A model made of the layer calls that compute symbolic outputs from symbolic inputs.

    Parameters
    ----------
    inputs, outputs : KerasTensor, or list or dict of them
        The outputs must not depend on other inputs; the layers must have different names.
    name : str, optional
    **kwargs
        Arguments of :class:`~mp_core.layers.Layer`.

    Examples
    --------
    >>> import numpy as np
    >>> from mp_core.layers import Dense, Input
    >>> x = Input((3,))
    >>> y = Dense(4, activation="relu")(x)
    >>> model = Functional(x, {"sum": y + 1, "y": y})
    >>> sorted(model.predict(np.ones((2, 3)), verbose=0))
    ['sum', 'y']
    """

    _sample_independence = "always"
    supports_masking = True
    is_made_of_layers = True
    _call_graph: Graph

    def __init__(self, inputs: Any = None, outputs: Any = None, name: str | None = None, **kwargs: Any) -> None:
        Functional.set_graph(self, graph_between(inputs, outputs), name=name, **kwargs)  # not a user's `set_graph`
        if all(isinstance(x.call.layer, InputLayer) for x in leaves(inputs)):
            vars(self)["_ends"] = Ends(inputs, outputs)

    def set_graph(self, graph: Graph, **kwargs: Any) -> None:
        """Initialize this object as the model of a graph; it is built if its layers are."""
        Layer.__init__(self, autocast=False, **kwargs)
        self._call_graph = graph
        self.layers = list(graph.layers)
        claim(self)
        if all(layer.is_placed for layer in self.layers):
            self.build()

    @replaceable_property
    def graph(self) -> Any:
        """The calls of the layers, and the arrangement of the model's inputs and outputs.

        >>> from mp_core.layers import Dense
        >>> x = Input((3,), name="x")
        >>> Model(x, Dense(2, name="y")(x)).graph.outputs
        Source(layer='y', node=0, output=0)
        """
        return self._call_graph

    # ---- calls

    def build(self, input_shape: Any = None) -> None:
        """Build all layers by calling them with symbolic inputs, unless all are built.

        As in Keras, the paths of the layers do not contain the name of the model; in a Sequential they do.
        """
        if all(layer.is_placed for layer in self.layers):
            return
        graph = self._call_graph
        shapes = {source.layer: graph.by_name[source.layer].batch_shape for source in leaves(graph.inputs)}  # type: ignore[attr-defined]
        if input_shape is not None:
            shapes = self._bind(graph.inputs, input_shape)
        symbols = {name: Input(batch_shape=shape, name=name) for name, shape in shapes.items()}
        called_in(enclosing_path, self._children_path, symbolic_outputs, (graph, symbols))

    def by_input(self, inputs: Any) -> dict[str, Any]:
        """Return input layer name -> its array, for the argument of a call."""
        return self._bind(self._call_graph.inputs, inputs)

    def _specs_by_layers(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if type(self).call is not Functional.call or kwargs or len(args) != 1:
            return None
        return map_leaves(spec_of, symbolic_outputs(self._call_graph, self.by_input(args[0])))

    @property
    def _arrangement(self) -> Any:
        return self._call_graph.outputs if type(self).call is Functional.call else None

    def _find_ends(self) -> Ends:
        if not self.built:
            self.build()
        values = symbolic_values(self._call_graph)
        for layer in self.layers:
            first = values.get(Source(layer.name, 0, 0))
            if first is not None:
                replace_claim(self, layer, first.call)
        return Ends(
            *(map_leaves(values.__getitem__, ends) for ends in (self._call_graph.inputs, self._call_graph.outputs))
        )

    def count_of_outputs(self) -> int:
        return len(list(leaves(self._call_graph.outputs)))

    @property
    def _children_path(self) -> str:
        return str(self.path)[: -len(self.name)].rstrip("/")

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the outputs, arranged as the outputs of the graph; a list of one output is unpacked, as in Keras.

        The inputs, and their masks, are arranged as the inputs of the graph. Also accepted: a dict with the names of
        the input layers, for one input or a list; a list, for a dict with sorted keys.
        """
        masks = {} if mask is None else self._bind(self._call_graph.inputs, mask)
        values, _ = self._run_graph(self._bind(self._call_graph.inputs, inputs), masks, training)
        return _unpacked(map_leaves(values.__getitem__, self._call_graph.outputs))

    def _with_integer_inputs(self, x: Any) -> Any:
        graph, given = self._call_graph, self._bind(self._call_graph.inputs, x)
        found = {name: graph.by_name[name].with_integers(part, **graph.rows_read[name]) for name, part in given.items()}  # type: ignore[attr-defined]
        changed = any(part is not given[name] for name, part in found.items())
        return map_leaves(lambda source: found[source.layer], graph.inputs) if changed else x

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        if previous_mask is None and not self._call_graph.mask_makers:
            return None
        masks = {} if previous_mask is None else self._bind(self._call_graph.inputs, previous_mask)
        graph = self._call_graph
        _, found = run_trial(self._run_graph, self._bind(graph.inputs, inputs), masks, None, graph.calls_before_masks)
        return _unpacked(map_leaves(found.get, graph.outputs))

    def _bind(self, structure: Any, given: Any) -> dict[str, Any]:
        """Return input layer name -> the part of `given` for it; raise ValueError if the arrangement does not fit."""
        if isinstance(structure, dict):
            if isinstance(given, list | tuple) and len(given) == len(structure) and has_sorted_keys(structure):
                given = dict(zip(structure, given, strict=True))
            if isinstance(given, dict) and given.keys() == structure.keys():
                return self._bind_all((structure[key], x) for key, x in given.items())
        elif isinstance(given, dict):
            if given.keys() == {source.layer for source in leaves(structure)}:
                return given
        elif isinstance(structure, Source):
            return {structure.layer: given}
        elif isinstance(given, list | tuple):
            if len(given) == len(structure):
                return self._bind_all(zip(structure, given, strict=True))
        elif len(structure) == 1:
            return self._bind(structure[0], given)
        raise ValueError(
            f"`inputs` of '{self.name}' must be arranged as {map_leaves(lambda source: source.layer, structure)}"
            f"{'' if isinstance(given, dict) else _not_by_position(structure)}; received {_shapes_of(given)}"
        )

    def _bind_all(self, pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        return {name: x for pair in pairs for name, x in self._bind(*pair).items()}

    def _run_graph(
        self, inputs: dict[str, Any], masks: dict[str, Any], training: bool | None,
        only: set[tuple[str, int]] | None = None,
    ) -> tuple[dict[Source, Any], dict[Source, Any]]:  # fmt: skip
        """Return source -> output for all nodes, or for the nodes in `only`, and source -> mask for existing masks."""
        graph, values = self._call_graph, Values()
        read = values.__getitem__ if only is None else values.get
        for name, x in inputs.items():
            values[Source(name, 0, 0)] = graph.by_name[name](x, **graph.rows_read[name])
        found = {Source(name, 0, 0): mask for name, mask in masks.items() if mask is not None}
        with awake():
            for name, index in graph.order:
                layer, node = graph.by_name[name], graph.nodes[name][index]
                args, kwargs = map_leaves(lambda x: read(x) if isinstance(x, Source) else x, tuple(node))
                given, named = map_leaves(lambda x: found.get(x) if isinstance(x, Source) else None, tuple(node))
                named = {key: mask for key, mask in named.items() if _has_source(node.kwargs[key])}
                first_mask = given[0] if given and any(m is not None for m in leaves(given[0])) else None
                if only is None or (name, index) in only:
                    outputs = layer(*args, **({"training": training} | _masks_for(layer, given, named) | kwargs))
                    store_results(values, name, index, outputs)
                if first_mask is not None or name in graph.mask_makers:
                    store_results(found, name, index, mask_after(layer, args[0], first_mask))
        return values, {source: mask for source, mask in found.items() if mask is not None}

    # ---- what it consists of

    def get_config(self) -> dict[str, Any]:
        """Return the graph; as in Keras, the constructor's arguments if a subclass makes its graph in ``__init__``."""
        if self._constructor_arguments is not None and not takes_graph(type(self)):
            return constructor_arguments(self) | Layer.get_config(self)
        config = super().get_config()
        config.pop("forms", None)  # stored in the configurations of the layers

        def tensor(x: Any) -> Any:
            history = [x.layer, x.node, x.output] if isinstance(x, Source) else None
            return x if history is None else {"class_name": TENSOR, "config": {"keras_history": history}}

        def entry(layer: Layer) -> dict[str, Any]:
            calls = [
                map_leaves(tensor, {"args": list(n.args), "kwargs": n.kwargs})
                for n in self._call_graph.nodes[layer.name]
            ]
            return {**serialize_keras_object(layer), "name": layer.name, "inbound_nodes": serialize_keras_object(calls)}

        def place(s: Source) -> list[Any]:
            return [s.layer, s.node + isinstance(self._call_graph.by_name[s.layer], Functional), s.output]

        places = map_leaves(place, {"input_layers": self._call_graph.inputs, "output_layers": self._call_graph.outputs})
        return {**config, "layers": [entry(layer) for layer in self.layers], **places}

    def _output_names(self, outputs: Any) -> list[str]:
        if isinstance(outputs, dict) and not is_nested(outputs):
            return list(outputs)
        return [source.layer for source in leaves(self._call_graph.outputs)]

    def _symbolic_calls(self) -> list[tuple[Layer, Any]]:
        return [(self._call_graph.by_name[source.layer], x) for source, x in symbolic_values(self._call_graph).items()]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "layers" and name in vars(self):
            raise AttributeError(f"`layers` of '{self.name}' follow from its graph and cannot be set: make a new model")
        super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        claim(self)

    def __repr__(self) -> str:
        return super().__repr__().replace(", policy=", f", layers={len(self.layers)}, policy=", 1)


def takes_graph(cls: type) -> bool:
    """Whether the constructor of a class takes ``inputs`` and ``outputs``."""
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_all = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
    return takes_all or {"inputs", "outputs"} <= parameters.keys()


def rebuilt_by(cls: type[Model], model: Functional, config: dict[str, Any]) -> Model:
    """Return `model`, constructed again by its class if `config` has further arguments for the constructor."""
    rest = further_arguments(cls, config)
    if not rest or not takes_graph(cls):
        return model
    return cls(inputs=model.input, outputs=model.output, name=model.name, trainable=model.trainable, **rest)


def further_arguments(cls: type[Model], config: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a configuration that are arguments of a user's constructor, without the graph's keys."""
    return {} if is_ours(cls.__init__) else {key: value for key, value in config.items() if key not in _GRAPH_KEYS}


_GRAPH_KEYS = ("layers", "input_layers", "output_layers", "name", "trainable", "dtype", "forms", "build_input_shape")
"""Keys that every configuration of a graph has."""


def functional_class(cls: type[Model]) -> type[Functional]:
    """Return a subclass of both a user's class and :class:`Functional`; the class itself if it is one already."""
    if cls is Model:
        return Functional
    return cls if issubclass(cls, Functional) else cast("type[Functional]", _functional_subclass(cast(Any, cls)))


@cache
def _functional_subclass(cls: Any) -> Any:
    """Return a subclass of a user's class and :class:`Functional`; it is pickled by the user's class."""
    own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "_registered": cls}
    reduced = {"__reduce__": lambda self: (_empty_model, (cls,), self.__getstate__())}
    return type(cls.__name__, (cls, Functional), own | reduced)


def _empty_model(cls: Any) -> Any:
    """Return an uninitialized functional model of a user's class; pickle then sets its state."""
    return object.__new__(functional_class(cls))


def _unpacked(outputs: Any) -> Any:
    """Return the outputs; a list or tuple of one output is unpacked."""
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def _not_by_position(structure: Any) -> str:
    """Return the end of an error: why a list of inputs is refused, if the keys of the dict are unsorted."""
    is_unsorted = isinstance(structure, dict) and not has_sorted_keys(structure)
    return ", by their keys: the keys are not sorted, so the order of a list would be ambiguous" if is_unsorted else ""


def _shapes_of(given: Any) -> Any:
    """Return a description for errors: arrays are replaced by their shapes."""
    return map_leaves(lambda x: f"array of {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__, given)


def _masks_for(layer: Layer, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask arguments of ``call``, from the masks of its positional (`given`) and named arguments.

    As in Keras, ``mask`` is passed only if the call has one array argument, not a sequence with states.
    """
    call = type(layer).call
    if len(given) == 1 and not named:
        return {"mask": given[0]} if any(m is not None for m in leaves(given[0])) and has_argument(call, "mask") else {}
    masks = {**dict(zip(array_arguments(layer), given, strict=False)), **named}
    return {f"{name}_mask": m for name, m in masks.items() if m is not None and has_argument(call, f"{name}_mask")}


def _has_source(argument: Any) -> bool:
    return any(isinstance(part, Source) for part in leaves(argument))
