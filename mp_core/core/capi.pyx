"""The table of public C functions as a capsule, which ``import_mp_core()`` of include/mp_core_python.h imports."""

from cpython.pycapsule cimport PyCapsule_New

cdef extern from "include/mp_core.h":
    ctypedef struct mp_core_table:
        pass
    const mp_core_table *mp_core_functions()

_C_API = PyCapsule_New(<void *>mp_core_functions(), "mp_core.core._C_API", NULL)
