"""The fast path of products: describe operands, result and epilogue for the kernels, and multiply.

:func:`multiply` takes packed matrices, and arrays of any strides whose types multiply without a cast. For everything
else it returns None and sets a reason. Then the general path (general.py) converts the operands and calls
:func:`multiply_normal`. The library decides what kernels accept (library/contract.h). All products from Python take
this path, except float64 (NumPy's product), attention and pooling.
"""

import sys

from cpython.ref cimport PyObject
cimport numpy as cnp
from libc.stdint cimport int8_t, int32_t
from libc.string cimport memset

from mp_core.core.arrays cimport apart
from mp_core.core.header cimport (
    MP_F32, MP_FLOATS, MP_I4, MP_I8, MP_I32, MP_LINEAR, MP_U8, mp_activation, mp_activation_names, mp_format,
)
from mp_core.core.library cimport (
    MP_ACCEPTED, MP_BAD_RESULT, MP_BAD_SCALES, MP_BAD_TYPES, MP_TOO_DEEP, mp_axis, mp_left, mp_lines,
    mp_most_exact_k, mp_product, mp_refusal_of, mp_right, mp_window_rows, mp_windows_are_lines,
)
from mp_core.core.pooling cimport describe_windows
from mp_core.core.run cimport run_product
from mp_core.arrays.formats cimport Formats, format_named, format_of, formats
from mp_core.arrays.products.panels cimport PackedMatrix

cnp.import_array()

ACTIVATIONS = {None: MP_LINEAR}  # and the rows of kernels/activations.def
while mp_activation_names[len(ACTIVATIONS) - 1] != NULL:
    ACTIVATIONS[sys.intern(mp_activation_names[len(ACTIVATIONS) - 1].decode())] = len(ACTIVATIONS)
cdef dict _activations = ACTIVATIONS
cdef PyObject *NOTHING = <PyObject *>None
cdef const Formats *FORMATS = formats()

REASONS = {
    MP_BAD_TYPES: "the types of the operands do not multiply without a cast",
    MP_BAD_SCALES: "scales or zero points cannot be applied to the sums of this product",
    MP_TOO_DEEP: "sums of products of integers may exceed int32",
    MP_BAD_RESULT: "the result cannot be of this type, or it is int32 with an epilogue",
    NO_ARRAY: "an operand is no ndarray of a type that kernels read, in native byte order",
    ARE_NUMBERS: "plain integers beside scaled codes multiply as floats",
    NO_FIT: "shapes do not fit",
    NO_DTYPE: "`out_dtype` is none that kernels write",
    OUT: "kernels cannot write to `out`, or it shares memory with an operand",
    EPILOGUE: "bias, activation or residual must be checked or converted",
    ROWS: "a left operand that becomes codes is not contiguous, or has other scales than rows",
}


cdef int describe_left(object x, Parts *parts) except -1:
    """Describe the left operand."""
    cdef mp_left *a = &parts.product.a
    cdef cnp.ndarray array
    cdef cnp.npy_intp *dims
    cdef cnp.npy_intp *strides
    cdef int axes
    if type(x) is not cnp.ndarray:
        return NO_ARRAY
    array = x
    dims, strides, axes = cnp.PyArray_DIMS(array), cnp.PyArray_STRIDES(array), cnp.PyArray_NDIM(array) - 2
    a.format = format_of(FORMATS, array)
    if not (0 <= a.format <= MP_I8 or a.format == MP_U8) or axes < -1 or not cnp.PyArray_ISNOTSWAPPED(array):
        return NO_ARRAY
    a.data, a.size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
    parts.a.vector, parts.a.axes, parts.a.lengths, parts.a.strides = axes < 0, max(axes, 0), dims, strides
    parts.product.m, parts.product.k = dims[axes] if axes >= 0 else 1, dims[axes + 1]
    if cnp.PyArray_IS_C_CONTIGUOUS(array):
        a.rs, a.cs = parts.product.k * a.size, a.size
    else:
        a.rs, a.cs = strides[axes] if axes >= 0 else parts.product.k * a.size, strides[axes + 1]
    return MP_ACCEPTED


