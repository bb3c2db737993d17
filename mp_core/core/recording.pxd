# Run operations, or note them while a thread records.
cimport numpy as cnp

from mp_core.core.library cimport mp_cost, mp_operation_number, mp_recording

cdef class Notes:
    cdef mp_recording recording     # its spans may outlive the arrays that they describe; they are not used then
    cdef list names

cdef class Tape:
    cdef readonly Notes notes
    cdef readonly list buffers      # ndarrays: the inputs of a plan, and what its operations write
    cdef readonly list constants    # ndarrays that operations only read, mostly weights

    cdef int note(self, mp_operation_number number, const void *context, str name, cnp.ndarray out,
                  mp_cost cost) except -1

cdef Tape recording()
cdef int run_operation(mp_operation_number number, void *context, str name, cnp.ndarray out, mp_cost cost) except -1
