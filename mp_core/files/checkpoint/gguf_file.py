"""Read the tensors of a GGUF file, the form of llama.cpp, and what it says of its model.

The file comes from anybody: counts, lengths and places are checked against its size before memory is taken for them.
"""

import struct
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, I8, Array, dtypes
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.gguf_blocks import KINDS, Kind
from mp_core.files.checkpoint.maps import map_file

__all__ = ["GgufTensor", "open_gguf"]

_VERSIONS = 2, 3
_MOST_AXES = 4
_MOST_ALIGNMENT = 1 << 20
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Number of the type of a value -> that of :mod:`struct`."""


class GgufTensor(NamedTuple):
    """A tensor of a file.

    Attributes
    ----------
    kind : Kind
    shape : tuple of int
        With the last axis the one along which neighbours lie, as in NumPy.
    content : ndarray of uint8
        A view of the file.
    """

    kind: Kind
    shape: tuple[int, ...]
    content: Array

    def numbers(self) -> Array:
        """Return the numbers: plain ones as a view of the file, blocks as float32."""
        kind = self.kind
        if kind.read is None:
            return self.content.view(dtypes.ALLOWED[kind.dtype]).reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers: Array = kind.read(self.content.reshape(-1, kind.size)).reshape(self.shape)
        return numbers

    def codes(self) -> QuantizedArray | None:
        """Return blocks of Q8_0 of a matrix as int8 codes with scales for each 32, which are these numbers; else None.

        Scales must be positive: that of a block of zeros, 0 in such files, becomes 1. There are none where a scale is
        negative, infinite or NaN, or 0 beside codes that are not.
        """
        if self.kind.name != "Q8_0" or len(self.shape) != 2:
            return None
        blocks = self.content.reshape(-1, self.kind.size)
        scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(F32)
        values = blocks[:, 2:].view(I8)
        empty = ~values.any(axis=1, keepdims=True)
        scale = np.where(empty & (scale == 0), F32.type(1), scale)
        if not (np.isfinite(scale) & (scale > 0)).all():
            return None
        rows = self.shape[0]
        return QuantizedArray(np.ascontiguousarray(values).reshape(self.shape), scale.reshape(rows, -1), None, 0, 32)


def open_gguf(path: str | PathLike[str]) -> tuple[dict[str, GgufTensor], dict[str, Any]]:
    """Map the tensors of a GGUF file into memory.

    Parameters
    ----------
    path : path

    Returns
    -------
    tensors : dict of str to GgufTensor
        In the order of the file.
    said : dict of str to object
        What the file says of the model: numbers, bools, strings, and of arrays their lengths.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is no such file, damaged, or holds numbers of a type that mp_core does not read; the message says what.
    """
    whole = map_file(path)
    if whole.size < 4:
        raise ValueError(f"{path} has {whole.size} bytes; a GGUF file has more")
    return _Header(Path(path), memoryview(whole)).read(whole)


class _Header:
    """The header of a file, from its beginning on."""

    def __init__(self, path: Path, content: memoryview) -> None:
        self.path, self.content, self.at = path, content, 4

    def refuse(self, what: str) -> ValueError:
        """Return the error for what is no GGUF file that mp_core reads."""
        return ValueError(f"{self.path}: {what}")

    def take(self, count: int) -> memoryview:
        """Return the next bytes."""
        if count > len(self.content) - self.at:
            raise self.refuse(f"the file ends at byte {len(self.content)}, {count} bytes were expected at {self.at}")
        taken = self.content[self.at : self.at + count]
        self.at += count
        return taken

    def number(self, form: str) -> Any:
        """Return the next number, little-endian."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        """Return the next string; bytes that are no UTF-8 are replaced."""
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return the next value: of an array its length, by steps over it."""
        if kind == _STRING:
            return self.text()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise self.refuse(f"a value has the type {kind}; expected one from 0 to 12")
        of, count = self.number("I"), self.number("Q")
        if of in _SCALARS:
            self.take(count * struct.calcsize(f"<{_SCALARS[of]}"))
        elif of == _STRING:
            if 8 * count > len(self.content) - self.at:
                raise self.refuse(f"an array of {count} strings does not fit into the file")
            for _ in range(count):
                self.take(self.number("Q"))
        else:
            raise self.refuse(f"an array has elements of the type {of}; expected numbers or strings")
        return count

    def read(self, whole: Array) -> tuple[dict[str, GgufTensor], dict[str, Any]]:
        """Return the tensors and what the file says."""
        if bytes(self.content[:4]) != b"GGUF":
            raise self.refuse("the file does not begin with GGUF")
        version = self.number("I")
        if version not in _VERSIONS:
            raise self.refuse(f"the version is {version}; expected 2 or 3, little-endian")
        tensors, values = self.number("Q"), self.number("Q")
        said: dict[str, Any] = {}
        for _ in range(values):
            name = self.text()
            if name in said:
                raise self.refuse(f"two values are called {name}")
            said[name] = self.value(self.number("I"))
        places = [self.place() for _ in range(min(tensors, len(self.content)))]
        alignment = said.get("general.alignment", 32)
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
        return found, said

    def place(self) -> tuple[str, Kind, tuple[int, ...], int]:
        """Return what the header says of the next tensor, of which all is checked except its place."""
        name, axes = self.text(), self.number("I")
        if axes > _MOST_AXES:
            raise self.refuse(f"tensor {name} has {axes} axes; expected at most {_MOST_AXES}")
        lengths = [self.number("Q") for _ in range(axes)]
        kind, offset = self.number("I"), self.number("Q")
        if kind not in KINDS:
            read = ", ".join(known.name for known in KINDS.values())
            raise self.refuse(
                f"tensor {name} has numbers of the type {kind}, which mp_core does not read; expected {read}"
            )
        row = lengths[0] if lengths else 1
        if 0 in lengths or row % KINDS[kind].length:
            needs = f"{KINDS[kind].name} needs a multiple of {KINDS[kind].length}"
            raise self.refuse(f"tensor {name} has {lengths} numbers along its axes; {needs} in a row")
        return name, KINDS[kind], tuple(reversed(lengths)), offset