cdef int describe_right(object x, Parts *parts) except -1:
    """Describe the right operand, an array or PackedMatrix; its k must equal that of the left operand."""
    cdef mp_right *b = &parts.product.b
    cdef cnp.ndarray array
    cdef PackedMatrix panels
    cdef cnp.npy_intp *dims
    cdef cnp.npy_intp *strides
    cdef int axes
    if type(x) is cnp.ndarray:
        array = x
        dims, strides, axes = cnp.PyArray_DIMS(array), cnp.PyArray_STRIDES(array), cnp.PyArray_NDIM(array) - 2
        b.format = format_of(FORMATS, array)
        if not 0 <= b.format <= MP_I8 or axes < -1 or not cnp.PyArray_ISNOTSWAPPED(array):
            return NO_ARRAY
        b.data = cnp.PyArray_BYTES(array)
        parts.b.vector, parts.b.axes, parts.b.lengths, parts.b.strides = axes < 0, max(axes, 0), dims, strides
        axes = max(axes, 0)
        b.rs, b.cs = strides[axes], cnp.PyArray_ITEMSIZE(array) if parts.b.vector else strides[axes + 1]
        parts.product.n = 1 if parts.b.vector else dims[axes + 1]
        return MP_ACCEPTED if dims[axes] == parts.product.k else NO_FIT
    if not isinstance(x, PackedMatrix):
        return NO_ARRAY
    panels = x
    b.data, b.format = cnp.PyArray_BYTES(panels.data), panels.format
    b.packed, b.matrix_bytes, b.group = True, panels.matrix_bytes, panels.group
    b.sums = <const int32_t *>pointer(panels.column_sums)
    if panels.format == MP_I4:
        b.code_zero = <const int8_t *>pointer(panels.zero_point)
    else:
        b.zero_point = <const int32_t *>pointer(panels.zero_point)
    if not panels.group:
        b.scale = <const float *>pointer(panels.scales)
    elif panels.k:
        b.group_scale, b.scale_codes = pointer(panels.scales), panels.scale_codes
    parts.b.vector, parts.b.axes, parts.b.lengths, parts.b.strides = False, panels.axes, panels.lengths, panels.strides
    parts.product.n = panels.n
    return MP_ACCEPTED if panels.k == parts.product.k else NO_FIT


cdef inline const void *pointer(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


cdef int set_result_format(const Call *call, mp_product *p) except -1:
    """Set the format of the result: that of `out_dtype`, or the default for the types of the operands."""
    cdef int found = FORMATS.products[p.a.format][p.b.format]
    if found < 0:
        return MP_BAD_TYPES
    if call.left == NO_SCALES and p.a.format >= MP_FLOATS and (p.b.scale != NULL or p.b.group):
        return ARE_NUMBERS
    if call.out_dtype != NOTHING:
        found = format_named(<object>call.out_dtype)
    if not (0 <= found < MP_FLOATS or found == MP_I32):
        return NO_DTYPE
    p.common.epilogue.out_format = <mp_format>found
    return MP_ACCEPTED


cdef int set_batch(Parts *p) noexcept:
    """Broadcast the batch axes, and set the shape of the result."""
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
                return NO_FIT
            to.length, to.b = p.b.lengths[mine], p.b.strides[mine]
        p.shape[axis] = to.length
    if not p.a.vector:
        p.shape[axes] = p.product.m
        axes += 1
    if not p.b.vector:
        p.shape[axes] = p.product.n
        axes += 1
    p.ndim = axes
    return MP_ACCEPTED


cdef inline bint is_apart(cnp.ndarray out, PyObject *x) noexcept:
    """Return whether `out` shares no memory with x; True if x is not an array."""
    return x == NOTHING or not isinstance(<object>x, cnp.ndarray) or apart(out, <cnp.ndarray>x)


cdef bint shares_memory(const Call *call, cnp.ndarray out) noexcept:
    """Return whether `out` shares memory with an array that the product reads."""
    cdef PackedMatrix b
    if type(<object>call.b) is cnp.ndarray:
        if not apart(out, <cnp.ndarray>call.b):
            return True
    else:
        b = <PackedMatrix>call.b
        if not (is_apart(out, <PyObject *>b.scales) and is_apart(out, <PyObject *>b.zero_point)):
            return True
    return not (apart(out, <cnp.ndarray>call.a) and is_apart(out, call.bias) and is_apart(out, call.residual)
                and is_apart(out, call.scale) and is_apart(out, call.zeros))


cdef bint can_be_written(const Call *call, const Parts *p, cnp.ndarray out) noexcept:
    """Return whether kernels can write the result to `out`."""
    cdef Py_ssize_t size = cnp.PyArray_ITEMSIZE(out)
    cdef int axis
    if (cnp.PyArray_TYPE(out) != FORMATS.types[<int>p.product.common.epilogue.out_format]
            or not cnp.PyArray_ISBEHAVED(out) or cnp.PyArray_NDIM(out) != p.ndim
            or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(out), p.shape, p.ndim) or shares_memory(call, out)):
        return False
    if cnp.PyArray_IS_C_CONTIGUOUS(out):
        return True
    for axis in range(p.ndim):
        if cnp.PyArray_STRIDE(out, axis) % size:
            return False
    return p.b.vector or p.product.n <= 1 or cnp.PyArray_STRIDE(out, p.ndim - 1) == size


