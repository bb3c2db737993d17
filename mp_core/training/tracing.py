"""Graphs of symbolic calls: build a graph from inputs and outputs, and evaluate it with symbolic arrays."""

from collections.abc import Iterator
from typing import Any

from mp_core.layers.base.symbolic import symbolic_call
from mp_core.layers.input_layer import Input, InputLayer, tensor_of
from mp_core.layers.layer import Layer
from mp_core.layers.symbols import Call, KerasTensor
from mp_core.training.graph import Graph, Node, Source
from mp_core.utilities.tree import leaves, leaves_by_key, map_leaves

__all__ = ["graph_between", "symbolic_outputs", "symbolic_values"]


def graph_between(inputs: Any, outputs: Any) -> Graph:
    """Return the graph of the layer calls that compute symbolic outputs from symbolic inputs.

    The order of layers is Keras': by greatest distance from the outputs, then by a depth-first walk from the outputs.
    An input may be the output of a layer; the model gets an input layer in its place. If an output depends on an
    :func:`Input` that is not among the inputs, or an input occurs twice, it raises ValueError.
    """
    for argument, tree in (("inputs", inputs), ("outputs", outputs)):
        found = list(leaves(tree))
        if not found or not all(isinstance(x, KerasTensor) for x in found):
            raise TypeError(f"`{argument}` must be what Input and layers called with it return; received {tree!r:.200}")
    given = list(leaves_by_key(inputs))
    if len({id(x) for x in given}) < len(given):
        raise ValueError(f"`inputs` must be different; received {inputs!r:.300}")
    starts = {(x.call, x.output): x if isinstance(x.call.layer, InputLayer) else _new_input_like(x) for x in given}
    calls, met = _calls_between(leaves_by_key(outputs), starts)
    order = _layers_by_depth(calls, met, starts)
    numbers: dict[Call, int] = {}
    for call in sorted(calls, key=lambda call: call.number):
        numbers[call] = sum(other.layer is call.layer for other in numbers)

    def source(x: Any) -> Any:
        if not isinstance(x, KerasTensor):
            return x
        start = starts.get((x.call, x.output))
        return Source(x.name, numbers[x.call], x.output) if start is None else Source(start.name, 0, 0)

    nodes: dict[str, list[Node]] = {}
    for call in numbers:
        nodes.setdefault(call.layer.name, []).append(Node(*map_leaves(source, (call.args, call.kwargs))))
    return Graph(order, nodes, map_leaves(source, inputs), map_leaves(source, outputs))


def _new_input_like(x: KerasTensor) -> KerasTensor:
    """Return a new Input with the shape and dtype of a symbolic array."""
    return Input(batch_shape=x.shape, dtype=x.dtype)


Starts = dict[tuple[Call, int], KerasTensor]


def _calls_between(outputs: Iterator[KerasTensor], starts: Starts) -> tuple[list[Call], dict[Layer, int]]:
    """Return the calls that the outputs depend on, in topological order, and layer -> when the walk reached it."""
    done: dict[Call, None] = {}
    met: dict[Layer, int] = {}
    for output in outputs:
        waiting = [(output, False)]
        while waiting:
            x, is_left = waiting.pop()
            if is_left:
                done[x.call] = None
                continue
            start = starts.get((x.call, x.output))
            layer = (x if start is None else start).call.layer
            if start is None and not x.call.inputs():
                raise ValueError(f"an output needs the input {x!r}, which is not among `inputs`")
            if x.call in done or any(x.call is y.call for y, left in waiting if left):
                continue
            met.setdefault(layer, len(met))
            if start is None:
                waiting.append((x, True))
                waiting += [(y, False) for y in reversed(x.call.inputs())]
    return list(done), met


def _layers_by_depth(calls: list[Call], met: dict[Layer, int], starts: Starts) -> list[Layer]:
    """Return the layers, those with the greatest distance from the outputs first; ties in the order of the walk."""
    depths: dict[Any, int] = {}
    for call in reversed(calls):
        depth = depths[call.layer] = max(depths.get(call, 0), depths.get(call.layer, 0))
        for x in call.inputs():
            start = starts.get((x.call, x.output))
            before = x.call if start is None else start.call.layer
            depths[before] = max(depths.get(before, 0), depth + 1)
    layers = {**dict.fromkeys(met), **dict.fromkeys(x.call.layer for x in starts.values())}
    return sorted(layers, key=lambda layer: (-depths.get(layer, 0), met.get(layer, -1)))


def symbolic_values(graph: Graph) -> dict[Source, KerasTensor]:
    """Return the symbolic array of each output of each call in a graph of built layers."""
    starts = {Source(x.name, 0, 0): tensor_of(x) for x in graph.layers if isinstance(x, InputLayer)}
    return graph.evaluate(starts, lambda layer, args, kwargs: layer(*args, **kwargs))


def symbolic_outputs(graph: Graph, inputs: dict[str, KerasTensor]) -> Any:
    """Return the outputs of a graph for symbolic arrays; the layers do not record these calls as their own.

    Unbuilt layers are built. `inputs` maps the name of an input layer to its symbolic array.
    """

    def call(layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return symbolic_call(layer, args, kwargs)[1]

    layers = {layer.name: layer for layer in graph.layers if isinstance(layer, InputLayer)}
    starts = {
        Source(name, 0, 0): call(layers[name], (_with_known_lengths(x, layers[name].batch_shape),), {})
        for name, x in inputs.items()
    }
    return map_leaves(graph.evaluate(starts, call).__getitem__, graph.outputs)


def _with_known_lengths(x: KerasTensor, wanted: tuple[int | None, ...]) -> KerasTensor:
    """Return a symbolic array in which unknown lengths are replaced by the lengths that the input layer requires."""
    if len(x.shape) != len(wanted):
        return x
    lengths = (known if known is not None else n for known, n in zip(x.shape[1:], wanted[1:], strict=True))
    return KerasTensor((x.shape[0], *lengths), x.dtype, x.call, x.output)
