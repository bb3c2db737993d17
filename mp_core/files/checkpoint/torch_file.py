"""Read the tensors of a file of ``torch.save`` without torch, and without running code from the file.

Such a file is a zip archive: a pickle that describes tensors and their storages, and one member per storage. A pickle
is a program. This reader knows only the instructions that build dictionaries of tensors, replaces three functions by
its own, and refuses everything else with its name.
"""

import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.files.checkpoint.header import MAX_JSON, open_regular
from mp_core.files.checkpoint.maps import map_open
from mp_core.files.checkpoint.output import naming
from mp_core.files.zip import entries
from mp_core.utilities.system import reading_failure

__all__ = ["open_torch"]

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""Class of a storage -> the type of its elements."""
_DAMAGED = (
    zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, EOFError, RuntimeError, ValueError, OverflowError
)  # fmt: skip
"""What zipfile raises if a file is not an archive, or damaged."""
_MOST_SHARED = 32
"""Total bytes of all tensors / bytes of the file, at most. Tied weights share a storage (a table of words and the last
layer, or 24 equal layers), but a copy of them takes memory for each.
"""
_LOCAL_HEADER = 30  # bytes of the fixed part of the header before each member of an archive


class _Storage(NamedTuple):
    """A member of the archive with the numbers of tensors."""

    dtype: str
    key: str
    length: int


class _Placed(NamedTuple):
    """A tensor and its place in a storage, in elements."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A global name in the pickle, such as a class."""

    module: str
    name: str


def open_torch(path: str | PathLike[str]) -> dict[str, Array]:
    """Map the tensors on the CPU in a dictionary of ``torch.save`` into memory; the arrays are read-only."""
    with naming(path), open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return _tensors(archive, file, Path(path))
        except _DAMAGED as error:
            if str(path) in str(error):
                raise
            if failure := reading_failure(error):
                raise failure from None
            hint = "for files from before PyTorch 1.6, use torch.load and torch.save once"
            raise ValueError(f"{path} is not an archive of torch.save ({error}); {hint}") from None


