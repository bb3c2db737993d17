"""The layouts in which other programs store quantized weights, one row of a table each.

A weight has several tensors: codes, scales and so on. A row says how they are called, and has the function that reads
them as a :class:`QuantizedArray`. 4-bit codes stay two in a byte: where a file has neighbours of a line in neighbouring
bits, only the sign bit of each code changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mp_core.arrays import F32, I8, I32, Array, cast
from mp_core.arrays.quantization import QuantizedArray, dequantize
from mp_core.arrays.quantization.codes import CODES
from mp_core.arrays.quantization.recipe import positive_and_finite
from mp_core.files.checkpoint.coding import MAX_GROUP, Box, Coding
from mp_core.files.checkpoint.header import Entry
from mp_core.files.checkpoint.maps import map_file
from mp_core.files.checkpoint.packed_config import Quantization, Spec
from mp_core.policies.dtype_policies.schemes import Scheme

__all__ = ["LAYOUTS", "Layout", "Packed", "Place", "box_of", "packed_in", "read_place", "viewed"]

_SCALES = ("float32", "float16", "bfloat16")
_AWQ = 0, 2, 4, 6, 1, 3, 5, 7
"""The columns of eight neighbours whose 4-bit codes are in an int32, from the lowest bits on."""


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
    parts : mapping of str to Place
        The end of a tensor's name, such as ``qzeros`` -> the tensor.
    is_ordered : bool
        Whether neighbouring inputs share scales. If not (GPTQ's ``g_idx``), the weight is read as float32, because no
        kernel takes such codes.
    """

    name: str
    shape: tuple[int, ...]
    spec: Spec
    parts: Mapping[str, Place]
    is_ordered: bool = True

    @property
    def layout(self) -> "Layout":
        """The row of the table."""
        return LAYOUTS[self.spec.layout]

    @property
    def codes(self) -> str:
        """The type of the codes."""
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
        per_tensor = self.spec.block == (None, None) and self.spec.bits == 8
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
        return f"{Scheme(self.codes, self.spec.inputs, coding.group_size, per)}_from_float32"

    @property
    def note(self) -> str:
        """What one has to know beyond the layout, for reports; "" if there is nothing."""
        ordered = "" if self.is_ordered else "g_idx is not in order, so the numbers are read instead of the codes"
        asked = f"the configuration's {self.spec.note} is not computed" if self.spec.note else ""
        return "; ".join(part for part in (ordered, asked) if part)

    def value(self, read: Read) -> dict[str, Array | QuantizedArray]:
        """Return the weight, and with fixed inputs their scales and zero points, by name.

        Raises
        ------
        ValueError
            A scale is not positive and finite, or zero points contradict the configuration.
        """
        codes = self.layout.read(self, read)
        if not self.is_ordered:
            order = read(self.parts[self.layout.order]).astype(np.intp)
            return {self.name: _in_order(codes, order)}
        block = self.spec.block
        scale, zero = self._along_lines(codes.scale), codes.zero
        zero = None if zero is None else self._along_lines(zero)
        inputs = self._inputs(read) if self.spec.inputs == "fixed" else {}
        if inputs:
            scale = scale * inputs[f"{self.name}.inputs_scale"].flat[0]
        coding = self.coding
        assert coding is not None
        if not coding.axis and block == (None, None):
            scale = scale[:1, :1]
            zero = None if zero is None else zero[:1, :1]
        return {self.name: coding.array(codes.values, scale, zero), **inputs}

    def _along_lines(self, part: Array) -> Array:
        """Return scales or zero points of blocks as those of each line: (outputs, groups)."""
        (n, k), (rows, columns) = self.shape, self.spec.block
        part = np.repeat(part, n if rows is None else rows, axis=0)[:n]
        size = self.group_size
        if size is not None and columns is not None:
            part = np.repeat(part, columns // size, axis=1)[:, : -(-k // size)]
        return np.ascontiguousarray(part)

    def _inputs(self, read: Read) -> dict[str, Array]:
        """Return the fixed scale and zero point of the inputs, in the form of mp_core's files."""
        place, zero = self.need("input_scale", _SCALES), self.parts.get("input_zero_point")
        scale = _positive(place, read(place).reshape(-1))
        if scale.size != 1:
            raise _misfit(place, "one element")
        if self.spec.is_float:
            return {f"{self.name}.inputs_scale": scale.reshape(())}
        k = self.shape[-1]
        found = np.zeros(1, np.int8) if zero is None else read(zero).reshape(-1)
        if found.size != 1 or found.dtype != I8:
            assert zero is not None
            raise _misfit(zero, "one element of int8")
        return {
            f"{self.name}.inputs_scale": np.full(k, scale[0], F32),
            f"{self.name}.inputs_zero_point": np.full(k, found[0], np.int8),
        }

    def need(self, part: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None) -> Place:
        """Return the tensor of a part; raise ValueError unless it has one of these types and this shape."""
        place = self.parts.get(part)
        if place is None:
            first = next(iter(self.parts.values()))
            name = f"{self.name.removesuffix('weight')}{part}"
            raise ValueError(f"{first.path}: tensor {name!r} is missing; {first.name!r} needs it")
        if place.entry.dtype.name not in dtypes or (shape is not None and place.entry.shape != shape):
            size = f" of shape {shape}" if shape is not None else ""
            raise _misfit(place, f"{' or '.join(dtypes)}{size}, for {_described(self.spec)}")
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
    """

    program: str
    codes: str
    others: tuple[str, ...]
    shape: Callable[[Packed, Read], tuple[int, ...]]
    read: Callable[[Packed, Read], Parts]
    order: str = ""


def packed_in(places: Mapping[str, Place], quantization: Quantization, read: Read) -> Iterator[Packed]:
    """Yield the weights of a folder that are stored in a layout of its configuration.

    Raises
    ------
    ValueError
        Tensors are missing, have other shapes or types than the configuration says, or belong to a module that is not
        quantized according to it.
    """
    layouts = {LAYOUTS[name].codes: LAYOUTS[name] for name in quantization.layouts}
    for name, place in places.items():
        module, _, end = name.rpartition(".")
        layout = layouts.get(end)
        if layout is None or (end == "weight" and place.entry.dtype.name not in _NAIVE):
            continue
        spec = quantization.spec(module)
        if spec is None or LAYOUTS[spec.layout].codes != end:
            raise ValueError(
                f"{place.path}: tensor {name!r} has codes, but according to {quantization.what} its module is "
                f"{'not quantized' if spec is None else f'stored as {spec.layout}'}"
            )
        ends = (end, *LAYOUTS[spec.layout].others)
        parts = {part: places[f"{module}.{part}"] for part in ends if f"{module}.{part}" in places}
        yield _checked(Packed(f"{module}.weight", (), spec, parts), read)


def _checked(packed: Packed, read: Read) -> Packed:
    """Return a weight with its shape, and whether its groups are in order; raise ValueError if parts do not fit."""
    shape = packed.layout.shape(packed, read)
    if 0 in shape:
        raise _misfit(packed.parts[packed.layout.codes], "no length of 0")
    size = packed.spec.block[1]
    order = packed.parts.get(packed.layout.order)
    is_ordered = True
    if order is not None:
        packed.need(packed.layout.order, ("int32",), shape[-1:])
        groups = 1 if size is None else -(-shape[-1] // size)
        found = read(order)
        if not (found == -1).all():  # compressed-tensors: not set
            if not 0 <= found.min() <= found.max() < groups:
                raise ValueError(
                    f"{order.path}: tensor {order.name!r} has {found.min()} to {found.max()}; expected indices of "
                    f"{groups} groups"
                )
            is_ordered = size is None or bool((found == np.arange(len(found)) // size).all())
    return Packed(packed.name, shape, packed.spec, packed.parts, is_ordered)


def _misfit(place: Place, expected: str) -> ValueError:
    entry = place.entry
    return ValueError(
        f"{place.path}: tensor {place.name!r} is {entry.dtype.name} of shape {entry.shape}; expected {expected}"
    )


def _described(spec: Spec) -> str:
    """Return the settings that decide the shapes of tensors, for messages."""
    rows, columns = spec.block
    shared = {(None, None): "one scale", (1, None): "a scale for each output"}.get(spec.block)
    shared = shared or (f"groups of {columns}" if rows == 1 else f"blocks of {rows} x {columns}")
    return f"{spec.layout} of {spec.bits} bits with {shared}"


def _counts(packed: Packed, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of blocks along outputs and inputs."""
    n, k = (1 if size is None else -(-length // size) for length, size in zip(shape, packed.spec.block, strict=True))
    return n, k


def _positive(place: Place, scale: Array) -> Array:
    """Return scales in float32; raise ValueError unless they are positive and finite."""
    wide: Array = np.ascontiguousarray(cast(scale, F32))
    if not positive_and_finite(wide):
        raise ValueError(
            f"{place.path}: tensor {place.name!r}: scales must be positive and finite; received {wide.min()} to "
            f"{wide.max()}"
        )
    return wide


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


# ---- codes in the bits of int32


def _signed(words: Array, bits: int, length: int) -> Array:
    """Return signed codes of lines of int32, (lines, words): int8, or int4 in pairs.

    Code i of a line is in the bits from ``i * bits`` on, plus ``2^(bits - 1)``; so only its highest bit differs.
    """
    stored = np.ascontiguousarray(words).view(np.uint8)[:, : -(-length * bits // 8)]
    if bits == 8:
        return (stored ^ 0x80).view(np.int8)
    return _sign_bits(stored.copy(), length)


def _sign_bits(pairs: Array, length: int) -> Array:
    """Change unsigned 4-bit codes in pairs to signed ones in place, and return them; `length` is that of a line."""
    pairs ^= 0x88
    if length % 2:
        pairs[:, -1] &= 15  # the unused half of the last byte
    return pairs


def _single(words: Array, bits: int, length: int) -> Array:
    """Return the signed codes of :func:`_signed`, int8, one in each element."""
    codes = _signed(words, bits, length)
    if bits == 8:
        return codes
    low_high: Array = np.stack([codes << 4, codes & 0xF0], axis=-1).view(np.int8) >> 4
    return low_high.reshape(len(codes), -1)[:, :length]


def _packed_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of ``pack-quantized``, and check the tensors."""
    bits = packed.spec.bits
    place = packed.need("weight_packed", ("int32",))
    if len(place.entry.shape) != 2:
        raise _misfit(place, "two axes")
    n, words = place.entry.shape
    size = packed.need("weight_shape", ("int64", "int32"), (2,))
    shape = tuple(map(int, read(size)))
    if shape[0] != n or shape[1] < 1 or -(-shape[1] * bits // 32) != words:
        raise ValueError(
            f"{size.path}: tensor {size.name!r} is {list(shape)}; expected the shape of {n} lines that fill {words} "
            f"int32 with {bits} bits a weight"
        )
    _divides(packed, shape[1])
    counts = _counts(packed, shape)
    _need_scales(packed, counts)
    if not packed.spec.symmetric and packed.spec.block != (None, None):
        packed.need("weight_zero_point", ("int32",), (-(-counts[0] * bits // 32), counts[1]))
    elif not packed.spec.symmetric:
        packed.need("weight_zero_point", ("int8",))
    return shape


def _divides(packed: Packed, k: int) -> None:
    """Raise ValueError unless the length of a group divides the number of inputs."""
    size = packed.spec.block[1]
    if packed.spec.block[0] == 1 and size is not None and k % size:
        place = packed.parts[packed.layout.codes]
        raise ValueError(
            f"{place.path}: tensor {place.name!r} has {k} inputs; expected a multiple of group_size={size}"
        )


def _need_scales(packed: Packed, counts: tuple[int, int], part: str = "weight_scale", dtypes: Any = _SCALES) -> Place:
    """Return the tensor of scales or zero points of blocks; axes of length 1 at the end may be missing."""
    place = packed.need(part, dtypes)
    shape = place.entry.shape
    if shape != counts and (counts[1] != 1 or shape != counts[:1]) and (counts != (1, 1) or shape != ()):
        raise _misfit(place, f"shape {counts}, for {_described(packed.spec)}")
    return place


def _scales(packed: Packed, read: Read) -> Array:
    """Return the scales of blocks, float32 of shape (blocks of outputs, groups)."""
    place = packed.parts["weight_scale"]
    return _positive(place, read(place).reshape(_counts(packed, packed.shape)))


def _read_packed(packed: Packed, read: Read) -> Parts:
    bits, k = packed.spec.bits, packed.shape[1]
    zero = None
    if not packed.spec.symmetric:
        stored, rows = read(packed.parts["weight_zero_point"]), _counts(packed, packed.shape)[0]
        zero = _single(stored.T, bits, rows).T if stored.dtype == I32 else stored.reshape(1, 1)
    return Parts(_signed(read(packed.parts["weight_packed"]), bits, k), _scales(packed, read), zero)


# ---- codes in elements of their own

_NAIVE = ("int8", "float8_e4m3fn", "float8_e5m2")


def _naive_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of ``int-quantized`` or ``float-quantized``, and check the tensors."""
    place = packed.need("weight", _NAIVE[1:] if packed.spec.is_float else _NAIVE[:1])
    shape = place.entry.shape
    if len(shape) != 2:
        raise _misfit(place, "two axes")
    _divides(packed, shape[1])
    counts = _counts(packed, shape)
    _need_scales(packed, counts)
    if not packed.spec.symmetric:
        _need_scales(packed, counts, "weight_zero_point", ("int8",))
    return shape


def _read_naive(packed: Packed, read: Read) -> Parts:
    zero = None
    if not packed.spec.symmetric:
        zero = read(packed.parts["weight_zero_point"]).reshape(_counts(packed, packed.shape))
    return Parts(read(packed.parts["weight"]), _scales(packed, read), zero)


# ---- qweight, qzeros and scales, inputs first


def _q_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of AWQ or GPTQ, and check the tensors."""
    place, per = packed.need("qweight", ("int32",)), 32 // packed.spec.bits
    if len(place.entry.shape) != 2:
        raise _misfit(place, "two axes")
    rows, columns = place.entry.shape
    is_awq = packed.spec.layout == "awq"
    k, n = (rows, columns * per) if is_awq else (rows * per, columns)
    if is_awq:
        _divides(packed, k)
    groups = _counts(packed, (n, k))[1]
    if n % per:
        raise _misfit(place, f"a multiple of {per} columns")
    packed.need("qzeros", ("int32",), (groups, n // per))
    packed.need("scales", _SCALES, (groups, n))
    return n, k


def _q_scales(packed: Packed, read: Read) -> Array:
    return _positive(packed.parts["scales"], read(packed.parts["scales"]).T)


def _read_awq(packed: Packed, read: Read) -> Parts:
    words, zeros = read(packed.parts["qweight"]), read(packed.parts["qzeros"])
    zero = _single(zeros, 4, 8 * zeros.shape[1]).reshape(len(zeros), -1, 8)[:, :, np.argsort(_AWQ)]
    return Parts(_awq_codes(words), _q_scales(packed, read), zero.reshape(len(zeros), -1).T)


def _awq_codes(words: Array) -> Array:
    """Return the signed codes of AWQ's int32, (inputs, words), as int4 in pairs of inputs, (outputs, pairs)."""
    rows, columns = words.shape
    stored = np.zeros((rows + rows % 2, 4 * columns), np.uint8)
    stored[:rows] = words.view(np.uint8)
    even, odd = stored[::2], stored[1::2]
    low, high = (even & 15) | (odd << 4), (even >> 4) | (odd & 0xF0)  # the codes in each half of a byte, by pairs
    codes = np.empty((columns, 8, len(even)), np.uint8)
    for place, column in enumerate(_AWQ):
        codes[:, column] = (high if place % 2 else low)[:, place // 2 :: 4].T
    return _sign_bits(codes.reshape(8 * columns, -1), rows)


def _read_gptq(packed: Packed, read: Read) -> Parts:
    bits, (n, k), place = packed.spec.bits, packed.shape, packed.parts["qzeros"]
    zero = _single(read(place), bits, n).T
    if packed.spec.layout == "gptq":  # this version stores them minus 1, with as many bits as codes
        half = 1 << (bits - 1)
        zero = ((zero.astype(np.int16) + 1 + half) % (2 * half) - half).astype(np.int8)
    if packed.spec.symmetric and zero.any():
        raise ValueError(
            f"{place.path}: tensor {place.name!r} has other zero points than {1 << (bits - 1)}; sym is true"
        )
    values = _signed(read(packed.parts["qweight"]).T, bits, k)
    return Parts(values, _q_scales(packed, read), None if packed.spec.symmetric else zero)


_COMPRESSED = ("weight_scale", "weight_zero_point")
_ELEMENTS = Layout(
    "compressed-tensors", "weight", (*_COMPRESSED, "input_scale", "input_zero_point"), _naive_shape, _read_naive
)
_GPTQ = Layout("GPTQ", "qweight", ("qzeros", "scales", "g_idx"), _q_shape, _read_gptq, "g_idx")
LAYOUTS: dict[str, Layout] = {
    "pack-quantized": Layout(
        "compressed-tensors", "weight_packed", (*_COMPRESSED, "weight_shape", "weight_g_idx"), _packed_shape,
        _read_packed, "weight_g_idx",
    ),
    "int-quantized": _ELEMENTS,
    "float-quantized": _ELEMENTS,
    "naive-quantized": _ELEMENTS,
    "awq": Layout("AutoAWQ", "qweight", ("qzeros", "scales"), _q_shape, _read_awq),
    "gptq": _GPTQ,
    "gptq_v2": _GPTQ,
}  # fmt: skip
"""Name of a layout -> its row."""


def box_of(found: Mapping[str, Array | QuantizedArray], name: str, box: Box) -> Array:
    """Return a box of the weight `name` of :meth:`Packed.value`: numbers of shape (lines, elements)."""
    value, (first, last, begin, end) = found[name], box
    if not isinstance(value, QuantizedArray):
        return value[first:last, begin:end]
    pack, size = 1 + CODES[value.dtype.name].packed, value.group_size or value.shape[-1]
    codes = value.values[first:last, begin // pack : -(-end // pack)]

    def part(x: Array) -> Array:
        return (x[first:last] if value.axis else x)[:, begin // size : -(-end // size)]

    zero = None if value.zero_point is None else part(value.zero_point)
    shape = last - first, end - begin
    q = QuantizedArray(codes, part(value.scale), zero, value.axis, value.group_size, value.dtype, shape)
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
