# Handle signals during operations.
from mp_core.core.header cimport mp_listener

cdef void listen(mp_listener *listener) noexcept
cdef int heard(mp_listener *listener) except -1
