"""Functional models: layers at the nodes of a graph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core.core.replay import awake
from mp_core.core.scopes import called_in
from mp_core.dtype_policies.lookup import check_depth, class_and_config, custom_object_scope, known_classes
from mp_core.layers.building import enclosing_path, example_shape, takes
from mp_core.layers.embedding import Embedding
from mp_core.layers.ends import Ends, WithEnds, claim
from mp_core.layers.input_layer import InputLayer
from mp_core.layers.layer import Layer
from mp_core.layers.masks import mask_after
from mp_core.layers.merging import Merge
from mp_core.layers.operation import Operation
from mp_core.layers.pointwise import Masking
from mp_core.layers.sequential import Sequential, add_face, layer_classes
from mp_core.layers.serialization import serialize_keras_object
from mp_core.utilities.tree import leaves, map_leaves

__all__ = ["Functional", "Node", "Source", "graph_of"]

_TENSOR = "__keras_tensor__"
_FROM_MASKS = {Layer.compute_mask, Merge.compute_mask}
"""The methods that compute a mask without the inputs, from their masks alone."""


@dataclass(frozen=True)
class Source:
    """One output of one call of a layer: ``keras_history`` in Keras' configurations."""

    layer: str
    node: int
    output: int


class _Values(dict[Source, Any]):
    """The arrays of sources; a layer of a user's class may return fewer than the graph reads."""

    def __missing__(self, source: Source) -> Any:
        raise ValueError(f"layer '{source.layer}' has not returned {source}")


