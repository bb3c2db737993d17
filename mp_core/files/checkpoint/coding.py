"""How codes (quantized numbers) are stored in a file, and the boxes in which tensors are read and written."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from mp_core.arrays import F32, I8, I32, Array
from mp_core.arrays.dtypes import ALLOWED, STORED
from mp_core.arrays.quantization import QuantizedArray
from mp_core.files.checkpoint.header import is_shape

__all__ = ["BOX", "MAX_GROUP", "QUANTIZATION", "SUFFIXES", "Box", "Coding", "Kind", "boxes", "is_group_size"]

QUANTIZATION = "mp_core.quantization"
BOX = 2**16
"""The most elements of a box: they fit into the L2 cache."""
MAX_GROUP = BOX // 2
"""The longest group that a file may have."""
SUFFIXES = ("scale", "zero_point", "inputs_scale", "inputs_zero_point")
"""The tensors that belong to the codes NAME are called NAME.SUFFIX."""
_FOURS = ("int4", "float4_e2m1fn")
_STORED = dict.fromkeys(_FOURS, "uint8") | {name: name for name in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")}

Kind = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of a tensor in a file."""


class Box(NamedTuple):
    """A part of a tensor: elements ``[begin, end)`` of lines ``[first, last)``; a line runs along the last axis.

    A box has whole lines, or a part of one line.
    """

    first: int
    last: int
    begin: int
    end: int


