"""The messages of an ONNX file [1]_, as far as mp_core reads them.

Graphs inside attributes stay bytes: ``message(Graph, content)`` reads one level, so no file is read too deep.

.. [1] https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""
# ruff: noqa: RUF009 - one and many return fields of dataclasses

from collections.abc import Iterable
from dataclasses import dataclass

from mp_core.files.onnx.wire import DamagedError, Numbers, Raw, many, message, one

__all__ = ["Attribute", "Entry", "Function", "Graph", "Info", "Model", "Node", "Tensor", "Type", "model_of", "texts"]


@dataclass(slots=True)
class Entry:
    """A key and its value."""

    key: str = one(1, str, "")
    value: str = one(2, str, "")


def texts(entries: Iterable[Entry]) -> dict[str, str]:
    """Return entries as a dict."""
    return {entry.key: entry.value for entry in entries}


@dataclass(slots=True)
class Tensor:
    """An array; :mod:`mp_core.files.onnx.tensors` reads its numbers."""

    dims: list[Raw] = many(1, Numbers)
    data_type: int = one(2, int, 0)
    float_data: list[Raw] = many(4, Numbers)
    int32_data: list[Raw] = many(5, Numbers)
    string_data: list[memoryview] = many(6, memoryview)
    int64_data: list[Raw] = many(7, Numbers)
    name: str = one(8, str, "")
    raw_data: memoryview | None = one(9, memoryview)
    double_data: list[Raw] = many(10, Numbers)
    uint64_data: list[Raw] = many(11, Numbers)
    external_data: list[Entry] = many(13, Entry)
    data_location: int = one(14, int, 0)


@dataclass(slots=True)
class Sparse:
    """A sparse array, of which only the name is read."""

    values: Tensor | None = one(1, Tensor)


@dataclass(slots=True)
class Dim:
    """The length of an axis, or its name."""

    value: int | None = one(1, int)
    name: str = one(2, str, "")


@dataclass(slots=True)
class Shape:
    """The lengths of axes."""

    dims: list[Dim] = many(1, Dim)


@dataclass(slots=True)
class TensorType:
    """The number of a data type, and a shape."""

    number: int = one(1, int, 0)
    shape: Shape | None = one(2, Shape)


@dataclass(slots=True)
class Type:
    """The type of a value: one of its fields is present."""

    tensor: TensorType | None = one(1, TensorType)
    sequence: memoryview | None = one(4, memoryview)
    map: memoryview | None = one(5, memoryview)
    sparse: memoryview | None = one(8, memoryview)
    optional: memoryview | None = one(9, memoryview)


@dataclass(slots=True)
class Info:
    """The name of an input or output, and its type."""

    name: str = one(1, str, "")
    type: Type | None = one(2, Type)


@dataclass(slots=True)
class Attribute:
    """An option of a node; `type` says which field has its value."""

    name: str = one(1, str, "")
    f: float = one(2, float, 0.0)
    i: int = one(3, int, 0)
    s: memoryview = one(4, memoryview, memoryview(b""))
    t: Tensor | None = one(5, Tensor)
    g: memoryview | None = one(6, memoryview)
    floats: list[Raw] = many(7, Numbers)
    ints: list[Raw] = many(8, Numbers)
    strings: list[memoryview] = many(9, memoryview)
    tensors: list[Tensor] = many(10, Tensor)
    graphs: list[memoryview] = many(11, memoryview)
    tp: Type | None = one(14, Type)
    type_protos: list[Type] = many(15, Type)
    type: int = one(20, int, 0)
    ref_attr_name: str = one(21, str, "")
    sparse_tensor: Sparse | None = one(22, Sparse)
    sparse_tensors: list[Sparse] = many(23, Sparse)

    @property
    def subgraphs(self) -> list[memoryview]:
        """The graphs in this attribute, not read yet."""
        return [*([] if self.g is None else [self.g]), *self.graphs]


@dataclass(slots=True)
class Node:
    """One operation of a graph."""

    inputs: list[str] = many(1, str)
    outputs: list[str] = many(2, str)
    name: str = one(3, str, "")
    op_type: str = one(4, str, "")
    attributes: list[Attribute] = many(5, Attribute)
    domain: str = one(7, str, "")
    overload: str = one(8, str, "")
    metadata: list[Entry] = many(9, Entry)

    @property
    def kind(self) -> str:
        """The name of the operator, after that of its domain if the domain is not ONNX's."""
        return self.op_type if self.domain in ("", "ai.onnx") else f"{self.domain}.{self.op_type}"


@dataclass(slots=True)
class Graph:
    """Nodes, and the constants that they read."""

    nodes: list[Node] = many(1, Node)
    name: str = one(2, str, "")
    initializers: list[Tensor] = many(5, Tensor)
    inputs: list[Info] = many(11, Info)
    outputs: list[Info] = many(12, Info)
    sparse: list[Sparse] = many(15, Sparse)
    metadata: list[Entry] = many(16, Entry)


@dataclass(slots=True)
class Opset:
    """The version of the operators of a domain."""

    domain: str = one(1, str, "")
    version: int = one(2, int, 0)


@dataclass(slots=True)
class Function:
    """An operator that a file defines by nodes."""

    name: str = one(1, str, "")
    inputs: list[str] = many(4, str)
    outputs: list[str] = many(5, str)
    attributes: list[str] = many(6, str)
    nodes: list[Node] = many(7, Node)
    opsets: list[Opset] = many(9, Opset)
    domain: str = one(10, str, "")
    defaults: list[Attribute] = many(11, Attribute)
    overload: str = one(13, str, "")


@dataclass(slots=True)
class Model:
    """A file."""

    producer: str = one(2, str, "")
    graphs: list[Graph] = many(7, Graph)
    opsets: list[Opset] = many(8, Opset)
    functions: list[Function] = many(25, Function)

    @property
    def graph(self) -> Graph:
        """The graph; a file has one."""
        return self.graphs[0]


def model_of(content: memoryview) -> Model:
    """Return the message of a file, which has one graph; raise DamagedError for other bytes."""
    model = message(Model, content)
    if len(model.graphs) != 1:
        raise DamagedError(f"it has {len(model.graphs)} graphs; expected 1")
    return model
