"""The layouts in which other programs store quantized weights, one row of a table each.

A weight has several tensors: codes, scales and so on. A row says how they are called, and has the function that reads
them as a :class:`QuantizedArray`. 4-bit codes stay two in a byte: where a file has neighbours of a line in neighbouring
bits, only the sign bit of each code changes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mp_core.arrays import I8, I32, Array
from mp_core.arrays.dtypes import dtype_of
from mp_core.files.checkpoint.packed import (
    SCALES,
    Layout,
    Packed,
    Parts,
    Place,
    Read,
    described,
    misfit,
    positive_scales,
)  # fmt: skip
from mp_core.files.checkpoint.packed_config import TENSOR, Quantization

__all__ = ["LAYOUTS", "in_pairs", "packed_in"]

_AWQ = 0, 2, 4, 6, 1, 3, 5, 7
"""The columns of eight neighbours whose 4-bit codes are in an int32, from the lowest bits on."""


def packed_in(places: Mapping[str, Place], quantization: Quantization, read: Read) -> Iterator[Packed]:
    """Yield the weights of a folder that are stored in a layout of its configuration.

    Raises
    ------
    ValueError
        Tensors are missing, have other shapes or types than the configuration says, or belong to a module that is not
        quantized according to it.
    """
    layouts = {LAYOUTS[name].joint + LAYOUTS[name].codes: LAYOUTS[name] for name in quantization.layouts}
    for name, place in places.items():
        end = next((end for end in layouts if name.endswith(end)), None)
        if end is None or (end == ".weight" and place.entry.dtype.name not in _NAIVE):
            continue
        module = name.removesuffix(end)
        spec = quantization.spec(module)
        if spec is None or LAYOUTS[spec.layout].codes != layouts[end].codes:
            raise ValueError(
                f"{place.path}: tensor {name!r} has codes, but according to {quantization.what} its module is "
                f"{'not quantized' if spec is None else f'stored as {spec.layout}'}"
            )
        layout = LAYOUTS[spec.layout]
        names = {part: f"{module}{layout.joint}{part}" for part in (layout.codes, *layout.others)}
        parts = {part: places[own] for part, own in names.items() if own in places}
        yield _checked(Packed(f"{module}.weight", (), spec, layout, parts), read)


def _checked(packed: Packed, read: Read) -> Packed:
    """Return a weight with its shape, and whether its groups are in order; raise ValueError if parts do not fit."""
    shape = packed.layout.shape(packed, read)
    if 0 in shape:
        raise misfit(packed.parts[packed.layout.codes], "no length of 0")
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
    return replace(packed, shape=shape, is_ordered=is_ordered)


def _counts(packed: Packed, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the numbers of blocks along outputs and inputs."""
    n, k = (1 if size is None else -(-length // size) for length, size in zip(shape, packed.spec.block, strict=True))
    return n, k


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
        raise misfit(place, "two axes")
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
    if not packed.spec.symmetric and packed.spec.block != TENSOR:
        packed.need("weight_zero_point", ("int32",), (-(-counts[0] * bits // 32), counts[1]))
    elif not packed.spec.symmetric:
        _need_scales(packed, counts, "weight_zero_point", ("int8",))
    return shape


def _divides(packed: Packed, k: int) -> None:
    """Raise ValueError unless the length of a group divides the number of inputs."""
    size = packed.spec.block[1]
    if packed.spec.block[0] == 1 and size is not None and k % size:
        place = packed.parts[packed.layout.codes]
        raise ValueError(
            f"{place.path}: tensor {place.name!r} has {k} inputs; expected a multiple of group_size={size}"
        )


def _need_scales(packed: Packed, counts: tuple[int, int], part: str = "weight_scale", dtypes: Any = SCALES) -> Place:
    """Return the tensor of scales or zero points of blocks; axes of length 1 at the end may be missing."""
    place = packed.need(part, dtypes)
    shape = place.entry.shape
    if shape != counts and (counts[1] != 1 or shape != counts[:1]) and (counts != (1, 1) or shape != ()):
        raise misfit(place, f"shape {counts}, for {described(packed.spec)}")
    return place


def _scales(packed: Packed, read: Read) -> Array:
    """Return the scales of blocks, float32 of shape (blocks of outputs, groups)."""
    place = packed.parts["weight_scale"]
    stored = read(place)
    stored = stored.view(_EXPONENTS) if stored.dtype == np.uint8 else stored
    scale = positive_scales(place, stored.reshape(_counts(packed, packed.shape)))
    whole = packed.parts.get("weight_global_scale")
    if whole is None:
        return scale
    divided: Array = scale / positive_scales(whole, read(whole).reshape(-1))
    return positive_scales(place, divided)


def _check_symmetric(packed: Packed, read: Read) -> None:
    """Raise ValueError if symmetric codes have other zero points than 0; older files have them, and all are 0."""
    place = packed.parts.get("weight_zero_point")
    if packed.spec.symmetric and place is not None and (place.entry.dtype != I8 or read(place).any()):
        raise ValueError(f"{place.path}: tensor {place.name!r} has other zero points than 0 in int8; symmetric is true")


def _read_packed(packed: Packed, read: Read) -> Parts:
    bits, k = packed.spec.bits, packed.shape[1]
    _check_symmetric(packed, read)
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
        raise misfit(place, "two axes")
    _divides(packed, shape[1])
    counts = _counts(packed, shape)
    _need_scales(packed, counts)
    if not packed.spec.symmetric:
        _need_scales(packed, counts, "weight_zero_point", ("int8",))
    return shape


def _read_naive(packed: Packed, read: Read) -> Parts:
    _check_symmetric(packed, read)
    zero = None
    if not packed.spec.symmetric:
        zero = read(packed.parts["weight_zero_point"]).reshape(_counts(packed, packed.shape))
    return Parts(read(packed.parts["weight"]), _scales(packed, read), zero)


# ---- float4 codes

_EXPONENTS = dtype_of("float8_e8m0fnu")
_FOURS = {
    "mxfp4-pack-quantized": ("uint8", "float8_e8m0fnu"),
    "nvfp4-pack-quantized": ("float8_e4m3fn",),
}
"""Layout -> the types of its scales."""


def _fours_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of ``mxfp4-pack-quantized`` or ``nvfp4-pack-quantized``, and check the tensors."""
    place = packed.need("weight_packed", ("uint8",))
    if len(place.entry.shape) != 2:
        raise misfit(place, "two axes")
    n, pairs = place.entry.shape
    _divides(packed, 2 * pairs)
    _need_scales(packed, _counts(packed, (n, 2 * pairs)), dtypes=_FOURS[packed.spec.layout])
    if packed.spec.layout.startswith("nv"):
        packed.need("weight_global_scale", ("float32",), (1,))
    return n, 2 * pairs


def _read_fours(packed: Packed, read: Read) -> Parts:
    return Parts(read(packed.parts["weight_packed"]), _scales(packed, read), None)


def _eights_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of ``mxfp8-quantized``, and check the tensors."""
    place = packed.need("weight", ("float8_e4m3fn",))
    if len(place.entry.shape) != 2:
        raise misfit(place, "two axes")
    _divides(packed, place.entry.shape[1])
    _need_scales(packed, _counts(packed, place.entry.shape), dtypes=("uint8", "float8_e8m0fnu"))
    return place.entry.shape


def _blocks_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of the weights of gpt-oss's experts, (experts, outputs, inputs), and check the tensors."""
    place = packed.need("blocks", ("uint8",))
    *lines, groups, pairs = place.entry.shape if len(place.entry.shape) == 4 else (0, 0, 0, 0)
    if pairs != 16:
        raise misfit(place, "(experts, outputs, blocks of inputs, 16)")
    packed.need("scales", ("uint8",), (*lines, groups))
    return *lines, 32 * groups


def _read_blocks(packed: Packed, read: Read) -> Parts:
    codes, place = read(packed.parts["blocks"]), packed.parts["scales"]
    scale = positive_scales(place, read(place).view(_EXPONENTS))
    return Parts(codes, scale.reshape(-1, scale.shape[-1]), None)


# ---- qweight, qzeros and scales, inputs first


def _q_shape(packed: Packed, read: Read) -> tuple[int, ...]:
    """Return the shape of a weight of AWQ or GPTQ, and check the tensors."""
    place, per = packed.need("qweight", ("int32",)), 32 // packed.spec.bits
    if len(place.entry.shape) != 2:
        raise misfit(place, "two axes")
    rows, columns = place.entry.shape
    is_awq = packed.spec.layout == "awq"
    k, n = (rows, columns * per) if is_awq else (rows * per, columns)
    if is_awq:
        _divides(packed, k)
    groups = _counts(packed, (n, k))[1]
    if n % per:
        raise misfit(place, f"a multiple of {per} columns")
    packed.need("qzeros", ("int32",), (groups, n // per))
    packed.need("scales", SCALES, (groups, n))
    return n, k


def _q_scales(packed: Packed, read: Read) -> Array:
    return positive_scales(packed.parts["scales"], read(packed.parts["scales"]).T)


def _read_awq(packed: Packed, read: Read) -> Parts:
    words, zeros = read(packed.parts["qweight"]), read(packed.parts["qzeros"])
    zero = _single(zeros, 4, 8 * zeros.shape[1]).reshape(len(zeros), -1, 8)[:, :, np.argsort(_AWQ)]
    return Parts(_awq_codes(words), _q_scales(packed, read), zero.reshape(len(zeros), -1).T)


def _awq_codes(words: Array) -> Array:
    """Return the signed codes of AWQ's int32, (inputs, words), as int4 in pairs of inputs, (outputs, pairs)."""
    rows, columns = words.shape
    stored = np.zeros((rows + rows % 2, 4 * columns), np.uint8)
    stored[:rows] = words.view(np.uint8)
    low, high = in_pairs(stored[::2], stored[1::2])
    codes = np.empty((columns, 8, len(low)), np.uint8)
    for place, column in enumerate(_AWQ):
        codes[:, column] = (high if place % 2 else low)[:, place // 2 :: 4].T
    return _sign_bits(codes.reshape(8 * columns, -1), rows)


def in_pairs(even: Array, odd: Array) -> tuple[Array, Array]:
    """Return the codes in the low halves of bytes as pairs, and those in the high halves; `even` has the first ones."""
    return (even & 15) | (odd << 4), (even >> 4) | (odd & 0xF0)


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
_FLOATS = Layout(
    "compressed-tensors", "weight_packed", ("weight_scale", "weight_global_scale", "input_global_scale"), _fours_shape,
    _read_fours,
)  # fmt: skip
LAYOUTS: dict[str, Layout] = {
    "pack-quantized": Layout(
        "compressed-tensors", "weight_packed", (*_COMPRESSED, "weight_shape", "weight_g_idx"), _packed_shape,
        _read_packed, "weight_g_idx",
    ),
    "int-quantized": _ELEMENTS,
    "float-quantized": _ELEMENTS,
    "naive-quantized": _ELEMENTS,
    "mxfp4-pack-quantized": _FLOATS,
    "nvfp4-pack-quantized": _FLOATS,
    "mxfp8-quantized": Layout("compressed-tensors", "weight", ("weight_scale",), _eights_shape, _read_naive),
    "mxfp4": Layout("gpt-oss", "blocks", ("scales",), _blocks_shape, _read_blocks, joint="_"),
    "awq": Layout("AutoAWQ", "qweight", ("qzeros", "scales"), _q_shape, _read_awq),
    "gptq": _GPTQ,
    "gptq_v2": _GPTQ,
}  # fmt: skip
"""Name of a layout -> its row."""
