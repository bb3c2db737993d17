"""The fast path of products: operands, result and epilogue as kernels take them.

:func:`multiply` serves packed matrices, and arrays of any strides whose types multiply without a cast. For all else it
returns None. Then the general path (general.py) turns the operands into such ones and comes back by
:func:`multiply_normal`. All products from Python pass here but those of float64 (NumPy's), attention and pooling.
"""

import sys

from cpython.ref cimport PyObject
cimport numpy as cnp
from libc.stdint cimport INT32_MAX, int32_t
from libc.string cimport memset

from mp_core.core.arrays cimport apart
from mp_core.core.header cimport (
    MP_BF16, MP_F32, MP_FLOATS, MP_I8, MP_I32, MP_LINEAR, mp_activation, mp_activation_names, mp_format,
)
from mp_core.core.library cimport MP_A_U8, mp_axis, mp_left, mp_lines, mp_product, mp_right
from mp_core.core.run cimport run_product
from mp_core.formats cimport Formats, format_named, format_of, formats
from mp_core.products.panels cimport Panels

cnp.import_array()

ACTIVATIONS = {None: MP_LINEAR}  # and the rows of kernels/activations.def
while mp_activation_names[len(ACTIVATIONS) - 1] != NULL:
    ACTIVATIONS[sys.intern(mp_activation_names[len(ACTIVATIONS) - 1].decode())] = len(ACTIVATIONS)
cdef dict _activations = ACTIVATIONS
cdef PyObject *NOTHING = <PyObject *>None
cdef const Formats *FORMATS = formats()


cdef bint describe_left(object x, Parts *parts) except -1:
    """Describe the left operand; False unless it is an ndarray in native byte order of a type that kernels read."""
    cdef mp_left *a = &parts.product.a
    cdef cnp.ndarray array
    cdef cnp.npy_intp *dims
    cdef cnp.npy_intp *strides
    cdef int axes
    if type(x) is not cnp.ndarray:
        return False
    array = x
    dims, strides, axes = cnp.PyArray_DIMS(array), cnp.PyArray_STRIDES(array), cnp.PyArray_NDIM(array) - 2
    a.format = format_of(FORMATS, array)
    if not 0 <= a.format <= MP_A_U8 or axes < -1 or not cnp.PyArray_ISNOTSWAPPED(array):
        return False
    a.data, a.size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
    parts.a.vector, parts.a.axes, parts.a.lengths, parts.a.strides = axes < 0, max(axes, 0), dims, strides
    parts.product.m, parts.product.k = dims[axes] if axes >= 0 else 1, dims[axes + 1]
    if cnp.PyArray_IS_C_CONTIGUOUS(array):
        a.rs, a.cs = parts.product.k * a.size, a.size
    else:
        a.rs, a.cs = strides[axes] if axes >= 0 else parts.product.k * a.size, strides[axes + 1]
    return True


cdef bint describe_right(object x, Parts *parts) except -1:
    """Describe the right operand; False unless it is such an array, or Panels, whose k is that of the left operand."""
    cdef mp_right *b = &parts.product.b
    cdef cnp.ndarray array
    cdef Panels panels
    cdef cnp.npy_intp *dims
    cdef cnp.npy_intp *strides
    cdef int axes
    if type(x) is cnp.ndarray:
        array = x
        dims, strides, axes = cnp.PyArray_DIMS(array), cnp.PyArray_STRIDES(array), cnp.PyArray_NDIM(array) - 2
        b.format = format_of(FORMATS, array)
        if not 0 <= b.format <= MP_I8 or axes < -1 or not cnp.PyArray_ISNOTSWAPPED(array):
            return False
        b.data = cnp.PyArray_BYTES(array)
        parts.b.vector, parts.b.axes, parts.b.lengths, parts.b.strides = axes < 0, max(axes, 0), dims, strides
        axes = max(axes, 0)
        b.rs, b.cs = strides[axes], cnp.PyArray_ITEMSIZE(array) if parts.b.vector else strides[axes + 1]
        parts.product.n = 1 if parts.b.vector else dims[axes + 1]
        return dims[axes] == parts.product.k
    if not isinstance(x, Panels):
        return False
    panels = x
    b.data, b.format = cnp.PyArray_BYTES(panels.data), panels.format
    b.packed, b.matrix_bytes, b.group = True, panels.matrix_bytes, panels.group
    b.sums, b.zero_point = <const int32_t *>pointer(panels.column_sums), <const int32_t *>pointer(panels.zero_point)
    if not panels.group:
        b.scale = <const float *>pointer(panels.scale)
    elif panels.k:
        b.group_scale = <const float *>pointer(panels.scale)
    parts.b.vector, parts.b.axes, parts.b.lengths, parts.b.strides = False, panels.axes, panels.lengths, panels.strides
    parts.product.n = panels.n
    return panels.k == parts.product.k