def boxes(lines: int, length: int, multiple: int = 1) -> Iterator[Box]:
    """Cut a tensor of `lines` lines of `length` elements into boxes of at most :data:`BOX` elements.

    The number of lines in a box is a multiple of `multiple`, unless so many lines do not fit into a box.
    """
    if not lines * length:
        return
    height = max(BOX // length, 1)
    height -= height % multiple if height >= multiple else 0
    width = min(BOX, length)
    for first in range(0, lines, height):
        for begin in range(0, length, width):
            yield Box(first, min(first + height, lines), begin, min(begin + width, length))


def is_group_size(size: Any) -> bool:
    """Return whether a group may have this length: a power of two, so that no box cuts a group."""
    return type(size) is int and 2 <= size <= MAX_GROUP and size & (size - 1) == 0


@dataclass(frozen=True, slots=True)
class Coding:
    """How the codes of one tensor are decoded: an entry of the metadata ``mp_core.quantization``."""

    dtype: str
    """The type of the codes: a float8 type, int8, uint8, or int4 or float4_e2m1fn (stored as two codes per byte)."""
    shape: tuple[int, ...]
    """The shape of the codes, not of the bytes that store them."""
    axis: tuple[int, ...]
    """The axes along which scales differ: none or the first ones, never the last."""
    group_size: int | None
    """How many neighbours along the last axis share a scale; None: all of them."""
    fixed_inputs: bool = False
    """Whether codes times scales are the weights times the scales of the layer's inputs, which the file has too."""
    blocks: tuple[int, ...] | None = None
    """For codes of other tools: how many indices of each axis but the last share scales; else None."""

    @property
    def stored(self) -> Kind:
        """The type and shape of the tensor in the file."""
        return ALLOWED[_STORED[self.dtype]], (*self.shape[:-1], -(-self.shape[-1] // self.codes_per_element))

    @property
    def codes_per_element(self) -> int:
        """How many neighbours along the last axis an element of the file stores."""
        return 2 if self.dtype in _FOURS else 1

    @property
    def is_float(self) -> bool:
        """Whether the codes are floats, which have no zero points."""
        return self.dtype.startswith("float")

    @property
    def zeros(self) -> np.dtype[Any]:
        """The type of the zero points that mp_core writes."""
        return I32 if self.dtype == "uint8" else I8

    def parts(self, name: str, zeros: np.dtype[Any] | None) -> dict[str, Kind]:
        """Return the type and shape of each tensor in the file, by name; `zeros` is the type of the zero points."""
        parts = {name: self.stored, f"{name}.scale": (F32, self.scale_shape)}
        if zeros is not None:
            parts[f"{name}.zero_point"] = zeros, self.scale_shape
        if self.fixed_inputs:
            columns = () if self.is_float else self.shape[-1:]
            parts[f"{name}.inputs_scale"] = F32, columns
            if not self.is_float:
                parts[f"{name}.inputs_zero_point"] = I8, columns
        return parts

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """The shape of the scales that mp_core writes."""
        kept = self.shape[: len(self.axis)]
        return (*kept, *[1] * (len(self.shape) - len(kept) - 1), self.groups)

    @property
    def groups(self) -> int:
        """The number of scales along a line."""
        return 1 if self.group_size is None else -(-self.shape[-1] // self.group_size)

    @property
    def lines_per_scale(self) -> int:
        """How many lines share scales."""
        return prod(self.shape[len(self.axis) : -1])

    def scale_lines(self, lines: Array) -> Array:
        """Return the index of the line of scales for each of the given lines."""
        if self.blocks is None:
            return lines // self.lines_per_scale
        shape, blocks = (1, *self.shape[:-1]), (1, *self.blocks)
        counts = [-(-n // block) for n, block in zip(shape, blocks, strict=True)]
        indices = [i // block for i, block in zip(np.unravel_index(lines, shape), blocks, strict=True)]
        found: Array = np.ravel_multi_index(indices, counts)
        return found

    def array(self, values: Array, scale: Array, zero_point: Array | None = None) -> QuantizedArray:
        """Return the QuantizedArray of codes and scales; both have their shapes in the file."""
        dtype = STORED[self.dtype] if self.dtype in STORED else ALLOWED[self.dtype]
        if self.blocks is not None:  # a QuantizedArray needs scales for each line, so repeat those of a block
            scale = scale.reshape(-1, self.groups)[self.scale_lines(np.arange(prod(self.shape[:-1])))].reshape(
                *self.shape[:-1], self.groups
            )
        return QuantizedArray(values, scale, zero_point, self.axis, self.group_size, dtype, self.shape)

    @classmethod
    def of(cls, q: QuantizedArray, fixed_inputs: bool = False) -> Self:
        """Return the coding that stores a quantized array; raise ValueError if files cannot store it."""
        coding = cls(q.dtype.name, q.shape, q.axis, q.group_size, fixed_inputs)
        return cls.parse(coding.entry())

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Read an entry of the metadata; raise ValueError if it is invalid."""
        value = value if isinstance(value, dict) else {}
        dtype, shape, axis, group_size = (value.get(key) for key in ("dtype", "shape", "axis", "group_size"))
        if not isinstance(dtype, str) or dtype not in _STORED:
            raise ValueError(f"dtype must be one of {', '.join(_STORED)}; received {dtype!r}")
        if not is_shape(shape) or not shape:
            raise ValueError(f"shape must be a list of one or more sizes; received {shape!r}")
        if not is_shape(axis) or axis != list(range(len(axis))) or len(axis) >= len(shape):
            raise ValueError(f"axis must be [], [0], [0, 1] ... without the last axis; received {axis!r}")
        if group_size is not None and not (is_group_size(group_size) and len(axis) == len(shape) - 1):
            raise ValueError(
                "group_size must be null or, with all axes but the last in axis, a power of two from 2 to "
                f"{MAX_GROUP}; received {group_size!r}"
            )
        inputs = value.get("inputs")
        if inputs is not None and (inputs != "fixed" or dtype in (*_FOURS, "uint8")):
            raise ValueError(f"inputs must be 'fixed', for int8 or float8 codes, or be missing; received {inputs!r}")
        return cls(dtype, tuple(shape), tuple(range(len(axis))), group_size, inputs is not None)

    def entry(self) -> dict[str, Any]:
        """Return the entry of the metadata. For codes of other tools it has `blocks`, and is used only in reports."""
        entry = {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "axis": list(self.axis),
            "group_size": self.group_size,
        }
        inputs = {"inputs": "fixed"} if self.fixed_inputs else {}
        return entry | inputs | ({} if self.blocks is None else {"blocks": list(self.blocks)})
