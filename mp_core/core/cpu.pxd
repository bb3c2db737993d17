# What the other modules take from cpu: the kernels in use, threads, scratch.
from mp_core.core.header cimport mp_kernels, mp_progress, mp_step

cdef enum:
    MOST_THREADS = 1024

ctypedef void (*task)(void *context, Py_ssize_t index) noexcept nogil

cdef const mp_kernels *kernels() noexcept nogil
cdef const mp_kernels *kernels_of(isa) except NULL
cdef bint reproducible_here() except -1
cdef int threads_for(double work, double worthwhile) except -1
cdef void parallel_for(int threads, Py_ssize_t tasks, task run, void *context) noexcept nogil
cdef void *scratch(size_t bytes) noexcept nogil
cdef bint is_recording() noexcept nogil
cdef void *recorder(void *other) noexcept nogil
cdef void run_steps(int threads, const mp_step *steps, Py_ssize_t count, mp_progress *progress) noexcept nogil
