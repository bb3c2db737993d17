"""Running a product that is described, from Python and as a step of a recording; library/product.c does the work."""

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.cpu cimport is_recording, kernels, reproducible_here, threads_for
from mp_core.core.header cimport MP_QUADS, mp_column_bytes, mp_gemm
from mp_core.core.plan cimport arithmetic_of, this_machine
from mp_core.core.steps cimport Cost, Kind, recording

cdef Py_ssize_t MOST = <Py_ssize_t>1 << 50  # elements: a larger K is refused, so that no size of scratch overflows

include "run_recorded.pxi"


cdef int refuse_huge(Py_ssize_t k) except -1:
    """Raise for a depth beside which sizes of scratch may overflow."""
    if k > MOST:
        raise MemoryError(f"no memory for the scratch of a matrix product with k = {k}")
    return 0


cdef int run_product(Product *p, Py_ssize_t matrices, cnp.ndarray result) except -1:
    """Run a product whose operands, result and epilogue are set; `result` is the array that it writes."""
    cdef double work = <double>matrices * p.m * p.n * max(p.k, 1)
    cdef int threads = 1
    if matrices == 0 or p.m == 0 or p.n == 0:
        return 0
    refuse_huge(p.k)
    turn_column(p)
    if is_recording():
        recording().add_buffer(result)
        note_product(p, matrices)
    p.kernels, p.reproducible = kernels(), reproducible_here()
    if work < this_machine().tuning.thread_work:  # too short to give the interpreter lock back
        run_planned(p, matrices, threads)
    else:
        threads = threads_for(work, 0)
        with nogil:
            run_planned(p, matrices, threads)
    if p.failed:
        raise MemoryError("no memory for the scratch of a matrix product")
    return 0