cdef cnp.ndarray result_array(const Call *call, Parts *p):
    """Return and describe the array that kernels write: `out` or a new one; None if only `out` is allowed and unfit."""
    cdef cnp.ndarray result
    cdef mp_lines *lines = &p.product.out
    cdef int axis, axes = p.product.batch_axes
    cdef cnp.npy_intp *strides
    if (call.out != NOTHING and type(<object>call.out) is cnp.ndarray
            and can_be_written(call, p, <cnp.ndarray>call.out)):
        result = <cnp.ndarray>call.out
    elif call.out == NOTHING or call.copies:
        result = cnp.PyArray_EMPTY(p.ndim, p.shape, FORMATS.types[<int>p.product.common.epilogue.out_format], 0)
    else:
        return None
    strides = cnp.PyArray_STRIDES(result)
    lines.data, lines.size = cnp.PyArray_BYTES(result), cnp.PyArray_ITEMSIZE(result)
    lines.rs = p.product.n * lines.size if p.a.vector or p.product.m == 1 else strides[axes]
    for axis in range(axes):
        p.batch[axis].out, p.batch[axis].residual = strides[axis], 0
    return result


cdef int set_epilogue(const Call *call, Parts *p, cnp.ndarray result) except -1:
    """Describe the epilogue, whose arrays must be contiguous."""
    cdef cnp.ndarray array
    cdef mp_lines *residual = &p.product.residual
    cdef int axis, fmt
    if call.bias == NOTHING and call.activation == NOTHING and call.residual == NOTHING:
        return MP_ACCEPTED
    if call.activation != NOTHING:
        number = _activations.get(<object>call.activation) if type(<object>call.activation) is str else None
        if number is None:
            return EPILOGUE
        p.product.common.epilogue.activation = <mp_activation>number
    if call.bias != NOTHING:
        if type(<object>call.bias) is not cnp.ndarray:
            return EPILOGUE
        array = <cnp.ndarray>call.bias
        if (format_of(FORMATS, array) != MP_F32 or not cnp.PyArray_ISCARRAY_RO(array) or cnp.PyArray_NDIM(array) != 1
                or cnp.PyArray_DIM(array, 0) != p.product.n):
            return EPILOGUE
        p.product.bias = <const float *>cnp.PyArray_DATA(array)
    if call.residual != NOTHING:
        if type(<object>call.residual) is not cnp.ndarray:
            return EPILOGUE
        array = <cnp.ndarray>call.residual
        fmt = format_of(FORMATS, array)
        if (not 0 <= fmt < MP_FLOATS or not cnp.PyArray_ISCARRAY_RO(array)
                or not cnp.PyArray_SAMESHAPE(array, result)):
            return EPILOGUE
        residual.data, residual.size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
        residual.rs, p.product.common.epilogue.residual_format = p.product.n * residual.size, <mp_format>fmt
        for axis in range(p.product.batch_axes):
            p.batch[axis].residual = cnp.PyArray_STRIDE(array, axis)
    return MP_ACCEPTED


