"""Updates of variables by optimizers (library/update.h), and the memory that they write."""

import sys

import numpy as np

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.string cimport memset

from mp_core.core.cpu cimport threads_for

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)

cdef extern from "library/update.h" nogil:
    enum:
        MP_UPDATE_WORK

    ctypedef int mp_update_rule
    const char *const *const mp_update_names
    const int mp_update_slots[]

    ctypedef struct mp_update:
        mp_update_rule rule
        const float *w
        const float *g
        float *w_out
        const float **slot
        float **slot_out
        float *number
        float divisor, factor, limit, decay

    int mp_run_update(const mp_update *u, Py_ssize_t count, int threads)

RULES = {}  # name -> (number, arrays that are kept): the rows of kernels/updates/updates.def
while mp_update_names[len(RULES)] != NULL:
    RULES[mp_update_names[len(RULES)].decode()] = len(RULES), mp_update_slots[len(RULES)]

cdef bint COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock a count may be too low


def update(str rule not None, cnp.ndarray w not None, cnp.ndarray g not None, tuple slots not None,
           tuple numbers not None, how, cnp.ndarray w_out not None, tuple slots_out not None):
    """Write the new values of a variable and of what is kept of it; return whether its gradient was finite.

    All arrays are float32, C-contiguous and of one size; outputs overlap nothing. `numbers` are those of the rule, and
    `how` holds divisor, factor, limit and decay.
    """
    cdef mp_update u
    cdef Py_ssize_t i, count = cnp.PyArray_SIZE(w)
    cdef int threads, finite
    memset(&u, 0, sizeof(u))
    u.rule, kept = RULES[rule]
    if len(slots) != kept or len(slots_out) != kept or len(numbers) > 5:
        raise TypeError(f"{rule} keeps {kept} arrays of a variable, not {len(slots)}")
    for x in (w, g, w_out, *slots, *slots_out):
        if cnp.PyArray_TYPE(x) != cnp.NPY_FLOAT32 or cnp.PyArray_SIZE(x) != count or not x.flags.c_contiguous:
            raise TypeError("arrays of an update must be float32, contiguous and of one size")
    u.w, u.g = <const float *>cnp.PyArray_DATA(w), <const float *>cnp.PyArray_DATA(g)
    u.w_out = <float *>cnp.PyArray_DATA(w_out)
    for i in range(kept):
        u.slot[i] = <const float *>cnp.PyArray_DATA(<cnp.ndarray>slots[i])
        u.slot_out[i] = <float *>cnp.PyArray_DATA(<cnp.ndarray>slots_out[i])
    for i in range(len(numbers)):
        u.number[i] = numbers[i]
    u.divisor, u.factor, u.limit, u.decay = how
    if count < MP_UPDATE_WORK:
        return bool(mp_run_update(&u, count, 1))
    threads = threads_for(1, 0)
    with nogil:
        finite = mp_run_update(&u, count, threads)
    return bool(finite)


def block(list blocks not None, shape):
    """Return a float32 array to write to: one of a list that nobody else holds, or a new one, which joins the list.

    Views of an array hold it, so what a variable or anybody else still reads is never returned. The list keeps two.
    """
    cdef PyObject *x
    for i in range(len(blocks) if COUNTED else 0):
        x = <PyObject *>blocks[i]
        if Py_REFCNT(x) == 1:
            return blocks[i]
    if len(blocks) > 1:
        del blocks[0]
    new = np.empty(shape, np.float32)
    if COUNTED:
        blocks.append(new)
    return new
