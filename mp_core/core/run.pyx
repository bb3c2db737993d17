"""Run a product, or note it while this thread records."""

cimport numpy as cnp

from mp_core.core.cpu cimport reproducible_here, threads_for
from mp_core.core.header cimport MP_QUADS, mp_active, mp_column_bytes, mp_listener
from mp_core.core.library cimport (
    MP_OPERATION_PRODUCT, mp_arithmetic_of, mp_cost, mp_describe_noted_product, mp_noted_product, mp_product,
    mp_recorder, mp_run_product, mp_this_machine, mp_column_as_row,
)
from mp_core.core.recording cimport recording
from mp_core.core.signals cimport heard, listen

cdef Py_ssize_t MOST = <Py_ssize_t>1 << 50  # elements: the largest K, so that no size of scratch memory overflows


cdef int refuse_huge(Py_ssize_t k) except -1:
    """Raise MemoryError if k is so large that the size of scratch memory may overflow."""
    if k > MOST:
        raise MemoryError(f"no memory for the scratch of a matrix product with k = {k}")
    return 0


cdef inline bint side_by_side(const mp_product *p) noexcept:
    """Return whether the results of all matrices are columns of the same rows, as those of a convolution's groups."""
    return p.batch_axes == 1 and p.batch[0].out == p.n * p.out.size and p.out.rs == p.batch[0].length * p.n * p.out.size


cdef int note_product(const mp_product *p, Py_ssize_t matrices, cnp.ndarray result) except -1:
    """Note a product on the tape of this thread; `result` is the array that it writes."""
    cdef mp_noted_product s
    cdef Py_ssize_t weights = mp_column_bytes(p.b.format, p.k) * p.n
    mp_describe_noted_product(&s, p, matrices)
    return recording().note(
        MP_OPERATION_PRODUCT, &s, f"product {p.k}x{p.n}", result,
        mp_cost(p.m if matrices == 1 or side_by_side(p) else 0, 2.0 * matrices * p.m * p.n * p.k,
                MP_QUADS if p.a.quantized_here else mp_arithmetic_of(p.a.format, p.b.format),
                matrices * (p.m * p.k * p.a.size + p.m * p.n * p.out.size) + weights))


cdef int run_product(mp_product *p, Py_ssize_t matrices, cnp.ndarray result) except -1:
    """Run or note a product whose operands, result and epilogue are set; `result` is the array that it writes."""
    cdef double work = <double>matrices * p.m * p.n * max(p.k, 1)
    cdef int threads = 1
    cdef mp_listener listener
    if matrices == 0 or p.m == 0 or p.n == 0:
        return 0
    refuse_huge(p.k)
    mp_column_as_row(p)
    if mp_recorder()[0] != NULL:
        return note_product(p, matrices, result)
    p.kernels, p.reproducible = mp_active(), reproducible_here()
    if work < mp_this_machine().tuning.thread_work:  # too short to release the interpreter lock
        mp_run_product(p, matrices, threads)
    else:
        threads = threads_for(work, 0)
        listen(&listener)
        with nogil:
            mp_run_product(p, matrices, threads)
        heard(&listener)
    if p.status:
        raise MemoryError("no memory for the scratch of a matrix product")
    return 0
