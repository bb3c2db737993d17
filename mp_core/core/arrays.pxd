# What the entry points ask of their arrays and types.
cimport numpy as cnp


cdef inline bint may_be_key(object dtype) noexcept:
    """Whether a table of types can be asked for it, a name, a dtype or a class, without a line of Python being run."""
    return type(dtype) is str or isinstance(dtype, cnp.dtype) or type(dtype) is type


cdef inline bint apart(cnp.ndarray out, cnp.ndarray x) noexcept:
    """Whether contiguous `out` shares no byte with the range that x spans."""
    cdef char *low = cnp.PyArray_BYTES(x)
    cdef char *high = low
    cdef Py_ssize_t reach
    cdef int axis
    for axis in range(cnp.PyArray_NDIM(x)):
        reach = (cnp.PyArray_DIM(x, axis) - 1) * cnp.PyArray_STRIDE(x, axis)
        if reach < 0:
            low += reach
        else:
            high += reach
    return (high + cnp.PyArray_ITEMSIZE(x) <= cnp.PyArray_BYTES(out)
            or cnp.PyArray_BYTES(out) + cnp.PyArray_NBYTES(out) <= low)
