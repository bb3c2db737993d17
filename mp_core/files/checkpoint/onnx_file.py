"""Read the weights of an ONNX file under the names that they have in the modules of the network.

A file is a Protocol Buffers message [1]_. Only initializers, constants and the descriptions of nodes are read.
:mod:`mp_core.files.checkpoint.onnx_names` finds the names.

.. [1] https://protobuf.dev/programming-guides/encoding, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.files.checkpoint.maps import map_file
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
from mp_core.files.checkpoint.places import is_plain, path_in
from mp_core.utilities.numerals import integer_of

__all__ = ["open_onnx"]

_TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""Number of a floating-point type -> our name."""
_CODES = {
    2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2",
    20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
_COMPLEX = 14, 15
_NO_FLOATS = 6, 7, 8, 9, 12, 13
"""The numbers of the types of integers, strings and booleans, which no weights have."""
_LISTED = {"float32": 4, "float64": 10}
"""Type -> number of the field that lists its values one by one. Types of 16 bits use the field of int32."""
_LONGEST = 10  # most bytes of an integer
_MOST_AXES = 8
_MOST_TIMES, _SPARE = 4, 1 << 24
"""Weights may share bytes of the files, but have at most `_MOST_TIMES` times the bytes of the files + `_SPARE`."""
_FIXED = {1: 8, 5: 4}  # wire type -> bytes of a value of fixed size
_GRAPH, _FUNCTION = 1, 7
"""The numbers of the field of nodes in a graph and in a function."""
_SCOPES = "pkg.torch.onnx.name_scopes"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_PARAMETER = re.compile(r"^\w+: [A-Z_]+ target='([^']*)'(?: persistent=(\w+))?", re.M)
"""A line of the signature: the name of a parameter or buffer; for a buffer, whether checkpoints store it."""

Value = int | memoryview
"""An integer, or the bytes of anything else."""


def open_onnx(path: str | PathLike[str]) -> dict[str, Array]:
    """Map the weights of an ONNX file, and of files beside it that it refers to, into memory.

    They are the initializers that are floats, by name. Matrices of products are (outputs, inputs), as in modules of
    torch. Another file, and one that is damaged, quantized or refers to a file outside of its folder, raise ValueError.
    """
    try:
        return _tensors(Path(path), memoryview(map_file(path)))
    except _DamagedError as error:
        raise ValueError(f"{path} is not an ONNX file, or is damaged: {error}") from None


class _DamagedError(Exception):
    """The bytes are not a valid message."""


def _integer(content: memoryview, at: int) -> tuple[int, int]:
    """Return the integer of variable length at byte `at`, and the byte after it."""
    value = 0
    for count in range(_LONGEST):
        if at + count >= len(content):
            break
        byte = content[at + count]
        value |= (byte & 127) << 7 * count
        if byte < 128:
            return value, at + count + 1
    raise _DamagedError(f"an integer at byte {at} has no end")


def _fields(content: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of a message."""
    at = 0
    while at < len(content):
        key, at = _integer(content, at)
        wire = key & 7
        if wire == 0:
            value, at = _integer(content, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _integer(content, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise _DamagedError(f"a field has the wire type {wire}; expected 0, 1, 2 or 5")
        if size > len(content) - at:
            raise _DamagedError(f"a field of {size} bytes does not fit")
        yield key >> 3, content[at : at + size]
        at += size


def _parts(content: Value, wanted: int) -> list[memoryview]:
    """Return the messages, strings or bytes in the fields with this number."""
    if isinstance(content, int):
        raise _DamagedError("there is an integer where a message was expected")
    return [value for number, value in _fields(content) if number == wanted and not isinstance(value, int)]


def _text(content: Value, number: int) -> str:
    """Return the last string in the fields with this number; "" if there is none."""
    return next(reversed(_texts(content, number)), "")


def _integers(content: memoryview, wanted: int) -> list[int]:
    """Return the integers in the fields with this number, packed or not."""
    found: list[int] = []
    for number, value in _fields(content):
        if number != wanted:
            continue
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            one, at = _integer(value, at)
            found.append(one)
    return found


def _tensors(path: Path, content: memoryview) -> dict[str, Array]:
    """Return the weights of a model."""
    graph = _graph(path, content)
    try:
        names = names_of(graph)
    except RefusedError as error:
        raise ValueError(f"{path}: {error}") from None
    found = {name: graph.weights[initializer].read() for name, (initializer, _) in names.items()}
    total = sum(tensor.nbytes for tensor in found.values())
    size = len(content) + sum(x.nbytes for x in graph.files.values())
    if total > _MOST_TIMES * size + _SPARE:
        raise ValueError(
            f"{path}: its weights have {total} bytes, and its files {size}; expected at most {_MOST_TIMES} times that"
        )
    return {name: tensor.T if names[name].transposed else tensor for name, tensor in found.items()}


def _graph(path: Path, content: memoryview) -> Graph:
    """Read the graph of a model, and the graphs and functions inside it."""
    graphs = _parts(content, 7)
    if len(graphs) != 1:
        raise _DamagedError(f"it has {len(graphs)} graphs; expected 1")
    signature = _metadata(graphs[0], 16).get(_SIGNATURE, "")
    listed = {name: kept != "False" for name, kept in _PARAMETER.findall(signature)}
    graph = Graph(signature=listed)
    waiting = [(graphs[0], _GRAPH), *((function, _FUNCTION) for function in _parts(content, 25))]
    while waiting:
        waiting = [(inner, _GRAPH) for message, nodes in waiting for inner in _add_graph(path, graph, message, nodes)]
    by_torch = _text(content, 2) in TORCH or any(node.module is not None for node in graph.nodes)
    return replace(graph, by_torch=by_torch, by_paths=any(module_of(node.name) is not None for node in graph.nodes))


def _add_graph(path: Path, graph: Graph, message: memoryview, nodes: int) -> list[memoryview]:
    """Add the initializers and nodes of a graph or function; return the graphs inside the nodes.

    `nodes` is the number of the field of nodes. Values that an inner graph or a function computes get a prefix, because
    several graphs may use the same names.
    """
    messages = _parts(message, nodes)
    local = {value for node in messages for value in _texts(node, 2)} if graph.nodes else set()
    if nodes == _GRAPH:
        if sparse := _parts(message, 15):
            name = _text(next(iter(_parts(sparse[0], 1)), memoryview(b"")), 8)
            raise ValueError(f"{path}: initializer {name} is sparse; expected all of its values")
        for tensor in _parts(message, 5):
            _add_tensor(path, graph, _text(tensor, 8), tensor)
    else:
        local.update(_texts(message, 4))
    start = f"/{len(graph.nodes)}/"
    inner: list[memoryview] = []
    for node in messages:
        inputs, outputs = (
            [start + name if name in local else name for name in _texts(node, field)] for field in (1, 2)
        )
        inner += _add_node(path, graph, node, (*inputs,), (*outputs,) or (f"{start}{len(graph.nodes)}",))
    return inner


def _add_tensor(path: Path, graph: Graph, name: str, message: memoryview) -> None:
    """Add an initializer."""
    kind = next(iter(_integers(message, 2)), 0)
    shape = tuple(_integers(message, 1))
    if name in graph.weights or name in graph.others:
        raise _DamagedError(f"two initializers are called {name}")
    if len(shape) > _MOST_AXES:
        raise _DamagedError(f"initializer {name} has {len(shape)} axes; expected at most {_MOST_AXES}")
    if kind in _CODES and len(shape) > 1:
        raise ValueError(f"{path}: initializer {name} of shape {shape} has codes of {_CODES[kind]}; {NOT_QUANTIZED}")
    if kind in _COMPLEX:
        raise ValueError(f"{path}: initializer {name} of shape {shape} has complex numbers; expected floats")
    if kind not in {*_TYPES, *_CODES, *_NO_FLOATS}:
        raise ValueError(f"{path}: initializer {name} of shape {shape} has numbers of the type {kind}; expected floats")
    if kind in _TYPES:
        read = partial(_numbers, path, graph.files, message, name, dtypes.ALLOWED[_TYPES[kind]], shape)
        graph.weights[name] = Initializer(shape, read)
    else:
        graph.others[name] = shape


def _add_node(
    path: Path, graph: Graph, message: memoryview, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> list[memoryview]:
    """Add a node, or the value of a Constant node as an initializer; return the graphs inside the node."""
    kind, domain, name = _text(message, 4), _text(message, 7), _text(message, 3)
    attributes = {_text(attribute, 1): attribute for attribute in _parts(message, 5)}
    if kind == "Constant" and "value" in attributes:
        for tensor in _parts(attributes["value"], 5):
            _add_tensor(path, graph, outputs[0], tensor)
        return []
    if kind == "Constant" and "value_floats" in attributes:
        numbers = np.frombuffer(b"".join(_parts(attributes["value_floats"], 7)), "<f4")
        graph.weights[outputs[0]] = Initializer(numbers.shape, lambda: numbers)
        return []
    scopes = re.findall(r"'([^']*)'", _metadata(message, 9).get(_SCOPES, ""))
    module = scopes[-2] if len(scopes) > 1 else module_of(name)
    kind = kind if domain in ("", "ai.onnx") else f"{domain}.{kind}"
    graph.nodes.append(Node(kind, name, inputs, outputs, module, _transposes(kind, attributes)))
    return [inner for attribute in attributes.values() for field in (6, 11) for inner in _parts(attribute, field)]


def _transposes(kind: str, attributes: dict[str, memoryview]) -> bool:
    """Return whether a node transposes its second operand or, if it is a Transpose, a matrix."""
    if kind != "Transpose":
        return "transB" in attributes and 1 in _integers(attributes["transB"], 3)
    order = _integers(attributes["perm"], 8) if "perm" in attributes else [1, 0]
    return order == [1, 0]


def _texts(content: Value, number: int) -> list[str]:
    """Return the strings in the fields with this number."""
    return [bytes(part).decode("utf-8", "replace") for part in _parts(content, number)]


def _metadata(content: Value, number: int) -> dict[str, str]:
    """Return the keys and values in the fields with this number."""
    return {_text(entry, 1): _text(entry, 2) for entry in _parts(content, number)}


def _numbers(
    path: Path, files: dict[Path, Array], message: memoryview, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> Array:
    """Return the values of an initializer, as a view of the file if it stores them as raw bytes."""
    if prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**63:
        raise _DamagedError(f"initializer {name} has the shape {shape}")
    size = prod(shape) * dtype.itemsize
    if next(iter(_integers(message, 14)), 0) == 1:
        content = _external_bytes(path, files, message, name, size)
    elif raw := _parts(message, 9):
        content = raw[-1]
    elif dtype.itemsize == 2:
        content = memoryview(np.array([value & 0xFFFF for value in _integers(message, 5)], "<u2").tobytes())
    else:
        content = memoryview(b"".join(_parts(message, _LISTED[dtype.name])))
    if len(content) != size:
        raise ValueError(f"{path}: initializer {name} has {len(content)} bytes; expected {size}, for {shape}")
    numbers: Array = np.frombuffer(content, np.uint8).view(dtype).reshape(shape)
    return numbers


def _external_bytes(path: Path, files: dict[Path, Array], message: memoryview, name: str, size: int) -> memoryview:
    """Return the bytes of an initializer that is stored in another file of the folder."""
    place = {_text(entry, 1): _text(entry, 2) for entry in _parts(message, 13)}
    location, offset = place.get("location", ""), place.get("offset", "0")
    start = integer_of(offset, 0, 2**63 - 1)
    if not is_plain(location) or start is None:
        where = f"{location!r} at {offset!r}"
        raise ValueError(f"{path}: initializer {name} is in {where}; expected a name in its own folder, and an offset")
    if place.get("length", str(size)) != str(size):
        raise ValueError(f"{path}: initializer {name} has {place['length']} bytes in {location}; expected {size}")
    other = path_in(path.parent, location, f"{path}: initializer {name}")
    if other not in files:  # map each file once: a map keeps a descriptor open, and there may be thousands of weights
        files[other] = map_file(other)
    if files[other].size < start + size:
        raise ValueError(f"{other} ends before the end of {name}, {start + size}")
    return memoryview(files[other])[start:][:size]
