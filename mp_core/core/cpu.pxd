# What the other modules take from cpu: the kernels in use, threads, scratch.
from mp_core.core.header cimport mp_kernels

ctypedef void (*task)(void *context, Py_ssize_t index) noexcept nogil

cdef const mp_kernels *kernels() noexcept nogil
cdef int threads_for(double work, double worthwhile) except -1
cdef void parallel_for(int threads, Py_ssize_t tasks, task run, void *context) noexcept nogil
cdef void *scratch(size_t bytes) noexcept nogil
