# What compiled entry points test of their arrays and types before anything else.
cimport numpy as cnp


cdef inline bint may_be_key(object dtype) noexcept:
    """Whether it is a str, a dtype or a class: a dict of types can be asked for these without running Python code."""
    return type(dtype) is str or isinstance(dtype, cnp.dtype) or type(dtype) is type


cdef inline void span(cnp.ndarray x, char **low, char **high) noexcept:
    """The range of bytes in which all elements of x lie."""
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
    """Whether the ranges that x and y span share no byte."""
    cdef char *low
    cdef char *high
    cdef char *other_low
    cdef char *other_high
    span(x, &low, &high)
    span(y, &other_low, &other_high)
    return high <= other_low or other_high <= low
