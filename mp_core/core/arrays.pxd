# Tests of arrays and types that compiled entry points do first.
cimport numpy as cnp


cdef inline bint may_be_key(object dtype) noexcept:
    """Return whether it is a str, a dtype or a class: looking these up in a dict runs no code of a user's class."""
    return type(dtype) is str or isinstance(dtype, cnp.dtype) or type(dtype) is type


cdef inline void span(cnp.ndarray x, char **low, char **high) noexcept:
    """Set [low, high) to the range of bytes that contains all elements of x."""
    cdef Py_ssize_t reach
    cdef int axis
    low[0] = high[0] = cnp.PyArray_BYTES(x)
    for axis in range(cnp.PyArray_NDIM(x)):
        reach = (cnp.PyArray_DIM(x, axis) - 1) * cnp.PyArray_STRIDE(x, axis)
        if reach < 0:
            low[0] += reach
        else:
            high[0] += reach
    high[0] += cnp.PyArray_ITEMSIZE(x)


cdef inline bint apart(cnp.ndarray x, cnp.ndarray y) noexcept:
    """Return whether the memory ranges of x and y do not overlap."""
    cdef char *low
    cdef char *high
    cdef char *other_low
    cdef char *other_high
    span(x, &low, &high)
    span(y, &other_low, &other_high)
    return high <= other_low or other_high <= low
