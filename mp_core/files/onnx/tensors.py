"""The arrays of an ONNX file: views of the file, or of files beside it, wherever these have their bytes."""

from math import prod
from os import PathLike
from pathlib import Path

import numpy as np

from mp_core.arrays import Array, dtypes
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.places import is_plain, path_in
from mp_core.files.onnx.messages import Tensor, texts
from mp_core.files.onnx.wire import DamagedError, floats, integers
from mp_core.utilities.numerals import integer_of

__all__ = ["TYPES", "Files", "shape_of", "type_name"]

TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}  # fmt: skip
"""Number of a type -> our name."""
_READ = {name for name in TYPES.values() if name in dtypes.ALLOWED or name in dtypes.STORED}
_PAIRS = {"uint4", "int4", "float4_e2m1fn"}
"""The types of which a byte has two numbers, the first in its low bits."""
_MOST_AXES = 8
_MOST_TIMES, _SPARE = 4, 1 << 24
"""Arrays may share bytes of the files, but have at most `_MOST_TIMES` times the bytes of the files + `_SPARE`."""


def type_name(number: int) -> str:
    """Return our name of a type, or a text that says its number."""
    return TYPES.get(number, f"type {number}")


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor; raise DamagedError if an array cannot have it."""
    shape = tuple(integers(tensor.dims).tolist())
    if len(shape) > _MOST_AXES:
        raise DamagedError(f"initializer {tensor.name} has {len(shape)} axes; expected at most {_MOST_AXES}")
    if any(n < 0 for n in shape) or prod(max(n, 1) for n in shape) >= 2**59:
        raise DamagedError(f"initializer {tensor.name} has the shape {shape}")
    return shape


class Files:
    """An ONNX file, and the files beside it that have numbers of its tensors. Each is mapped once."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._maps = {self.path: map_file(path)}

    @property
    def content(self) -> memoryview:
        """The bytes of the ONNX file."""
        return memoryview(self._maps[self.path])

    def check_total(self, total: int) -> None:
        """Raise ValueError if arrays of `total` bytes are too many for the files."""
        size = sum(x.nbytes for x in self._maps.values())
        if total > _MOST_TIMES * size + _SPARE:
            raise ValueError(
                f"{self.path}: its weights have {total} bytes, and its files {size}; expected at most "
                f"{_MOST_TIMES} times that"
            )

    def array(self, tensor: Tensor, name: str = "") -> Array:
        """Return the numbers of a tensor: a view of the file, if its bytes are those of an array.

        Parameters
        ----------
        tensor : Tensor
        name : str
            What errors call the tensor; default: its own name.
        """
        name, kind, shape = name or tensor.name, type_name(tensor.data_type), shape_of(tensor)
        if kind not in _READ:
            what = {"string": "strings", "complex64": "complex numbers", "complex128": "complex numbers"}.get(
                kind, kind
            )
            raise ValueError(f"{self.path}: initializer {name} of shape {shape} has {what}; expected numbers")
        dtype, count = dtypes.dtype_of(kind), prod(shape)
        size = (count + 1) // 2 if kind in _PAIRS else count * dtype.itemsize
        if tensor.data_location == 1:
            content = self._external(tensor, name, size)
        else:
            content = _listed(tensor, kind) if tensor.raw_data is None else tensor.raw_data
        if len(content) != size:
            raise ValueError(f"{self.path}: initializer {name} has {len(content)} bytes; expected {size}, for {shape}")
        stored: Array = np.frombuffer(content, np.uint8)
        numbers = _pairs(stored, count, is_signed=kind == "int4") if kind in _PAIRS else stored
        return np.asarray(numbers.view(dtype).reshape(shape))

    def _external(self, tensor: Tensor, name: str, size: int) -> memoryview:
        """Return the bytes of a tensor that are in another file of the folder."""
        place = texts(tensor.external_data)
        location, offset = place.get("location", ""), place.get("offset", "0")
        start = integer_of(offset, 0, 2**63 - 1)
        if not is_plain(location) or start is None:
            where = f"{location!r} at {offset!r}"
            raise ValueError(
                f"{self.path}: initializer {name} is in {where}; expected a name in its own folder, and an offset"
            )
        if place.get("length", str(size)) != str(size):
            raise ValueError(
                f"{self.path}: initializer {name} has {place['length']} bytes in {location}; expected {size}"
            )
        other = path_in(self.path.parent, location, f"{self.path}: initializer {name}")
        if other not in self._maps:  # a map keeps a descriptor open, and there may be thousands of weights
            self._maps[other] = map_file(other)
        if self._maps[other].size < start + size:
            raise ValueError(f"{other} ends before the end of {name}, {start + size}")
        return memoryview(self._maps[other])[start:][:size]


def _listed(tensor: Tensor, kind: str) -> memoryview:
    """Return the bytes of numbers that are fields of the message, one by one."""
    if kind == "float32":
        return floats(tensor.float_data, "<f4")
    if kind == "float64":
        return floats(tensor.double_data, "<f8")
    if kind == "int64":
        return memoryview(integers(tensor.int64_data).tobytes())
    if kind in ("uint32", "uint64"):
        return memoryview(integers(tensor.uint64_data).astype(kind).tobytes())
    width = 1 if kind in _PAIRS else dtypes.dtype_of(kind).itemsize
    return memoryview(integers(tensor.int32_data).astype(f"<i{width}").tobytes())


def _pairs(stored: Array, count: int, *, is_signed: bool) -> Array:
    """Return `count` codes of four bits, a byte each."""
    codes = np.stack([stored & np.uint8(15), stored >> np.uint8(4)], -1).reshape(-1)[:count]
    return (codes ^ np.uint8(8)) - np.uint8(8) if is_signed else codes
