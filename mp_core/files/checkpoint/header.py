"""The header of a safetensors file: its length (8 bytes, little-endian), then JSON, then the tensors without gaps.

A file may be hostile, so reading is strict: the tensors of a valid header can be read without further checks.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, FileIO
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from mp_core.arrays.dtypes import dtype_of
from mp_core.files.checkpoint.output import naming

__all__ = [
    "CODES",
    "MAX_JSON",
    "Entry",
    "Header",
    "is_shape",
    "load_json",
    "open_regular",
    "read_header",
    "refuse_other",
    "unique",
    "write_header",
]

CODES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
}
"""The file's name of a type -> ours. The last four are only copied: no policy converts them."""

_DTYPES = {code: np.dtype(np.complex64) if code == "C64" else dtype_of(name) for code, name in CODES.items()}
_CODE = {name: code for code, name in CODES.items()}
MAX_JSON = 100_000_000
"""The most bytes of a header or index: the limit of the safetensors library."""
_START = 64
_LFS = "a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
_PICKLE = "a PyTorch pickle; convert it to safetensors first"
_OTHERS = {
    b"version https://git-lfs": _LFS,
    b"PK\x03\x04": _PICKLE,
    **{b"\x80" + bytes([protocol]): _PICKLE for protocol in range(2, 6)},
    b"\x89HDF\r\n\x1a\n": "an HDF5 file, as Keras writes; convert it to safetensors first",
    b"GGUF": "a GGUF file; convert it to safetensors first",
    b"<!DOCTYPE": "a web page",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"\x1f\x8b": "compressed by gzip; unpack it first",
}
"""First bytes of other kinds of files -> the end of the sentence "PATH is ..."."""
_MAX_AXES = 64  # NumPy's limit
_MAX_BYTES = 2**63


@dataclass(frozen=True, slots=True)
class Entry:
    """Type, shape and place of one tensor in a file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    """Bytes from the beginning of the file."""

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a header."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading; reject pipes and devices, which could block or never end.

    FileIO opens the descriptor itself and owns it at once, so an interrupt leaves none open. With ``os.open`` in
    Python, an interrupt could come between opening and owning.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # FileIO rejects folders itself
        raise ValueError(f"{path} is not a regular file")
    return BufferedReader(FileIO(path, "rb"))


def refuse_other(start: bytes, path: str | os.PathLike[str]) -> None:
    """Raise ValueError, with the kind, if the first bytes of a file are those of a known other kind."""
    for magic, kind in _OTHERS.items():
        if start.startswith(magic):
            raise ValueError(f"{path} is {kind}")


def load_json(content: bytes, what: str) -> dict[str, Any]:
    """Parse one JSON object; raise ValueError, beginning with `what`, also for repeated keys or invalid UTF-8."""
    try:
        loaded = json.loads(content.decode("utf-8"), object_pairs_hook=_encodable, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(f"{what}: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{what}: expected a JSON object")
    return loaded


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; raise ValueError if two have the same name."""
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} occurs twice")
    return names