cdef int set_left_scales(const Call *call, Parts *p) except -1:
    """Describe the scales of the left operand, one or one per row."""
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
        return MP_ACCEPTED
    scale = <cnp.ndarray>call.scale
    for axis in range(p.product.batch_axes):
        rows *= p.shape[axis]
    p.product.common.epilogue.row_stride = cnp.PyArray_SIZE(scale) != 1
    a.row_scale, a.row_zero = <const float *>pointer(scale), <const int32_t *>pointer(zeros)
    if p.product.common.epilogue.row_stride and cnp.PyArray_SIZE(scale) != rows:
        return ROWS
    if p.product.common.epilogue.out_format == MP_I32:  # all scales are 1 (checked before), so skip them
        a.row_scale = p.product.b.scale = NULL
    return MP_ACCEPTED


cdef int describe_operands(const Call *call, Parts *p) except -1:
    """Describe the operands, and the shape and type of the result."""
    return (describe_left(<object>call.a, p) or describe_right(<object>call.b, p)
            or set_result_format(call, &p.product) or set_batch(p))


cdef int describe_rest(const Call *call, Parts *p, cnp.ndarray result) except -1:
    """Describe the epilogue and the scales of the left operand; then ask the library whether it accepts the product."""
    if call.left == TO_CODES and not cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>call.a):
        return ROWS
    return (set_epilogue(call, p, result) or (set_left_scales(call, p) if call.left != NO_SCALES else 0)
            or mp_refusal_of(&p.product))


cdef object multiply(Call *call):
    """Return ``activation((a @ b) * scales + bias) + residual``; None, with a reason, if the fast path cannot."""
    cdef Parts p
    cdef cnp.ndarray result
    cdef Py_ssize_t matrices = 1
    cdef int axis
    memset(&p.product, 0, sizeof(mp_product))
    call.reason = describe_operands(call, &p)
    if call.reason:
        return None
    result = result_array(call, &p)
    call.reason = OUT if result is None else describe_rest(call, &p, result)
    if call.reason:
        return None
    for axis in range(p.product.batch_axes):
        matrices *= p.shape[axis]
    if (p.product.batch_axes and p.b.axes == 0 and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>call.a)
            and cnp.PyArray_IS_C_CONTIGUOUS(result)):  # multiply the rows of all matrices as one matrix
        p.product.m, p.product.out.rs = matrices * p.product.m, p.product.n * p.product.out.size
        p.product.batch_axes, matrices = 0, 1
    run_product(&p.product, matrices, result)
    return result


def multiply_normal(a, b, out_dtype, out, tuple epilogue not None, tuple rows not None):
    """Call :func:`multiply` from Python. The result is `out`, or a new array if kernels cannot write to `out`.

    The types of `a` and `b` must multiply, and kernels must write `out_dtype`. `epilogue` is (bias, activation,
    residual), each None or contiguous; bias is float32 (n,). `rows` is (scale, zero_point) of the codes in `a`:
    contiguous float32 and int32, one for all rows or one for each; (None, None) if `a` holds no codes.
    """
    cdef Call call
    bias, activation, residual = epilogue
    scale, zeros = rows
    call.a, call.b, call.out_dtype, call.out = <PyObject *>a, <PyObject *>b, <PyObject *>out_dtype, <PyObject *>out
    call.bias, call.activation = <PyObject *>bias, <PyObject *>activation
    call.residual, call.scale, call.zeros = <PyObject *>residual, <PyObject *>scale, <PyObject *>zeros
    call.left, call.copies = NO_SCALES if scale is None else OF_CODES, True
    result = multiply(&call)
    if result is None:
        raise AssertionError(f"the general path made operands that kernels refuse: {REASONS[call.reason]}; please "
                             "report this")
    return result


