# How a product is computed, as data: the way in which the kernel reads B, in which tasks and ranges of K, with which
# scratch. A kernel multiplies MC rows of A by a range of K of a panel; see mp_products in mp_core.h.
from mp_core.core.header cimport MP_I4, mp_kernels, mp_tuning

cdef enum:
    A_U8 = MP_I4  # uint8 as the format of A, which is never int4

# What the kernel reads of B.
cdef enum Way:
    PANELS          # packed panels: of a PackedMatrix, or packed into scratch one range of K at a time
    IN_PLACE        # rows of B as they lie
    TRANSPOSED      # contiguous columns of B as they lie

cdef struct Machine:            # what a plan depends on, beside the kernels
    const mp_tuning *tuning
    Py_ssize_t l1d, l2          # bytes of these caches, rounded down to powers of two

cdef struct Layout:             # of an operand as the caller has it
    int format
    Py_ssize_t size             # bytes of an element
    Py_ssize_t rs, cs           # bytes from one row, one column to the next; of a PackedMatrix of no meaning

cdef struct Problem:            # all that a plan depends on
    const mp_kernels *kernels
    const Machine *machine
    Py_ssize_t matrices, m, n, k
    int threads
    Layout a, b
    bint packed                 # B is a PackedMatrix
    bint quantized_here         # A is float and becomes int8
    bint own_scales             # ... by the largest magnitudes of its rows
    bint row_zero               # A has zero points by row
    bint zero_point             # B has zero points
    Py_ssize_t group            # elements of K that share scales of B, or 0

cdef struct Scratch:            # bytes of the parts of a task's scratch, in the order in which they lie there
    Py_ssize_t row_scales       # scales of the rows of A that the task quantizes
    Py_ssize_t a_copy           # rows of A as the kernel reads them
    Py_ssize_t a_gathered       # ... and between: with unit stride, or in float32, but not yet in that type
    Py_ssize_t row_sums
    Py_ssize_t accumulators
    Py_ssize_t partial_sums     # of a K block that ends in a later call
    Py_ssize_t made             # a panel's range of K, packed here; in place: the last rows of B, zero padded
    Py_ssize_t decoded          # a panel's range of K, decoded
    Py_ssize_t column_sums
    Py_ssize_t group_scales
    Py_ssize_t total

cdef struct Plan:
    int arithmetic
    int format                  # of the panels that the kernel reads
    Py_ssize_t k_block          # elements of K whose sum starts at +0: part of the numerics contract
    Way way
    bint small                  # one call of the kernel per panel, on the caller's thread
    bint direct                 # A is read as it lies: rows with unit stride, of the type that the kernel reads
    bint amx                    # panels are multiplied by AMX tiles
    bint decoded                # panels are decoded into scratch before they are multiplied
    bint sums_wanted            # the sums of B's columns are needed
    bint from_memory            # B is taken to come from memory, not from a cache
    bint prefetch_within        # the kernel prefetches what follows in the panel that it multiplies
    bint prefetch_next          # the next range of K of B is prefetched while this one is multiplied
    Py_ssize_t mc               # MC: rows of A in a task, which each panel is multiplied by before the next
    Py_ssize_t row_tasks        # tasks along M
    Py_ssize_t task_panels      # panels of B in a task
    Py_ssize_t panel_tasks      # tasks along N
    Py_ssize_t kc               # KC: elements of K in a call of the kernel: whole K blocks, or a part of one
    Py_ssize_t nc_panels        # NC in panels: those multiplied over one range of K before the next range begins
    Py_ssize_t tail             # in place: the last rows of B, which are read from a copy
    Scratch scratch

# Bytes of an element of A as the kernel reads it.
cdef inline Py_ssize_t a_bytes(int arithmetic) noexcept nogil:
    return 4 >> arithmetic

cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t unit) noexcept nogil:
    return (n + unit - 1) // unit * unit

cdef const Machine *this_machine() noexcept nogil
cdef Machine machine_of(family, caches) except *
cdef int arithmetic_of(int a_format, int b_format) noexcept nogil
cdef void make_plan(const Problem *q, Plan *p) noexcept nogil
