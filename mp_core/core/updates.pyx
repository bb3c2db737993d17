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


cdef cnp.ndarray as_float32(x):
    """Return an array as float32, C-contiguous: itself if it is."""
    if (type(x) is np.ndarray and cnp.PyArray_TYPE(x) == cnp.NPY_FLOAT32 and cnp.PyArray_IS_C_CONTIGUOUS(x)
            and cnp.PyArray_ISALIGNED(x)):
        return x
    return np.require(x, np.float32, ("C", "A"))


cdef bint run_update(mp_update *u, Py_ssize_t count) except -1:
    """Run an update that is described; return whether the gradient was finite."""
    cdef int threads, finite
    if count < MP_UPDATE_WORK:
        return mp_run_update(u, count, 1)
    threads = threads_for(1, 0)
    with nogil:
        finite = mp_run_update(u, count, threads)
    return finite


def update_each(str rule not None, list items not None, tuple numbers not None):
    """Update variables; return a list of (new value, [what is now kept of it]), and whether all gradients were finite.

    An item is (variable, gradient, [what is kept], (divisor, factor, limit, decay), blocks): float arrays of one shape,
    and a list for each array that is written, of memory for :func:`block`. `numbers` are those of the rule.
    """
    cdef mp_update u
    cdef cnp.ndarray w, g
    cdef Py_ssize_t i, count
    cdef bint finite = True
    memset(&u, 0, sizeof(u))
    u.rule, kept = RULES[rule]
    if len(numbers) > 5:
        raise TypeError(f"{rule} takes at most 5 numbers, not {len(numbers)}")
    for i in range(len(numbers)):
        u.number[i] = numbers[i]
    results = []
    for x, gradient, slots, how, blocks in items:
        w, g, count = as_float32(x), as_float32(gradient), cnp.PyArray_SIZE(x)
        if len(slots) != kept or len(blocks) != kept + 1:
            raise TypeError(f"{rule} keeps {kept} arrays of a variable, not {len(slots)}")
        u.w, u.g = <const float *>cnp.PyArray_DATA(w), <const float *>cnp.PyArray_DATA(g)
        arrays = [as_float32(slot) for slot in slots]
        outs = [block(own, x.shape) for own in blocks]
        for each in (g, *arrays, *outs):
            if cnp.PyArray_SIZE(each) != count:
                raise TypeError("arrays of an update must be of one size")
        u.w_out = <float *>cnp.PyArray_DATA(<cnp.ndarray>outs[0])
        for i in range(kept):
            u.slot[i] = <const float *>cnp.PyArray_DATA(<cnp.ndarray>arrays[i])
            u.slot_out[i] = <float *>cnp.PyArray_DATA(<cnp.ndarray>outs[i + 1])
        u.divisor, u.factor, u.limit, u.decay = how
        finite &= run_update(&u, count)
        results.append((outs[0], outs[1:]))
    return results, bool(finite)


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
