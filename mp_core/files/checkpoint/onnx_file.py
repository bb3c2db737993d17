"""Read the weights of an ONNX file under the names that they have in the modules of the network.

Only initializers, constants and the descriptions of nodes are read. :mod:`mp_core.files.checkpoint.onnx_names` finds
the names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike

import numpy as np

from mp_core.arrays import Array
from mp_core.files.checkpoint.onnx_names import (
    NOT_QUANTIZED,
    TORCH,
    Graph,
    Initializer,
    Node,
    RefusedError,
    module_of,
    names_of,
)
from mp_core.files.onnx import messages
from mp_core.files.onnx.messages import Attribute, Tensor, model_of, texts
from mp_core.files.onnx.tensors import TYPES, Files, shape_of
from mp_core.files.onnx.wire import DamagedError, floats, integers, message

__all__ = ["open_onnx"]

_WEIGHTS = "float32", "float16", "float64", "bfloat16"
_OTHERS = "int32", "int64", "string", "bool", "uint32", "uint64"
"""The types of weights, and those of constants that no layer has. All others are codes or complex numbers."""
_SCOPES = "pkg.torch.onnx.name_scopes"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_PARAMETER = re.compile(r"^\w+: [A-Z_]+ target='([^']*)'(?: persistent=(\w+))?", re.M)
"""A line of the signature: the name of a parameter or buffer; for a buffer, whether checkpoints store it."""


def open_onnx(path: str | PathLike[str]) -> dict[str, Array]:
    """Map the weights of an ONNX file, and of files beside it that it refers to, into memory.

    They are the initializers that are floats, by name. Matrices of products are (outputs, inputs), as in modules of
    torch. Another file, and one that is damaged, quantized or refers to a file outside of its folder, raise ValueError.
    """
    files = Files(path)
    try:
        return _tensors(files, _graph(files))
    except DamagedError as error:
        raise ValueError(f"{path} is not an ONNX file, or is damaged: {error}") from None


def _tensors(files: Files, graph: Graph) -> dict[str, Array]:
    """Return the weights of a model."""
    try:
        names = names_of(graph)
    except RefusedError as error:
        raise ValueError(f"{files.path}: {error}") from None
    found = {name: graph.weights[initializer].read() for name, (initializer, _) in names.items()}
    files.check_total(sum(tensor.nbytes for tensor in found.values()))
    return {name: tensor.T if names[name].transposed else tensor for name, tensor in found.items()}


def _graph(files: Files) -> Graph:
    """Return the graph of a model, with the graphs and functions inside it."""
    model = model_of(files.content)
    signature = texts(model.graph.metadata).get(_SIGNATURE, "")
    listed = {name: kept != "False" for name, kept in _PARAMETER.findall(signature)}
    graph = Graph(signature=listed)
    waiting = _add_graph(files, graph, model.graph)
    for function in model.functions:
        waiting += _add_nodes(files, graph, function.nodes, function.inputs)
    while waiting:
        waiting = [more for inner in waiting for more in _add_graph(files, graph, message(messages.Graph, inner))]
    by_torch = model.producer in TORCH or any(node.module is not None for node in graph.nodes)
    return replace(graph, by_torch=by_torch, by_paths=any(module_of(node.name) is not None for node in graph.nodes))


def _add_graph(files: Files, graph: Graph, added: messages.Graph) -> list[memoryview]:
    """Add the initializers and nodes of a graph; return the graphs inside the nodes."""
    for sparse in added.sparse:
        name = "" if sparse.values is None else sparse.values.name
        raise ValueError(f"{files.path}: initializer {name} is sparse; expected all of its values")
    for tensor in added.initializers:
        _add_tensor(files, graph, tensor.name, tensor)
    return _add_nodes(files, graph, added.nodes, ())


def _add_nodes(
    files: Files, graph: Graph, nodes: Sequence[messages.Node], parameters: Sequence[str]
) -> list[memoryview]:
    """Add the nodes of a graph or function; return the graphs inside the nodes.

    Values that an inner graph or a function computes get a prefix, because several graphs may use the same names.
    """
    local = {value for node in nodes for value in node.outputs} | set(parameters) if graph.nodes else set()
    start = f"/{len(graph.nodes)}/"
    inner: list[memoryview] = []
    for node in nodes:
        inputs, outputs = ([start + x if x in local else x for x in names] for names in (node.inputs, node.outputs))
        inner += _add_node(files, graph, node, (*inputs,), (*outputs,) or (f"{start}{len(graph.nodes)}",))
    return inner


def _add_tensor(files: Files, graph: Graph, name: str, tensor: Tensor) -> None:
    """Add an initializer."""
    kind, shape = TYPES.get(tensor.data_type), shape_of(tensor)
    which = f"{files.path}: initializer {name} of shape {shape}"
    if name in graph.weights or name in graph.others:
        raise DamagedError(f"two initializers are called {name}")
    if kind is None:
        raise ValueError(f"{which} has numbers of the type {tensor.data_type}; expected floats")
    if kind.startswith("complex"):
        raise ValueError(f"{which} has complex numbers; expected floats")
    if kind not in (*_WEIGHTS, *_OTHERS) and len(shape) > 1:
        raise ValueError(f"{which} has codes of {kind}; {NOT_QUANTIZED}")
    if kind in _WEIGHTS:
        graph.weights[name] = Initializer(shape, partial(files.array, tensor, name))
    else:
        graph.others[name] = shape


def _add_node(
    files: Files, graph: Graph, node: messages.Node, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> list[memoryview]:
    """Add a node, or the value of a Constant node as an initializer; return the graphs inside the node."""
    attributes = {attribute.name: attribute for attribute in node.attributes}
    if node.op_type == "Constant" and "value" in attributes:
        tensor = attributes["value"].t
        if tensor is not None:
            _add_tensor(files, graph, outputs[0], tensor)
        return []
    if node.op_type == "Constant" and "value_floats" in attributes:
        numbers = np.frombuffer(floats(attributes["value_floats"].floats, "<f4"), "<f4")
        graph.weights[outputs[0]] = Initializer(numbers.shape, lambda: numbers)
        return []
    scopes = re.findall(r"'([^']*)'", texts(node.metadata).get(_SCOPES, ""))
    module = scopes[-2] if len(scopes) > 1 else module_of(node.name)
    graph.nodes.append(Node(node.kind, node.name, inputs, outputs, module, _transposes(node.kind, attributes)))
    return [inner for attribute in node.attributes for inner in attribute.subgraphs]


def _transposes(kind: str, attributes: Mapping[str, Attribute]) -> bool:
    """Return whether a node transposes its second operand or, if it is a Transpose, a matrix."""
    if kind != "Transpose":
        return "transB" in attributes and attributes["transB"].i == 1
    order = integers(attributes["perm"].ints).tolist() if "perm" in attributes else [1, 0]
    return bool(order == [1, 0])