def multiply_windows(cnp.ndarray x not None, b, object windows, out_dtype, cnp.ndarray bias, activation,
                     tuple rows not None, bint quantizes=False):
    """Return ``activation(windows @ b + bias)``, shape (images, windows..., groups * n), for the windows of `x`.

    - `x`: shape (images, places..., channels); the channels are contiguous. The types of `x` and `b` must multiply.
    - `b`: shape (k, n) or (groups, k, n), an array or packed. Group g multiplies its part of the channels.
    - `windows`: as for :func:`mp_core.core.pooling.describe_windows`.
    - `out_dtype`, `rows`: as for :func:`multiply_normal`; `bias`: contiguous float32 (groups * n,).
    - `quantizes`: whether floats become int8 codes during the product. `rows` then are contiguous scales and zero
      points of shape (k,), or None: each window has its own scale.
    """
    cdef Call call
    cdef Parts p
    cdef mp_window_rows w
    cdef cnp.ndarray result
    cdef cnp.npy_intp shape[5]
    cdef cnp.npy_intp groups = b.shape[0] if len(b.shape) == 3 else 1, stride
    cdef Py_ssize_t images = cnp.PyArray_DIM(x, 0)
    cdef int axis, rank = cnp.PyArray_NDIM(x) - 2
    memset(&p.product, 0, sizeof(mp_product))
    describe_windows(x, windows, groups, &w)
    p.product.a.data, p.product.a.format = cnp.PyArray_BYTES(x), format_of(FORMATS, x)
    p.product.a.size = p.product.a.cs = cnp.PyArray_ITEMSIZE(x)
    if not mp_windows_are_lines(&w, images, p.product.a.size, &p.product.a.rs):
        p.product.a.windows, p.product.a.rs = &w, 0
    p.product.m = images * w.count[0] * w.count[1] * w.count[2]
    p.product.k = w.size[0] * w.size[1] * w.size[2] * w.channels
    stride = w.channels * p.product.a.size
    p.a.vector, p.a.axes, p.a.lengths, p.a.strides = False, len(b.shape) - 2, &groups, &stride
    call.out_dtype = <PyObject *>out_dtype
    call.left = TO_CODES if quantizes else NO_SCALES if rows[0] is None else OF_CODES
    call.scale, call.zeros = <PyObject *>rows[0], <PyObject *>rows[1]
    call.reason = describe_right(b, &p) or set_result_format(&call, &p.product) or set_batch(&p)
    if not call.reason:
        for axis in range(rank + 1):
            shape[axis] = w.count[2 - rank + axis] if axis else images
        shape[rank + 1] = groups * p.product.n
        result = cnp.PyArray_EMPTY(rank + 2, shape, FORMATS.types[<int>p.product.common.epilogue.out_format], 0)
        p.product.out.data, p.product.out.size = cnp.PyArray_BYTES(result), cnp.PyArray_ITEMSIZE(result)
        p.product.out.rs = groups * p.product.n * p.product.out.size
        if p.product.batch_axes:
            p.batch[0].out, p.batch[0].residual = p.product.n * p.product.out.size, 0
        if bias is not None:
            p.product.bias, p.product.bias_stride = <const float *>cnp.PyArray_DATA(bias), p.product.n
        p.product.common.epilogue.activation = <mp_activation><int>_activations[activation]
        call.reason = ((set_left_scales(&call, &p) if call.left != NO_SCALES else 0) or mp_refusal_of(&p.product))
    if call.reason:
        raise AssertionError(f"a convolution has operands that kernels refuse: {REASONS[call.reason]}; please report "
                             "this")
    run_product(&p.product, groups, result)
    return result


def most_exact_k(bint unsigned_a, bint shifted_b):
    """Return the largest k of an exact product of integers: see mp_most_exact_k in library/contract.h."""
    return mp_most_exact_k(unsigned_a, shifted_b)
