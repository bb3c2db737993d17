"""Graphs of layer calls, which functional models are made of, and their form in Keras' configurations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from mp_core.files.deserialization import VALUES, value_of
from mp_core.layers.base.call import returns_list
from mp_core.layers.base.configuration import is_ours
from mp_core.layers.base.ends import WithEnds
from mp_core.layers.base.state import flat_layers
from mp_core.layers.embedding import Embedding
from mp_core.layers.input_layer import InputLayer
from mp_core.layers.layer import Layer
from mp_core.layers.masks import needs_inputs
from mp_core.layers.pointwise import Masking
from mp_core.layers.registry import is_registered
from mp_core.utilities.registry import check_depth
from mp_core.utilities.tree import leaves, leaves_by_key, map_leaves

__all__ = ["TENSOR", "Graph", "Node", "Source", "Values", "count_of_outputs", "graph_in", "graph_of", "store_results"]

TENSOR = "__keras_tensor__"
"""The ``class_name`` of a layer's output in Keras' configurations."""


@dataclass(frozen=True)
class Source:
    """One output of one call of a layer: ``keras_history`` in Keras' configurations."""

    layer: str
    node: int
    output: int


class Node(NamedTuple):
    """The arguments of one layer call, with a :class:`Source` in the place of each array."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Values(dict[Source, Any]):
    """Source -> array. If a source is missing, the layer of a user returned fewer outputs than the graph reads."""

    def __missing__(self, source: Source) -> Any:
        raise ValueError(
            f"layer '{source.layer}' must return the output {source.output} in its call {source.node}, which the graph "
            "reads; it returned fewer outputs"
        )


class Graph:
    """An immutable graph of layer calls (nodes) in topological order; a layer may be called several times.

    Parameters
    ----------
    layers : sequence of Layer
        With distinct names; an :class:`InputLayer` for each input.
    nodes : mapping of str to sequence of Node
        Layer name -> its calls; :attr:`Source.node` is an index into them. Input layers have none.
    inputs, outputs : Source, or list or dict of them
        The arrangement of arguments and results.

    Attributes
    ----------
    by_name : dict of str to Layer
    order : list of (str, int)
        Layer name and index of each call, in topological order.
    mask_makers : set of str
        Names of the layers that make masks, or contain one that does.
    calls_before_masks : set of (str, int)
        The calls whose outputs are needed to compute masks.
    rows_read : dict of str to dict
        Input layer name -> ``{"rows": n}``, n the largest table of the embeddings that read it; ``{}`` if another
        layer reads it too.
    """

    def __init__(self, layers: Sequence[Layer], nodes: Mapping[str, Sequence[Node]], inputs: Any, outputs: Any) -> None:
        self.layers = list(layers)
        if not all(isinstance(layer, Layer) for layer in self.layers):
            raise TypeError(f"`layers` must be layers; received {layers!r:.200}")
        self.by_name = {layer.name: layer for layer in self.layers}
        if len(self.by_name) < len(self.layers):
            raise ValueError(f"`layers` must have different names; received {[layer.name for layer in self.layers]}")
        self.nodes = {name: list(nodes.get(name, ())) for name in self.by_name}
        self.inputs, self.outputs = inputs, outputs
        self._check_sources(nodes)
        self.order = list(self._in_topological_order())
        self.mask_makers = {layer.name for layer in self.layers if _may_make_mask(layer)}
        self.calls_before_masks = self._calls_before_masks()
        self.rows_read = self._rows_read()

    def _check_sources(self, nodes: Mapping[str, Any]) -> None:
        unknown = set(nodes) - set(self.by_name)
        if unknown:
            raise ValueError(f"`nodes` must be of the layers; received nodes of {sorted(unknown)}")
        for source in leaves(self.inputs):
            if not isinstance(self.by_name.get(getattr(source, "layer", "")), InputLayer):
                raise ValueError(f"`inputs` must be sources that are input layers; received {source!r}")
        arguments = [node for calls in self.nodes.values() for node in calls]
        for source in leaves([self.outputs, *arguments]):
            if isinstance(source, Source) and not self._exists(source):
                raise ValueError(f"The graph has no output {source}")

    def _exists(self, source: Source) -> bool:
        layer, calls = self.by_name.get(source.layer), self.nodes.get(source.layer, [])
        if layer is None or source.output < 0:
            return False
        if isinstance(layer, InputLayer):
            return source.node == source.output == 0
        if not 0 <= source.node < len(calls):
            return False
        count = count_of_outputs(layer, calls[source.node])
        return count is None or source.output < count

    def _in_topological_order(self) -> Iterator[tuple[str, int]]:
        """Yield layer name and index of every node, each after the nodes whose outputs it reads."""
        done = {(name, 0) for name, layer in self.by_name.items() if isinstance(layer, InputLayer)}
        waiting = {
            (name, index): {(s.layer, s.node) for s in leaves(node) if isinstance(s, Source)}
            for name, calls in self.nodes.items()
            for index, node in enumerate(calls)
        }
        places = {key: place for place, key in enumerate(waiting)}
        readers: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for key, needed in waiting.items():
            needed -= done
            for before in needed:
                readers.setdefault(before, []).append(key)
        ready = [key for key, needed in waiting.items() if not needed]
        while ready:
            yield from ready
            following = []
            for key in ready:
                del waiting[key]
                for reader in readers.get(key, ()):
                    waiting[reader].discard(key)
                    if not waiting[reader]:
                        following.append(reader)
            ready = sorted(following, key=places.__getitem__)
        if waiting:
            raise ValueError(f"The graph has a cycle among {sorted({name for name, _ in waiting})}")

    def _calls_before_masks(self) -> set[tuple[str, int]]:
        """Return the nodes whose outputs masks depend on: all before a layer that computes its mask from inputs."""
        wanted: set[tuple[str, int]] = set()
        for name, index in reversed(self.order):
            if (name, index) in wanted or needs_inputs(self.by_name[name]):
                wanted |= {(s.layer, s.node) for s in leaves(self.nodes[name][index]) if isinstance(s, Source)}
        return wanted

    def _rows_read(self) -> dict[str, dict[str, int]]:
        """Return :attr:`rows_read`."""
        outputs = {part for part in leaves(self.outputs) if isinstance(part, Source)}
        readers: dict[Source, dict[str, Layer]] = {source: {} for source in leaves(self.inputs)}
        for name, calls in self.nodes.items():
            for part in leaves(calls):
                if isinstance(part, Source) and part in readers:
                    readers[part][name] = self.by_name[name]
        found = {}
        for source, layers in readers.items():
            rows = [layer.input_dim for layer in layers.values() if isinstance(layer, Embedding)]
            alone = rows and len(rows) == len(layers) and source not in outputs
            found[source.layer] = {"rows": max(rows)} if alone else {}
        return found

    def evaluate(self, starts: Mapping[Source, Any], call: Callable[[Layer, Any, Any], Any]) -> dict[Source, Any]:
        """Apply ``call(layer, args, kwargs)`` to each node in the order of the graph, and return source -> result.

        `starts` maps the sources of the input layers to their outputs.
        """
        values = Values(starts)
        for name, index in self.order:
            node = tuple(self.nodes[name][index])
            args, kwargs = map_leaves(lambda x: values[x] if isinstance(x, Source) else x, node)
            store_results(values, name, index, call(self.by_name[name], args, kwargs))
        return values


def graph_in(layer: Layer) -> Graph | None:
    """Return the graph of a functional model, even if a user's class redefines ``graph``; None for other layers."""
    found = vars(layer).get("_call_graph")
    return found if isinstance(found, Graph) else None


