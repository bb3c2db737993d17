"""Loops at the limits of the machine, in the instruction set in use: multiply-adds in registers, and reads."""

cimport numpy as cnp
from libc.stdint cimport uint32_t
from libc.string cimport memset

from mp_core.core.cpu cimport reproducible_here, threads_for
from mp_core.core.header cimport MP_LANES, MP_MOST_THREADS, MP_PAIRS, mp_parallel_for
from mp_core.core.library cimport mp_arithmetic_of

from mp_core.core.cpu import isa
from mp_core.arrays.formats import FOURS, PANELS

cdef extern from "loops.h" nogil:
    enum:
        MP_LOOP_VECTORS

    ctypedef struct mp_loops:
        double (*multiply[3])(const float *operands, Py_ssize_t rounds, float *sums) noexcept nogil
        double (*multiply_tiles[3])(const float *operands, Py_ssize_t rounds, float *sums) noexcept nogil
        uint32_t (*read_all)(const void *x, Py_ssize_t bytes) noexcept nogil

    ctypedef struct mp_loops_row:
        const char *isa
        const mp_loops *vectors
        const mp_loops *tiles

    const mp_loops_row mp_all_loops[]

cnp.import_array()

FORMATS = {name: fmt for name, fmt in PANELS.items() if name not in FOURS}  # formats of both operands


cdef struct Run:
    double (*multiply)(const float *operands, Py_ssize_t rounds, float *sums) noexcept nogil
    uint32_t (*read_all)(const void *x, Py_ssize_t bytes) noexcept nogil
    int threads
    Py_ssize_t rounds, share, bytes
    const char *x
    double operations[MP_MOST_THREADS]
    uint32_t seen[MP_MOST_THREADS]


cdef const mp_loops_row *loops() except NULL:
    """Return the row of the instruction set in use."""
    cdef const mp_loops_row *row = mp_all_loops
    name = isa().encode()
    while row.isa != name:
        row += 1
    return row


cdef void multiply_on_thread(void *context, Py_ssize_t index) noexcept nogil:
    cdef Run *r = <Run *>context
    cdef float operands[2 * MP_LANES]
    cdef float sums[MP_LOOP_VECTORS * MP_LANES]
    cdef Py_ssize_t i
    for i in range(2 * MP_LANES):
        operands[i] = 1
    memset(sums, 0, sizeof(sums))
    r.operations[index] = r.multiply(operands, r.rounds, sums)


cdef void read_on_thread(void *context, Py_ssize_t index) noexcept nogil:
    cdef Run *r = <Run *>context
    cdef Py_ssize_t first = index * r.share, _round
    for _round in range(r.rounds):
        r.seen[index] = r.read_all(r.x + first, max(0, min(r.share, r.bytes - first)))


def multiply(str dtype not None, Py_ssize_t rounds):
    """Multiply and add in registers on every thread, like products of this dtype; return the number of operations."""
    cdef Run r
    cdef Py_ssize_t index
    cdef const mp_loops_row *row = loops()
    cdef int arithmetic
    if dtype not in FORMATS:
        raise ValueError(f"`dtype` must be one of {', '.join(FORMATS)}; received {dtype!r}")
    arithmetic = mp_arithmetic_of(FORMATS[dtype], FORMATS[dtype])
    r.rounds, r.threads = rounds, threads_for(1, 0)
    r.multiply = row.vectors.multiply[arithmetic]
    if row.tiles.multiply_tiles[arithmetic] and not (
            arithmetic == MP_PAIRS and reproducible_here()):
        r.multiply = row.tiles.multiply_tiles[arithmetic]
    with nogil:
        mp_parallel_for(r.threads, r.threads, multiply_on_thread, &r)
    return sum([r.operations[index] for index in range(r.threads)])


def read(cnp.ndarray x not None, Py_ssize_t rounds=1):
    """Read a contiguous array `rounds` times; each thread reads a part. Return the exclusive or of all words."""
    cdef Run r
    cdef Py_ssize_t index
    cdef uint32_t seen = 0
    r.read_all, r.rounds, r.threads = loops().vectors.read_all, rounds, threads_for(1, 0)
    r.x, r.bytes = cnp.PyArray_BYTES(x), cnp.PyArray_NBYTES(x)
    r.share = (r.bytes // 256 + r.threads - 1) // r.threads * 256
    for index in range(r.threads):
        r.seen[index] = 0
    with nogil:
        mp_parallel_for(r.threads, r.threads, read_on_thread, &r)
    for index in range(r.threads):
        seen ^= r.seen[index]
    return seen
