# Calls of kernels that are recorded once and run again: a Tape takes them down, a Replay runs them.
cimport numpy as cnp

# Plans a step for some rows, threads and order of sums (cpu.reproducible_here), and returns how many tasks it has.
# `rows` is -1 where the step keeps its own.
ctypedef Py_ssize_t (*preparation)(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil
ctypedef void (*execution)(void *context, Py_ssize_t index) noexcept nogil

# What a step reads and writes lies at pointers in its context. Between two runs the memory moves, so each pointer into
# memory of the tape is noted as (where it is in the context, number of the buffer, bytes from the buffer's begin).
cdef struct Kind:               # what steps of a kind have in common
    preparation prepare
    execution run
    Py_ssize_t size             # bytes of the context
    Py_ssize_t failed           # where in it `int failed` is: 0, 1 if there was no memory, or NO_ROW

cdef struct Cost:               # of a step
    Py_ssize_t rows             # of its result, which may differ from run to run; 0: they do not
    double operations           # multiplications and additions
    int arithmetic              # in which it does them, an mp_arithmetic; NO_ARITHMETIC: it does other things
    Py_ssize_t moved            # bytes read and written, weights included

cdef enum:
    NO_ROW = 2                  # an index had no row
    NO_ARITHMETIC = -1

cdef class Note:
    cdef readonly str name      # of the operation, for profiles and errors
    cdef readonly list pointers
    cdef readonly Cost cost
    cdef bytes context
    cdef Kind kind

cdef class Tape:
    cdef readonly list notes
    cdef readonly list buffers      # ndarrays: what a plan is given, and what its steps write
    cdef readonly list constants    # ndarrays that steps read, weights mostly

    cpdef int add_buffer(self, cnp.ndarray array) except -1
    cdef int note(self, str name, Kind kind, const void *context, tuple pointers, Cost cost) except -1

cdef Tape recording()
