# The windows of an array, for kernels.
cimport numpy as cnp

from mp_core.core.library cimport mp_window_rows

cdef int describe_windows(cnp.ndarray x, object windows, Py_ssize_t groups, mp_window_rows *w) except -1