def _tensors(archive: zipfile.ZipFile, file: BinaryIO, path: Path) -> dict[str, Array]:
    members = entries(archive)
    pickles = [name for name in members if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError(f"{path} has {len(pickles)} members data.pkl; expected one")
    root = pickles[0].removesuffix("data.pkl")
    order = members.get(f"{root}byteorder")
    if order is not None and _content(archive, order, path)[:16] != b"little":
        raise ValueError(f"{path} has the byte order of another CPU; expected 'little'")
    content = _Reader(path).read(_content(archive, members[pickles[0]], path))
    whole = map_open(file, path)
    found = {
        name: _mapped(whole, placed, members.get(f"{root}data/{placed.storage.key}"), f"{path}: tensor {name}")
        for name, placed in content
    }
    total = sum(x.nbytes for x in found.values())
    if total > _MOST_SHARED * len(whole):
        raise ValueError(
            f"{path} has {len(whole)} bytes, but its tensors, which share storages, have {total} together; allowed are "
            f"{_MOST_SHARED} times the bytes of the file"
        )
    return found


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    """Return a small member. It must be stored uncompressed, so that it takes no more memory than the file."""
    most = min(MAX_JSON, path.stat().st_size)
    if member.compress_type != zipfile.ZIP_STORED or not member.file_size == member.compress_size <= most:
        size = f"{member.file_size} bytes in {member.compress_size}"
        raise ValueError(f"{path} has the member {member.filename} of {size}; expected at most {most}, not compressed")
    return archive.read(member)


def _mapped(whole: Array, placed: _Placed, member: zipfile.ZipInfo | None, what: str) -> Array:
    """Check the place of a tensor, and return it as a view of the file."""
    storage, dtype = placed.storage, dtypes.ALLOWED[placed.storage.dtype]
    if member is None or member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise ValueError(f"{what} needs the member data/{storage.key}, neither compressed nor encrypted")
    size = member.file_size
    if storage.length * dtype.itemsize != size:
        raise ValueError(f"{what} has a storage of {storage.length} {storage.dtype}; its member has {size} bytes")
    numbers = (placed.offset, *placed.shape, *placed.strides)
    if len(placed.shape) != len(placed.strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"{what} must have an offset, lengths and strides from 0 on, and a stride for each length")
    if 0 in placed.shape:
        return np.zeros(placed.shape, dtype)
    last = placed.offset + sum((n - 1) * stride for n, stride in zip(placed.shape, placed.strides, strict=True))
    if last >= storage.length:
        raise ValueError(f"{what} ends at element {last} of a storage of {storage.length}")
    place = member.header_offset  # below 0 if the archive claims to start after its first byte
    head = whole[max(place, 0) :][:_LOCAL_HEADER].tobytes()
    begin = place + _LOCAL_HEADER
    begin += int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")  # a name and extra fields
    if place < 0 or head[:4] != b"PK\x03\x04" or begin + size > len(whole):
        raise ValueError(f"{what} needs the member data/{storage.key}, which is not within the file")
    elements = whole[begin + placed.offset * dtype.itemsize : begin + size]
    strides = [stride * dtype.itemsize for stride in placed.strides]
    elements = elements[: len(elements) // dtype.itemsize * dtype.itemsize].view(dtype)
    view: Array = np.lib.stride_tricks.as_strided(elements, placed.shape, strides, writeable=False)
    return view


@dataclass
class _Reader:
    """Runs the allowed instructions of a pickle."""

    path: Path

    def refuse(self, what: str) -> ValueError:
        """Return an error for contents other than a dictionary of tensors."""
        return ValueError(f"{self.path} has {what}; expected a dictionary of tensors, and no code to run")

    def read(self, content: bytes) -> Iterator[tuple[str, _Placed]]:
        """Return an iterator over the names and places of tensors."""
        try:
            found = self._run(content)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{self.path} has a damaged pickle ({type(error).__name__}: {error})") from None
        if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
            found = found["state_dict"]
        if not isinstance(found, dict):
            raise self.refuse(f"a {type(found).__name__}")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, _Placed):
                raise self.refuse(f"{_shown(value)} under {_shown(name)}")
        return iter(found.items())

    def _run(self, content: bytes) -> Any:
        stack: list[Any] = []
        memo: dict[int, Any] = {}
        marks: list[list[Any]] = []
        try:
            argument: Any
            for code, argument, _ in pickletools.genops(content):
                if code.name == "STOP":
                    return stack.pop()
                if code.name == "MARK":
                    marks.append(stack)
                    stack = []
                elif code.name in _TO_MARK:
                    items, stack = stack, marks.pop()
                    _TO_MARK[code.name](stack, items)
                elif code.name in _PUT:
                    memo[len(memo) if argument is None else argument] = stack[-1]
                elif code.name in _GET:
                    stack.append(memo[argument])
                elif code.name in _STEPS:
                    _STEPS[code.name](self, stack, argument)
                else:
                    raise self.refuse(f"the instruction {code.name}")
        except ValueError as error:
            if str(error).startswith(str(self.path)):
                raise
            raise ValueError(f"{self.path} has a damaged pickle ({error})") from None
        raise ValueError(f"{self.path} has a pickle without an end")

    def named(self, module: str, name: str) -> _Name:
        """Return a global name; raise ValueError unless it is allowed."""
        if (module, name) in _CALLS or (module == "torch" and name in _STORAGES):
            return _Name(module, name)
        raise self.refuse(f"the name {module}.{name}"[:200])

    def stored(self, stack: list[Any]) -> _Storage:
        """Pop a persistent id from the stack and return its storage."""
        with suppress(TypeError, ValueError):
            kind, storage, key, place, length = stack.pop()
            is_number = type(length) is int and length >= 0
            if kind == "storage" and isinstance(storage, _Name) and isinstance(key, str) and is_number:
                if place != "cpu" and not str(place).startswith("cuda"):
                    raise self.refuse(f"a storage on {_shown(place)}")
                return _Storage(_STORAGES[storage.name], key, length)
        raise self.refuse("a persistent id that is not a storage")

    def called(self, stack: list[Any]) -> Any:
        """Pop arguments and an allowed function from the stack; return the result of our function instead."""
        arguments, name = stack.pop(), stack.pop()
        if not isinstance(name, _Name) or (name.module, name.name) not in _CALLS or not isinstance(arguments, tuple):
            raise self.refuse(f"a call of {_shown(name)}")
        return _CALLS[name.module, name.name](*arguments)


def _shown(value: Any) -> str:
    """Describe a value by its type: the repr of a hostile, nested value could fill the memory."""
    if isinstance(value, _Name):
        return f"{value.module}.{value.name}"
    return f"{value[:60]!r}" if isinstance(value, str) else f"a {type(value).__name__}"


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Placed:
    if not (isinstance(storage, _Storage) and isinstance(shape, tuple) and isinstance(strides, tuple)):
        raise TypeError("a tensor without a storage, shape and strides")
    return _Placed(storage, offset, shape, strides)


_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): lambda: {},
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
}
"""Module and name of a function that pickles of tensors call -> function that is called instead."""


