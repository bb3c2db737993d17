"""Operations recorded once, to be run again on other data without Python.

While a thread records, the entry points of the core note what they run on a :class:`Tape`: the context of their tasks,
which is a C struct, and where in it the pointers are. replay.pyx runs copies of these contexts.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize

from mp_core.core.cpu cimport recorder

cnp.import_array()


class UnseenError(ValueError):
    """A recording met a computation that it cannot repeat; the message names it."""


UNSEEN = ("{} reads an array that was computed by something else than the operations of mp_core: a plan would read "
          "what it was for the example")


cdef Tape recording():
    """The tape on which this thread records, or None."""
    cdef void *tape = recorder(NULL)
    recorder(tape)
    return None if tape == NULL else <Tape>tape


def constant(cnp.ndarray array not None):
    """Return an array that does not depend on the inputs of a recording, and tell the recording so, if there is one."""
    if recording() is not None:
        recording().add_constant(array)
    return array


cdef inline Py_ssize_t address(object array):
    return <Py_ssize_t>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef tuple span(object array):
    """The first and the last address of an array's elements, the latter exclusive."""
    cdef Py_ssize_t low = address(array), high = low + array.itemsize, axis
    for axis in range(array.ndim):
        if array.shape[axis] == 0:
            return low, low
        if array.strides[axis] < 0:
            low += array.strides[axis] * (array.shape[axis] - 1)
        else:
            high += array.strides[axis] * (array.shape[axis] - 1)
    return low, high


cdef class Note:
    """One recorded step."""


cdef class Tape:
    """The steps of a recording in their order, and the memory that they read and write.

    Memory is of two kinds: buffers, whose contents change from run to run, and constants. A step that reads any other
    memory reads what Python code has computed behind the back of the recording, so it is refused.
    """

    def __init__(self):
        self.notes, self.buffers, self.constants = [], [], []

    cpdef int add_buffer(self, cnp.ndarray array) except -1:
        """Add memory that changes from run to run, all of which an array fills; return its number."""
        low, high = span(array)
        if high - low != cnp.PyArray_NBYTES(array):
            raise UnseenError("an array that leaves gaps in its memory cannot be a buffer of a plan")
        self.buffers.append(array)
        return len(self.buffers) - 1

    def add_constant(self, cnp.ndarray array not None):
        """Add memory that stays as it is."""
        self.constants.append(array)

    def find(self, Py_ssize_t at):
        """Return (number of the buffer at an address, bytes from its begin), or None if it is in none."""
        cdef Py_ssize_t number
        for number in range(len(self.buffers) - 1, -1, -1):
            low, high = span(self.buffers[number])
            if low <= at < high:
                return number, at - low
        return None

    def holds(self, Py_ssize_t at):
        """Whether an address is in one of the constants."""
        for constant in self.constants:
            low, high = span(constant)
            if low <= at < high:
                return True
        return False

    def changes(self, cnp.ndarray array not None):
        """Whether an array is in a buffer, and not a constant; raise if it is neither."""
        if self.find(address(array)) is not None:
            return True
        if not self.holds(address(array)):
            raise UnseenError(UNSEEN.format("a copy"))
        return False

    cdef int note(self, str name, Kind kind, const void *context, tuple pointers, Cost cost) except -1:
        """Note a step: its context, and at which offsets of it the pointers are."""
        cdef Note note = Note()
        cdef Py_ssize_t offset, at
        note.name, note.cost, note.pointers = name, cost, []
        note.context, note.kind = PyBytes_FromStringAndSize(<const char *>context, kind.size), kind
        for offset in pointers:
            at = (<const Py_ssize_t *>(<const char *>context + offset))[0]
            if at == 0:
                continue
            found = self.find(at)
            if found is not None:
                note.pointers.append((offset, *found))
            elif not self.holds(at):
                raise UnseenError(UNSEEN.format(name))
        self.notes.append(note)
        return 0


def recorded_on(Tape tape not None, function, /, *args, **kwargs):
    """Return ``function(*args, **kwargs)``, during which this thread notes what it runs on a tape."""
    cdef void *before = recorder(<void *>tape)
    try:
        return function(*args, **kwargs)
    finally:
        recorder(before)
