"""The blocks of numbers in GGUF files: from bytes to float32, by ggml's formulas.

A block is a number of neighbours along the last axis that share scales. The formulas are those of ``ggml-quants.c``, in
float32, with its order of operations.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mp_core.arrays import F32, Array

__all__ = ["KINDS", "Kind"]


class Kind(NamedTuple):
    """A type of numbers.

    Attributes
    ----------
    name : str
        ggml's.
    length : int
        The numbers of a block.
    size : int
        Its bytes.
    read : callable or None
        From blocks, uint8 of shape (n, size), to float32 of shape (n, count). None: `dtype` says what they are.
    dtype : str
        The type of plain numbers.
    """

    name: str
    length: int
    size: int
    read: Callable[[Array], Array] | None = None
    dtype: str = "float32"


def _half(blocks: Array, begin: int) -> Array:
    """Return the float16 at this byte of each block in float32, shape (n, 1)."""
    wide: Array = np.ascontiguousarray(blocks[:, begin : begin + 2]).view("<f2").astype(F32)
    return wide


def _nibbles(codes: Array) -> Array:
    """Return the low halves of bytes, then the high ones."""
    return np.concatenate([codes & 15, codes >> 4], axis=-1)


def _fifth_bits(blocks: Array, begin: int) -> Array:
    """Return the 32 bits at this byte of each block, as 16 each, shape (n, 32)."""
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
    """Return the scales and the offsets of the 8 parts of each block of Q4_K or Q5_K in float32, shape (n, 8, 1).

    They are 6 bits each in the 12 bytes behind two float16: the first four of both kinds in the low bits of 8 bytes,
    the others in halves of 4 bytes, with their upper bits in those of the first 8.
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
}
"""Number of a type in the file -> what it is. The others are refused by their number."""
