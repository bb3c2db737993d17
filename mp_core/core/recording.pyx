"""Run operations, or note them while a thread records, so that replay.pyx can run them on other data without Python.

The C library stores the notes (library/recording.h). A :class:`Tape` owns the arrays that they use, and their names. A
noted operation does not run, since its results are not read; so the memory of results is never touched.
"""

import threading
from typing import NamedTuple

import numpy as np

cimport numpy as cnp

from mp_core.core.cpu cimport reproducible_here, threads_for
from mp_core.core.header cimport mp_listener
from mp_core.core.library cimport (
    MP_NO_MEMORY, MP_UNSEEN, mp_add_buffer, mp_add_constant, mp_cost, mp_do, mp_find_buffer, mp_forget_recording,
    mp_holds_constant, mp_operation, mp_operation_number, mp_operations, mp_record, mp_recorder, mp_recording, mp_span,
)
from mp_core.core.signals cimport heard, listen

cnp.import_array()

_here = threading.local()  # `tape`: the Tape whose recording is *mp_recorder()


class UnseenError(ValueError):
    """A recording met a computation that a plan cannot repeat; the message names it."""


UNSEEN = ("{} reads an array that was not computed by the operations of mp_core: a plan would read the values that it "
          "had for the example")


class Note(NamedTuple):
    """One noted operation: its name, its cost (``mp_cost`` as a dict), and the numbers of its buffers."""

    name: str
    cost: dict
    buffers: tuple


cdef mp_span span(cnp.ndarray array) noexcept:
    """Return the memory range of all elements."""
    cdef mp_span found
    cdef Py_ssize_t reach
    cdef int axis
    found.begin = found.end = cnp.PyArray_BYTES(array)
    if cnp.PyArray_SIZE(array) == 0:
        return found
    for axis in range(cnp.PyArray_NDIM(array)):
        reach = cnp.PyArray_STRIDE(array, axis) * (cnp.PyArray_DIM(array, axis) - 1)
        if reach < 0:
            found.begin += reach
        else:
            found.end += reach
    found.end += cnp.PyArray_ITEMSIZE(array)
    return found


cdef class Notes:
    """The notes of a recording, in order: a sequence of :class:`Note`."""

    def __dealloc__(self):
        mp_forget_recording(&self.recording)

    def __len__(self):
        return self.recording.count

    def __getitem__(self, Py_ssize_t index):
        if not 0 <= index < self.recording.count:
            raise IndexError(index)
        note = &self.recording.notes[index]
        return Note(self.names[index], note.cost, tuple([note.links[i].buffer for i in range(note.link_count)]))


cdef class Tape:
    """The notes of a recording, and the arrays that they read and write.

    Memory is of two kinds: buffers, whose contents change from run to run, and constants. An operation that reads other
    memory raises UnseenError, since other code than the recorded operations computed it.
    """

    def __init__(self):
        self.notes, self.buffers, self.constants = Notes(), [], []
        self.notes.names = []

    def add_buffer(self, cnp.ndarray array not None):
        """Add an array whose contents change from run to run. It must have no gaps in memory."""
        cdef mp_span memory = span(array)
        if memory.end - memory.begin != cnp.PyArray_NBYTES(array):
            raise UnseenError("an array that leaves gaps in its memory cannot be a buffer of a plan")
        checked(mp_add_buffer(&self.notes.recording, memory))
        self.buffers.append(array)

    def add_constant(self, cnp.ndarray array not None):
        """Add an array whose contents do not change."""
        checked(mp_add_constant(&self.notes.recording, span(array)))
        self.constants.append(array)

    def forget(self):
        """Free the memory of the buffers at the end of a recording; their shapes and dtypes stay."""
        self.buffers = [np.broadcast_to(np.empty((), x.dtype), x.shape) for x in self.buffers]

    def find(self, Py_ssize_t at):
        """Return (number of the buffer at an address, offset in bytes), or None if it is in no buffer."""
        cdef Py_ssize_t number = mp_find_buffer(&self.notes.recording, <const char *>at)
        return None if number < 0 else (number, at - <Py_ssize_t>self.notes.recording.buffers.at[number].begin)

    def holds(self, Py_ssize_t at):
        """Return whether an address is in a constant."""
        return bool(mp_holds_constant(&self.notes.recording, <const char *>at))

    def changes(self, cnp.ndarray array not None):
        """Return True for an array in a buffer, False for a constant; raise UnseenError for any other."""
        at = <Py_ssize_t>cnp.PyArray_DATA(array)
        if self.find(at) is not None:
            return True
        if not self.holds(at):
            raise UnseenError(UNSEEN.format("a copy"))
        return False

    cdef int note(self, mp_operation_number number, const void *context, str name, cnp.ndarray out,
                  mp_cost cost) except -1:
        """Note an operation with this context. `out`, the array that it writes, becomes a buffer."""
        if mp_find_buffer(&self.notes.recording, cnp.PyArray_BYTES(out)) < 0:
            self.add_buffer(out)
        status = mp_record(&self.notes.recording, &mp_operations[<int>number], context, cost)
        if status == MP_UNSEEN:
            raise UnseenError(UNSEEN.format(name))
        checked(status)
        self.notes.names.append(name)
        return 0


cdef int checked(int status) except -1:
    if status == MP_NO_MEMORY:
        raise MemoryError("no memory for what a recording notes")
    return 0


cdef Tape recording():
    """Return the tape on which this thread records, or None."""
    return None if mp_recorder()[0] == NULL else <Tape>_here.tape


cdef int run_operation(mp_operation_number number, void *context, str name, cnp.ndarray out, mp_cost cost) except -1:
    """Run an operation with this context, or note it if this thread records; return its status (operation.h).

    `out` is the array that it writes. A large operation runs without the interpreter lock.
    """
    cdef const mp_operation *operation = &mp_operations[<int>number]
    cdef bint reproducible = reproducible_here()
    cdef int threads, status
    cdef mp_listener listener
    if mp_recorder()[0] != NULL:
        return recording().note(number, context, name, out, cost)
    if operation.is_large(context):
        threads = threads_for(1, 0)  # all threads, since is_large says that a second one pays
        listen(&listener)
        with nogil:
            status = mp_do(operation, context, threads, reproducible)
        heard(&listener)
    else:
        status = mp_do(operation, context, 1, reproducible)
    if status == MP_NO_MEMORY:
        raise MemoryError(f"no memory for the scratch of {operation.name.decode()}")
    return status


def constant(cnp.ndarray array not None):
    """Return an array that does not depend on inputs; if this thread records, add it to the tape's constants."""
    tape = recording()
    if tape is not None:
        tape.add_constant(array)
    return array


def recorded_on(Tape tape not None, function, /, *args, **kwargs):
    """Return ``function(*args, **kwargs)``; meanwhile this thread notes operations on a tape and runs none."""
    cdef mp_recording *before = mp_recorder()[0]
    outer = getattr(_here, "tape", None)
    _here.tape, mp_recorder()[0] = tape, &tape.notes.recording
    try:
        return function(*args, **kwargs)
    finally:
        _here.tape, mp_recorder()[0] = outer, before
