"""Tensors as a checkpoint means them: the values or, where these are codes, what the codes stand for."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core.arrays import Array
from mp_core.checkpoint.foreign import FLOAT8, blocks_of, scale_names, tool_of
from mp_core.checkpoint.header import Entry, Header, is_shape, load_json, open_regular
from mp_core.checkpoint.output import naming
from mp_core.dtypes import ALLOWED, STORED
from mp_core.quantization import QuantizedArray, dequantize

__all__ = [
    "BOX",
    "MAX_GROUP",
    "QUANTIZATION",
    "Box",
    "File",
    "Scheme",
    "Tensor",
    "boxes",
    "is_group_size",
    "metadata_of",
    "tensors_of",
]

QUANTIZATION = "mp_core.quantization"
BOX = 2**16
"""The most elements a box has: few enough for the second-level cache."""
MAX_GROUP = BOX // 2
_STORED = {"int4": "uint8"} | {name: name for name in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")}


class Box(NamedTuple):
    """Neighbouring elements of a tensor seen as lines along its last axis: whole lines, or a part of one."""

    first: int
    last: int
    begin: int
    end: int


def boxes(lines: int, length: int, multiple: int = 1) -> Iterator[Box]:
    """Cut a tensor into boxes of at most :data:`BOX` elements; lines go in multiples where these fit."""
    if not lines * length:
        return
    step = max(BOX // length, 1)
    step -= step % multiple if step >= multiple else 0
    width = min(BOX, length)
    for first in range(0, lines, step):
        for begin in range(0, length, width):
            yield Box(first, min(first + step, lines), begin, min(begin + width, length))


def is_group_size(size: Any) -> bool:
    """Whether groups may be this long: a power of two, so that no box cuts a group."""
    return type(size) is int and 2 <= size <= MAX_GROUP and size & (size - 1) == 0


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the codes of one tensor stand for numbers: an entry of the metadata ``mp_core.quantization``."""

    dtype: str
    """Of the codes: a float8 type, int8, uint8, or int4, which is stored as two to a byte."""
    shape: tuple[int, ...]
    axis: tuple[int, ...]
    """The axes that keep scales of their own: the first one or more, or none, but never the last."""
    group_size: int | None
    """How many neighbours along the last axis share a scale; None: all of them."""
    policy: str
    """Under which it was quantized: says how a layer is to use it."""
    blocks: tuple[int, ...] | None = None
    """Where another tool has written the codes: how many indices of each leading axis share scales."""

    @property
    def stored(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of the tensor in the file."""
        return ALLOWED[_STORED[self.dtype]], (*self.shape[:-1], -(-self.shape[-1] // self.codes_per_element))

    @property
    def codes_per_element(self) -> int:
        """How many neighbours along the last axis an element of the file holds."""
        return 2 if self.dtype == "int4" else 1

    @property
    def scales(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Type and shape of the scales that mp_core writes."""
        kept = self.shape[: len(self.axis)]
        return ALLOWED["float32"], (*kept, *[1] * (len(self.shape) - len(kept) - 1), self.groups)

    @property
    def groups(self) -> int:
        """Scales along a line."""
        return 1 if self.group_size is None else -(-self.shape[-1] // self.group_size)

    @property
    def granularity(self) -> str:
        """What shares a scale, as ``--granularity`` says it."""
        return (
            f"group:{self.group_size}" if self.group_size else {0: "tensor", 1: "channel"}.get(len(self.axis), "line")
        )

    @property
    def lines_per_scale(self) -> int:
        """How many lines share scales."""
        return prod(self.shape[len(self.axis) : -1])

    def scale_lines(self, lines: Array) -> Array:
        """Return which line of scales belongs to each of the lines."""
        if self.blocks is None:
            return lines // self.lines_per_scale
        shape, blocks = (1, *self.shape[:-1]), (1, *self.blocks)
        counts = [-(-n // block) for n, block in zip(shape, blocks, strict=True)]
        indices = [i // block for i, block in zip(np.unravel_index(lines, shape), blocks, strict=True)]
        found: Array = np.ravel_multi_index(indices, counts)
        return found

    def array(self, values: Array, scale: Array, zero_point: Array | None = None) -> QuantizedArray:
        """Return codes, in the shape of the file, as what they stand for."""
        dtype = STORED[self.dtype] if self.dtype in STORED else ALLOWED[self.dtype]
        if self.blocks is not None:  # a QuantizedArray has no blocks of lines: each line gets scales of its own
            scale = scale.reshape(-1, self.groups)[self.scale_lines(np.arange(prod(self.shape[:-1])))].reshape(
                *self.shape[:-1], self.groups
            )
        return QuantizedArray(values, scale, zero_point, self.axis, self.group_size, dtype, self.shape)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Check an entry of the metadata."""
        value = value if isinstance(value, dict) else {}
        dtype, shape, axis, group_size = (value.get(key) for key in ("dtype", "shape", "axis", "group_size"))
        if not isinstance(dtype, str) or dtype not in _STORED:
            raise ValueError(f"dtype must be one of {', '.join(_STORED)}; received {dtype!r}")
        if not is_shape(shape) or not shape:
            raise ValueError(f"shape must be a list of one or more sizes; received {shape!r}")
        if not is_shape(axis) or axis != list(range(len(axis))) or len(axis) >= len(shape):
            raise ValueError(f"axis must be [], [0], [0, 1] ..., without the last one; received {axis!r}")
        if group_size is not None and not (is_group_size(group_size) and len(axis) == len(shape) - 1):
            raise ValueError(
                "group_size must be null or, with all axes but the last in axis, a power of two from 2 to "
                f"{MAX_GROUP}; received {group_size!r}"
            )
        return cls(dtype, tuple(shape), tuple(range(len(axis))), group_size, str(value.get("policy", "")))

    def entry(self) -> dict[str, Any]:
        """Return the entry of the metadata; other tools write none, but it says what they have done."""
        entry = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "axis": list(self.axis),
            "group_size": self.group_size,
            "policy": self.policy,
        }
        return entry if self.blocks is None else entry | {"blocks": list(self.blocks)}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file."""

    name: str
    parts: dict[str, Entry]
    """The tensors of the file that belong to this one: its own and, with a scheme, its scales and zero points."""
    scheme: Scheme | None = None
    tool: str | None = None
    """Whose codes these are, or belong to, if mp_core cannot read them: the values mean nothing by themselves."""

    @property
    def values(self) -> Entry:
        """The tensor of the file that has this one's name."""
        return self.parts[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, of the codes where they are packed."""
        return self.values.shape if self.scheme is None else self.scheme.shape

    @property
    def dtype(self) -> str:
        """The name of the type, of the codes where there are scales."""
        return self.values.dtype.name if self.scheme is None else self.scheme.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file, of scales and zero points too."""
        return sum(entry.nbytes for entry in self.parts.values())

    @property
    def lines(self) -> int:
        """The number of lines along the last axis."""
        return prod(self.shape[:-1])

    @property
    def length(self) -> int:
        """The length of a line."""
        return self.shape[-1] if self.shape else 1


class File:
    """A file that is open for reading at any place, from any thread; `size` is its number of bytes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._descriptor = open_regular(path)
        self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def bytes(self, start: int, count: int) -> Array:
        """Return some bytes."""
        content = np.empty(count, np.uint8)
        rest = memoryview(content)
        while rest:
            with naming(self.path):
                read = os.preadv(self._descriptor, [rest], start + count - len(rest))
            if not read:
                raise ValueError(f"{self.path} has become shorter while it was read")
            rest = rest[read:]
        return content

    def box(self, tensor: Tensor, box: Box) -> Array:
        """Return a box of a tensor as an array of lines; codes as the float32 values they stand for."""
        values, scheme = tensor.values, tensor.scheme
        if scheme is None:
            return self._lines(values, tensor.length, box).view(values.dtype).reshape(box.last - box.first, -1)
        pack = scheme.codes_per_element
        packed = Box(box.first, box.last, box.begin // pack, -(-box.end // pack))
        codes = self._lines(values, values.shape[-1], packed).view(values.dtype)
        rows = scheme.scale_lines(np.arange(box.first, box.last))
        first, last = int(rows.min()), int(rows.max()) + 1
        rows -= first
        group = scheme.group_size or tensor.length
        of_scale = Box(first, last, box.begin // group, -(-box.end // group))

        def along_lines(entry: Entry) -> Array:
            part = self._lines(entry, scheme.groups, of_scale).view(entry.dtype)
            return part.reshape(last - first, -1)[rows]

        scale, *zero_point = (along_lines(entry) for entry in list(tensor.parts.values())[1:])
        scale = scale.astype(np.float32, copy=False)
        lines = Scheme(scheme.dtype, (len(rows), box.end - box.begin), (0,), scheme.group_size, "")
        try:
            if not (np.isfinite(scale) & (scale > 0)).all():
                raise ValueError("scales must be positive and finite")
            return dequantize(lines.array(codes.reshape(len(rows), -1), scale, *zero_point))
        except ValueError as error:
            raise ValueError(f"{self.path}: tensor {tensor.name!r}: {error}") from None

    def _lines(self, entry: Entry, length: int, box: Box) -> Array:
        """Return the bytes of a box of an entry, seen as lines of this length."""
        size = entry.dtype.itemsize
        count = (box.last - box.first) * (box.end - box.begin) * size
        return self.bytes(entry.start + (box.first * length + box.begin) * size, count)


def tensors_of(header: Header, what: object) -> dict[str, Tensor]:
    """Return the tensors of a file, codes together with their scales; errors begin with `what`."""
    entries = header.entries
    schemes = load_json(header.metadata.get(QUANTIZATION, "{}").encode(), f"{what}: metadata {QUANTIZATION}")
    folded: dict[str, Tensor] = {}
    taken: set[str] = set()
    for name, value in schemes.items():
        try:
            scheme = Scheme.parse(value)
            expected = {name: scheme.stored, f"{name}.scale": scheme.scales}
            if f"{name}.zero_point" in entries:
                expected[f"{name}.zero_point"] = ALLOWED["int32"], scheme.scales[1]
            folded[name] = Tensor(name, {part: _part(entries, part, *kind) for part, kind in expected.items()}, scheme)
        except ValueError as error:
            raise ValueError(f"{what}: metadata {QUANTIZATION}: {name!r}: {error}") from None
        if not taken.isdisjoint(expected):
            raise ValueError(f"{what}: metadata {QUANTIZATION}: {name!r} shares a tensor with another name")
        taken |= expected.keys()
    plain = {name: entry for name, entry in entries.items() if name not in taken}
    for name in [name for name, entry in plain.items() if entry.dtype.name in FLOAT8]:
        tensor = _foreign(name, plain)
        if tensor is not None:
            folded[name] = tensor
            for part in tensor.parts:
                del plain[part]
    return {
        name: folded[name] if name in folded else Tensor(name, {name: entry}, None, tool_of(name, plain))
        for name, entry in entries.items()
        if name in folded or name in plain
    }


def _foreign(name: str, entries: Mapping[str, Entry]) -> Tensor | None:
    """Return float8 codes with the scales of another tool, if they can be read."""
    beside = scale_names(name, entries)
    entry = entries[name]
    blocks = blocks_of(entry.shape, entries[beside[0]]) if len(beside) == 1 else None
    group_size = None if blocks is None or blocks[-1] == entry.shape[-1] else blocks[-1]
    if blocks is None or not (group_size is None or is_group_size(group_size)):
        return None
    axis = tuple(range(len(entry.shape) - 1))
    scheme = Scheme(entry.dtype.name, entry.shape, axis, group_size, "", blocks[:-1])
    return Tensor(name, {name: entry, beside[0]: entries[beside[0]]}, scheme)


def _part(entries: Mapping[str, Entry], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Entry:
    entry = entries.get(name)
    if entry is None or entry.dtype != dtype or entry.shape != shape:
        found = "none" if entry is None else f"{entry.dtype.name} of shape {entry.shape}"
        raise ValueError(f"expected a tensor {name!r} of {dtype.name} and shape {shape}; found {found}")
    return entry


def metadata_of(header: Header, schemes: Mapping[str, Scheme], policy: str) -> dict[str, str]:
    """Return the metadata of a converted file: what was there, the policy, and the schemes of its codes."""
    kept = {key: value for key, value in header.metadata.items() if key != QUANTIZATION}
    entries = {name: scheme.entry() for name, scheme in schemes.items()}
    quantized = {QUANTIZATION: json.dumps(entries, separators=(",", ":"))} if entries else {}
    return kept | {"mp_core.policy": policy} | quantized
