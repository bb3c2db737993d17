"""Updates of variables by optimizers (library/update.h), and memory for the new values."""

import sys

import ml_dtypes
import numpy as np

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t
from libc.string cimport memset

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport MP_BF16, MP_F16, MP_F32, mp_listener
from mp_core.core.signals cimport heard, listen
from mp_core.core.training cimport mp_rounding

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
        float *number
        float divisor, factor, limit, decay

    ctypedef struct mp_stored_update:
        mp_update rule
        int format, g_format
        const char *w
        const char *g
        const char *rest
        char *w_out
        char *rest_out
        const char **slot
        char **slot_out
        mp_rounding rounding

    int mp_run_update(const mp_stored_update *u, Py_ssize_t count, int threads)

RULES = {}  # name -> (number, how many arrays it keeps per variable): the rows of kernels/updates/updates.def
while mp_update_names[len(RULES)] != NULL:
    RULES[mp_update_names[len(RULES)].decode()] = len(RULES), mp_update_slots[len(RULES)]

STREAM = 3  # the last word of the counters of all random numbers of optimizers

cdef bint COUNTED = getattr(sys, "_is_gil_enabled", lambda: True)()  # reference counts are exact only with the GIL
cdef int FLOAT16 = np.dtype(np.float16).num, BFLOAT16 = np.dtype(ml_dtypes.bfloat16).num


def power(double base, Py_ssize_t exponent):
    """Return base ** exponent for an exponent >= 0, by repeated squaring."""
    cdef double result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


cdef int format_of(x):
    """Return the format of an array that kernels read as it is: C-contiguous and aligned; -1 for all others."""
    if type(x) is not np.ndarray or not cnp.PyArray_IS_C_CONTIGUOUS(x) or not cnp.PyArray_ISALIGNED(x):
        return -1
    cdef int kind = cnp.PyArray_TYPE(x)
    return MP_F32 if kind == cnp.NPY_FLOAT32 else MP_F16 if kind == FLOAT16 else MP_BF16 if kind == BFLOAT16 else -1


cdef cnp.ndarray as_ready(x):
    """Return an array that kernels read, without a copy if possible; types that they do not read become float32."""
    if format_of(x) >= 0:
        return x
    return np.require(x, None if x.dtype.num in (FLOAT16, BFLOAT16) else np.float32, ("C", "A"))


cdef int set_arrays(mp_stored_update *u, cnp.ndarray w, cnp.ndarray g, list slots, rest, list outs) except -1:
    """Set all arrays of an update. `outs` are the new values of `slots`, of `rest` unless it is None, and of `w`."""
    cdef cnp.ndarray each
    cdef Py_ssize_t i
    u.format, u.g_format = format_of(w), format_of(g)
    for each in (*slots, *outs) if rest is None else (*slots, rest, *outs):
        if cnp.PyArray_SIZE(each) != cnp.PyArray_SIZE(w) or format_of(each) != u.format:
            raise TypeError("arrays of an update must be of one size and type")
    if cnp.PyArray_SIZE(g) != cnp.PyArray_SIZE(w):
        raise TypeError("arrays of an update must be of one size and type")
    u.w, u.g = cnp.PyArray_BYTES(w), cnp.PyArray_BYTES(g)
    for i in range(len(slots)):
        u.slot[i], u.slot_out[i] = cnp.PyArray_BYTES(slots[i]), cnp.PyArray_BYTES(outs[i])
    u.rest, u.rest_out = NULL, NULL
    if rest is not None:
        u.rest, u.rest_out = cnp.PyArray_BYTES(rest), cnp.PyArray_BYTES(outs[len(slots)])
    u.w_out = cnp.PyArray_BYTES(outs[len(outs) - 1])


cdef int set_rule(mp_stored_update *u, str rule, tuple numbers, cnp.ndarray key) except -1:
    """Set rule, constants and the key of the random numbers (uint32, C-contiguous); return how many slots it keeps."""
    memset(u, 0, sizeof(u[0]))
    u.rule.rule, kept = RULES[rule]
    if len(numbers) > MP_UPDATE_NUMBERS:
        raise TypeError(f"{rule} takes at most {MP_UPDATE_NUMBERS} numbers, not {len(numbers)}")
    for i in range(len(numbers)):
        u.rule.number[i] = numbers[i]
    if key is not None:
        u.rounding.key = <const uint32_t *>cnp.PyArray_DATA(key)
    u.rounding.stream[2] = STREAM
    return kept


cdef bint run_update(mp_stored_update *u, Py_ssize_t count) except -1:
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


