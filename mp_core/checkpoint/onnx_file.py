"""Read the weights of an ONNX file by the names that the modules of its network have.

A file is a message of Protocol Buffers [1]_, of which only the initializers and the names of nodes are read. Exports
keep the names of parameters, except those of matrices of products, which they transpose and call ``onnx::MatMul_123``:
these get the name of the node that multiplies by them, such as ``/encoder/layer.0/attention/self/query/MatMul``.

.. [1] https://protobuf.dev/programming-guides/encoding, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto.
"""

from collections.abc import Iterator
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from mp_core import dtypes
from mp_core.arrays import Array
from mp_core.checkpoint.header import open_regular
from mp_core.checkpoint.output import naming

__all__ = ["open_onnx"]

_TYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""Number of a type of floats -> ours."""
_CODES = {2: "uint8", 3: "int8", 21: "uint4", 22: "int4"}
_LONGEST = 10  # bytes of an integer
_MOST_AXES = 8
_FIXED = {1: 8, 5: 4}  # bytes of values of a fixed size, by their wire type
_PRODUCT = "MatMul"

Value = int | memoryview
"""An integer, or the bytes of anything else."""


def open_onnx(path: str | PathLike[str]) -> dict[str, Array]:
    """Map the weights of an ONNX file into memory; those in a second file beside it, too.

    Parameters
    ----------
    path : path

    Returns
    -------
    dict of str to ndarray
        The initializers that are floats. Matrices of products are (outputs, inputs), as modules of torch have them.

    Raises
    ------
    OSError
        A file cannot be read.
    ValueError
        It is no such file or damaged, holds codes of a quantization, or names a file elsewhere.
    """
    with naming(path), open_regular(path) as file:
        size = file.seek(0, 2)
        whole = np.memmap(file, np.uint8, "r").view(np.ndarray) if size else np.zeros(0, np.uint8)
    try:
        return _tensors(Path(path), memoryview(whole))
    except _DamagedError as error:
        raise ValueError(f"{path} is no ONNX file, or damaged: {error}") from None


class _DamagedError(Exception):
    """Bytes are no message."""


def _integer(content: memoryview, at: int) -> tuple[int, int]:
    """Return an integer of variable length, and where what follows begins."""
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
            raise _DamagedError(f"a field has the wire type {wire}")
        if size > len(content) - at:
            raise _DamagedError(f"a field of {size} bytes does not fit")
        yield key >> 3, content[at : at + size]
        at += size


def _parts(content: Value, wanted: int) -> list[memoryview]:
    """Return the messages, strings or bytes in the fields of this number."""
    if isinstance(content, int):
        raise _DamagedError("an integer stands where a message was expected")
    return [value for number, value in _fields(content) if number == wanted and not isinstance(value, int)]


def _text(content: Value, number: int) -> str:
    """Return the last string in the fields of this number."""
    return bytes(next(reversed(_parts(content, number)), b"")).decode("utf-8", "replace")


def _integers(content: memoryview, wanted: int) -> list[int]:
    """Return the integers in the fields of this number, packed or not."""
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
    graphs = _parts(content, 7)
    if len(graphs) != 1:
        raise _DamagedError(f"it has {len(graphs)} graphs")
    found: dict[str, Array] = {}
    for message in _parts(graphs[0], 5):
        name = _text(message, 8)
        kind = next(iter(_integers(message, 2)), 0)
        shape = tuple(_integers(message, 1))
        if kind in _CODES and len(shape) > 1:
            codes = f"initializer {name} has codes of {_CODES[kind]}"
            raise ValueError(f"{path}: {codes}; expected floats: take the export that is not quantized")
        if kind in _TYPES:
            found[name] = _numbers(path, message, name, dtypes.ALLOWED[_TYPES[kind]], shape)
    return _renamed(found, _parts(graphs[0], 1))


def _numbers(path: Path, message: memoryview, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an initializer: a view of the file where it holds the bytes."""
    if len(shape) > _MOST_AXES or any(n >= 2**63 for n in shape):
        raise _DamagedError(f"initializer {name} has the shape {shape}"[:200])
    size = prod(shape) * dtype.itemsize
    if next(iter(_integers(message, 14)), 0) == 1:
        content = _elsewhere(path, message, name, size)
    else:
        floats = _parts(message, 4) if dtype.name == "float32" else []
        content = next(iter(_parts(message, 9) or floats), memoryview(b""))
    if len(content) != size:
        raise ValueError(f"{path}: initializer {name} has {len(content)} bytes; expected {size}, for {shape}")
    numbers: Array = np.frombuffer(content, np.uint8).view(dtype).reshape(shape)
    return numbers


def _elsewhere(path: Path, message: memoryview, name: str, size: int) -> memoryview:
    """Return the bytes of an initializer in another file of the folder."""
    said = {_text(entry, 1): _text(entry, 2) for entry in _parts(message, 13)}
    location, offset = said.get("location", ""), said.get("offset", "0")
    if not location or Path(location).name != location or not offset.isdecimal() or len(offset) > 18:
        where = f"{location!r} at {offset!r}"
        raise ValueError(f"{path}: initializer {name} is in {where}; expected a name in its own folder, and an offset")
    other = path.with_name(location)
    with naming(other), open_regular(other) as file:
        if file.seek(0, 2) < int(offset) + size:
            raise ValueError(f"{other} ends before the end of {name}, {int(offset) + size}")
        return memoryview(np.memmap(file, np.uint8, "r", int(offset), size) if size else b"")


def _renamed(found: dict[str, Array], nodes: list[memoryview]) -> dict[str, Array]:
    """Return tensors by the names of modules: matrices transposed, and each name of one that stands for several."""
    renamed = {name: tensor for name, tensor in found.items() if not name.startswith("onnx::")}
    for node in nodes:
        inputs = [bytes(value).decode("utf-8", "replace") for value in _parts(node, 1)]
        kind, name = _text(node, 4), _text(node, 3)
        if kind == "Identity" and inputs and inputs[0] in found:
            renamed[_text(node, 2)] = found[inputs[0]]
        elif kind == _PRODUCT and len(inputs) == 2 and inputs[1] in found and inputs[1].startswith("onnx::"):
            module = name.removesuffix(f"/{_PRODUCT}").strip("/").replace("/", ".")
            renamed[f"{module}.weight"] = found[inputs[1]].T
    return renamed
