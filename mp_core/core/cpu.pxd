# For the other modules: kernels of any instruction set, the number of threads, the order of sums.
from mp_core.core.header cimport mp_kernels

cdef const mp_kernels *kernels_of(isa) except NULL
cdef bint reproducible_here() except -1
cdef int threads_for(double work, double worthwhile) except -1