def _encodable(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = unique(pairs)
    for text in _texts([*names, *names.values()]):
        text.encode("utf-8")  # raises for half of a surrogate pair, which JSON can escape
    return names


def _texts(values: list[Any]) -> Iterator[str]:
    """Yield the strings in values and nested lists, without recursion."""
    waiting = [values]
    while waiting:
        for value in waiting.pop():
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                waiting.append(value)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read the header of a file, and check that it has no gaps, overlaps or unknown types."""
    with naming(path), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(_START)
        if start[8:9] != b"{":
            refuse_other(start, path)
        length = int.from_bytes(start[:8], "little")
        what = f"{path} is not a valid safetensors file"
        if start[8:9] == b"{" and size - 8 < length <= MAX_JSON:
            raise ValueError(f"{path} is truncated: it has {size} bytes, and a header of {length} bytes")
        if not 0 < length <= min(size - 8, MAX_JSON):
            raise ValueError(
                f"{what}: it has {size} bytes, and a header of {length} bytes; at most {MAX_JSON} are allowed"
            )
        file.seek(8)
        content = file.read(length)
    if content[:1] != b"{":
        raise ValueError(f"{what}: the header does not begin with {{")
    header = load_json(content, what)
    metadata = header.pop("__metadata__", None)
    if not (metadata is None or _is_dict_of(metadata, lambda value: isinstance(value, str))):
        raise ValueError(f"{what}: __metadata__ must map strings to strings")
    entries = {}
    for name, value in header.items():
        try:
            entries[name] = _entry(value, 8 + length)
        except _UnknownDtypeError as error:
            raise ValueError(f"{path}: tensor {name!r} has dtype {error}; mp_core reads {', '.join(CODES)}") from None
        except ValueError as error:
            raise ValueError(f"{what}: tensor {name!r}: {error}") from None
    end = max((entry.start + entry.nbytes for entry in entries.values()), default=0)
    if end > size:
        raise ValueError(f"{path} is truncated: {size / 1e6:.1f} of {end / 1e6:.1f} MB ({size} of {end} bytes)")
    _check_cover(entries, 8 + length, size, what)
    return Header(entries, metadata or {})


class _UnknownDtypeError(ValueError):
    pass


def _is_dict_of(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(check, value.values()))


def _entry(value: Any, data: int) -> Entry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError("expected dtype, shape and data_offsets")
    code, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(code, str) or code not in CODES:
        raise _UnknownDtypeError(f"{code}" if isinstance(code, str) and code.isprintable() else repr(code))
    dtype = _DTYPES[code]
    if not is_shape(shape) or prod(max(n, 1) for n in shape) * dtype.itemsize >= _MAX_BYTES:
        raise ValueError("shape must be a list of at most 64 sizes, less than 2^63 bytes in all")
    if not is_shape(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != prod(shape) * dtype.itemsize:
        raise ValueError(f"data_offsets do not fit dtype and shape: expected {prod(shape) * dtype.itemsize} bytes")
    return Entry(dtype, tuple(shape), data + offsets[0])


def is_shape(value: Any) -> bool:
    """Return whether a JSON value is a list of sizes."""
    return (
        isinstance(value, list)
        and len(value) <= _MAX_AXES
        and all(type(n) is int and 0 <= n < _MAX_BYTES for n in value)
    )


def _check_cover(entries: Mapping[str, Entry], start: int, size: int, what: str) -> None:
    """Check that the tensors fill the file from the header to its end, without gaps or overlaps."""
    spans = sorted((entry.start, entry.start + entry.nbytes, name) for name, entry in entries.items())
    spans = [(start, start, ""), *spans, (size, size, "")]
    for (_, stop, before), (begin, _, name) in pairwise(spans):
        if stop != begin:
            between = f"between {before!r} and {name!r}" if name else "at the end of the file"
            raise ValueError(f"{what}: the tensors leave a gap or overlap {between} (bytes {stop} and {begin})")


def write_header(
    shapes: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, Entry]]:
    """Return the first bytes of a file of these tensors, and the place of each tensor.

    The header keeps the given order. The data start with the widest types, so that all tensors are aligned.
    """
    offsets, offset = {}, 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: -item[1][0].itemsize):
        offsets[name] = offset
        offset += prod(shape) * dtype.itemsize
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, (dtype, shape) in shapes.items():
        span = [offsets[name], offsets[name] + prod(shape) * dtype.itemsize]
        header[name] = {"dtype": _CODE[dtype.name], "shape": list(shape), "data_offsets": span}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_JSON:
        raise ValueError(f"the header would take {len(text)} bytes; the format allows {MAX_JSON}")
    start = 8 + len(text)
    entries = {name: Entry(dtype, tuple(shape), start + offsets[name]) for name, (dtype, shape) in shapes.items()}
    return len(text).to_bytes(8, "little") + text, entries
