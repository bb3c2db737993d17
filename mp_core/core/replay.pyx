"""Running what a tape has noted: copies of the contexts of its steps, whose pointers lead to the memory of a run.

A :class:`Replay` runs all steps in one go, without the interpreter lock: on one team of threads with a barrier between
one step and the next (`run`), or as one of several passes, each on a thread of its own (`run_passes`).
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport parallel_for, reproducible_here, run_steps
from mp_core.core.header cimport mp_allocate, mp_is_reproducible, mp_progress, mp_release, mp_step
from mp_core.core.steps cimport NO_ROW, Note, preparation

from time import perf_counter

cdef extern from * nogil:
    int __atomic_exchange_n(int *at, int value, int order)
    void __atomic_store_n(int *at, int value, int order)
    int __ATOMIC_ACQUIRE, __ATOMIC_RELEASE

cnp.import_array()

cdef struct Fixup:          # a pointer in a context that leads into a buffer
    char **pointer
    Py_ssize_t buffer, delta

cdef struct Steps:
    Py_ssize_t count
    mp_step *steps
    mp_progress *progress
    preparation *prepare
    int *size               # which of the sizes each step follows, or -1
    int **failed
    char *contexts
    Fixup *fixups
    Py_ssize_t fixup_count


cdef void make_ready(Steps *s, char **bases, const Py_ssize_t *rows, int threads, bint reproducible) noexcept nogil:
    """Lead all pointers to the buffers at `bases`, and plan the steps for so many rows, threads and order of sums."""
    cdef Py_ssize_t index
    for index in range(s.fixup_count):
        s.fixups[index].pointer[0] = bases[s.fixups[index].buffer] + s.fixups[index].delta
    for index in range(s.count):
        s.steps[index].tasks = s.prepare[index](
            s.steps[index].context, -1 if s.size[index] < 0 else rows[s.size[index]], threads, reproducible)


cdef class Replay:
    """Steps ready to run: for one run at a time.

    Parameters
    ----------
    notes : list of Note
    follows : tuple of int
        For each note which of the sizes of a run is its number of rows; -1: it has as many as when it was recorded.
    """

    cdef readonly list notes
    cdef Steps steps

    def __cinit__(self, list notes not None, tuple follows not None):
        cdef Py_ssize_t index, end = 0, fixup = 0
        cdef Note note
        cdef Steps *s = &self.steps
        self.notes, s.count = notes, len(notes)
        s.size = <int *>allocated(s.count * sizeof(int))
        s.failed = <int **>allocated(s.count * sizeof(int *))
        s.steps = <mp_step *>allocated(s.count * sizeof(mp_step))
        s.prepare = <preparation *>allocated(s.count * sizeof(preparation))
        s.progress = <mp_progress *>allocated(s.count * sizeof(mp_progress))
        for note in notes:
            end += (len(note.context) + 63) // 64 * 64
            s.fixup_count += len(note.pointers)
        s.contexts = <char *>allocated(end)
        s.fixups = <Fixup *>allocated(s.fixup_count * sizeof(Fixup))
        end = 0
        for index, note in enumerate(notes):
            memcpy(s.contexts + end, PyBytes_AS_STRING(note.context), len(note.context))
            s.steps[index].run, s.steps[index].context = note.kind.run, s.contexts + end
            s.prepare[index], s.failed[index] = note.kind.prepare, <int *>(s.contexts + end + note.kind.failed)
            s.size[index] = follows[index]
            for offset, buffer, delta in note.pointers:
                s.fixups[fixup].pointer = <char **>(s.contexts + end + <Py_ssize_t>offset)
                s.fixups[fixup].buffer, s.fixups[fixup].delta = buffer, delta
                fixup += 1
            end += (len(note.context) + 63) // 64 * 64

    def __dealloc__(self):
        mp_release(self.steps.size)
        mp_release(self.steps.failed)
        mp_release(self.steps.steps)
        mp_release(self.steps.prepare)
        mp_release(self.steps.progress)
        mp_release(self.steps.contexts)
        mp_release(self.steps.fixups)

    cdef int check(self) except -1:
        """Raise if a task found no memory for its scratch, or an index without a row."""
        cdef Py_ssize_t index
        cdef int kind
        for index in range(self.steps.count):
            kind, self.steps.failed[index][0] = self.steps.failed[index][0], 0
            if kind == NO_ROW:
                raise IndexError("an index of the inputs is outside of the table in which it is looked up")
            if kind:
                raise MemoryError(f"no memory for the scratch of {(<Note>self.notes[index]).name}")
        return 0

    def run(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int threads):
        """Run all steps, with a barrier between one and the next.

        Parameters
        ----------
        bases : ndarray of intp
            The address of each buffer.
        rows : ndarray of intp
            The number of rows for each of the sizes.
        threads : int
        """
        cdef char **base = <char **>cnp.PyArray_DATA(bases)
        cdef const Py_ssize_t *row = <const Py_ssize_t *>cnp.PyArray_DATA(rows)
        cdef bint reproducible = reproducible_here()
        with nogil:
            make_ready(&self.steps, base, row, threads, reproducible)
            run_steps(threads, self.steps.steps, self.steps.count, self.steps.progress)
        self.check()

    def timed(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int cut, int threads):
        """Run step by step, each cut into tasks for `cut` threads; return the seconds and the tasks of each."""
        cdef Py_ssize_t index
        make_ready(&self.steps, <char **>cnp.PyArray_DATA(bases), <const Py_ssize_t *>cnp.PyArray_DATA(rows), cut,
                   reproducible_here())
        taken = []
        for index in range(self.steps.count):
            begin = perf_counter()
            with nogil:
                run_steps(threads, self.steps.steps + index, 1, self.steps.progress)
            taken.append((perf_counter() - begin, self.steps.steps[index].tasks))
        self.check()
        return taken


cdef struct Passes:
    Steps **replays             # one for each thread
    int *taken                  # whether a thread uses it now
    int slots
    char **bases                # [slots][buffers]
    const int *given            # numbers of the buffers that differ from pass to pass
    char **addresses            # [passes][given_count]: these
    const Py_ssize_t *rows      # [passes][sizes]
    Py_ssize_t buffers, given_count, sizes
    bint reproducible


cdef void run_pass(void *context, Py_ssize_t index) noexcept nogil:
    """One task: all steps of a pass on this thread."""
    cdef Passes *p = <Passes *>context
    cdef Py_ssize_t i, slot = 0
    while __atomic_exchange_n(p.taken + slot, 1, __ATOMIC_ACQUIRE):  # there are as many as threads: one is free
        slot = (slot + 1) % p.slots
    for i in range(p.given_count):
        p.bases[slot * p.buffers + p.given[i]] = p.addresses[index * p.given_count + i]
    make_ready(p.replays[slot], p.bases + slot * p.buffers, p.rows + index * p.sizes, 1,
               p.reproducible)
    run_steps(1, p.replays[slot].steps, p.replays[slot].count, p.replays[slot].progress)
    __atomic_store_n(p.taken + slot, 0, __ATOMIC_RELEASE)


def run_passes(list replays not None, cnp.ndarray bases not None, cnp.ndarray given not None,
               cnp.ndarray addresses not None, cnp.ndarray rows not None):
    """Run passes of a plan side by side, each on one thread: as many at a time as there are replays.

    Parameters
    ----------
    replays : list of Replay
    bases : ndarray of intp, shape (replays, buffers)
        The address of each buffer, for each of the replays.
    given : ndarray of int32
        Numbers of the buffers that differ from pass to pass.
    addresses : ndarray of intp, shape (passes, len(given))
        The addresses of these buffers in each pass.
    rows : ndarray of intp, shape (passes, sizes)
        The number of rows for each of the sizes.
    """
    cdef Passes p
    cdef Py_ssize_t index, passes = cnp.PyArray_DIM(addresses, 0)
    p.slots, p.reproducible = <int>len(replays), reproducible_here()
    p.replays = <Steps **>allocated(p.slots * sizeof(Steps *))
    p.taken = <int *>allocated(p.slots * sizeof(int))
    for index in range(p.slots):
        p.replays[index] = &(<Replay>replays[index]).steps
    p.bases, p.buffers = <char **>cnp.PyArray_DATA(bases), cnp.PyArray_DIM(bases, 1)
    p.given, p.given_count = <const int *>cnp.PyArray_DATA(given), cnp.PyArray_DIM(given, 0)
    p.addresses = <char **>cnp.PyArray_DATA(addresses)
    p.rows, p.sizes = <const Py_ssize_t *>cnp.PyArray_DATA(rows), cnp.PyArray_DIM(rows, 1)
    with nogil:
        parallel_for(p.slots, passes, run_pass, &p)
    mp_release(p.replays)
    mp_release(p.taken)
    for replay in replays:
        (<Replay>replay).check()


# ---- a plan that C runs: include/mp_core.h

cdef extern from "library/api.h" nogil:
    enum:
        MP_CORE_OK, MP_CORE_INVALID, MP_CORE_NO_MEMORY, MP_CORE_NO_ROW

    struct mp_core_plan:
        int (*run)(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads) noexcept nogil
        int inputs, outputs
        const Py_ssize_t *bytes

cdef struct CPlan:
    mp_core_plan head           # C sees this part
    Steps *steps
    char **bases                # the first buffers are the inputs
    const int *results          # the buffers of the outputs


cdef int run_c_plan(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads) noexcept nogil:
    cdef CPlan *p = <CPlan *>plan
    cdef int i, failed = 0
    for i in range(p.head.inputs):
        if inputs == NULL or inputs[i] == NULL:
            return MP_CORE_INVALID
        p.bases[i] = <char *>inputs[i]
    for i in range(p.head.outputs):
        if outputs == NULL or outputs[i] == NULL:
            return MP_CORE_INVALID
        p.bases[p.results[i]] = <char *>outputs[i]
    make_ready(p.steps, p.bases, NULL, threads, mp_is_reproducible())
    run_steps(threads, p.steps.steps, p.steps.count, p.steps.progress)
    for i in range(<int>p.steps.count):
        if failed == 0:
            failed = p.steps.failed[i][0]
        p.steps.failed[i][0] = 0
    return MP_CORE_OK if failed == 0 else MP_CORE_NO_ROW if failed == NO_ROW else MP_CORE_NO_MEMORY


cdef void free_c_plan(object capsule) noexcept:
    cdef PyObject *kept = <PyObject *>PyCapsule_GetContext(capsule)
    mp_release(PyCapsule_GetPointer(capsule, "mp_core.plan"))
    if kept != NULL:
        Py_DECREF(<object>kept)


def c_plan(Replay replay not None, cnp.ndarray bases not None, cnp.ndarray results not None,
           cnp.ndarray sizes not None, tuple kept):
    """Return a plan as a capsule "mp_core.plan", which include/mp_core.h runs.

    Parameters
    ----------
    replay : Replay
        One without sizes, that nobody else runs.
    bases : ndarray of intp
        The address of each buffer; those of inputs and results do not matter.
    results : ndarray of int32
        The number of the buffer of each output.
    sizes : ndarray of intp
        The bytes of each input, then of each output.
    kept : tuple
        What must live as long as the capsule.
    """
    cdef CPlan *p = <CPlan *>allocated(sizeof(CPlan))
    cdef tuple all_kept = (replay, bases, results, sizes, kept)
    p.head.run, p.steps, p.bases = run_c_plan, &replay.steps, <char **>cnp.PyArray_DATA(bases)
    p.results, p.head.bytes = <const int *>cnp.PyArray_DATA(results), <const Py_ssize_t *>cnp.PyArray_DATA(sizes)
    p.head.outputs = <int>cnp.PyArray_SIZE(results)
    p.head.inputs = <int>cnp.PyArray_SIZE(sizes) - p.head.outputs
    capsule = PyCapsule_New(p, "mp_core.plan", free_c_plan)
    Py_INCREF(all_kept)
    PyCapsule_SetContext(capsule, <void *>all_kept)
    return capsule


cdef void *allocated(size_t size) except NULL:
    """Zeroed memory that begins with a cache line."""
    cdef size_t rounded = (size // 64 + 1) * 64
    cdef void *block = mp_allocate(rounded)
    if block == NULL:
        raise MemoryError
    memset(block, 0, rounded)
    return block
