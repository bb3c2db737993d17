"""The orders in which this machine can add products of bfloat16 and float8, their sets, and both orders in NumPy."""

import os
from contextlib import contextmanager

import numpy as np

from mp_core.core import cpu

TILES = "avx512_amx"
ISAS = (os.environ["MP_CORE_ISA"],) if os.environ.get("MP_CORE_ISA") else cpu.available_isas()
ORDERS = ("reproducible", "AMX tiles") if TILES in ISAS else ("reproducible",)


def sets(order):
    """The instruction sets that add in that order, best first: they give the same bits."""
    return (TILES,) if order == "AMX tiles" else ISAS


@contextmanager
def added(order):
    """Set the order for the process; the instruction set is the best one that has it."""
    before, isa = cpu.is_reproducible(), cpu.isa()
    cpu.set_reproducible(order == "reproducible")
    cpu.set_isa(sets(order)[0])
    try:
        yield
    finally:
        cpu.set_reproducible(before)
        cpu.set_isa(isa)


# ---- docs/numerics.md, each step in float64, where sums of numbers of moderate size are exact, and then rounded


def _rounded(x):
    """float64 to float32; what is below 2^-126 once it is rounded to 24 bits is flushed to a zero of its sign."""
    up = np.where(np.abs(x) < 1, 2.0**64, 1.0)  # then float32 has 24 bits below 2^-126 too
    y = (x * up).astype(np.float32) / up
    return np.where(np.abs(y) < 2.0**-126, np.copysign(0.0, y), y).astype(np.float32)


def _add_pairs(a, b):
    """The sum of one K block: of each pair the odd element first."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for even in range(0, a.shape[1], 2):
        for p in (even + 1, even):
            if p < a.shape[1]:
                total = _rounded(total + a[:, p, None] * b[p])
    return total


def _add_tiles(a, b):
    """The sum of one K block: of 32 elements the even ones and the odd ones, these to each other, that to the sum."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for first in range(0, a.shape[1], 32):
        even, odd = np.zeros_like(total), np.zeros_like(total)
        for p in range(first, min(first + 32, a.shape[1])):
            if p % 2:
                odd = _rounded(odd + a[:, p, None] * b[p])
            else:
                even = _rounded(even + a[:, p, None] * b[p])
        total = _rounded(total + _rounded(even.astype(np.float64) + odd).astype(np.float64))
    return total


def sums(order, a, b, scale=None, group=None):
    """C = A B as products in pairs are added: float32. `scale` is (groups, n), of groups of `group` elements of K."""
    a, b = (_rounded(np.asarray(x, np.float32)).astype(np.float64) for x in (a, b))
    k = a.shape[1]
    tiles = order == "AMX tiles" and (not group or group % 32 == 0 or group >= k)
    block = group or (k if tiles else 2048)
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for number, first in enumerate(range(0, k, block or 1)):
        s = (_add_tiles if tiles else _add_pairs)(a[:, first : first + block], b[first : first + block])
        if scale is None:
            total = _rounded(total.astype(np.float64) + s)
        else:
            row = scale[number].astype(np.float64)
            total = _rounded(total + s * row) if number else _rounded(s * row)
    return total
