# Run products from Python.
cimport numpy as cnp

from mp_core.core.library cimport mp_product

cdef int run_product(mp_product *p, Py_ssize_t matrices, cnp.ndarray result) except -1
cdef int refuse_huge(Py_ssize_t k) except -1
