"""Run the notes of a tape (library/replay.h) without the interpreter lock.

A :class:`Replay` runs all operations on one team of threads, with a barrier after each (`run`). Or several replays run
passes concurrently, each on one thread (`run_passes`).
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetPointer, PyCapsule_New, PyCapsule_SetContext
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdlib cimport free, malloc

from mp_core.core.cpu cimport reproducible_here
from mp_core.core.header cimport mp_keep_awake, mp_listener, mp_stopped
from mp_core.core.library cimport (
    MP_DONE, MP_NO_ROW, mp_core_plan, mp_free_replay, mp_make_replay, mp_passes, mp_plan_replay, mp_replay,
    mp_replay_status, mp_run, mp_run_noted, mp_run_passes, mp_run_replay,
)
from mp_core.core.recording cimport Notes
from mp_core.core.signals cimport heard, listen

from time import perf_counter

import numpy as np

cnp.import_array()


cdef class Replay:
    """Operations prepared to run; at most one run at a time may use it.

    Parameters
    ----------
    notes : Notes
    follows : tuple of int
        For each note, the index of the run's size that is its number of rows; -1: as many as in the recording.
    """

    cdef readonly Notes notes
    cdef mp_replay *replay

    def __cinit__(self, Notes notes not None, tuple follows not None):
        cdef cnp.ndarray numbers = np.array(follows, np.intc)
        self.notes = notes
        self.replay = mp_make_replay(&notes.recording, <const int *>cnp.PyArray_DATA(numbers))
        if self.replay == NULL:
            raise MemoryError("no memory for a run of a plan")

    def __dealloc__(self):
        mp_free_replay(self.replay)

    cdef mp_run run_of(self, cnp.ndarray bases, cnp.ndarray rows, int threads) except *:
        cdef mp_run run
        run.buffers, run.rows = <char **>cnp.PyArray_DATA(bases), <const Py_ssize_t *>cnp.PyArray_DATA(rows)
        run.threads, run.reproducible = threads, reproducible_here()
        return run

    cdef int check(self, mp_listener *listener) except -1:
        """Raise the error of a signal handler, or of the first task that failed, and reset the status."""
        cdef Py_ssize_t number = 0
        cdef int status = mp_replay_status(self.replay, &number)
        heard(listener)
        return checked(status, self.notes, number)

    def run(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int threads):
        """Run all operations, with a barrier after each.

        Parameters
        ----------
        bases : ndarray of intp
            The address of each buffer.
        rows : ndarray of intp
            The number of rows for each size.
        threads : int
        """
        cdef mp_run run = self.run_of(bases, rows, threads)
        cdef mp_listener listener
        listen(&listener)
        with nogil:
            mp_run_replay(self.replay, &run)
        self.check(&listener)

    def run_first(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int threads, Py_ssize_t cut):
        """Run the operations before number `cut`; :meth:`run_rest` then runs the others, in the same memory."""
        cdef mp_run run = self.run_of(bases, rows, threads)
        mp_plan_replay(self.replay, &run)
        self.run_between(0, cut, threads)

    def run_rest(self, int threads, Py_ssize_t cut):
        """Run the operations from number `cut` on."""
        self.run_between(cut, len(self.notes), threads)

    cdef run_between(self, Py_ssize_t begin, Py_ssize_t end, int threads):
        cdef Py_ssize_t index
        cdef mp_listener listener
        listen(&listener)
        with nogil:
            for index in range(begin, end):
                mp_run_noted(self.replay, index, threads)
                if mp_stopped():
                    break
        self.check(&listener)

    def timed(self, cnp.ndarray bases not None, cnp.ndarray rows not None, int cut, int threads):
        """Run one operation after the other, cut into tasks for `cut` threads; return [(seconds, tasks), ...]."""
        cdef mp_run run = self.run_of(bases, rows, cut)
        cdef Py_ssize_t index, tasks
        cdef mp_listener listener
        mp_plan_replay(self.replay, &run)
        taken = []
        for index in range(len(self.notes)):
            begin = perf_counter()
            listen(&listener)
            with nogil:
                tasks = mp_run_noted(self.replay, index, threads)
            self.check(&listener)
            taken.append((perf_counter() - begin, tasks))
        return taken


cdef int checked(int status, Notes notes, Py_ssize_t number) except -1:
    """Raise MemoryError or IndexError if a task of note `number` failed."""
    if status == MP_NO_ROW:
        raise IndexError("an index of the inputs is outside of the table in which it is looked up")
    if status != MP_DONE:
        raise MemoryError(f"no memory for the scratch of {notes.names[number]}")
    return 0


def set_addresses(cnp.ndarray bases not None, list inputs not None, dict results not None):
    """Write the addresses of arrays into `bases`: `inputs` into its first elements, `results` at their numbers."""
    cdef Py_ssize_t *to = <Py_ssize_t *>cnp.PyArray_DATA(bases)
    cdef Py_ssize_t number
    cdef cnp.ndarray array
    for number, array in enumerate(inputs):
        to[number] = <Py_ssize_t>cnp.PyArray_DATA(array)
    for number, array in results.items():
        to[number] = <Py_ssize_t>cnp.PyArray_DATA(array)


def run_passes(list replays not None, cnp.ndarray bases not None, cnp.ndarray given not None,
               cnp.ndarray addresses not None, cnp.ndarray rows not None):
    """Run passes of a plan concurrently, each on one thread, at most as many at a time as there are replays.

    Parameters
    ----------
    replays : list of Replay
    bases : ndarray of intp, shape (replays, buffers)
        The address of each buffer, for each replay.
    given : ndarray of int32
        The numbers of buffers whose addresses differ between passes.
    addresses : ndarray of intp, shape (passes, len(given))
        The addresses of these buffers in each pass.
    rows : ndarray of intp, shape (passes, sizes)
        The number of rows for each size.
    """
    cdef mp_passes p
    cdef Py_ssize_t index, number = 0, which = 0, count = len(replays), passes = cnp.PyArray_DIM(addresses, 0)
    cdef int failed, status = MP_DONE
    cdef Notes notes = None
    cdef bint reproducible = reproducible_here()
    cdef mp_listener listener
    cdef mp_replay **each = <mp_replay **>malloc(count * sizeof(mp_replay *))
    if each == NULL:
        raise MemoryError("no memory for the runs of a plan")
    for index in range(count):
        each[index] = (<Replay>replays[index]).replay
    p.replays, p.replay_count = each, <int>count
    p.buffers, p.buffer_count = <char **>cnp.PyArray_DATA(bases), cnp.PyArray_DIM(bases, 1)
    p.given, p.given_count = <const int *>cnp.PyArray_DATA(given), cnp.PyArray_DIM(given, 0)
    p.addresses = <char **>cnp.PyArray_DATA(addresses)
    p.rows, p.size_count = <const Py_ssize_t *>cnp.PyArray_DATA(rows), cnp.PyArray_DIM(rows, 1)
    p.reproducible = reproducible
    listen(&listener)
    with nogil:
        mp_run_passes(&p, passes)
    for index in range(count):  # reset the status of all replays, also after the first failure
        failed = mp_replay_status(each[index], &which)
        if status == MP_DONE:
            status, number, notes = failed, which, (<Replay>replays[index]).notes
    free(each)
    heard(&listener)
    checked(status, notes, number)


# ---- a plan that C runs: include/mp_core.h

cdef void free_c_plan(object capsule) noexcept:
    cdef PyObject *kept = <PyObject *>PyCapsule_GetContext(capsule)
    free(PyCapsule_GetPointer(capsule, "mp_core.plan"))
    if kept != NULL:
        Py_DECREF(<object>kept)


def c_plan(Replay replay not None, cnp.ndarray bases not None, cnp.ndarray results not None,
           cnp.ndarray sizes not None, tuple kept):
    """Return a plan as a capsule "mp_core.plan", which ``mp_core_run_plan`` of include/mp_core.h runs.

    Parameters
    ----------
    replay : Replay
        A replay without sizes, used only by this plan.
    bases : ndarray of intp
        The address of each buffer; the addresses of inputs and results are ignored.
    results : ndarray of int32
        The number of the buffer of each output.
    sizes : ndarray of intp
        The bytes of each input, then of each output.
    kept : tuple
        Objects that must live as long as the capsule.
    """
    cdef mp_core_plan *p = <mp_core_plan *>malloc(sizeof(mp_core_plan))
    cdef tuple all_kept = (replay, bases, results, sizes, kept)
    if p == NULL:
        raise MemoryError("no memory for a plan")
    p.replay, p.buffers = replay.replay, <char **>cnp.PyArray_DATA(bases)
    p.results, p.bytes = <const int *>cnp.PyArray_DATA(results), <const Py_ssize_t *>cnp.PyArray_DATA(sizes)
    p.outputs = <int>cnp.PyArray_SIZE(results)
    p.inputs = <int>cnp.PyArray_SIZE(sizes) - p.outputs
    try:
        capsule = PyCapsule_New(p, "mp_core.plan", free_c_plan)
    except MemoryError:
        free(p)
        raise
    Py_INCREF(all_kept)
    PyCapsule_SetContext(capsule, <void *>all_kept)
    return capsule


def awake():
    """Keep helper threads awake between operations within a ``with`` block.

    Otherwise they sleep after 10 to 50 microseconds, and waking one takes as long as a small product. Time of MiniLM
    for 1 x 32 tokens on two threads, relative to one thread (medians of 360 interleaved calls, Zen 4, November 2026):

    | | float32 | bfloat16 | int8 |
    |---|---|---|---|
    | sleeping | 0.79 | 0.84 | 0.93 |
    | awake | 0.69 | 0.75 | 0.76 |

    A helper sleeps after about a millisecond without work.
    """
    return _Awake()


cdef class _Awake:
    cdef bint entered

    def __enter__(self):
        if not self.entered:
            mp_keep_awake(1)
            self.entered = True

    def __exit__(self, *_):
        if self.entered:
            self.entered = False
            mp_keep_awake(-1)

    def __dealloc__(self):  # an interrupt may end a `with` statement without __exit__
        if self.entered:
            mp_keep_awake(-1)
