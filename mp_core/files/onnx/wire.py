"""Read Protocol Buffers messages [1]_ as dataclasses, whose fields state their numbers and kinds.

Bytes, and numbers that may be packed, stay views of the file until they are needed.

.. [1] https://protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

import numpy as np

from mp_core.arrays import Array

__all__ = ["DamagedError", "Numbers", "Raw", "floats", "integers", "many", "message", "one"]

_LONGEST = 10  # most bytes of an integer
_FIXED = {1: 8, 5: 4}  # wire type -> bytes of a value of fixed size
M = TypeVar("M")
Raw = int | memoryview
"""An integer, or the bytes of anything else."""


class DamagedError(Exception):
    """The bytes are not a valid message."""


class Numbers:
    """The kind of a field of numbers: integers and bytes that :func:`integers` and :func:`floats` convert."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: type
    many: bool


def one(number: int, kind: type, default: Any = None) -> Any:
    """Return a field with one value: the last that a message has with this number."""
    return field(default=default, metadata={"number": number, "kind": kind, "many": False})


def many(number: int, kind: type) -> Any:
    """Return a field with a list of values."""
    return field(default_factory=list, metadata={"number": number, "kind": kind, "many": True})


@cache
def _fields_of(cls: type[Any]) -> dict[int, _Field]:
    """Return the fields of a class of messages by number."""
    found = {x.metadata["number"]: x for x in fields(cls)}
    return {number: _Field(x.name, x.metadata["kind"], x.metadata["many"]) for number, x in found.items()}


def message(cls: type[M], content: memoryview) -> M:
    """Return the message of a class; fields of other numbers are ignored."""
    key: type = cls  # mypy takes type[M] for unhashable
    known, result = _fields_of(key), cls()
    for number, raw in _raw(content):
        found = known.get(number)
        if found is None:
            continue
        try:
            value = _value(found.kind, raw)
        except _KindError as error:
            raise DamagedError(f"{found.name} of a {cls.__name__} is {error}") from None
        if found.many:
            getattr(result, found.name).append(value)
        else:
            setattr(result, found.name, value)
    return result


class _KindError(Exception):
    """A value has another wire type than its field."""


def _value(kind: type, raw: Raw) -> Any:
    """Return the value of a field."""
    if kind is Numbers:
        return raw
    if kind is int:
        if not isinstance(raw, int):
            raise _KindError(f"{len(raw)} bytes; expected an integer")
        return _signed(raw)
    if isinstance(raw, int):
        raise _KindError("an integer; expected bytes")
    if kind is float:
        if len(raw) != 4:
            raise _KindError(f"{len(raw)} bytes; expected the 4 of a float")
        return struct.unpack("<f", raw)[0]
    if kind is str:
        return bytes(raw).decode("utf-8", "replace")
    return raw if kind is memoryview else message(kind, raw)


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - (value >> 63 << 64)


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
    raise DamagedError(f"an integer at byte {at} has no end")


def _raw(content: memoryview) -> Iterator[tuple[int, Raw]]:
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
            raise DamagedError(f"a field has the wire type {wire}; expected 0, 1, 2 or 5")
        if size > len(content) - at:
            raise DamagedError(f"a field of {size} bytes does not fit")
        yield key >> 3, content[at : at + size]
        at += size


def integers(numbers: list[Raw]) -> Array:
    """Return integers of variable length, packed or not, as int64."""
    parts = [np.array([_signed(x)]) if isinstance(x, int) else _unpacked(x) for x in numbers]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _unpacked(content: memoryview) -> Array:
    """Return packed integers: groups of 7 bits, the lowest first, the last of which has no eighth bit."""
    data = np.frombuffer(content, np.uint8)
    ends = np.flatnonzero(data < 128)
    lengths = np.diff(ends, prepend=-1)
    if (len(data) and (not len(ends) or ends[-1] != len(data) - 1)) or lengths.max(initial=0) > _LONGEST:
        raise DamagedError("a packed integer has no end")
    if not len(data):
        return np.zeros(0, np.int64)
    starts = ends - lengths + 1
    shifts = np.arange(len(data)) - np.repeat(starts, lengths)
    groups = (data & np.uint8(127)).astype(np.uint64) << (7 * shifts).astype(np.uint64)
    return np.asarray(np.add.reduceat(groups, starts).view(np.int64))


def floats(numbers: list[Raw], dtype: str) -> memoryview:
    """Return the bytes of floats of a fixed size, packed or not: ``"<f4"`` or ``"<f8"``."""
    content = b"".join(x for x in numbers if not isinstance(x, int))
    if len(content) % np.dtype(dtype).itemsize:
        raise DamagedError(
            f"a list of floats has {len(content)} bytes; expected a multiple of {np.dtype(dtype).itemsize}"
        )
    return memoryview(content)