cdef inline const void *pointer(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


cdef Py_ssize_t deepest(bint unsigned_a, bint shifted_b) noexcept:
    """The largest k for which every sum of products fits in int32."""
    return <Py_ssize_t>INT32_MAX // ((255 if unsigned_a else 128) * (255 if shifted_b else 128))


cdef int result_format(const Call *call, const mp_product *p) except -2:
    """The format of the result; -1 if types need a cast, scales cannot be applied, or sums may exceed int32."""
    cdef int found = FORMATS.products[p.a.format][p.b.format]
    cdef bint codes = call.left == OF_CODES, integers = call.left != NO_SCALES or p.a.format >= MP_FLOATS
    cdef bint unsigned = p.a.format == MP_A_U8 or (codes and call.zeros != NOTHING)
    cdef bint scaled = p.b.scale != NULL or p.b.group != 0, shifted = p.b.zero_point != NULL
    if (found < 0 or (call.left == NO_SCALES and (shifted or (scaled and p.a.format > MP_BF16)))
            or (codes and (p.a.format < MP_FLOATS or p.b.group))
            or (call.left == TO_CODES and p.a.format >= MP_FLOATS)
            or (integers and p.k > deepest(unsigned, shifted))):
        return -1
    if call.out_dtype != NOTHING:
        found = format_named(<object>call.out_dtype)
    if found == MP_I32:
        return found if p.a.format >= MP_FLOATS else -1
    return found if found < MP_FLOATS else -1


cdef bint set_batch(Parts *p) noexcept:
    """Broadcast the batch axes, and set the shape of the result; False if they do not broadcast."""
    cdef int axis, mine, axes = max(p.a.axes, p.b.axes)
    cdef mp_axis *to
    p.product.batch_axes, p.product.batch = axes, p.batch
    for axis in range(axes):
        to = &p.batch[axis]
        to.length, to.a, to.b = 1, 0, 0
        mine = axis - (axes - p.a.axes)
        if mine >= 0 and p.a.lengths[mine] != 1:
            to.length, to.a = p.a.lengths[mine], p.a.strides[mine]
        mine = axis - (axes - p.b.axes)
        if mine >= 0 and p.b.lengths[mine] != 1:
            if to.length != 1 and to.length != p.b.lengths[mine]:
                return False
            to.length, to.b = p.b.lengths[mine], p.b.strides[mine]
        p.shape[axis] = to.length
    if not p.a.vector:
        p.shape[axes] = p.product.m
        axes += 1
    if not p.b.vector:
        p.shape[axes] = p.product.n
        axes += 1
    p.ndim = axes
    return True


cdef cnp.ndarray result_array(const Call *call, Parts *p, int fmt):
    """Return the array of the result, described: a new one, or `out`. None if kernels cannot write `out`, or if it
    shares memory with the operands."""
    cdef cnp.ndarray result
    cdef mp_lines *out = &p.product.out
    cdef int axis, axes = p.product.batch_axes
    cdef cnp.npy_intp *strides
    if call.out == NOTHING:
        result = cnp.PyArray_EMPTY(p.ndim, p.shape, FORMATS.types[fmt], 0)
    elif type(<object>call.out) is not cnp.ndarray:
        return None
    else:
        result = <cnp.ndarray>call.out
        if (cnp.PyArray_TYPE(result) != FORMATS.types[fmt] or not cnp.PyArray_ISBEHAVED(result)
                or cnp.PyArray_NDIM(result) != p.ndim
                or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(result), p.shape, p.ndim)
                or not apart(result, <cnp.ndarray>call.a)):
            return None
        if not p.product.b.packed:
            if not apart(result, <cnp.ndarray>call.b):
                return None
        elif not (apart_or_none(result, (<Panels>call.b).scale) and apart_or_none(result, (<Panels>call.b).zero_point)):
            return None
    strides = cnp.PyArray_STRIDES(result)
    out.data, out.size = cnp.PyArray_BYTES(result), cnp.PyArray_ITEMSIZE(result)
    out.rs = p.product.n * out.size if p.a.vector or p.product.m == 1 else strides[axes]
    p.product.common.epilogue.out_format = <mp_format>fmt
    if not cnp.PyArray_IS_C_CONTIGUOUS(result):
        for axis in range(p.ndim):
            if strides[axis] % out.size:
                return None
        if not p.b.vector and p.product.n > 1 and strides[p.ndim - 1] != out.size:
            return None
    for axis in range(axes):
        p.batch[axis].out, p.batch[axis].residual = strides[axis], 0
    return result


cdef inline bint apart_or_none(cnp.ndarray result, cnp.ndarray x) noexcept:
    return x is None or apart(result, x)


