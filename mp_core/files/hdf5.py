"""HDF5 files of groups and arrays, written and read without a library.

Why not h5py: the files may come from anyone, and the HDF5 library hangs on damaged heaps, in C code that cannot be
interrupted.

This module writes and reads one subset of the format: superblock version 0, groups as symbol tables, contiguous arrays.
All HDF5 readers support it; h5py and therefore Keras write it. Anything else raises an error that names the feature.

Formats: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html, "III. Disk Format".
"""

import math
import struct
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import IO, Any

import ml_dtypes
import numpy as np

from mp_core.arrays import F32, Array, cast

__all__ = ["chunks", "read", "storable", "write"]

Tree = Mapping[str, "Array | Tree"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_NOWHERE = 2**64 - 1
_SPACE, _TYPE, _FILL, _LAYOUT, _CONTINUATION, _SYMBOLS = 0x01, 0x03, 0x05, 0x08, 0x10, 0x11
_FLOATS = {2: (15, 10, 5, 15), 4: (31, 23, 8, 127), 8: (63, 52, 11, 1023)}
"""Size of a float in bytes -> position of the sign bit, mantissa bits, exponent bits, exponent bias."""


def _unsupported(what: str) -> ValueError:
    """Return the error for a feature of HDF5 that this module does not read."""
    return ValueError(f"{what}, which Keras does not write: convert the file with h5py or Keras")


# ---- writing


def write(file: IO[bytes], tree: Tree) -> None:
    """Write groups of arrays: see :func:`chunks`."""
    for part in chunks(tree):
        file.write(memoryview(part).cast("B") if isinstance(part, np.ndarray) else part)


def storable(x: Any) -> Array:
    """Convert an array to a type that HDF5 has: bool to uint8, other floats to float32, which is exact."""
    array: Array = np.asarray(x, order="C")
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    return array if array.dtype.kind in "iuf" and array.dtype.isbuiltin == 1 else cast(array, F32)


def chunks(tree: Tree) -> list[Any]:
    """Return the parts of a file in order: bytes, and the memory of the arrays.

    `tree` maps names without "/" to C-contiguous arrays of integers or floats, or to groups.
    """
    writer = _Writer()
    root = writer.group(tree)
    leaf = struct.pack("<HHI", max(writer.most // 2 + 1, 4), 16, 0)
    head = _SIGNATURE + bytes((0, 0, 0, 0, 0, 8, 8, 0)) + leaf + struct.pack("<4Q", 0, _NOWHERE, writer.end, _NOWHERE)
    writer.parts[0] = head + struct.pack("<QQIIQQ", 0, root[0], 1, 0, *root[1:])
    return writer.parts


class _Writer:
    """The parts of a file. A part is added before the parts that contain its address."""

    def __init__(self) -> None:
        self.parts: list[Any] = [b""]  # the first part becomes the superblock
        self.end = 96  # address of the next part
        self.most = 0  # largest number of entries of a group

    def put(self, *parts: Any) -> int:
        """Add parts, padded to a multiple of 8 bytes, and return their address."""
        start = self.end
        size = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
        self.parts += [*parts, bytes(-size % 8)]
        self.end += size + -size % 8
        return start

    def header(self, *messages: tuple[int, bytes]) -> int:
        """Add an object header, and return its address."""
        filled = [(kind, data + bytes(-len(data) % 8)) for kind, data in messages]
        body = b"".join(struct.pack("<HHB3x", kind, len(data), 0) + data for kind, data in filled)
        return self.put(struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body)

    def array(self, x: Array) -> int:
        """Add an array, and return the address of its header."""
        address = self.put(memoryview(x).cast("B") if x.ndim else x.tobytes()) if x.size else _NOWHERE
        return self.header(
            (_SPACE, struct.pack(f"<BBB5x{x.ndim}Q", 1, x.ndim, 0, *x.shape)),
            (_TYPE, _type_message(x.dtype)),
            (_FILL, bytes((2, 2, 2, 0))),
            (_LAYOUT, struct.pack("<BBQQ", 3, 1, address, x.nbytes)),
        )

    def group(self, tree: Tree) -> tuple[int, int, int]:
        """Add a group, and return the addresses of its header, its B-tree and its heap of names."""
        names, entries, places = b"\0" * 8, b"", [0]
        for name in sorted(tree, key=str.encode):
            child = tree[name]
            if isinstance(child, Mapping):
                header, *cache = self.group(child)
                entries += struct.pack("<QQIIQQ", len(names), header, 1, 0, *cache)
            else:
                entries += struct.pack("<QQII16x", len(names), self.array(child), 0, 0)
            places.append(len(names))
            encoded = name.encode() + b"\0"
            names += encoded + bytes(-len(encoded) % 8)
        self.most = max(self.most, len(tree))
        heap = self.put(b"HEAP\0\0\0\0" + struct.pack("<QQQ", len(names), 1, self.end + 32) + names)
        symbols = self.put(struct.pack("<4sBxH", b"SNOD", 1, len(tree)) + entries)
        self.put(bytes((2 * max(self.most // 2 + 1, 4) - len(tree)) * 40))
        keys = struct.pack("<QQQ", 0, symbols, places[-1]) if tree else b""
        node = struct.pack("<4sBBHQQ", b"TREE", 0, 0, bool(tree), _NOWHERE, _NOWHERE) + keys
        nodes = self.put(node + bytes(544 - len(node)))
        return self.header((_SYMBOLS, struct.pack("<QQ", nodes, heap))), nodes, heap


def _type_message(dtype: Any) -> bytes:
    """Return the datatype message of a dtype."""
    size = dtype.itemsize
    if dtype.kind == "f" and size in _FLOATS:
        sign, mantissa, exponent, bias = _FLOATS[size]
        return struct.pack(
            "<BBBBIHHBBBBI", 0x11, 0x20, sign, 0, size, 0, 8 * size, mantissa, exponent, 0, mantissa, bias
        )
    if dtype.kind in "iu":
        return struct.pack("<BBBBIHH", 0x10, 8 * (dtype.kind == "i"), 0, 0, size, 0, 8 * size)
    raise TypeError(f"HDF5 files have arrays of integers and of float16, float32 and float64; received {dtype}")


# ---- reading


def read(data: Any) -> dict[str, Any]:
    """Return the groups of a file as dictionaries, and its arrays as read-only views of its bytes.

    A file that is damaged, overlaps itself or uses a feature that is not supported raises ValueError.
    """
    reader = _Reader(memoryview(data))
    try:
        found = _root(reader)
    except RecursionError:
        raise ValueError("it is damaged: groups are nested too deeply") from None
    except (ArithmeticError, LookupError, MemoryError, struct.error) as error:
        raise ValueError(f"it is damaged: {error}") from error
    reader.check_overlap()
    return found


def _root(reader: "_Reader") -> dict[str, Any]:
    if bytes(reader.part(0, 8)) != _SIGNATURE:
        raise ValueError("it is not an HDF5 file")
    if bytes(reader.part(8, 8)) != bytes((0, 0, 0, 0, 0, 8, 8, 0)):
        raise _unsupported("its superblock is not of version 0 with offsets of 8 bytes")
    base, _, _, _, _, root = reader.unpack("<6Q", 24)
    if base:
        raise _unsupported("it begins with a user block")
    found = reader.object(root)
    if not isinstance(found, dict):
        raise ValueError("its root is not a group")
    return found


class _Reader:
    """The bytes of a file. Each part is read at most once, although damaged files may refer to it many times.

    So time and memory are proportional to the size of the file.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._seen: set[int] = set()
        self._spans: list[tuple[int, int]] = []
        self._taken = 0

    def own(self, start: int, count: int) -> memoryview:
        """Return bytes that belong to one part of the file only; :meth:`check_overlap` checks that."""
        self._taken += count
        if self._taken > len(self._data):
            raise ValueError(f"it is damaged: its parts have more bytes than the file, {len(self._data)}")
        self._spans.append((start, start + count))
        return self.part(start, count)

    def check_overlap(self) -> None:
        """Raise ValueError if two parts share a byte."""
        for (_, end), (start, _) in pairwise(sorted(span for span in self._spans if span[0] < span[1])):
            if start < end:
                raise ValueError(f"it is damaged: two of its parts overlap at byte {start}")

    def part(self, start: int, count: int) -> memoryview:
        """Return `count` bytes from `start` on."""
        if not 0 <= start <= start + count <= len(self._data):
            raise ValueError(f"it is truncated: bytes {start} to {start + count} of {len(self._data)} are needed")
        return self._data[start : start + count]

    def unpack(self, form: str, start: int) -> tuple[Any, ...]:
        """Unpack the numbers at `start`."""
        return struct.unpack(form, self.part(start, struct.calcsize(form)))

    def once(self, address: int, signature: bytes) -> None:
        """Raise ValueError unless the part begins with `signature` and is read for the first time."""
        if address in self._seen or bytes(self.part(address, len(signature))) != signature:
            raise ValueError(f"it is damaged: a part at byte {address} must begin with {signature!r}, and be used once")
        self._seen.add(address)

    def object(self, address: int) -> Any:
        """Return the group or array whose header is at `address`."""
        messages = dict(self._messages(address))
        if _SYMBOLS in messages:
            nodes, heap = struct.unpack("<QQ", messages[_SYMBOLS][:16])
            return {name: self.object(child) for name, child in self._entries(nodes, heap)}
        if not {_SPACE, _TYPE, _LAYOUT} <= messages.keys():
            found = f"it has the messages {sorted(messages)}"
            raise _unsupported(f"the object at byte {address} is neither a group nor an array: {found}")
        return self._array(messages[_SPACE], messages[_TYPE], messages[_LAYOUT])

    def _messages(self, address: int) -> Iterator[tuple[int, memoryview]]:
        if bytes(self.part(address, 4)) == b"OHDR":
            raise _unsupported("its objects have headers of version 2")
        self.once(address, b"\1")
        (count, size), start = self.unpack("<HxxxxI", address + 2), address + 16
        blocks = [(start, size)]
        while blocks:
            start, size = blocks.pop(0)
            self.own(start, size)
            end = start + size
            while start + 8 <= end and count:
                kind, length, flags = self.unpack("<HHB3x", start)
                if flags & 2:
                    raise _unsupported("its objects have shared messages")
                data = self.part(start + 8, length)
                if kind == _CONTINUATION:
                    where, more = struct.unpack("<QQ", data[:16])
                    self.once(where, b"")
                    blocks.append((where, more))
                else:
                    yield kind, data
                start, count = start + 8 + length, count - 1

    def _entries(self, nodes: int, heap: int) -> Iterator[tuple[str, int]]:
        """Yield name and header address of each entry of a group."""
        self.once(heap, b"HEAP")
        length, _, names = self.unpack("<QQQ", heap + 8)
        text, left = bytes(self.own(names, length)), length
        for table in self._tables(nodes):
            self.once(table, b"SNOD")
            (count,) = self.unpack("<H", table + 6)
            self.own(table, 8 + 40 * count)
            for place in range(table + 8, table + 8 + 40 * count, 40):
                name, header, cache = self.unpack("<QQI", place)
                if cache == 2:
                    raise _unsupported("it has links")
                end = text.index(b"\0", name)
                left -= end + 1 - name
                if left < 0:
                    raise ValueError(f"it is damaged: the names in the heap at byte {heap} overlap")
                yield text[name:end].decode(), header

    def _tables(self, node: int) -> Iterator[int]:
        """Yield the addresses of the symbol tables below a node of a B-tree."""
        self.once(node, b"TREE\0")
        level, count = self.unpack("<BH", node + 5)
        self.own(node, 24 + 16 * count)
        for index in range(count):
            (child,) = self.unpack("<Q", node + 32 + 16 * index)
            if level:
                yield from self._tables(child)
            else:
                yield child

    def _array(self, space: memoryview, kind: memoryview, layout: memoryview) -> Array:
        version, rank = space[0], space[1]
        if version not in (1, 2) or rank > 32:
            raise _unsupported(f"its arrays have {rank} axes, in version {version}")
        shape = struct.unpack_from(f"<{rank}Q", space, 8 if version == 1 else 4)
        dtype = _dtype_of(kind)
        nbytes = math.prod(shape) * dtype.itemsize
        if layout[0] != 3 or layout[1] not in (0, 1):
            raise _unsupported("its arrays are chunked or compressed")
        if not nbytes:
            return np.zeros(shape, dtype)
        if layout[1] == 1:
            start, _ = struct.unpack_from("<QQ", layout, 2)
            values = self.own(start, nbytes)
        else:
            values = layout[4 : 4 + nbytes]
        array = np.frombuffer(values, dtype).reshape(shape)
        array.flags.writeable = False
        return array


def _dtype_of(kind: memoryview) -> np.dtype[Any]:
    """Return the dtype of a datatype message; an opaque type of two bytes is Keras' bfloat16."""
    group, flags = kind[0] & 15, kind[1]
    (size,) = struct.unpack_from("<I", kind, 4)
    if group == 5 and size == 2:
        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    if group == 0 and size in (1, 2, 4, 8):
        return np.dtype(f"{'>' if flags & 1 else '<'}{'i' if flags & 8 else 'u'}{size}")
    if group == 1 and size in _FLOATS and bytes(kind[8:20])[5:6] == bytes((_FLOATS[size][2],)):
        return np.dtype(f"{'>' if flags & 1 else '<'}f{size}")
    if group == 8:  # an enumeration, which h5py uses for booleans
        return _dtype_of(kind[8:])
    raise _unsupported(f"its arrays have elements of class {group} in {size} bytes")
