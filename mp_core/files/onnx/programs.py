"""Read an ONNX file as a program: its nodes with their options, its constants, its inputs and outputs.

Constant nodes become constants, and operators that the file defines itself are replaced by their nodes. Graphs inside
nodes become programs among the options of the node; their nodes may read values of the graphs around them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NoReturn

import numpy as np

from mp_core.arrays import Array
from mp_core.files.onnx.messages import Attribute, Function, Graph, Info, Opset, Tensor, Type, model_of
from mp_core.files.onnx.messages import Node as Message
from mp_core.files.onnx.tensors import Files, type_name
from mp_core.files.onnx.wire import DamagedError, floats, integers, message
from mp_core.files.program import Input, Node, Program, Value

__all__ = ["read_program"]

_MOST_NODES = 200_000  # functions may call functions, so that a short file has many nodes
_MOST_DEPTH = 32  # of graphs in nodes of graphs, and of functions that call functions


def read_program(path: str | PathLike[str]) -> Program:
    """Return the program of an ONNX file; its constants are views of the file, and of files beside it.

    Raises
    ------
    ValueError
        The file is damaged, or has a value that no program has: a sparse array, or an array of strings.
    """
    files = Files(path)
    try:
        model = model_of(files.content)
        functions = {(_domain(x.domain), x.name, x.overload): x for x in model.functions}
        return _Reading(files, functions).program(model.graph, _Scope(_versions(model.opsets)), set())
    except DamagedError as error:
        raise ValueError(f"{path} is not an ONNX file, or is damaged: {error}") from None


def _versions(opsets: Iterable[Opset]) -> dict[str, int]:
    """Return domain -> version of its operators."""
    return {_domain(x.domain): x.version for x in opsets}


def _domain(name: str) -> str:
    """Return the name of a domain; that of ONNX may be written in two ways."""
    return "" if name == "ai.onnx" else name


@dataclass(frozen=True)
class _Scope:
    """What names mean where a node is written: in a graph, or in a function that a node calls."""

    versions: Mapping[str, int]
    # In a function: the values that the caller gave to the function's inputs and outputs, and its options. All other
    # names get the prefix.
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    depth: int = 0

    def name(self, local: str) -> str:
        """Return the name that a value has in the program."""
        return self.names.get(local, self.prefix + local) if local else ""

    def version(self, domain: str) -> int:
        """Return the version of the operators of a domain; 0 if the file does not say it."""
        return self.versions.get(_domain(domain), 0)

    def deeper(self, **changes: Any) -> "_Scope":
        """Return a scope inside this one."""
        if self.depth >= _MOST_DEPTH:
            raise DamagedError(f"graphs and functions are inside each other more than {_MOST_DEPTH} times")
        return replace(self, depth=self.depth + 1, **changes)


class _Reading:
    """What is known while a file is read."""

    def __init__(self, files: Files, functions: Mapping[tuple[str, str, str], Function]) -> None:
        self.files = files
        self.functions = functions
        self.nodes_left = _MOST_NODES
        self.nbytes = 0

    def refuse(self, text: str) -> NoReturn:
        raise ValueError(f"{self.files.path}: {text}")

    def program(self, graph: Graph, scope: _Scope, known: set[str]) -> Program:
        """Return the program of a graph; `known` are the values of the graphs around it."""
        for sparse in graph.sparse:
            self.refuse(f"initializer {sparse.values.name if sparse.values else ''} is sparse; expected all its values")
        parts = _Parts(set(known))
        for tensor in graph.initializers:
            parts.define(scope.name(tensor.name), f"initializer {tensor.name}")
            parts.constants[scope.name(tensor.name)] = self.array(tensor, tensor.name)
        # Old files list initializers among the inputs.
        inputs = [_input(x, scope) for x in graph.inputs if scope.name(x.name) not in parts.constants]
        for x in inputs:
            parts.define(x.name, f"input {x.name}")
        self.add(graph.nodes, scope, parts)
        outputs = tuple(scope.name(x.name) for x in graph.outputs)
        missing = [name for name in outputs if name not in parts.known]
        if missing or not outputs:
            raise DamagedError(f"no node computes the outputs {missing}" if missing else "it has no outputs")
        return Program(tuple(inputs), outputs, parts.nodes, parts.constants, graph.name)

    def add(self, messages: Iterable[Message], scope: _Scope, parts: "_Parts") -> None:
        """Add nodes to the parts of a program."""
        for each in messages:
            self.nodes_left -= 1
            if self.nodes_left < 0:
                raise DamagedError(f"it has more than {_MOST_NODES} nodes")
            outputs = tuple(scope.name(x) for x in each.outputs)
            name = scope.prefix + (each.name or next(filter(None, outputs), each.kind))
            arguments = tuple(Value(scope.name(x)) if scope.name(x) else None for x in each.inputs)
            for argument in arguments:
                if argument is not None and argument.name not in parts.known:
                    raise DamagedError(
                        f"node {name} ({each.kind}) reads {argument.name}, which no node before it computes"
                    )
            function = self.functions.get((_domain(each.domain), each.op_type, each.overload))
            options = {x.name: self.option(x, name, scope, parts.known) for x in _given(each.attributes, scope)}
            if function is not None:
                self.call(function, each, name, options, scope, parts)
                continue
            for output in filter(None, outputs):
                parts.define(output, f"node {name} ({each.kind})")
            if each.kind == "Split" and len(arguments) < 2 and "split" not in options:
                options.setdefault("num_outputs", len(outputs))  # which versions before 18 do not say
            if each.kind == "Constant":
                parts.constants[outputs[0]] = self.constant(name, options)
            else:
                parts.nodes.append(Node(each.kind, arguments, outputs, options, name, scope.version(each.domain)))

    def call(
        self, function: Function, node: Message, name: str, options: dict[str, Any], scope: _Scope, parts: "_Parts"
    ) -> None:
        """Add the nodes of a function in place of a node that calls it."""
        missing = dict.fromkeys(function.inputs, "")
        given = zip(function.inputs, map(scope.name, node.inputs), strict=False)
        results = zip(function.outputs, map(scope.name, node.outputs), strict=False)
        inner = scope.deeper(
            versions={**scope.versions, **_versions(function.opsets)},
            names=missing | dict(given) | {x: result for x, result in results if result},
            prefix=f"{name}/",
            options={},
        )
        defaults = {x.name: self.option(x, name, inner, set()) for x in function.defaults}
        self.add(function.nodes, replace(inner, options=defaults | options), parts)

    def constant(self, name: str, options: Mapping[str, Any]) -> Array:
        """Return the value of a Constant node."""
        if len(options) != 1:
            raise DamagedError(f"node {name} (Constant) has the attributes {sorted(options)}; expected one")
        ((kind, value),) = options.items()
        dtype = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
        if kind == "value" and isinstance(value, np.ndarray):
            return value
        if kind not in dtype:
            self.refuse(f"node {name} (Constant) has a {kind}; expected numbers")
        return np.array(value, dtype[kind])

    def option(self, x: Attribute, node: str, scope: _Scope, known: set[str]) -> Any:
        """Return the value of an attribute."""
        if x.ref_attr_name:
            return scope.options[x.ref_attr_name]
        convert = _OPTIONS.get(x.type or _type_of(x))
        if convert is None:
            self.refuse(f"node {node}: {x.name} is a sparse array, or an attribute of type {x.type}; neither is read")

        def graph(content: memoryview) -> Program:
            return self.program(message(Graph, content), scope.deeper(), known)

        def array(tensor: Tensor) -> Array:
            return self.array(tensor, tensor.name or f"{x.name} of node {node}")

        return convert(x, array, graph)

    def array(self, tensor: Tensor, name: str) -> Array:
        found = self.files.array(tensor, name)
        self.nbytes += found.nbytes
        self.files.check_total(self.nbytes)
        return found


@dataclass
class _Parts:
    """A program that is being read."""

    known: set[str]  # the names of all values that nodes may read
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def define(self, name: str, what: str) -> None:
        """Note the name of a new value; raise DamagedError if another value has it."""
        if name in self.known:
            raise DamagedError(f"{what} defines {name}, which is defined before it")
        self.known.add(name)


def _given(attributes: Iterable[Attribute], scope: _Scope) -> list[Attribute]:
    """Return the attributes of a node without those that refer to an option that the function's caller left out."""
    return [x for x in attributes if not x.ref_attr_name or x.ref_attr_name in scope.options]


