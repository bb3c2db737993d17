"""Operations recorded once, to be run again on other data without Python.

While a thread records, the entry points of the core note what they run on a :class:`Tape`: the context of their tasks, a
C struct, and where in it the pointers are. A :class:`Replay` is a copy of these contexts whose pointers lead to other
memory; it runs them all in one go, without the interpreter lock.
"""

from contextlib import contextmanager

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport recorder, run_steps
from mp_core.core.header cimport mp_progress, mp_step

from time import perf_counter

cdef extern from "<stdlib.h>" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cnp.import_array()


class UnseenError(ValueError):
    """A recording met a computation that it cannot repeat; the message names it."""


UNSEEN = ("{} reads an array that was computed by something else than the operations of mp_core: a plan would read what "
          "it was for the example")


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
        """Add memory that changes from run to run; return its number."""
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

    cdef int note(self, str name, preparation prepare, execution run, const void *context, Py_ssize_t size,
                  Py_ssize_t failed, tuple pointers, Py_ssize_t rows, double operations, Py_ssize_t moved) except -1:
        """Note a step: its context, a struct of `size` bytes, and at which offsets of it the pointers are."""
        cdef Note note = Note()
        cdef Py_ssize_t offset, at
        note.name, note.rows, note.operations, note.moved, note.pointers = name, rows, operations, moved, []
        note.context, note.prepare, note.run = PyBytes_FromStringAndSize(<const char *>context, size), prepare, run
        note.failed = failed
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


@contextmanager
def recorded_on(Tape tape not None):
    """Let this thread note what it runs on a tape, within a ``with`` block."""
    cdef void *before = recorder(<void *>tape)
    try:
        yield
    finally:
        recorder(before)


cdef class Replay:
    """Steps ready to run: for one run at a time.

    Parameters
    ----------
    notes : list of Note
    sizes : tuple of int
        Numbers of rows: a step with as many as one of them has as many as a run says in that place.
    """

    cdef readonly list notes
    cdef Py_ssize_t count
    cdef mp_step *steps
    cdef mp_progress *progress
    cdef preparation *prepare
    cdef char *contexts
    cdef Py_ssize_t *begin      # of each context
    cdef int *size              # which of the sizes each step follows, or -1
    cdef Py_ssize_t *fixups     # triples: where in `contexts` a pointer is, number of its buffer, bytes from there
    cdef Py_ssize_t fixup_count

    def __cinit__(self, list notes not None, tuple sizes not None=()):
        cdef Py_ssize_t index, end = 0, fixup = 0
        cdef Note note
        self.notes, self.count = notes, len(notes)
        self.size = <int *>allocated(self.count * sizeof(int))
        self.begin = <Py_ssize_t *>allocated((self.count + 1) * sizeof(Py_ssize_t))
        for index, note in enumerate(notes):
            self.begin[index] = end
            end += (len(note.context) + 63) // 64 * 64
            self.fixup_count += len(note.pointers)
        self.contexts = <char *>allocated(end)
        self.steps = <mp_step *>allocated(self.count * sizeof(mp_step))
        self.prepare = <preparation *>allocated(self.count * sizeof(preparation))
        self.progress = <mp_progress *>allocated(self.count * sizeof(mp_progress))
        self.fixups = <Py_ssize_t *>allocated(3 * self.fixup_count * sizeof(Py_ssize_t))
        for index, note in enumerate(notes):
            memcpy(self.contexts + self.begin[index], PyBytes_AS_STRING(note.context), len(note.context))
            self.steps[index].run, self.steps[index].context = note.run, self.contexts + self.begin[index]
            self.prepare[index] = note.prepare
            self.size[index] = sizes.index(note.rows) if note.rows in sizes else -1
            for offset, number, delta in note.pointers:
                self.fixups[3 * fixup] = self.begin[index] + <Py_ssize_t>offset
                self.fixups[3 * fixup + 1], self.fixups[3 * fixup + 2] = number, delta
                fixup += 1

    def __dealloc__(self):
        free(self.begin)
        free(self.size)
        free(self.contexts)
        free(self.steps)
        free(self.prepare)
        free(self.progress)
        free(self.fixups)

    cdef void ready(self, const Py_ssize_t *bases, const Py_ssize_t *rows, int threads) noexcept nogil:
        """Lead all pointers to the buffers at `bases`, and plan the steps for so many rows and threads."""
        cdef Py_ssize_t index
        for index in range(self.fixup_count):
            (<Py_ssize_t *>(self.contexts + self.fixups[3 * index]))[0] = (
                bases[self.fixups[3 * index + 1]] + self.fixups[3 * index + 2])
        for index in range(self.count):
            self.steps[index].tasks = self.prepare[index](
                self.steps[index].context, -1 if self.size[index] < 0 else rows[self.size[index]], threads)

    cdef int check(self) except -1:
        """Raise if a task found no memory for its scratch, or an index without a row."""
        cdef Py_ssize_t index
        cdef Note note
        cdef int *failed
        for index in range(self.count):
            note = self.notes[index]
            failed = <int *>(self.contexts + self.begin[index] + note.failed)
            if failed[0]:
                kind, failed[0] = failed[0], 0
                if kind == 2:
                    raise IndexError("an index of the inputs is outside of the table that it is looked up in")
                raise MemoryError(f"no memory for the scratch of {note.name}")
        return 0

    def run(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int threads):
        """Run all steps.

        Parameters
        ----------
        bases : ndarray of intp
            The address of each buffer.
        rows : ndarray of intp
            The number of rows for each of the sizes.
        threads : int
        """
        with nogil:
            self.ready(<const Py_ssize_t *>cnp.PyArray_DATA(bases), <const Py_ssize_t *>cnp.PyArray_DATA(rows), threads)
            run_steps(threads, self.steps, self.count, self.progress)
        self.check()

    def timed(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int threads):
        """Run step by step; return the seconds that each took."""
        cdef Py_ssize_t index
        self.ready(<const Py_ssize_t *>cnp.PyArray_DATA(bases), <const Py_ssize_t *>cnp.PyArray_DATA(rows), threads)
        seconds = []
        for index in range(self.count):
            begin = perf_counter()
            with nogil:
                run_steps(threads, self.steps + index, 1, self.progress)
            seconds.append(perf_counter() - begin)
        self.check()
        return seconds


cdef void *allocated(size_t size) except NULL:
    """Zeroed memory that begins with a cache line."""
    cdef size_t rounded = (size // 64 + 1) * 64
    cdef void *block = aligned_alloc(64, rounded)
    if block == NULL:
        raise MemoryError
    memset(block, 0, rounded)
    return block
