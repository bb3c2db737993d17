"""A weight in the layout of another program: the tensors that it has in files, and what they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, I8, Array, cast
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.quantization.codes import CODES
from mp_core.arrays.quantization.recipe import positive_and_finite
from mp_core.files.checkpoint.coding import MAX_GROUP, Box, Coding
from mp_core.files.checkpoint.header import Entry
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.packed_config import CHANNEL, TENSOR, Spec
from mp_core.policies.autocast.memory import drop_pages
from mp_core.policies.dtype_policies.schemes import Scheme

__all__ = [
    "SCALES", "Layout", "Packed", "Parts", "Place", "Read", "box_of", "described", "misfit", "positive_scales",
    "read_place", "viewed",
]  # fmt: skip

SCALES = ("float32", "float16", "bfloat16")
"""The types of scales that are numbers."""


class Place(NamedTuple):
    """A tensor of a file: its name, its file, and where it is."""

    name: str
    path: Path
    entry: Entry


Read = Callable[[Place], Array]
"""Return the elements of a tensor."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in the layout of another program, (outputs, inputs).

    Attributes
    ----------
    name : str
        The name of the weight in the network, such as ``layers.0.mlp.up_proj.weight``.
    shape : tuple of int
    spec : Spec
    layout : Layout
        Its row in the table of layouts.
    parts : mapping of str to Place
        The end of a tensor's name, such as ``qzeros`` -> the tensor.
    is_ordered : bool
        Whether neighbouring inputs share scales. If not (GPTQ's ``g_idx``), the weight is read as float32, because no
        kernel takes such codes.
    """

    name: str
    shape: tuple[int, ...]
    spec: Spec
    layout: "Layout"
    parts: Mapping[str, Place]
    is_ordered: bool = True

    @property
    def codes(self) -> str:
        """The type of the codes."""
        if self.spec.is_float and self.spec.bits == 4:
            return "float4_e2m1fn"
        if self.spec.is_float:
            return self.parts[self.layout.codes].entry.dtype.name
        return f"int{self.spec.bits}"

    @property
    def group_size(self) -> int | None:
        """How many neighbours in a line share a scale: a power of two, so that files can store it; None: all of them.

        A group of another length, such as 96, is read as several groups with the same scale.
        """
        size = self.spec.block[1]
        if size is None or size >= self.shape[-1]:
            return None
        return min(size & -size, MAX_GROUP)

    @property
    def coding(self) -> Coding | None:
        """How the codes are described in reports and in files of mp_core; None for a weight that is read as floats."""
        if not self.is_ordered:
            return None
        per_tensor = self.spec.block == TENSOR and self.spec.bits == 8
        axis = () if per_tensor else tuple(range(len(self.shape) - 1))
        fixed = self.spec.inputs == "fixed"
        return Coding(self.codes, self.shape, axis, self.group_size, fixed)

    @property
    def zeros(self) -> np.dtype[Any] | None:
        """The type of the zero points in files of mp_core; None if the codes are symmetric."""
        return None if self.spec.symmetric else I8

    @property
    def policy(self) -> str | None:
        """The policy under which layers take the codes as they are; None for floats."""
        coding = self.coding
        if coding is None:
            return None
        per = "group" if coding.group_size else "channel" if coding.axis else "tensor"
        return f"{Scheme.of_codes(self.codes, self.spec.inputs, coding.group_size, per)}_from_float32"

    @property
    def note(self) -> str:
        """What one has to know beyond the layout, for reports; "" if there is nothing."""
        ordered = "" if self.is_ordered else "g_idx is not in order, so the numbers are read instead of the codes"
        asked = f"the configuration's {self.spec.note} is not computed" if self.spec.note else ""
        return "; ".join(part for part in (ordered, asked) if part)

    def value(self, read: Read) -> dict[str, Array | QuantizedArray]:
        """Return the weight, and with fixed inputs their scales and zero points, by name.

        The pages of its tensors are released: those of mapped files count as memory while something maps the file.

        Raises
        ------
        ValueError
            A scale is not positive and finite, or zero points contradict the configuration.
        """
        try:
            return self._value(read)
        finally:
            for place in self.parts.values():
                drop_pages(read(place))

    def _value(self, read: Read) -> dict[str, Array | QuantizedArray]:
        codes = self.layout.read(self, read)
        if not self.is_ordered:
            order = read(self.parts[self.layout.order]).astype(np.intp)
            return {self.name: _kept(_in_order(codes, order))}
        block = self.spec.block
        scale, zero = self._along_lines(codes.scale), codes.zero
        zero = None if zero is None else self._along_lines(zero)
        inputs = self._inputs(read) if self.spec.inputs == "fixed" else {}
        if inputs:
            scale = scale * inputs[f"{self.name}.inputs_scale"].flat[0]
        coding = self.coding
        assert coding is not None
        if not coding.axis and block == TENSOR:
            scale = scale[:1, :1]
            zero = None if zero is None else zero[:1, :1]
        zero = None if zero is None else zero.reshape(coding.scale_shape)
        values = _kept(codes.values.reshape(coding.stored[1]))
        return {self.name: coding.array(values, scale.reshape(coding.scale_shape), zero), **inputs}

    def _along_lines(self, part: Array) -> Array:
        """Return scales or zero points of blocks as those of each line: (outputs, groups)."""
        n, k, (rows, columns) = prod(self.shape[:-1]), self.shape[-1], self.spec.block
        part = np.repeat(part, n if rows is None else rows, axis=0)[:n]
        size = self.group_size
        if size is not None and columns is not None:
            part = np.repeat(part, columns // size, axis=1)[:, : -(-k // size)]
        return np.ascontiguousarray(part)

    def _inputs(self, read: Read) -> dict[str, Array]:
        """Return the fixed scale and zero point of the inputs, in the form of mp_core's files."""
        place, zero = self.need("input_scale", SCALES), self.parts.get("input_zero_point")
        scale = positive_scales(place, read(place).reshape(-1))
        if scale.size != 1:
            raise misfit(place, "one element")
        if self.spec.is_float:
            return {f"{self.name}.inputs_scale": scale.reshape(())}
        k = self.shape[-1]
        found = np.zeros(1, np.int8) if zero is None else read(zero).reshape(-1)
        if found.size != 1 or found.dtype != I8:
            assert zero is not None
            raise misfit(zero, "one element of int8")
        return {
            f"{self.name}.inputs_scale": np.full(k, scale[0], F32),
            f"{self.name}.inputs_zero_point": np.full(k, found[0], np.int8),
        }

    def need(self, part: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None) -> Place:
        """Return the tensor of a part; raise ValueError unless it has one of these types and this shape."""
        place = self.parts.get(part)
        if place is None:
            first = next(iter(self.parts.values()))
            name = f"{self.name.removesuffix('.weight')}{self.layout.joint}{part}"
            raise ValueError(f"{first.path}: tensor {name!r} is missing; {first.name!r} needs it")
        if place.entry.dtype.name not in dtypes or (shape is not None and place.entry.shape != shape):
            size = f" of shape {shape}" if shape is not None else ""
            raise misfit(place, f"{' or '.join(dtypes)}{size}, for {described(self.spec)}")
        return place


class Parts(NamedTuple):
    """What a layout stores: codes as a QuantizedArray has them, scales in float32 and int8 zero points of blocks."""

    values: Array
    scale: Array
    zero: Array | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A row of the table of layouts.

    Attributes
    ----------
    program : str
        Who writes it.
    codes : str
        The end of the name of the tensor with the codes.
    others : tuple of str
        The ends of the names of the other tensors.
    shape : callable
        ``(packed, read)`` -> the shape of the weight. It checks the types and shapes of all tensors.
    read : callable
        ``(packed, read)`` -> the :class:`Parts`.
    order : str
        The end of the name of the tensor with the scale group of each input, if there is one.
    joint : str
        What is between the name of a module and these ends.
    """

    program: str
    codes: str
    others: tuple[str, ...]
    shape: Callable[[Packed, Read], tuple[int, ...]]
    read: Callable[[Packed, Read], Parts]
    order: str = ""
    joint: str = "."


def misfit(place: Place, expected: str) -> ValueError:
    """Return an error that names the file, the tensor, what it is and what was expected."""
    entry = place.entry
    return ValueError(
        f"{place.path}: tensor {place.name!r} is {entry.dtype.name} of shape {entry.shape}; expected {expected}"
    )


def described(spec: Spec) -> str:
    """Return the settings that decide the shapes of tensors, for messages."""
    shared = {TENSOR: "one scale", CHANNEL: "a scale for each output"}.get(spec.block)
    if shared is None:
        rows, columns = spec.block
        shared = f"groups of {columns}" if rows == 1 else f"blocks of {rows} x {columns}"
    return f"{spec.layout} of {spec.bits} bits with {shared}"


def positive_scales(place: Place, scale: Array) -> Array:
    """Return scales in float32; raise ValueError unless they are positive and finite."""
    wide: Array = np.ascontiguousarray(cast(scale, F32))
    if not positive_and_finite(wide):
        raise ValueError(
            f"{place.path}: tensor {place.name!r}: scales must be positive and finite; received {wide.min()} to "
            f"{wide.max()}"
        )
    return wide


def _kept(array: Array) -> Array:
    """Return an array that nobody can write to, also not through those of which it is a view: layers do not copy it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base.flags.writeable = False
        base = base.base
    return array


def _in_order(codes: Parts, order: Array) -> Array:
    """Return the numbers of codes whose scale groups are given for each input: float32, (outputs, inputs)."""
    n, k = len(codes.scale), len(order)
    q = QuantizedArray(codes.values, np.ones((n, 1), F32), None, 0, None, *_type_of(codes.values, (n, k)))
    numbers: Array = dequantize(q)
    if codes.zero is not None:
        numbers -= codes.zero.astype(F32)[:, order]
    numbers *= codes.scale[:, order]
    return numbers


def _type_of(values: Array, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Return the dtype and the shape of codes from how they are stored."""
    return ("int4" if values.dtype == np.uint8 else values.dtype), shape


def box_of(found: Mapping[str, Array | QuantizedArray], name: str, box: Box) -> Array:
    """Return a box of the weight `name` of :meth:`Packed.value`: numbers of shape (lines, elements)."""
    value, (first, last, begin, end) = found[name], box
    if not isinstance(value, QuantizedArray):
        return value.reshape(-1, value.shape[-1])[first:last, begin:end]
    pack, size = 1 + CODES[value.dtype.name].packed, value.group_size or value.shape[-1]
    codes = value.values.reshape(-1, value.values.shape[-1])[first:last, begin // pack : -(-end // pack)]

    def part(x: Array) -> Array:
        lines = x.reshape(-1, x.shape[-1])
        return (lines[first:last] if value.axis else lines)[:, begin // size : -(-end // size)]

    zero = None if value.zero_point is None else part(value.zero_point)
    shape = last - first, end - begin
    q = QuantizedArray(codes, part(value.scale), zero, (0,) if value.axis else (), value.group_size, value.dtype, shape)
    numbers: Array = dequantize(q)
    inputs: Any = found.get(f"{name}.inputs_scale")
    with np.errstate(over="ignore", under="ignore"):
        return numbers if inputs is None else numbers / (inputs[begin:end] if inputs.ndim else inputs)


def read_place(place: Place) -> Array:
    """Return the elements of a tensor as a view of its mapped file."""
    return viewed(map_file(place.path), place)


def viewed(content: Array, place: Place) -> Array:
    """Return the elements of a tensor as a view of the mapped bytes of its file."""
    entry = place.entry
    if entry.start + entry.nbytes > content.size:
        raise ValueError(f"{place.path} became shorter while it was opened: it has {content.size} bytes")
    return content[entry.start : entry.start + entry.nbytes].view(entry.dtype).reshape(entry.shape)