def _input(info: Info, scope: _Scope) -> Input:
    """Return the description of an input; its dtype is the name of another type if it is no array."""
    tensor = info.type.tensor if info.type is not None else None
    if tensor is None:
        return Input(scope.name(info.name), _type_text(info.type), None)
    shape = None
    if tensor.shape is not None:
        known = [dim.name or dim.value for dim in tensor.shape.dims]
        shape = tuple(None if isinstance(n, int) and n < 0 else n for n in known)
    return Input(scope.name(info.name), type_name(tensor.number), shape)


def _type_text(info: Type | None) -> str:
    """Return the name of a type: of the numbers of an array, or "sequence", "map", "sparse", "optional"."""
    if info is not None and info.tensor is not None:
        return type_name(info.tensor.number)
    return next((x for x in ("sequence", "map", "sparse", "optional") if getattr(info, x, None) is not None), "unknown")


def _text(content: memoryview) -> str:
    return bytes(content).decode("utf-8", "replace")


def _type_of(x: Attribute) -> int:
    """Return the number of the type of an attribute whose file does not say it, as those of 2017."""
    filled = {4: x.t, 5: x.g, 3: len(x.s), 6: x.floats, 7: x.ints, 8: x.strings, 9: x.tensors, 10: x.graphs, 2: x.i}
    return next((number for number, value in filled.items() if value), 1)


def _one(x: Any, what: str, read: Callable[[Any], Any]) -> Any:
    if x is None:
        raise DamagedError(f"attribute {what} has no value")
    return read(x)


_Read = Callable[[Any], Any]
_OPTIONS: dict[int, Callable[[Attribute, _Read, _Read], Any]] = {
    1: lambda x, array, graph: x.f,
    2: lambda x, array, graph: x.i,
    3: lambda x, array, graph: _text(x.s),
    4: lambda x, array, graph: _one(x.t, x.name, array),
    5: lambda x, array, graph: _one(x.g, x.name, graph),
    6: lambda x, array, graph: tuple(np.frombuffer(floats(x.floats, "<f4"), "<f4").tolist()),
    7: lambda x, array, graph: tuple(integers(x.ints).tolist()),
    8: lambda x, array, graph: tuple(map(_text, x.strings)),
    9: lambda x, array, graph: tuple(map(array, x.tensors)),
    10: lambda x, array, graph: tuple(map(graph, x.graphs)),
    13: lambda x, array, graph: _type_text(x.tp),
    14: lambda x, array, graph: tuple(map(_type_text, x.type_protos)),
}
"""The number of a type of attributes -> its value, from the message and functions that read arrays and graphs."""
