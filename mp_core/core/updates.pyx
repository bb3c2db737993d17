"""Updates of variables by optimizers (library/update.h), and the memory that they write."""

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

RULES = {}  # name -> (number, arrays that are kept): the rows of kernels/updates/updates.def
while mp_update_names[len(RULES)] != NULL:
    RULES[mp_update_names[len(RULES)].decode()] = len(RULES), mp_update_slots[len(RULES)]

cdef bint COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()  # without the lock a count may be too low


def power(double base, Py_ssize_t exponent):
    """Return a number to an integral power >= 0, by squares."""
    cdef double result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


cdef bint is_ready(x):
    """Whether a kernel reads an array as it is."""
    return (type(x) is np.ndarray and cnp.PyArray_TYPE(x) == cnp.NPY_FLOAT32 and cnp.PyArray_IS_C_CONTIGUOUS(x)
            and cnp.PyArray_ISALIGNED(x))


cdef cnp.ndarray as_float32(x):
    """Return an array as float32, C-contiguous: itself if it is."""
    return x if is_ready(x) else np.require(x, np.float32, ("C", "A"))


cdef bint run_update(mp_update *u, Py_ssize_t count) except -1:
    """Run an update that is described; return whether the gradient was finite."""
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
    """The update of the same variables in every step, in one call.

    Parameters
    ----------
    variables : list of AutoCastVariable
    slots, blocks : list of list
        For each variable: the variables that the optimizer keeps of it, and what :func:`update_each` takes as `blocks`.
    """

    cdef readonly list changing  # for each variable: what the optimizer keeps of it, then the variable itself
    cdef list variables, slots, blocks

    def __init__(self, list variables not None, list slots not None, list blocks not None):
        self.variables, self.slots, self.blocks = variables, slots, blocks
        self.changing = [each for x, kept in zip(variables, slots, strict=True) for each in (*kept, x)]

    def run(self, str rule not None, list pairs not None, tuple numbers not None, double divisor, double limit,
            list decays not None):
        """Return the new values of `changing`, and whether all gradients are finite.

        `pairs` are gradients and variables, `decays` those of the variables, the rest as for :func:`update_each`. The
        result is None if `pairs` are not all these variables in this order, if kernels cannot read some array as it is
        (see `is_ready`), or if a variable has a constraint or becomes its gradient.
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
        """Whether kernels compute all of the update of one variable."""
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
        """Update one variable, and append what is then kept of it, and its value."""
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
