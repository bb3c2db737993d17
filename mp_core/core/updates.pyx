"""Updates of variables by optimizers (library/update.h), and memory for the new values."""

import sys

import numpy as np

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.string cimport memset

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport mp_listener
from mp_core.core.signals cimport heard, listen

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *o)

cdef extern from "library/update.h" nogil:
    enum:
        MP_UPDATE_WORK, MP_UPDATE_NUMBERS

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

RULES = {}  # name -> (number, how many arrays it keeps per variable): the rows of kernels/updates/updates.def
while mp_update_names[len(RULES)] != NULL:
    RULES[mp_update_names[len(RULES)].decode()] = len(RULES), mp_update_slots[len(RULES)]

cdef bint COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()  # reference counts are exact only with the GIL


def power(double base, Py_ssize_t exponent):
    """Return base ** exponent for an exponent >= 0, by repeated squaring."""
    cdef double result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


cdef bint is_ready(x):
    """Return whether x is a C-contiguous, aligned float32 array, which kernels read as it is."""
    return (type(x) is np.ndarray and cnp.PyArray_TYPE(x) == cnp.NPY_FLOAT32 and cnp.PyArray_IS_C_CONTIGUOUS(x)
            and cnp.PyArray_ISALIGNED(x))


cdef cnp.ndarray as_float32(x):
    """Return an array as C-contiguous, aligned float32, without a copy if possible."""
    return x if is_ready(x) else np.require(x, np.float32, ("C", "A"))


cdef bint run_update(mp_update *u, Py_ssize_t count) except -1:
    """Run an update; return whether the gradient was finite."""
    cdef int threads, finite
    cdef mp_listener listener
    if count < MP_UPDATE_WORK:
        return mp_run_update(u, count, 1)
    threads = threads_for(1, 0)
    listen(&listener)
    with nogil:
        finite = mp_run_update(u, count, threads)
    heard(&listener)
    return finite


def update_each(str rule not None, list items not None, tuple numbers not None):
    """Update variables; return [(new value, [new slots]), ...], and whether all gradients were finite.

    Each item is (variable, gradient, [slots], (divisor, factor, limit, decay), blocks). The arrays are floats of the
    same shape. `blocks` has one list of memory for :func:`block` for each array that is written: the value, then the
    slots. `numbers` are the constants of the rule.
    """
    cdef mp_update u
    cdef cnp.ndarray w, g
    cdef Py_ssize_t i, count
    cdef bint finite = True
    memset(&u, 0, sizeof(u))
    u.rule, kept = RULES[rule]
    if len(numbers) > MP_UPDATE_NUMBERS:
        raise TypeError(f"{rule} takes at most {MP_UPDATE_NUMBERS} numbers, not {len(numbers)}")
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


cdef class Updates:
    """Updates the same variables in every step, with one call per step.

    Parameters
    ----------
    variables : list of AutoCastVariable
    slots, blocks : list of list
        For each variable: the optimizer's slot variables, and `blocks` as in :func:`update_each`.
    """

    cdef readonly list changing  # for each variable: its slots, then the variable itself
    cdef list variables, slots, blocks

    def __init__(self, list variables not None, list slots not None, list blocks not None):
        self.variables, self.slots, self.blocks = variables, slots, blocks
        self.changing = [each for x, kept in zip(variables, slots, strict=True) for each in (*kept, x)]

    def run(self, str rule not None, list pairs not None, tuple numbers not None, double divisor, double limit,
            list decays not None):
        """Return the new values of `changing`, and whether all gradients are finite.

        `pairs` are (gradient, variable), `decays` has one decay per variable; the other arguments are as in
        :func:`update_each`. Return None if `pairs` are not exactly these variables in this order, if kernels cannot
        read an array as it is (`is_ready`), or if a variable has a constraint or is overwritten with its gradient.
        """
        cdef mp_update u
        cdef Py_ssize_t i
        cdef bint finite = True
        memset(&u, 0, sizeof(u))
        u.rule, kept = RULES[rule]
        if len(pairs) != len(self.variables) or len(numbers) > MP_UPDATE_NUMBERS:
            return None
        for i in range(len(pairs)):
            if not self.serves(i, pairs[i], kept):
                return None
        for i in range(len(numbers)):
            u.number[i] = numbers[i]
        u.divisor, u.factor, u.limit = divisor, 1.0, limit
        new = []
        for i in range(len(pairs)):
            u.decay = decays[i]
            finite &= self.run_one(&u, i, pairs[i][0], new)
        return new, bool(finite)

    cdef bint serves(self, Py_ssize_t i, pair, Py_ssize_t kept) except -1:
        """Return whether kernels can compute the complete update of variable i."""
        gradient, variable = pair
        if variable is not self.variables[i] or variable.constraint is not None or variable._overwrite:
            return False
        if len(self.slots[i]) != kept or not is_ready(gradient) or cnp.PyArray_SIZE(gradient) == 0:
            return False
        for each in (variable, *self.slots[i]):
            if not is_ready(each._state[0]) or not cnp.PyArray_SAMESHAPE(each._state[0], gradient):
                return False
        return True

    cdef bint run_one(self, mp_update *u, Py_ssize_t i, cnp.ndarray gradient, list new) except -1:
        """Update variable i, and append its new slots and its new value to `new`."""
        cdef Py_ssize_t j
        cdef cnp.ndarray w = self.variables[i]._state[0]
        cdef list outs = [block(own, self.variables[i].shape) for own in self.blocks[i]]
        cdef list slots = [each._state[0] for each in self.slots[i]]
        u.w, u.g = <const float *>cnp.PyArray_DATA(w), <const float *>cnp.PyArray_DATA(gradient)
        u.w_out = <float *>cnp.PyArray_DATA(<cnp.ndarray>outs[0])
        for j in range(len(slots)):
            u.slot[j] = <const float *>cnp.PyArray_DATA(<cnp.ndarray>slots[j])
            u.slot_out[j] = <float *>cnp.PyArray_DATA(<cnp.ndarray>outs[j + 1])
        new += [*outs[1:], outs[0]]
        return run_update(u, cnp.PyArray_SIZE(gradient))


cpdef block(list blocks, shape):
    """Return a float32 array to write to: one of `blocks` without other references, or a new one, which is added.

    A view refers to its array, so an array that a variable or other code still reads is never returned. The list keeps
    at most two arrays.
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
