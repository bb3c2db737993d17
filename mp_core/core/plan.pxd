# How a product is computed, as data: the way in which kernels read B, the tasks and ranges of K into which it is cut,
# and the scratch that it needs. One call of a kernel multiplies MC rows of A by a range of K of one panel, or of rows
# or columns of B where they lie; see mp_products in mp_core.h.
from mp_core.core.header cimport MP_I4, mp_kernels, mp_tuning

cdef enum:
    A_U8 = MP_I4  # uint8 as the format of A, which is never int4

# What kernels read of B. `decoded` and `amx` of Plan, and `packed` of Problem, say the rest of the way.
cdef enum Way:
    PANELS          # packed panels: of a PackedMatrix, or packed into scratch one range of K at a time
    IN_PLACE        # rows of a row-major B, where they lie
    TRANSPOSED      # columns of a transposed B, where they lie

cdef struct Machine:            # the machine, as far as a plan depends on it
    const mp_tuning *tuning
    Py_ssize_t l1d, l2          # bytes of these caches, rounded down to powers of two

cdef struct Layout:             # of an operand as the caller has it
    int format
    Py_ssize_t size             # bytes of an element
    Py_ssize_t rs, cs           # bytes from one row, one column to the next; a PackedMatrix has none

cdef struct Problem:            # all that a plan depends on
    const mp_kernels *kernels
    const Machine *machine
    Py_ssize_t matrices, m, n, k  # products of the batch; the shape of each
    int threads                 # that run its tasks
    Layout a, b
    bint packed                 # B is a PackedMatrix
    bint quantized_here         # A is float, and its rows become int8 during the product
    bint own_scales             # ... by scales that are found: each row's amax / 127
    bint row_zero               # A has zero points by row
    bint zero_point             # B has zero points
    Py_ssize_t group            # elements of K in a scale group of B; 0: there are no scale groups

cdef struct Scratch:            # bytes of the parts of a task's scratch, in the order in which they lie there
    Py_ssize_t row_scales       # scales of the rows of A that the task quantizes
    Py_ssize_t a_copy           # rows of A as the kernels read them
    Py_ssize_t a_gathered       # the same rows before: contiguous in their own type, or float32 that is to be quantized
    Py_ssize_t row_sums         # of A
    Py_ssize_t accumulators     # of NC columns
    Py_ssize_t partial_sums     # of a K block that ends in a later call
    Py_ssize_t made             # a panel's range of K, packed on the fly; in place: the last rows of B, zero padded
    Py_ssize_t decoded          # a panel's range of K, decoded
    Py_ssize_t column_sums      # of B, of NC columns
    Py_ssize_t group_scales     # the scales of all scale groups of a panel
    Py_ssize_t total

cdef struct Plan:
    int arithmetic
    int format                  # of the panels that are multiplied: after decoding, if they are decoded
    Py_ssize_t k_block          # elements of K whose sum starts at +0: part of the numerics contract
    Way way
    bint small                  # one call of a kernel for each panel, on the caller's thread, without tasks
    bint direct                 # A is read where it lies: its rows are contiguous, in the type that the kernels read
    bint amx                    # panels are multiplied by AMX tiles
    bint decoded                # panels are decoded into scratch before they are multiplied
    bint sums_wanted            # the sums of B's columns are needed, for zero points of A or for unsigned a ^ 0x80
    bint from_memory            # B is taken to come from memory, not from a cache
    bint prefetch_within        # kernels prefetch what follows in the panel that they multiply (mp_prefetch.own)
    bint prefetch_next          # kernels prefetch the next range of K of B while they multiply one (mp_prefetch.next)
    Py_ssize_t mc               # MC: rows of A in a task; all of them meet one panel before the next
    Py_ssize_t row_tasks        # tasks along M
    Py_ssize_t task_panels      # panels of B in a task
    Py_ssize_t panel_tasks      # tasks along N
    Py_ssize_t kc               # KC: elements of K in one call of a kernel: whole K blocks, or a part of one
    Py_ssize_t nc_panels        # NC in panels: those multiplied over one range of K before the next range begins
    Py_ssize_t tail             # in place: the last rows of B, which are read from a copy
    Scratch scratch

# Bytes of an element of A as kernels read it: 4 (wide), 2 (pairs), 1 (quads).
cdef inline Py_ssize_t a_bytes(int arithmetic) noexcept nogil:
    return 4 >> arithmetic

cdef inline Py_ssize_t round_up(Py_ssize_t n, Py_ssize_t unit) noexcept nogil:
    return (n + unit - 1) // unit * unit

cdef const Machine *this_machine() noexcept nogil
cdef Machine machine_of(family, caches) except *
cdef int arithmetic_of(int a_format, int b_format) noexcept nogil
cdef void make_plan(const Problem *q, Plan *p) noexcept nogil