class Node(NamedTuple):
    """The arguments of one call of a layer, with a :class:`Source` in the place of each array."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Functional(WithEnds, Layer):
    """Layers that are called in topological order, each at one or several nodes of a graph.

    Parameters
    ----------
    layers : sequence of Layer
        With different names; an :class:`InputLayer` for each input.
    nodes : mapping of str to sequence of Node
        By the names of layers, in the order in which :attr:`Source.node` counts them. Input layers have none.
    inputs, outputs : Source, or list or dict of them
        How arguments and results are arranged.
    **kwargs
        Those of :class:`Layer`.

    Attributes
    ----------
    input_sources, output_sources : Source, or list or dict of them
        The arguments `inputs` and `outputs`.
    order : list of (str, int)
        The names of layers and the numbers of their calls, as they are made.

    Raises
    ------
    ValueError
        A name is there twice, a source does not exist, or the graph has a cycle.

    Examples
    --------
    >>> from mp_core.layers import Add, Dense
    >>> x, y = Source("x", 0, 0), Source("y", 0, 0)
    >>> model = Functional(
    ...     [InputLayer((None, 3), name="x"), Dense(3, name="y"), Add(name="sum")],
    ...     {"y": [Node((x,), {})], "sum": [Node(([x, y],), {})]},
    ...     x,
    ...     {"sum": Source("sum", 0, 0), "y": y},
    ... )
    >>> sorted(model(np.ones((2, 3), np.float32)))
    ['sum', 'y']
    """

    supports_masking = True

    def __init__(
        self, layers: Sequence[Layer], nodes: Mapping[str, Sequence[Node]], inputs: Any, outputs: Any, **kwargs: Any
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.layers = list(layers)
        if not all(isinstance(layer, Layer) for layer in self.layers):
            raise TypeError(f"`layers` must be layers; received {layers!r:.200}")
        self._by_name = {layer.name: layer for layer in self.layers}
        if len(self._by_name) < len(self.layers):
            raise ValueError(f"`layers` must have different names; received {[layer.name for layer in self.layers]}")
        self.nodes = {name: list(nodes.get(name, ())) for name in self._by_name}
        self.input_sources, self.output_sources = inputs, outputs
        self._check_sources(nodes)
        self.order = list(self._sorted())
        self._maskers = {layer.name for layer in self.layers if _makes_mask(layer)}
        self._for_masks = self._nodes_for_masks()
        self._readers = {source.layer: self._rows_read(source) for source in leaves(self.input_sources)}
        claim(self)

    def _check_sources(self, nodes: Mapping[str, Any]) -> None:
        unknown = set(nodes) - set(self._by_name)
        if unknown:
            raise ValueError(f"`nodes` must be of the layers; received nodes of {sorted(unknown)}")
        for source in leaves(self.input_sources):
            if not isinstance(self._by_name.get(getattr(source, "layer", "")), InputLayer):
                raise ValueError(f"`inputs` must be sources that are input layers; received {source!r}")
        arguments = [node for calls in self.nodes.values() for node in calls]
        for source in leaves([self.output_sources, *arguments]):
            if isinstance(source, Source) and not self._exists(source):
                raise ValueError(f"The graph of '{self.name}' has no output {source}")

    def _exists(self, source: Source) -> bool:
        layer, calls = self._by_name.get(source.layer), self.nodes.get(source.layer, [])
        if layer is None or source.output < 0:
            return False
        if isinstance(layer, InputLayer):
            return source.node == source.output == 0
        if not 0 <= source.node < len(calls):
            return False
        count = _count_of_outputs(layer, calls[source.node])
        return count is None or source.output < count

    def _sorted(self) -> Iterator[tuple[str, int]]:
        """Yield layer and number of every node, each behind those whose outputs it takes."""
        done = {(name, 0) for name, layer in self._by_name.items() if isinstance(layer, InputLayer)}
        waiting = {
            (name, index): {(s.layer, s.node) for s in leaves(node) if isinstance(s, Source)}
            for name, calls in self.nodes.items()
            for index, node in enumerate(calls)
        }
        while waiting:
            ready = [key for key, needed in waiting.items() if needed <= done]
            if not ready:
                raise ValueError(
                    f"The graph of '{self.name}' has a cycle among {sorted({name for name, _ in waiting})}"
                )
            yield from ready
            done |= set(ready)
            for key in ready:
                del waiting[key]

    def _nodes_for_masks(self) -> set[tuple[str, int]]:
        """Return the nodes whose outputs are needed for masks: those before a layer that may make a mask."""
        wanted: set[tuple[str, int]] = set()
        for name, index in reversed(self.order):
            if (name, index) in wanted or type(self._by_name[name]).compute_mask not in _FROM_MASKS:
                wanted |= {(s.layer, s.node) for s in leaves(self.nodes[name][index]) if isinstance(s, Source)}
        return wanted

    def _rows_read(self, source: Source) -> dict[str, int]:
        """Return the most `rows` of the embeddings that read an input, nothing if something else reads it too."""
        readers = [
            self._by_name[name]
            for name, calls in self.nodes.items()
            if any(source == part for node in calls for part in leaves(node))
        ]
        rows = [reader.input_dim for reader in readers if isinstance(reader, Embedding)]
        if not rows or len(rows) < len(readers) or source in leaves(self.output_sources):
            return {}
        return {"rows": max(rows)}

    # ---- calls

    def build(self, input_shape: Any = None) -> None:
        """Build the layers, by running zeros of the shape of the inputs through them if one is not built.

        As in Keras, the name of the model is no part of their paths; that of a Sequential is.
        """
        if all(layer.built for layer in self.layers):
            return
        shapes = {source.layer: self._by_name[source.layer].batch_shape for source in leaves(self.input_sources)}  # type: ignore[attr-defined]
        if input_shape is not None:
            shapes = self._bound(self.input_sources, input_shape)
        zeros = {name: np.zeros(example_shape(shape), np.float32) for name, shape in shapes.items()}
        called_in(enclosing_path, self._around, self._results, (zeros, {}, None))

    def _find_ends(self) -> Ends:
        from mp_core.layers.symbolic import ends_of_graph

        return ends_of_graph(self)

    @property
    def _around(self) -> str:
        return str(self.path)[: -len(self.name)].rstrip("/")

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the outputs, arranged as the outputs of the graph.

        Parameters
        ----------
        inputs : ndarray, or list or dict of them
            Arranged as the inputs of the graph; a list of inputs may come as a dict by the names of the input layers.
        training : bool, optional
        mask : array-like, or list or dict of them, optional
            Those of the inputs, arranged in the same way.
        """
        masks = {} if mask is None else self._bound(self.input_sources, mask)
        values, _ = self._results(self._bound(self.input_sources, inputs), masks, training)
        return map_leaves(values.__getitem__, self.output_sources)

    def whole(self, inputs: Any) -> Any:
        """Return the inputs; floats become integers where layers read integers."""
        given = self._bound(self.input_sources, inputs)
        found = {name: self._by_name[name].whole(x, **self._readers[name]) for name, x in given.items()}  # type: ignore[attr-defined]
        changed = any(x is not given[name] for name, x in found.items())
        return map_leaves(lambda source: found[source.layer], self.input_sources) if changed else inputs

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        """Return the masks of the outputs; layers run as far as one of them makes a mask from its inputs."""
        if previous_mask is None and not self._maskers:
            return None
        masks = {} if previous_mask is None else self._bound(self.input_sources, previous_mask)
        _, found = self._results(self._bound(self.input_sources, inputs), masks, None, self._for_masks)
        return map_leaves(found.get, self.output_sources)

    def _bound(self, structure: Any, given: Any) -> dict[str, Any]:
        """Return name of input layer -> what is given for it."""
        if isinstance(structure, Source):
            return {structure.layer: given}
        if isinstance(structure, dict):
            keys = sorted(structure)
            parts = given if isinstance(given, dict) else dict(zip(keys, given, strict=False))
            if isinstance(given, list | tuple | dict) and len(given) == len(keys) and set(parts) == set(keys):
                pairs = [(structure[key], parts[key]) for key in keys]
                return {name: x for pair in pairs for name, x in self._bound(*pair).items()}
        elif isinstance(given, dict) and set(given) == {source.layer for source in leaves(structure)}:
            return given
        elif isinstance(given, list | tuple) and len(given) == len(structure):
            return {name: x for pair in zip(structure, given, strict=True) for name, x in self._bound(*pair).items()}
        elif len(structure) == 1 and not isinstance(given, list | tuple | dict):
            return self._bound(structure[0], given)
        wanted = map_leaves(lambda source: source.layer, structure)
        received = list(given) if isinstance(given, dict) else f"{type(given).__name__} of {np.shape(given)}"
        raise ValueError(f"`inputs` of '{self.name}' must be arranged as {wanted}; received {received}")

    def _results(
        self, inputs: dict[str, Any], masks: dict[str, Any], training: bool | None,
        only: set[tuple[str, int]] | None = None,
    ) -> tuple[dict[Source, Any], dict[Source, Any]]:  # fmt: skip
        """Return the outputs of all nodes, or of some only, and, where there are any, the masks of all."""
        values = _Values()
        read = values.__getitem__ if only is None else values.get
        for name, x in inputs.items():
            values[Source(name, 0, 0)] = self._by_name[name](x, **self._readers[name])
        found = {Source(name, 0, 0): mask for name, mask in masks.items() if mask is not None}
        with awake():
            for name, index in self.order:
                layer, node = self._by_name[name], self.nodes[name][index]
                args, kwargs = map_leaves(lambda x: read(x) if isinstance(x, Source) else x, tuple(node))
                given = map_leaves(lambda x: found.get(x) if isinstance(x, Source) else None, node.args)
                before = given[0] if given and any(m is not None for m in leaves(given[0])) else None
                if only is None or (name, index) in only:
                    outputs = layer(*args, **({"training": training} | _masks_for(layer, given) | kwargs))
                    self._keep(values, name, index, outputs)
                if before is not None or name in self._maskers:
                    self._keep(found, name, index, mask_after(layer, args[0], before))
        return values, {source: mask for source, mask in found.items() if mask is not None}

    @staticmethod
    def _keep(into: dict[Source, Any], name: str, index: int, results: Any) -> None:
        for number, result in enumerate(leaves(results)):
            into[Source(name, index, number)] = result

    # ---- configurations

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, with those of the layers, arranged as Keras does."""
        config = super().get_config()
        config.pop("forms", None)  # the layers say their own

        def tensor(x: Any) -> Any:
            history = [x.layer, x.node, x.output] if isinstance(x, Source) else None
            return x if history is None else {"class_name": _TENSOR, "config": {"keras_history": history}}

        def entry(layer: Layer) -> dict[str, Any]:
            calls = [map_leaves(tensor, {"args": list(n.args), "kwargs": n.kwargs}) for n in self.nodes[layer.name]]
            return {**serialize_keras_object(layer), "name": layer.name, "inbound_nodes": calls}

        def place(s: Source) -> list[Any]:
            return [s.layer, s.node + isinstance(self._by_name[s.layer], Functional), s.output]

        places = map_leaves(place, {"input_layers": self.input_sources, "output_layers": self.output_sources})
        return {**config, "layers": [entry(layer) for layer in self.layers], **places}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, type[Layer]] | None = None) -> Self:
        """Return the model of a configuration.

        Raises
        ------
        ValueError
            It has no graph, or one with a cycle; a ``class_name`` is neither a layer of mp_core, nor registered, nor
            in `custom_objects`.
        """
        nodes, inputs, outputs = graph_of(config)
        with custom_object_scope(custom_objects):
            known = known_classes(Layer, layer_classes(None))
            found = [class_and_config(entry, known, "layer") for entry in config["layers"]]
            layers = [layer.from_config(own) for layer, own in found]
        rest = {key: value for key, value in config.items() if key not in ("layers", "input_layers", "output_layers")}
        rest = cls._with_policy_of_config({key: rest[key] for key in ("name", "trainable", "dtype") if key in rest})
        return cls._of_graph(layers, nodes, inputs, outputs, **rest)

    @classmethod
    def _of_graph(cls, *graph: Any, **kwargs: Any) -> Self:
        """Return the model of these layers, nodes, inputs and outputs."""
        return cls(*graph, **kwargs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        claim(self)

    def __repr__(self) -> str:
        return super().__repr__().replace(", policy=", f", layers={len(self.layers)}, policy=", 1)


def graph_of(config: Any) -> tuple[dict[str, list[Node]], Any, Any]:
    """Return nodes by the names of layers, inputs and outputs of Keras' configuration of a functional model.

    Raises
    ------
    ValueError
        It is none.
    """
    check_depth(config)
    if not isinstance(config, dict) or not isinstance(config.get("layers"), list | tuple):
        raise ValueError(f"a functional model's config must have a list of `layers`; received {config!r:.200}")
    nodes = {}
    for entry in config["layers"]:
        calls = entry.get("inbound_nodes") if isinstance(entry, dict) else None
        if not isinstance(calls, list | tuple) or not isinstance(entry.get("name"), str):
            raise ValueError(
                f"a layer of a functional model must have `name` and `inbound_nodes`; received {entry!r:.200}"
            )
        nodes[entry["name"]] = [_node(call, entry["name"]) for call in calls]
    models = {entry["name"] for entry in config["layers"] if entry.get("class_name") == "Functional"}

    def end(source: Source) -> Source:  # Keras counts the calls of a functional model from 1 here
        return replace(source, node=source.node - 1) if source.layer in models else source

    return nodes, *(map_leaves(end, _ends(config.get(key))) for key in ("input_layers", "output_layers"))


def _node(call: Any, name: str) -> Node:
    args, kwargs = (call.get("args"), call.get("kwargs", {})) if isinstance(call, dict) else (None, None)
    if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
        raise ValueError(f"a node of layer '{name}' must have `args` and `kwargs`; received {call!r:.200}")
    if kwargs.get("training"):
        raise ValueError(
            f"layer '{name}' is called with training={kwargs['training']!r} in inference too: mp_core does not do that"
        )
    given = {key: value for key, value in kwargs.items() if key != "training" and value is not None}
    return Node(tuple(_arguments(list(args), name)), _arguments(given, name))


def _arguments(part: Any, name: str) -> Any:
    """Return arguments with sources in the place of serialized tensors."""
    if isinstance(part, dict) and part.get("class_name") == _TENSOR:
        own = part.get("config")
        return _source(own.get("keras_history") if isinstance(own, dict) else None)
    if isinstance(part, dict) and part.get("class_name") in ("__slice__", "__ellipsis__"):
        return part  # of an index, which the operation has itself
    if isinstance(part, dict) and "class_name" in part:
        raise ValueError(
            f"layer '{name}' is called with a {part['class_name']}: only arrays and numbers can be arguments"
        )
    if isinstance(part, dict):
        return {key: _arguments(value, name) for key, value in part.items()}
    return [_arguments(value, name) for value in part] if isinstance(part, list | tuple) else part


def _source(history: Any) -> Source:
    if isinstance(history, list | tuple) and [type(part) for part in history] == [str, int, int]:
        return Source(*history)
    raise ValueError(f"an array of a functional model must be [layer, node, output]; received {history!r:.200}")


def _ends(part: Any) -> Any:
    if isinstance(part, dict) and part:
        return {name: _ends(value) for name, value in part.items()}
    if isinstance(part, list | tuple) and part and not isinstance(part[0], str):
        return [_ends(value) for value in part]
    return _source(part)


def _masks_for(layer: Layer, given: Sequence[Any]) -> dict[str, Any]:
    """Return the masks of positional arguments as the arguments that a layer's ``call`` has for them."""
    call = type(layer).call
    if len(given) == 1:
        return {"mask": given[0]} if any(m is not None for m in leaves(given[0])) and takes(call, "mask") else {}
    names = (f"{name}_mask" for name in layer._arrays)
    return {name: m for name, m in zip(names, given, strict=False) if m is not None and takes(call, name)}


def _count_of_outputs(layer: Layer, node: Node) -> int | None:
    """Return how many arrays a layer returns at a node, None if only its call says: of a class of users."""
    if isinstance(layer, Functional):
        return len(list(leaves(layer.output_sources)))
    if isinstance(layer, Sequential) and type(layer).call is Sequential.call:
        return _count_of_outputs(layer.layers[-1], Node((), {})) if layer.layers else 1
    if type(layer) not in layer_classes(None).values() or (isinstance(layer, Operation) and layer.returns_list):
        return None
    return 2 if node.kwargs.get("return_attention_scores") else 1


def _makes_mask(layer: Layer) -> bool:
    """Whether a layer, or one in it, makes a mask where its inputs have none: some of mp_core, and those of users."""
    known: list[type[Layer]] = [*layer_classes(None).values(), Functional]
    others = {kind.compute_mask for kind in known if kind is not Masking}
    parts = (part for part in layer.flatten() if isinstance(part, Layer))
    return any(getattr(part, "mask_zero", type(part).compute_mask not in others) for part in parts)


add_face(Sequential._face, (*layer_classes(None).values(), Functional))
