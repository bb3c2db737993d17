"""Decode the blocks of numbers in GGUF files to float32.

A block is a run of neighbours along the last axis that share scales. The formulas are those of ``ggml-quants.c``, in
float32, with its order of operations.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mp_core.arrays import F32, Array

__all__ = ["KINDS", "Kind", "ue4m3"]


class Kind(NamedTuple):
    """A type of numbers."""

    name: str  # the name in ggml
    length: int  # the numbers in a block
    size: int  # the bytes of a block
    # Decodes blocks, uint8 of shape (n, size), to float32 of shape (n, length). None: plain numbers of type
    # `dtype`.
    read: Callable[[Array], Array] | None = None
    dtype: str = "float32"  # the type of plain numbers


def _half(blocks: Array, begin: int) -> Array:
    """Return the float16 at byte `begin` of each block, as float32 of shape (n, 1)."""
    wide: Array = np.ascontiguousarray(blocks[:, begin : begin + 2]).view("<f2").astype(F32)
    return wide


def _nibbles(codes: Array) -> Array:
    """Return the low 4 bits of all bytes, then the high 4 bits."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _fifth_bits(blocks: Array, begin: int) -> Array:
    """Return the 32 bits at byte `begin` of each block as 0 or 16 (the fifth bit of a code), shape (n, 32)."""
    return np.unpackbits(blocks[:, begin : begin + 4], axis=1, bitorder="little") << 4


def _q4_0(blocks: Array) -> Array:
    numbers: Array = _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(F32) - F32.type(8))
    return numbers


def _q4_1(blocks: Array) -> Array:
    numbers: Array = _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(F32) + _half(blocks, 2)
    return numbers


def _q5_0(blocks: Array) -> Array:
    codes = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    numbers: Array = _half(blocks, 0) * (codes.astype(F32) - F32.type(16))
    return numbers


def _q5_1(blocks: Array) -> Array:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    numbers: Array = _half(blocks, 0) * codes.astype(F32) + _half(blocks, 2)
    return numbers


def _q8_0(blocks: Array) -> Array:
    numbers: Array = _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(F32)
    return numbers


def _scales_of_k(blocks: Array) -> tuple[Array, Array]:
    """Return the scales and the offsets of the 8 parts of each block of Q4_K or Q5_K, as float32 of shape (n, 8, 1).

    Each has 6 bits, in the 12 bytes after two float16. Bytes 0-3: low 6 bits are scales 0-3. Bytes 4-7: low 6 bits are
    offsets 0-3. Bytes 8-11: low 4 bits of scales 4-7 and, in the upper halves, of offsets 4-7. Their upper 2 bits are
    the upper 2 bits of bytes 0-3 (scales) and 4-7 (offsets).
    """
    first, second, mixed = (blocks[:, begin : begin + 4] for begin in (4, 8, 12))
    scales = np.concatenate([first & 63, (mixed & 15) | (first >> 6 << 4)], axis=1)
    offsets = np.concatenate([second & 63, (mixed >> 4) | (second >> 6 << 4)], axis=1)
    d, least = _half(blocks, 0), _half(blocks, 2)
    return (d * scales.astype(F32))[..., np.newaxis], (least * offsets.astype(F32))[..., np.newaxis]


def _q4_k(blocks: Array) -> Array:
    scales, offsets = _scales_of_k(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    numbers: Array = (scales * codes.astype(F32) - offsets).reshape(-1, 256)
    return numbers


def _q5_k(blocks: Array) -> Array:
    scales, offsets = _scales_of_k(blocks)
    high = np.unpackbits(blocks[:, 16:48, np.newaxis], axis=2, bitorder="little").transpose(0, 2, 1)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32) | (high << 4)
    numbers: Array = (scales * codes.astype(F32) - offsets).reshape(-1, 256)
    return numbers


def _q6_k(blocks: Array) -> Array:
    low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 1, 32)
    upper = (high >> np.array([0, 2, 4, 6], np.uint8)[:, np.newaxis] & 3) << 4
    codes = _nibbles(low).reshape(-1, 2, 4, 32) | upper
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(F32)
    numbers: Array = (scales[..., np.newaxis] * (codes.reshape(-1, 16, 16).astype(F32) - F32.type(32))).reshape(-1, 256)
    return numbers


_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F32)
"""Code -> twice the number of float4_e2m1fn."""


def _mxfp4(blocks: Array) -> Array:
    exponents = blocks[:, :1].astype(np.int32)
    numbers: Array = np.ldexp(F32.type(1), exponents - 128) * _E2M1[_nibbles(blocks[:, 1:])]
    return numbers


def ue4m3(scales: Array) -> Array:
    """Return NVFP4's scales of 8 bits without a sign as float32; 0x7F, a NaN of float8_e4m3fn, is 0."""
    exponents, digits = (scales >> 3 & 15).astype(np.int32), (scales & 7).astype(F32)
    normal, small = np.ldexp(1 + digits / 8, exponents - 7), np.ldexp(digits, -9)
    found: Array = np.where(scales == 0x7F, F32.type(0), np.where(exponents == 0, small, normal)).astype(F32)
    return found


def _nvfp4(blocks: Array) -> Array:
    scales = ue4m3(blocks[:, :4])[..., np.newaxis] / 2
    numbers: Array = (scales * _E2M1[_nibbles(blocks[:, 4:].reshape(-1, 4, 8))]).reshape(-1, 64)
    return numbers


KINDS: dict[int, Kind] = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2, dtype="float16"),
    2: Kind("Q4_0", 32, 18, _q4_0),
    3: Kind("Q4_1", 32, 20, _q4_1),
    6: Kind("Q5_0", 32, 22, _q5_0),
    7: Kind("Q5_1", 32, 24, _q5_1),
    8: Kind("Q8_0", 32, 34, _q8_0),
    12: Kind("Q4_K", 256, 144, _q4_k),
    13: Kind("Q5_K", 256, 176, _q5_k),
    14: Kind("Q6_K", 256, 210, _q6_k),
    30: Kind("BF16", 1, 2, dtype="bfloat16"),
    39: Kind("MXFP4", 32, 17, _mxfp4),
    40: Kind("NVFP4", 64, 36, _nvfp4),
}
"""Number of a type in the file -> its kind. Other types are refused."""
