"""The tensors of a checkpoint: values, or codes together with their scales."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any, Self

import numpy as np

from mp_core.arrays import F32, I8, I32, Array
from mp_core.arrays.dtypes import is_float
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.files.checkpoint.coding import QUANTIZATION, SUFFIXES, Box, Coding, Kind, is_group_size
from mp_core.files.checkpoint.foreign import FLOAT8, blocks_of, scale_names, tool_of
from mp_core.files.checkpoint.header import Entry, Header, load_json, open_regular
from mp_core.files.checkpoint.output import naming
from mp_core.files.checkpoint.packed import Packed, box_of, read_place
from mp_core.utilities.system import read_at

__all__ = ["POLICIES", "POLICY", "File", "Tensor", "metadata_of", "positive", "tensors_of"]

POLICY, POLICIES = "mp_core.policy", "mp_core.policies"
"""Keys of the metadata: the policy of a file, and the policies of tensors with another one."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in a file."""

    name: str
    parts: dict[str, Entry]
    """Name -> entry of the file: first `name` itself, then for codes the scales and so on."""
    coding: Coding | None = None
    tool: str | None = None
    """The tool that wrote these codes, or a tensor that belongs to codes, if mp_core cannot read them; else None."""
    packed: Packed | None = None
    """The codes of another program, which its `parts` have in the layout of that program; None for all others."""

    @property
    def values(self) -> Entry:
        """The entry of the values or codes."""
        return self.parts[self.name]

    @property
    def scale(self) -> Entry:
        """The entry of the scales, under any name (other tools use other names)."""
        return list(self.parts.values())[1]

    def part(self, suffix: str) -> Entry | None:
        """Return the entry called ``NAME.suffix``, or None."""
        return self.parts.get(f"{self.name}.{suffix}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; for packed codes the shape after unpacking."""
        if self.packed is not None:
            return self.packed.shape
        return self.values.shape if self.coding is None else self.coding.shape

    @property
    def dtype(self) -> str:
        """The name of the type of the values or codes."""
        if self.coding is not None:
            return self.coding.dtype
        return "float32" if self.packed is not None else self.values.dtype.name

    @property
    def has_numbers(self) -> bool:
        """Whether it stands for floats, as values or as codes."""
        return self.coding is not None or self.packed is not None or is_float(self.values.dtype)

    @property
    def kinds(self) -> dict[str, Kind]:
        """The type and shape of each tensor of a copy; codes of another program are copied as codes of mp_core."""
        if self.packed is None:
            return {part: (entry.dtype, entry.shape) for part, entry in self.parts.items()}
        if self.coding is None:
            return {self.name: (F32, self.shape)}
        return self.coding.parts(self.name, self.packed.zeros)

    @property
    def nbytes(self) -> int:
        """Bytes in the file, scales and zero points included."""
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
    """An open file that any thread may read at any offset; `size` is its number of bytes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._stream = open_regular(path)
        self._descriptor = self._stream.fileno()
        self._lock = Lock()
        self._found: tuple[Packed | None, Mapping[str, Array | QuantizedArray]] = (None, {})
        with naming(path):
            self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def bytes(self, start: int, count: int) -> Array:
        """Return `count` bytes from `start` on."""
        content = np.empty(count, np.uint8)
        rest = memoryview(content)
        while rest:
            with naming(self.path):
                read = read_at(self._descriptor, rest, start + count - len(rest))
            if not read:
                raise ValueError(f"{self.path} became shorter while it was read")
            rest = rest[read:]
        return content

    def box(self, tensor: Tensor, box: Box) -> Array:
        """Return a box of a tensor, shape (lines, elements); codes are decoded to float32."""
        if tensor.packed is not None:
            return box_of(self.unpacked(tensor.packed), tensor.name, box)
        values, coding = tensor.values, tensor.coding
        if coding is None:
            return self._lines(values, tensor.length, box).view(values.dtype).reshape(box.last - box.first, -1)
        pack = coding.codes_per_element
        packed = Box(box.first, box.last, box.begin // pack, -(-box.end // pack))
        codes = self._lines(values, values.shape[-1], packed).view(values.dtype)
        rows = coding.scale_lines(np.arange(box.first, box.last))
        first, last = int(rows.min()), int(rows.max()) + 1
        rows -= first
        group = coding.group_size or tensor.length
        of_scale = Box(first, last, box.begin // group, -(-box.end // group))

        def along_lines(entry: Entry) -> Array:
            part = self._lines(entry, coding.groups, of_scale).view(entry.dtype)
            return part.reshape(last - first, -1)[rows]

        zeros = tensor.part("zero_point")
        lines = Coding(coding.dtype, (len(rows), box.end - box.begin), (0,), coding.group_size)
        try:
            scale = positive(along_lines(tensor.scale), "scales")
            q = lines.array(codes.reshape(len(rows), -1), scale, None if zeros is None else along_lines(zeros))
            inputs = tensor.part("inputs_scale")
            if inputs is None:
                return dequantize(q)
            columns = Box(0, 1, box.begin, box.end) if inputs.shape else Box(0, 1, 0, 1)
            of_inputs = positive(self._lines(inputs, tensor.length, columns).view(inputs.dtype), "inputs_scale")
            with np.errstate(over="ignore", under="ignore"):
                return dequantize(q) / of_inputs
        except ValueError as error:
            raise ValueError(f"{self.path}: tensor {tensor.name!r}: {error}") from None

    def unpacked(self, packed: Packed) -> Mapping[str, Array | QuantizedArray]:
        """Return the weight of another program, as :meth:`Packed.value` does; the last one is kept."""
        with self._lock:
            if self._found[0] is not packed:
                self._found = packed, packed.value(read_place)
            return self._found[1]

    def _lines(self, entry: Entry, length: int, box: Box) -> Array:
        """Return the bytes of a box of an entry, viewed as lines of `length` elements."""
        size = entry.dtype.itemsize
        count = (box.last - box.first) * (box.end - box.begin) * size
        return self.bytes(entry.start + (box.first * length + box.begin) * size, count)


def positive(scale: Array, what: str) -> Array:
    """Return scales in float32; raise ValueError unless they are positive and finite."""
    scale = scale.astype(np.float32, copy=False)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"{what} must be positive and finite; received {scale.min()} to {scale.max()}")
    return scale


def tensors_of(header: Header, what: object) -> dict[str, Tensor]:
    """Return the tensors of a file by name; codes are one tensor with their scales. Errors begin with `what`."""
    entries = header.entries
    codings = load_json(header.metadata.get(QUANTIZATION, "{}").encode(), f"{what}: metadata {QUANTIZATION}")
    folded: dict[str, Tensor] = {}
    taken: set[str] = set()
    for name, value in codings.items():
        try:
            folded[name] = _coded(name, Coding.parse(value), entries)
            if not taken.isdisjoint(folded[name].parts):
                raise ValueError("one of its tensors belongs to another entry too")
        except ValueError as error:
            raise ValueError(f"{what}: metadata {QUANTIZATION}: {name!r}: {error}") from None
        taken |= folded[name].parts.keys()
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


def _coded(name: str, coding: Coding, entries: Mapping[str, Entry]) -> Tensor:
    """Return codes of mp_core with their scales."""
    zeros = entries.get(f"{name}.zero_point")
    expected = coding.parts(name, None if zeros is None else zeros.dtype if zeros.dtype in (I8, I32) else I32)
    for part in (f"{name}.{suffix}" for suffix in SUFFIXES):
        if part in entries and (part not in expected or (part == f"{name}.zero_point" and coding.is_float)):
            raise ValueError(f"the file has a tensor {part!r}; codes of this kind do not have it")
    return Tensor(name, {part: _part(entries, part, *kind) for part, kind in expected.items()}, coding)


def _foreign(name: str, entries: Mapping[str, Entry]) -> Tensor | None:
    """Return float8 codes with the scales of another tool; None if mp_core cannot read them."""
    beside = scale_names(name, entries)
    entry = entries[name]
    blocks = blocks_of(entry.shape, entries[beside[0]]) if len(beside) == 1 else None
    group_size = None if blocks is None or blocks[-1] == entry.shape[-1] else blocks[-1]
    if blocks is None or not (group_size is None or is_group_size(group_size)):
        return None
    axis = tuple(range(len(entry.shape) - 1))
    coding = Coding(entry.dtype.name, entry.shape, axis, group_size, blocks=blocks[:-1])
    return Tensor(name, {name: entry, beside[0]: entries[beside[0]]}, coding)


def _part(entries: Mapping[str, Entry], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Entry:
    entry = entries.get(name)
    if entry is None or entry.dtype != dtype or entry.shape != shape:
        found = "none" if entry is None else f"{entry.dtype.name} of shape {entry.shape}"
        raise ValueError(f"expected a tensor {name!r} of {dtype.name} and shape {shape}; found {found}")
    return entry


def metadata_of(
    metadata: Mapping[str, str], codings: Mapping[str, Coding], policy: str, policies: Mapping[str, str]
) -> dict[str, str]:
    """Return the metadata of a new file: `metadata` with its codings and policies replaced."""
    kept = {key: value for key, value in metadata.items() if key not in (QUANTIZATION, POLICY, POLICIES)}
    entries = {name: coding.entry() for name, coding in codings.items()}
    objects = {POLICIES: dict(policies), QUANTIZATION: entries}
    texts = {key: json.dumps(value, separators=(",", ":")) for key, value in objects.items() if value}
    return kept | {POLICY: policy} | texts