cdef bint set_epilogue(const Call *call, Parts *p, cnp.ndarray result) except -1:
    """Describe the epilogue; False if its arrays must first be cast or made contiguous."""
    cdef cnp.ndarray array
    cdef mp_lines *residual = &p.product.residual
    cdef bint given = call.out != NOTHING
    cdef int axis, fmt
    if call.bias == NOTHING and call.activation == NOTHING and call.residual == NOTHING:
        return True
    if p.product.common.epilogue.out_format == MP_I32:
        return False
    if call.activation != NOTHING:
        number = _activations.get(<object>call.activation) if type(<object>call.activation) is str else None
        if number is None:
            return False
        p.product.common.epilogue.activation = <mp_activation>number
    if call.bias != NOTHING:
        if type(<object>call.bias) is not cnp.ndarray:
            return False
        array = <cnp.ndarray>call.bias
        if (format_of(FORMATS, array) != MP_F32 or not cnp.PyArray_ISCARRAY_RO(array) or cnp.PyArray_NDIM(array) != 1
                or cnp.PyArray_DIM(array, 0) != p.product.n or (given and not apart(result, array))):
            return False
        p.product.bias = <const float *>cnp.PyArray_DATA(array)
    if call.residual != NOTHING:
        if type(<object>call.residual) is not cnp.ndarray:
            return False
        array = <cnp.ndarray>call.residual
        fmt = format_of(FORMATS, array)
        if (not 0 <= fmt < MP_FLOATS or not cnp.PyArray_ISCARRAY_RO(array)
                or not cnp.PyArray_SAMESHAPE(array, result) or (given and not apart(result, array))):
            return False
        residual.data, residual.size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
        residual.rs, p.product.common.epilogue.residual_format = p.product.n * residual.size, <mp_format>fmt
        for axis in range(p.product.batch_axes):
            p.batch[axis].residual = cnp.PyArray_STRIDE(array, axis)
    return True


cdef bint set_left_scales(const Call *call, Parts *p, cnp.ndarray result) except -1:
    """Describe the scales of the left operand; False if their number is wrong, if `out` shares memory with them, or if
    an operand that becomes codes is not contiguous."""
    cdef cnp.ndarray scale, zeros = None
    cdef mp_left *a = &p.product.a
    cdef Py_ssize_t rows = p.product.m
    cdef int axis
    if call.zeros != NOTHING:
        zeros = <cnp.ndarray>call.zeros
    if call.left == TO_CODES:
        a.quantized_here = True
        if zeros is not None:
            a.scales, a.zeros = <const float *>pointer(<cnp.ndarray>call.scale), <const int32_t *>pointer(zeros)
        elif call.scale != NOTHING:
            p.scale = <object>call.scale
            a.row_scale = &p.scale
        return cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>call.a)
    scale = <cnp.ndarray>call.scale
    for axis in range(p.product.batch_axes):
        rows *= p.shape[axis]
    p.product.common.epilogue.row_stride = cnp.PyArray_SIZE(scale) != 1
    a.row_scale, a.row_zero = <const float *>pointer(scale), <const int32_t *>pointer(zeros)
    if p.product.common.epilogue.row_stride and cnp.PyArray_SIZE(scale) != rows:
        return False
    return call.out == NOTHING or (apart(result, scale) and apart_or_none(result, zeros))


cdef object multiply(const Call *call):
    """Return ``activation((a @ b) * scales + bias) + residual``, or None if only the general path can."""
    cdef Parts p
    cdef cnp.ndarray result
    cdef Py_ssize_t matrices = 1
    cdef int axis, fmt
    memset(&p.product, 0, sizeof(mp_product))
    if not describe_left(<object>call.a, &p) or not describe_right(<object>call.b, &p):
        return None
    fmt = result_format(call, &p.product)
    if fmt < 0 or not set_batch(&p):
        return None
    result = result_array(call, &p, fmt)
    if (result is None or not set_epilogue(call, &p, result)
            or (call.left != NO_SCALES and not set_left_scales(call, &p, result))):
        return None
    for axis in range(p.product.batch_axes):
        matrices *= p.shape[axis]
    if (p.product.batch_axes and p.b.axes == 0 and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>call.a)
            and cnp.PyArray_IS_C_CONTIGUOUS(result)):  # all rows are one matrix
        p.product.m, p.product.out.rs = matrices * p.product.m, p.product.n * p.product.out.size
        p.product.batch_axes, matrices = 0, 1
    run_product(&p.product, matrices, result)
    return result


def multiply_normal(a, b, out_dtype, out, tuple epilogue not None, tuple rows not None):
    """Call :func:`multiply` from Python: return the product, or None if kernels cannot write to `out`.

    `a` and `b` are of types that multiply; `out_dtype` is a type that kernels write. `epilogue` is (bias, activation,
    residual): each None or contiguous, bias float32 (n,). `rows` is (scale, zero_point) of the codes in `a`, contiguous
    float32 and int32, one for all rows or one for each; (None, None) if `a` holds no codes.
    """
    cdef Call call
    bias, activation, residual = epilogue
    scale, zeros = rows
    call.a, call.b, call.out_dtype, call.out = <PyObject *>a, <PyObject *>b, <PyObject *>out_dtype, <PyObject *>out
    call.bias, call.activation = <PyObject *>bias, <PyObject *>activation
    call.residual, call.scale, call.zeros = <PyObject *>residual, <PyObject *>scale, <PyObject *>zeros
    call.left = NO_SCALES if scale is None else OF_CODES
    return multiply(&call)


def most_exact(bint unsigned_a, bint shifted_b):
    """Return :func:`deepest`: the general path calls it from Python."""
    return deepest(unsigned_a, shifted_b)
