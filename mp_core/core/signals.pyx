"""Run signal handlers while an operation runs without the interpreter lock; their exceptions end the operation."""

import os
import threading

from mp_core.core.header cimport mp_end_listening, mp_listen, mp_listener

cdef extern from "Python.h" nogil:  # without `except`: heard() raises the exception
    ctypedef struct PyObject
    ctypedef struct PyThreadState
    PyObject *PyExc_RuntimeError
    PyThreadState *PyThreadState_Get()
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)
    unsigned long PyThread_get_thread_ident()
    int PyErr_CheckSignals()
    void PyErr_SetString(PyObject *kind, const char *message)

cdef unsigned long main_thread = threading.main_thread().ident
cdef int forks = 0  # the number of forks since the process that imported this module


def _forked():
    """In the child of a fork: the thread that forked is the main thread."""
    global main_thread, forks
    main_thread = PyThread_get_thread_ident()
    forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


cdef int ask(void *state) noexcept nogil:
    """Run the handlers of pending signals; return whether there is an exception, which heard() raises later."""
    cdef int before, raised
    PyEval_RestoreThread(<PyThreadState *>state)
    before = forks
    raised = PyErr_CheckSignals()
    if not raised and forks != before:
        PyErr_SetString(PyExc_RuntimeError, "a signal handler has forked within an operation of mp_core, whose threads "
                                            "the child does not have")
        raised = -1
    PyEval_SaveThread()
    return raised


cdef void listen(mp_listener *listener) noexcept:
    """Enable signal handlers during an operation without the interpreter lock, in the main thread only, like Python.

    Call it right before the lock is released, and :func:`heard` right after it is acquired again.
    """
    listener.ask = NULL
    if PyThread_get_thread_ident() == main_thread:
        mp_listen(listener, ask, PyThreadState_Get())


cdef int heard(mp_listener *listener) except -1:
    """Raise the exception of a signal handler since :func:`listen`. The operation's results are undefined then."""
    return -1 if listener.ask != NULL and mp_end_listening(listener) else 0