def store_results(into: dict[Source, Any], name: str, index: int, results: Any) -> None:
    """Store the outputs of node `index` of a layer under their sources."""
    for number, result in enumerate(leaves_by_key(results)):
        into[Source(name, index, number)] = result


def count_of_outputs(layer: Layer, node: Node) -> int | None:
    """Return the number of arrays that a layer returns at a node; None if only a call can show it (user classes)."""
    if isinstance(layer, WithEnds):
        return layer.count_of_outputs()
    if not is_registered(type(layer)) or returns_list(layer):
        return None
    return 2 if node.kwargs.get("return_attention_scores") else 1


def _may_make_mask(layer: Layer) -> bool:
    """Whether a layer, or one inside it, may return a mask for inputs without one; assume so for user classes."""
    parts = (part for part in flat_layers(layer) if isinstance(part, Layer))
    return any(
        getattr(part, "mask_zero", isinstance(part, Masking) or not is_ours(type(part).compute_mask)) for part in parts
    )


# ---- configurations


def graph_of(config: Any) -> tuple[dict[str, list[Node]], Any, Any]:
    """Return layer name -> nodes, the inputs and the outputs from Keras' configuration of a functional model."""
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
    """Return arguments in which serialized tensors are replaced by sources."""
    if isinstance(part, dict) and part.get("class_name") == TENSOR:
        own = part.get("config")
        return _source(own.get("keras_history") if isinstance(own, dict) else None)
    if isinstance(part, dict) and part.get("class_name") in VALUES:
        return value_of(part)
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