def _set_items(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
        raise TypeError("entries outside of a dictionary, or without names")
    stack[-1].update(zip(items[::2], items[1::2], strict=True))


def _append(stack: list[Any], items: list[Any]) -> None:
    if not isinstance(stack[-1], list):
        raise TypeError("elements outside of a list")
    stack[-1].extend(items)


def _take(stack: list[Any], count: int) -> list[Any]:
    taken = stack[-count:]
    if len(taken) < count:
        raise IndexError("the stack has too few values")
    del stack[-count:]
    return taken


def _stack_global(reader: _Reader, stack: list[Any]) -> None:
    module, name = _take(stack, 2)
    stack.append(reader.named(str(module), str(name)))


_PUT = ("BINPUT", "LONG_BINPUT", "PUT", "MEMOIZE")
_GET = ("BINGET", "LONG_BINGET", "GET")
_TO_MARK: dict[str, Callable[[list[Any], list[Any]], None]] = {
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "SETITEMS": _set_items,
    "APPENDS": _append,
}
"""Instruction on all values since a mark -> function of the stack before the mark, and these values."""

_Do = Callable[[_Reader, list[Any], Any], Any]
_VALUES: dict[str, _Do] = {
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), lambda reader, stack, value: stack.append(value)),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINFLOAT"), lambda reader, stack, value: stack.append(value)),
    "NONE": lambda reader, stack, _: stack.append(None),
    "NEWTRUE": lambda reader, stack, _: stack.append(True),
    "NEWFALSE": lambda reader, stack, _: stack.append(False),
    "EMPTY_DICT": lambda reader, stack, _: stack.append({}),
    "EMPTY_LIST": lambda reader, stack, _: stack.append([]),
    "EMPTY_TUPLE": lambda reader, stack, _: stack.append(()),
}
_STEPS: dict[str, _Do] = _VALUES | {
    "PROTO": lambda reader, stack, _: None,
    "FRAME": lambda reader, stack, _: None,
    "TUPLE1": lambda reader, stack, _: stack.append(tuple(_take(stack, 1))),
    "TUPLE2": lambda reader, stack, _: stack.append(tuple(_take(stack, 2))),
    "TUPLE3": lambda reader, stack, _: stack.append(tuple(_take(stack, 3))),
    "SETITEM": lambda reader, stack, _: _set_items(stack, _take(stack, 2)),
    "APPEND": lambda reader, stack, _: _append(stack, _take(stack, 1)),
    "GLOBAL": lambda reader, stack, value: stack.append(reader.named(*value.split(" ", 1))),
    "STACK_GLOBAL": lambda reader, stack, _: _stack_global(reader, stack),
    "BINPERSID": lambda reader, stack, _: stack.append(reader.stored(stack)),
    "REDUCE": lambda reader, stack, _: stack.append(reader.called(stack)),
    "BUILD": lambda reader, stack, _: _take(stack, 1),  # attributes of a dictionary, such as _metadata
}
"""Instruction -> function of the reader, the stack and the argument of the instruction."""