def update_each(str rule not None, list items not None, tuple numbers not None, cnp.ndarray key=None):
    """Update variables; return [[new slots, new rest unless it is None, new value], ...], and whether all gradients
    were finite.

    Each item is (variable, gradient, [slots], rest or None, (divisor, factor, limit, decay), blocks, place). The arrays
    are floats of the same shape; variable, slots and rest have one type. `blocks` has one list of memory for
    :func:`block` for each array that is written, in the order of the result. `numbers` are the constants of the rule.
    With a `key`, results of 16 bits are rounded stochastically; `place` is the first word of their stream.
    """
    cdef mp_stored_update u
    cdef cnp.ndarray w, g
    cdef bint finite = True
    cdef int kept = set_rule(&u, rule, numbers, key)
    results = []
    for x, gradient, slots, rest, how, blocks, place in items:
        w, g, arrays = as_ready(x), as_ready(gradient), [as_ready(slot) for slot in slots]
        rest = None if rest is None else as_ready(rest)
        if len(slots) != kept or len(blocks) != kept + 1 + (rest is not None):
            raise TypeError(f"{rule} keeps {kept} arrays of a variable, not {len(slots)}")
        outs = [block(own, x.shape, w.dtype) for own in blocks]
        set_arrays(&u, w, g, arrays, rest, outs)
        u.rule.divisor, u.rule.factor, u.rule.limit, u.rule.decay = how
        u.rounding.stream[0] = place
        finite &= run_update(&u, cnp.PyArray_SIZE(w))
        results.append(outs)
    return results, bool(finite)


cdef class Updates:
    """Updates the same variables in every step, with one call per step.

    Parameters
    ----------
    variables : list of AutoCastVariable
    slots : list of list
        For each variable: the optimizer's slot variables.
    rests : list
        For each variable: the variable of its compensation, or None.
    blocks : list of list
        As in :func:`update_each`.
    """

    cdef readonly list changing  # for each variable: its slots, its compensation if any, then the variable itself
    cdef list variables, slots, rests, blocks

    def __init__(self, list variables not None, list slots not None, list rests not None, list blocks not None):
        self.variables, self.slots, self.rests, self.blocks = variables, slots, rests, blocks
        self.changing = []
        for x, kept, rest in zip(variables, slots, rests, strict=True):
            self.changing += [*kept, x] if rest is None else [*kept, rest, x]

    def run(self, str rule not None, list pairs not None, tuple numbers not None, double divisor, double limit,
            list decays not None, cnp.ndarray key=None):
        """Return the new values of `changing`, and whether all gradients are finite.

        `pairs` are (gradient, variable), `decays` has one decay per variable; the other arguments are as in
        :func:`update_each`, where the place of a variable is its index. Return None if `pairs` are not exactly these
        variables in this order, if kernels cannot read an array as it is (`format_of`), or if a variable has a
        constraint or is overwritten with its gradient.
        """
        cdef mp_stored_update u
        cdef Py_ssize_t i
        cdef bint finite = True
        if len(pairs) != len(self.variables) or len(numbers) > MP_UPDATE_NUMBERS:
            return None
        cdef int kept = set_rule(&u, rule, numbers, key)
        for i in range(len(pairs)):
            if not self.serves(i, pairs[i], kept):
                return None
        u.rule.divisor, u.rule.factor, u.rule.limit = divisor, 1.0, limit
        new = []
        for i in range(len(pairs)):
            u.rule.decay, u.rounding.stream[0] = decays[i], i
            finite &= self.run_one(&u, i, pairs[i][0], new)
        return new, bool(finite)

    cdef bint serves(self, Py_ssize_t i, pair, Py_ssize_t kept) except -1:
        """Return whether kernels can compute the complete update of variable i."""
        gradient, variable = pair
        if variable is not self.variables[i] or variable.constraint is not None or variable._overwrite:
            return False
        if len(self.slots[i]) != kept or format_of(gradient) < 0 or cnp.PyArray_SIZE(gradient) == 0:
            return False
        cdef int fmt = format_of(variable._state[0])
        for each in (variable, *self.slots[i]) if self.rests[i] is None else (variable, *self.slots[i], self.rests[i]):
            array = each._state[0]
            if fmt < 0 or format_of(array) != fmt or not cnp.PyArray_SAMESHAPE(array, gradient):
                return False
        return fmt != MP_F32 or format_of(gradient) == MP_F32

    cdef bint run_one(self, mp_stored_update *u, Py_ssize_t i, cnp.ndarray gradient, list new) except -1:
        """Update variable i, and append its new slots, its new compensation and its new value to `new`."""
        cdef cnp.ndarray w = self.variables[i]._state[0]
        cdef list outs = [block(own, self.variables[i].shape, w.dtype) for own in self.blocks[i]]
        rest = self.rests[i]
        set_arrays(u, w, gradient, [each._state[0] for each in self.slots[i]], None if rest is None else rest._state[0],
                   outs)
        new += outs
        return run_update(u, cnp.PyArray_SIZE(gradient))


cpdef block(list blocks, shape, dtype):
    """Return an array to write to: one of `blocks` without other references, or a new one, which is added.

    All arrays of `blocks` have this shape and dtype. A view refers to its array, so an array that a variable or other
    code still reads is never returned. The list keeps at most two arrays.
    """
    cdef PyObject *x
    for i in range(len(blocks) if COUNTED else 0):
        x = <PyObject *>blocks[i]
        if Py_REFCNT(x) == 1:
            return blocks[i]
    if len(blocks) > 1:
        del blocks[0]
    new = np.empty(shape, dtype)
    if COUNTED:
        blocks.append(new)
    return new
