"""Read the tensors and the metadata of a GGUF file, the format of llama.cpp.

The file may be hostile: counts, lengths and offsets are checked against its size before memory is allocated.
"""

import struct
from collections.abc import Callable, Collection
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, I8, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.gguf_blocks import KINDS, Kind, ue4m3
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.packed_layouts import in_pairs

__all__ = ["SCHEMES", "GgufTensor", "Skipped", "open_gguf"]

_VERSIONS = 2, 3
_MOST_AXES = 4
_MOST_ALIGNMENT = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of the type of a value -> format of :mod:`struct`."""
_MOST_VALUES = 1 << 22
"""The most values of an array that is read: ten times the largest known vocabulary."""


class Skipped(NamedTuple):
    """An array of the metadata that was not read."""

    length: int


class GgufTensor(NamedTuple):
    """A tensor of a file."""

    kind: Kind
    shape: tuple[int, ...]  # in NumPy's order: neighbours in memory are along the last axis
    content: Array  # a view of the file

    def numbers(self) -> Array:
        """Return the numbers: plain types as a view of the file, blocks decoded to float32."""
        kind = self.kind
        if kind.read is None:
            return self.content.view(dtypes.ALLOWED[kind.dtype]).reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers: Array = kind.read(self.content.reshape(-1, kind.size)).reshape(self.shape)
        return numbers

    def codes(self) -> QuantizedArray | None:
        """Return a matrix of Q8_0, Q4_0, MXFP4 or NVFP4 as codes with scales; None for other kinds and shapes.

        A QuantizedArray needs positive scales. A block of zeros has the scale 0 in the file: here it becomes 1. If
        another scale is not positive and finite, return None.
        """
        read = _CODES.get(self.kind.name)
        if read is None or len(self.shape) != 2:
            return None
        values, scale, zero, size, dtype = read(self.content.reshape(-1, self.kind.size))
        empty = ~(values.view(np.uint8) & _MAGNITUDES[dtype]).any(axis=1, keepdims=True)
        scale = np.where(empty & (scale == 0), F32.type(1), scale)
        if not (np.isfinite(scale) & (scale > 0)).all():
            return None
        rows = self.shape[0]
        zero = None if zero is None else zero.reshape(rows, -1)
        return QuantizedArray(values.reshape(rows, -1), scale.reshape(rows, -1), zero, 0, size, dtype, self.shape)


Codes = tuple[Array, Array, Array | None, int, str]
"""Codes, scale and zero point of each block, the first of shape (blocks, bytes) and the others of (blocks, 1), the
numbers in a block, and the type of the codes."""


def _scales(blocks: Array) -> Array:
    found: Array = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(F32)
    return found


def _q8_0(blocks: Array) -> Codes:
    return np.ascontiguousarray(blocks[:, 2:]).view(I8), _scales(blocks), None, 32, "int8"


def _q4_0(blocks: Array) -> Codes:
    """Return codes of int4 with positive scales: d (q - 8) is |d| (7 - q - (-1)) if d is negative."""
    scale = _scales(blocks)
    negative = scale < 0
    flips = np.where(negative, np.uint8(0x77), np.uint8(0x88))  # 7 - q and q - 8, modulo 16, in both halves of a byte
    values = np.where(scale == 0, np.uint8(0), _neighbours(blocks[:, 2:]) ^ flips)
    return values, abs(scale), -negative.astype(np.int32), 32, "int4"


def _mxfp4(blocks: Array) -> Codes:
    exponents = blocks[:, :1].astype(np.int32)
    with np.errstate(over="ignore"):
        return _neighbours(blocks[:, 1:]), np.ldexp(F32.type(1), exponents - 127), None, 32, "float4_e2m1fn"


def _nvfp4(blocks: Array) -> Codes:
    scales = ue4m3(np.ascontiguousarray(blocks[:, :4])).reshape(-1, 1)
    return _neighbours(blocks[:, 4:].reshape(-1, 8)), scales, None, 16, "float4_e2m1fn"


def _neighbours(halves: Array) -> Array:
    """Return 4-bit codes in pairs of neighbours; in the file a byte has a code of the first and of the second half."""
    return np.concatenate(in_pairs(halves[:, ::2], halves[:, 1::2]), axis=1)


_CODES: dict[str, Callable[[Array], Codes]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "MXFP4": _mxfp4, "NVFP4": _nvfp4}
"""Kind -> function that returns the codes of its blocks."""
SCHEMES = {"Q8_0": "int8/weight_only/32", "Q4_0": "int4/32", "MXFP4": "mxfp4", "NVFP4": "nvfp4"}
"""Kind -> the scheme of a policy under which layers use its codes without changing them."""
_MAGNITUDES = {"int8": 0xFF, "int4": 0xFF, "float4_e2m1fn": 0x77}
"""Type of codes -> the bits of a byte that are not the sign of a zero."""


def open_gguf(path: str | PathLike[str], arrays: Collection[str] = ()) -> tuple[dict[str, GgufTensor], dict[str, Any]]:
    """Map the tensors of a GGUF file into memory; return them by name in the order of the file, and the metadata.

    Metadata are the numbers, bools and strings that describe the model, and lists of these for the names in `arrays`;
    other arrays are :class:`Skipped`. Another file, a damaged one, and one with a type of numbers that mp_core does not
    read raise ValueError.
    """
    whole = map_file(path)
    if whole.size < 4:
        raise ValueError(f"{path} has {whole.size} bytes; a GGUF file has more")
    return _Header(Path(path), memoryview(whole)).read(whole, arrays)


class _Header:
    """Reads the header of a file from its beginning; `at` is the byte that is read next."""

    def __init__(self, path: Path, content: memoryview) -> None:
        self.path, self.content, self.at = path, content, 4

    def refuse(self, what: str) -> ValueError:
        """Return an error that names the file."""
        return ValueError(f"{self.path}: {what}")

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes."""
        if count > len(self.content) - self.at:
            raise self.refuse(f"the file ends at byte {len(self.content)}, {count} bytes were expected at {self.at}")
        taken = self.content[self.at : self.at + count]
        self.at += count
        return taken

    def number(self, form: str) -> Any:
        """Return the next number, little-endian."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        """Return the next string; invalid UTF-8 is replaced."""
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind: int, wanted: bool) -> Any:
        """Return the next value; an array as a list if it is `wanted`."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.refuse(f"a value has the type {kind}; expected one from 0 to 12")
        element, count = self.number("I"), self.number("Q")
        if wanted and count > _MOST_VALUES:
            raise self.refuse(f"an array has {count} values; expected at most {_MOST_VALUES}")
        if element in _SCALARS:
            form = f"<{_SCALARS[element]}"
            content = self.take(count * struct.calcsize(form))
            return [value for (value,) in struct.iter_unpack(form, content)] if wanted else Skipped(count)
        if element != _STRING:
            raise self.refuse(f"an array has elements of the type {element}; expected numbers or strings")
        texts = self.texts(count, wanted)
        return texts if wanted else Skipped(count)

    def texts(self, count: int, wanted: bool) -> list[str]:
        """Return the next strings if they are `wanted`; else skip them. A vocabulary has 100,000: no call for each."""
        content, at, found = self.content, self.at, []
        if 8 * count > len(content) - at:
            raise self.refuse(f"an array of {count} strings does not fit into the file")
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(content[at:start], "little")
            if start > len(content) or at > len(content):
                raise self.refuse(f"the file ends at byte {len(content)}, a string was expected to end at {at}")
            if wanted:
                found.append(str(content[start:at], "utf-8", "replace"))
        self.at = at
        return found

    def read(self, whole: Array, arrays: Collection[str]) -> tuple[dict[str, GgufTensor], dict[str, Any]]:
        """Return the tensors, and the metadata with these `arrays`."""
        if bytes(self.content[:4]) != b"GGUF":
            raise self.refuse("the file does not begin with GGUF")
        version = self.number("I")
        if version not in _VERSIONS:
            raise self.refuse(f"the version is {version}; expected 2 or 3, little-endian")
        tensors, values = self.number("Q"), self.number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(values):
            name = self.text()
            if name in metadata:
                raise self.refuse(f"two values are called {name}")
            metadata[name] = self.value(self.number("I"), name in arrays)
        places = [self.place() for _ in range(min(tensors, len(self.content)))]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
            raise self.refuse(f"general.alignment is {alignment!r}; expected a power of 2 up to {_MOST_ALIGNMENT}")
        begin = -(-self.at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        spans = []
        for name, kind, shape, offset in places:
            size = prod(shape) // kind.length * kind.size
            spans.append((offset, offset + size, name))
            if begin + offset + size > len(whole):
                raise self.refuse(f"tensor {name} ends at byte {begin + offset + size} of {len(whole)}")
            if name in found:
                raise self.refuse(f"two tensors are called {name}")
            found[name] = GgufTensor(kind, shape, whole[begin + offset : begin + offset + size])
        for (_, end, before), (start, _, name) in pairwise(sorted(spans)):
            if start < end:
                raise self.refuse(f"tensors {before} and {name} overlap, at byte {begin + start}")
        return found, metadata

    def place(self) -> tuple[str, Kind, tuple[int, ...], int]:
        """Return name, kind, shape and offset of the next tensor; the offset is not checked yet."""
        name, axes = self.text(), self.number("I")
        if axes > _MOST_AXES:
            raise self.refuse(f"tensor {name} has {axes} axes; expected at most {_MOST_AXES}")
        lengths = [self.number("Q") for _ in range(axes)]
        kind, offset = self.number("I"), self.number("Q")
        if kind not in KINDS:
            read = ", ".join(known.name for known in KINDS.values())
            raise self.refuse(f"tensor {name} has the type {kind}, which mp_core does not read; expected {read}")
        row = lengths[0] if lengths else 1
        if 0 in lengths or row % KINDS[kind].length:
            needs = f"expected none of 0, and for {KINDS[kind].name} a multiple of {KINDS[kind].length} in a row"
            raise self.refuse(f"tensor {name} has {lengths} numbers along its axes; {needs}")
        return name, KINDS[kind], tuple(reversed(lengths)), offset
