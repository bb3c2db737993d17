"""Products, by the section "Products" of docs/numerics.md."""

import numpy as np

from .formats import INTEGERS, cast, rounded
from .functions import FLOAT32, IN_PAIRS, Flushing
from .fused import exact_product, flushed, fma, fma_flushed, round_and_flush

K_BLOCK = {"wide": 1024, "pairs": 2048}
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def arithmetic(a_type, b_type):
    """Return the arithmetic of a product of two types."""
    if a_type in INTEGERS:
        return "integers"
    if a_type == "bfloat16" and b_type in ("bfloat16", *FLOAT8, "int8", "int4"):
        return "pairs"
    return "pairs" if a_type in FLOAT8 else "wide"


def wide_block(a, b):
    """Return the sums of a K block: (rows, k) times (k, columns), one term at a time."""
    s = np.zeros((len(a), b.shape[1]), np.float32)
    for p in range(a.shape[1]):
        s = fma(a[:, p, None], b[p], s)
    return s


def even(a, b, multiple=2):
    """Fill K up with zeros to a multiple."""
    missing = -a.shape[1] % multiple
    return np.pad(a, ((0, 0), (0, missing))), np.pad(b, ((0, missing), (0, 0)))


def pairs_block(a, b):
    """Return the sums of a K block: in each pair the odd element comes first."""
    a, b = even(a, b)
    s = np.zeros((len(a), b.shape[1]), np.float32)
    for p in range(0, a.shape[1], 2):
        s = fma_flushed(a[:, p + 1, None], b[p + 1], s)
        s = fma_flushed(a[:, p, None], b[p], s)
    return s


def tile_block(a, b):
    """Return the sums of a K block in tile order: 32 elements at a time, their even and odd elements apart."""
    a, b = even(a, b, 32)
    s = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], 32):
        e = o = np.zeros_like(s)
        for p in range(first, first + 32, 2):
            e = fma_flushed(a[:, p, None], b[p], e)
            o = fma_flushed(a[:, p + 1, None], b[p + 1], o)
        s = add_flushed(s, add_flushed(e, o))
    return s


def add_flushed(x, y):
    """Return x + y in float32 with flushing."""
    return fma_flushed(x, np.float32(1), y)


def multiply_flushed(x, y):
    """Return x * y in float32 with flushing."""
    return round_and_flush(exact_product(flushed(x), flushed(y)))


STEPS = {
    "wide": (wide_block, fma, np.add, np.multiply),
    "pairs": (pairs_block, fma_flushed, add_flushed, multiply_flushed),
    "tiles": (tile_block, fma_flushed, add_flushed, multiply_flushed),
}
"""Arithmetic -> the sums of a K block, fma, addition and multiplication."""


def sums(a, b, kind, group_scales=None, group=None, tiles=False):
    """Return the sums of a product before its epilogue; group_scales are (groups of K, columns)."""
    k = a.shape[1]
    length = group or K_BLOCK[kind]
    tiles = tiles and kind == "pairs" and (group is None or length % 32 == 0 or length >= k)
    block, fused, add, multiply = STEPS["tiles" if tiles else kind]
    if tiles and group is None:
        length = max(k, 1)
    c = np.zeros((len(a), b.shape[1]), np.float32)
    for g, first in enumerate(range(0, k, length)):
        s = block(a[:, first : first + length], b[first : first + length])
        if group_scales is not None:
            c = multiply(s, group_scales[g]) if g == 0 else fused(s, group_scales[g], c)
        else:
            c = s if g == 0 else add(c, s)
    return c


def epilogue(x, kind, row_scale=None, column_scale=None, bias=None, activation="linear", residual=None):
    """Return the float32 result of the steps after a product that are given, in their order."""
    _, _, add, multiply = STEPS["wide" if kind == "integers" else kind]
    for scale in (row_scale, column_scale):
        if scale is not None:
            x = multiply(x, scale)
    if bias is not None:
        x = add(x, np.asarray(bias, np.float32))
    if activation != "linear":
        x = np.asarray(IN_PAIRS[activation](flushed(x).view(Flushing)) if kind == "pairs" else FLOAT32[activation](x))
    if residual is not None:
        x = add(x, residual)
    return x


def integer_sums(a, b, a_zero=0, b_zero=0):
    """Return the exact product of integers, less the zero points."""
    return (np.asarray(a, np.int64) - a_zero) @ (np.asarray(b, np.int64) - b_zero)


def matmul(a, b, a_type, b_type, out_type, group_scales=None, group=None, tiles=False, **steps):
    """Return the product of matrices of values in the types given, as values rounded to `out_type`."""
    kind = arithmetic(a_type, b_type)
    if kind == "integers":
        total = integer_sums(a, b)
        if out_type == "int32" and not steps:
            return total
        c = cast(total, "float32")
    else:
        c = sums(np.asarray(a, np.float32), np.asarray(b, np.float32), kind, group_scales, group, tiles)
    return rounded(epilogue(c, kind, **steps), out_type)
