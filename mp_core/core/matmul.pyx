"""Matrix products for Python: what the operands are, the short way for most calls, and the long way's last step."""

from importlib import import_module

cimport numpy as cnp
from libc.stdint cimport int32_t
from libc.string cimport memcpy, memset

from mp_core.core.arrays cimport apart, may_be_key
from mp_core.core.header cimport (
    MP_BF16, MP_F32, MP_FLOATS, MP_GELU, MP_GELU_TANH, MP_I4, MP_I8, MP_I32, MP_LINEAR, MP_PANEL_FORMATS, MP_RELU,
    MP_RELU6, MP_SIGMOID, MP_SILU, MP_TANH, mp_activation, mp_format,
)
from mp_core.core.packed cimport PackedMatrix
from mp_core.core.plan cimport A_U8
from mp_core.core.run cimport Axis, Product, multiply

import numpy as np

from mp_core.core.packed import FORMATS

cnp.import_array()

OUT_FORMATS = {name: number for name, number in FORMATS.items() if number < MP_FLOATS} | {"int32": MP_I32}
ACTIVATIONS = {
    None: MP_LINEAR, "relu": MP_RELU, "gelu": MP_GELU, "silu": MP_SILU, "relu6": MP_RELU6, "gelu_tanh": MP_GELU_TANH,
    "sigmoid": MP_SIGMOID, "tanh": MP_TANH,
}


cdef void set_packed(Product *p, PackedMatrix packed) noexcept:
    p.b.packed, p.b.format, p.k, p.n = True, packed.format, packed.k, packed.n
    p.b.data, p.b.matrix_bytes = cnp.PyArray_BYTES(packed.data), packed.matrix_bytes
    p.b.sums = <const int32_t *>pointer(packed.column_sums)
    p.b.zero_point = <const int32_t *>pointer(packed.zero_point)
    p.b.group = packed.group
    if not packed.group:
        p.b.scale = <const float *>pointer(packed.scale)
    elif packed.k:
        p.b.group_scale = <const float *>pointer(packed.scale)


cdef const void *pointer(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


def product(cnp.ndarray a not None, b, cnp.ndarray out not None, cnp.ndarray bias, activation,
            cnp.ndarray residual, cnp.ndarray row_scale, cnp.ndarray row_zero):
    """out = narrow(activation((a @ b) * scales + bias) + residual); the arguments are checked by mp_core.ops.

    `a` (..., m, k), `b` (..., k, n), `out` and `residual` (..., m, n) have equal batch axes (zero strides where
    broadcast; a PackedMatrix has its own batch shape, broadcast here). `out` has unit stride along n, is of a type of
    :data:`OUT_FORMATS` and overlaps nothing that is read; `residual` has unit stride too. `row_scale` float32 and
    `row_zero` int32 have one element, or one for each row of each matrix, contiguous; `bias` is float32 (n,).
    """
    cdef Product p
    cdef Axis batch[64]
    cdef int ndim = cnp.PyArray_NDIM(a), axis, lead
    cdef Py_ssize_t matrices = 1, step = 1
    cdef PackedMatrix packed = None
    cdef cnp.ndarray b_array
    memset(&p, 0, sizeof(p))
    if isinstance(b, PackedMatrix):
        packed = b
        set_packed(&p, packed)
    else:
        b_array = b
        p.b.data, p.b.format = cnp.PyArray_BYTES(b_array), known_format(b_array)
        p.k, p.n = cnp.PyArray_DIM(b_array, ndim - 2), cnp.PyArray_DIM(b_array, ndim - 1)
        p.b.rs, p.b.cs = cnp.PyArray_STRIDE(b_array, ndim - 2), cnp.PyArray_STRIDE(b_array, ndim - 1)
    p.a.format = known_format(a)
    p.m, p.a.data, p.a.size = cnp.PyArray_DIM(a, ndim - 2), cnp.PyArray_BYTES(a), cnp.PyArray_ITEMSIZE(a)
    p.a.rs, p.a.cs = cnp.PyArray_STRIDE(a, ndim - 2), cnp.PyArray_STRIDE(a, ndim - 1)
    p.out.data, p.out.size = cnp.PyArray_BYTES(out), cnp.PyArray_ITEMSIZE(out)
    p.out.rs = cnp.PyArray_STRIDE(out, ndim - 2)
    p.common.epilogue.out_format = MP_I32 if cnp.PyArray_TYPE(out) == _int32 else <mp_format>known_format(out)
    p.common.epilogue.activation = <mp_activation>ACTIVATIONS[activation]
    p.bias = <const float *>pointer(bias)
    if residual is not None:
        p.residual.data, p.residual.size = cnp.PyArray_BYTES(residual), cnp.PyArray_ITEMSIZE(residual)
        p.residual.rs = cnp.PyArray_STRIDE(residual, ndim - 2)
        p.common.epilogue.residual_format = <mp_format>known_format(residual)
    p.a.row_scale, p.a.row_zero = <const float *>pointer(row_scale), <const int32_t *>pointer(row_zero)
    if row_scale is not None:
        p.common.epilogue.row_stride = cnp.PyArray_SIZE(row_scale) != 1
    p.batch_axes, p.batch = ndim - 2, batch
    for axis in range(ndim - 3, -1, -1):
        batch[axis].length = cnp.PyArray_DIM(out, axis)
        batch[axis].a, batch[axis].out = cnp.PyArray_STRIDE(a, axis), cnp.PyArray_STRIDE(out, axis)
        batch[axis].residual = 0 if residual is None else cnp.PyArray_STRIDE(residual, axis)
        matrices *= batch[axis].length
        batch[axis].b = 0
        if packed is None:
            batch[axis].b = cnp.PyArray_STRIDE(b_array, axis)
        else:
            lead = axis - (ndim - <int>len(packed.shape))
            if lead >= 0 and packed.shape[lead] != 1:
                batch[axis].b = step
                step *= <Py_ssize_t>packed.shape[lead]
    multiply(&p, matrices)


# ---- the short way of mp_core.matmul: what it knows of types, and the long way for everything that it does not serve

cdef int _types[MP_PANEL_FORMATS]                    # format -> NumPy's type number; A_U8 stands for uint8
for _format in range(MP_PANEL_FORMATS):
    _types[_format] = -1  # until install
cdef int _results[MP_PANEL_FORMATS][MP_FLOATS + 1]   # formats of a and b (int8 last) -> format of the result, or -1
cdef dict _out_formats = {}                          # dtype, its name or its scalar type -> format
cdef dict _activations = ACTIVATIONS
cdef int _int32


def _first_way(*operands):
    """Import what installs the general path, which is above this module, and take it."""
    import_module("mp_core.ops")
    return _long_way(*operands)


def _first_dynamic(*operands):
    """As :func:`_first_way`, of products that quantize their left operand."""
    import_module("mp_core.ops")
    return _long_dynamic(*operands)


cdef object _long_way = _first_way, _long_dynamic = _first_dynamic
cdef Py_ssize_t MOST_EXACT = (2**31 - 1) // (255 * 128)  # k, of uint8 by int8 as of int8 by int8


def install(dict dtypes not None, results, long_way, long_dynamic):
    """Tell the dtypes by name, the default result types by names of a and b, the functions for all other cases."""
    global _long_way, _long_dynamic, _int32
    _long_way, _long_dynamic, _int32 = long_way, long_dynamic, dtypes["int32"].num
    formats = {name: number for name, number in FORMATS.items() if number != MP_I4} | {"uint8": A_U8}
    for name, number in formats.items():
        _types[<int>number] = dtypes[name].num
        for other in range(MP_FLOATS + 1):
            _results[<int>number][<int>other] = -1
    for (a, b), result in results.items():
        _results[<int>formats[a]][<int>formats[b]] = OUT_FORMATS[result]
    for name, number in OUT_FORMATS.items():
        _out_formats[name] = _out_formats[dtypes[name]] = _out_formats[dtypes[name].type] = number


cdef inline int type_format(cnp.ndarray x) noexcept:
    """The format of an operand's type, -1 if it has none."""
    cdef int fmt, number = cnp.PyArray_TYPE(x)
    for fmt in range(<int>MP_PANEL_FORMATS):
        if _types[fmt] == number:
            return fmt
    return -1


cdef int known_format(cnp.ndarray x) except -1:
    """The format of an operand's type; raise if it has none: the kernels' tables are indexed by it."""
    cdef int fmt = type_format(x)
    if fmt < 0:
        raise TypeError(f"no kernel multiplies {(<object>x).dtype}")
    return fmt


cdef inline int format_of(cnp.ndarray x) noexcept:
    """The format of a plain array's elements, -1 if it has none."""
    return type_format(x) if cnp.PyArray_ISBEHAVED_RO(x) else -1


cdef bint set_result(Product *p, object out_dtype, int default) except -1:
    """Set the type of the result; False if the short way does not know it."""
    if out_dtype is None:
        p.common.epilogue.out_format = <mp_format>default
        return True
    number = _out_formats.get(out_dtype) if may_be_key(out_dtype) else None
    if number is None or (number == MP_I32 and p.a.format < MP_FLOATS):
        return False
    p.common.epilogue.out_format = <mp_format>number
    return True


cdef bint set_epilogue(Product *p, object bias, object activation, object residual, cnp.ndarray result,
                       bint given) except -1:
    """Set what is done to the sums; False if the short way does not serve it. `given`: the result is the caller's."""
    cdef cnp.ndarray array
    if activation is not None:
        number = _activations.get(activation) if type(activation) is str else None
        if number is None:
            return False
        p.common.epilogue.activation = <mp_activation>number
    if bias is not None:
        if type(bias) is not cnp.ndarray:
            return False
        array = bias
        if (format_of(array) != MP_F32 or not cnp.PyArray_ISCARRAY_RO(array) or cnp.PyArray_NDIM(array) != 1
                or cnp.PyArray_DIM(array, 0) != p.n or (given and not apart(result, array))):
            return False
        p.bias = <const float *>cnp.PyArray_DATA(array)
    if residual is not None:
        if type(residual) is not cnp.ndarray:
            return False
        array = residual
        if (not 0 <= format_of(array) < MP_FLOATS or not cnp.PyArray_ISCARRAY_RO(array)
                or not cnp.PyArray_SAMESHAPE(array, result) or (given and not apart(result, array))):
            return False
        p.residual.data, p.residual.size = cnp.PyArray_BYTES(array), cnp.PyArray_ITEMSIZE(array)
        p.residual.rs, p.common.epilogue.residual_format = p.n * p.residual.size, <mp_format>format_of(array)
    return True


cdef bint set_right(Product *p, object b, cnp.ndarray left, bint quantize, int *batch_axes) except -1:
    """Set the right operand, a matrix or as many as there are on the left; False if the short way does not serve it."""
    cdef PackedMatrix packed
    cdef cnp.ndarray right
    cdef int axis, axes, fmt, ndim = cnp.PyArray_NDIM(left)
    cdef cnp.npy_intp *dims = cnp.PyArray_DIMS(left)
    if type(b) is PackedMatrix:
        packed = b
        axes = <int>len(packed.shape) - 2
        if (packed.zero_point is not None and not quantize) or (packed.scale is not None and p.a.format > MP_BF16):
            return False
        for axis in range(axes):
            if axes != ndim - 2 or packed.shape[axis] != dims[axis]:
                return False
        set_packed(p, packed)
    elif type(b) is cnp.ndarray:
        right = b
        axes, fmt = cnp.PyArray_NDIM(right) - 2, format_of(right)
        if fmt < 0 or fmt > MP_I8 or axes < 0:
            return False
        if axes and (axes != ndim - 2 or not cnp.PyArray_CompareLists(dims, cnp.PyArray_DIMS(right), axes)):
            return False
        p.b.data, p.b.format = cnp.PyArray_BYTES(right), fmt
        p.k, p.n = cnp.PyArray_DIM(right, axes), cnp.PyArray_DIM(right, axes + 1)
        p.b.rs, p.b.cs = cnp.PyArray_STRIDE(right, axes), cnp.PyArray_STRIDE(right, axes + 1)
    else:
        return False
    batch_axes[0] = axes
    return True


cdef cnp.ndarray result_for(object out, int ndim, cnp.npy_intp *shape, int type_number, cnp.ndarray left, object b):
    """Return a new array, or `out` if it is one like that, apart from the operands; None if it is not."""
    cdef cnp.ndarray result
    if out is None:
        return cnp.PyArray_EMPTY(ndim, shape, type_number, 0)
    if type(out) is not cnp.ndarray:
        return None
    result = out
    if (cnp.PyArray_TYPE(result) != type_number or not cnp.PyArray_ISCARRAY(result) or cnp.PyArray_NDIM(result) != ndim
            or not cnp.PyArray_CompareLists(cnp.PyArray_DIMS(result), shape, ndim) or not apart(result, left)):
        return None
    operand = b if type(b) is cnp.ndarray else (<PackedMatrix>b).scale
    return result if operand is None or apart(result, operand) else None


cdef Py_ssize_t set_batch(Product *p, cnp.ndarray left, object b, cnp.ndarray result, object residual,
                          int axes) except -1:
    """Set the bytes between matrices, which p.batch has room for; return how many matrices there are."""
    cdef Py_ssize_t matrices = 1
    cdef int axis
    p.batch_axes = axes
    for axis in range(axes - 1, -1, -1):
        p.batch[axis].length = cnp.PyArray_DIM(left, axis)
        p.batch[axis].a, p.batch[axis].out = cnp.PyArray_STRIDE(left, axis), cnp.PyArray_STRIDE(result, axis)
        p.batch[axis].b = cnp.PyArray_STRIDE(<cnp.ndarray>b, axis) if type(b) is cnp.ndarray else matrices
        p.batch[axis].residual = 0 if residual is None else cnp.PyArray_STRIDE(<cnp.ndarray>residual, axis)
        matrices *= cnp.PyArray_DIM(left, axis)
    return matrices


cdef object short_way(a, b, out_dtype, out, bias, activation, residual, bint quantize, scale, zeros):
    """A contiguous array by a matrix, or arrays of as many matrices, of types that need no cast. None for all other
    products."""
    cdef Product p
    cdef Axis batch[64]
    cdef cnp.npy_intp shape[64]
    cdef cnp.npy_intp *dims
    cdef cnp.ndarray left, result
    cdef Py_ssize_t matrices = 1
    cdef float given
    cdef int ndim, axis, fmt, batch_axes = 0
    if type(a) is not cnp.ndarray:
        return None
    left = a
    ndim, dims = cnp.PyArray_NDIM(left), cnp.PyArray_DIMS(left)
    memset(&p, 0, sizeof(p))
    p.a.format, p.a.quantized_here = format_of(left), quantize
    if p.a.format < 0 or (quantize and p.a.format >= MP_FLOATS) or ndim == 0:
        return None
    if zeros is not None:
        p.a.scales, p.a.zeros = <const float *>pointer(scale), <const int32_t *>pointer(zeros)
    elif scale is not None:
        given = scale
        p.a.row_scale = &given
    if not set_right(&p, b, left, quantize, &batch_axes):
        return None
    fmt = p.b.format if p.b.format != MP_I4 else MP_I8
    if (fmt > MP_I8 or _results[p.a.format][fmt] < 0 or dims[ndim - 1] != p.k
            or (batch_axes == 0 and not cnp.PyArray_IS_C_CONTIGUOUS(left))
            or not set_result(&p, out_dtype, _results[p.a.format][fmt])):
        return None
    if quantize or p.a.format >= MP_FLOATS:  # integers: the other way knows how deep a product may be
        if p.k > MOST_EXACT or (not quantize and not (bias is None and activation is None and residual is None)):
            return None

    memcpy(shape, dims, (ndim - 1) * sizeof(cnp.npy_intp))
    shape[ndim - 1] = p.n
    fmt = _int32 if <int>p.common.epilogue.out_format == MP_I32 else _types[<int>p.common.epilogue.out_format]
    result = result_for(out, ndim, shape, fmt, left, b)
    if result is None or not set_epilogue(&p, bias, activation, residual, result, out is not None):
        return None

    p.a.data, p.a.size = cnp.PyArray_BYTES(left), cnp.PyArray_ITEMSIZE(left)
    p.out.data, p.out.size = cnp.PyArray_BYTES(result), cnp.PyArray_ITEMSIZE(result)
    p.out.rs = p.n * p.out.size
    if batch_axes == 0:  # all rows are one matrix
        p.m, p.a.cs, p.a.rs = 1, p.a.size, p.k * p.a.size
        for axis in range(ndim - 1):
            p.m *= shape[axis]
    else:
        p.m, p.batch = shape[ndim - 2], batch
        p.a.rs, p.a.cs = cnp.PyArray_STRIDE(left, ndim - 2), cnp.PyArray_STRIDE(left, ndim - 1)
        matrices = set_batch(&p, left, b, result, residual, batch_axes)
    multiply(&p, matrices)
    return result


def matmul(a, b, *, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(a @ b + bias) + residual``, accumulated in float32 (integers: exactly) and rounded once.

    Parameters
    ----------
    a : array-like, QuantizedArray or PackedMatrix
        Shape (..., m, k) or (k,). A packed one is unpacked at every call.
    b : array-like, PackedMatrix or QuantizedArray
        Shape (..., k, n) or (k,). Leading axes broadcast as in :func:`numpy.matmul`.
    out_dtype : dtype, optional
        Type of the result: a float type, or int32 for 8-bit integers (quantized operands: where all scales are 1).
        Default: the promoted type of the operands (bfloat16 @ bfloat16 gives bfloat16; beside float8 and int8 on the
        right, that of `a`), int32 for int8, float32 for two quantized operands.
    out : ndarray, optional
        Where to put the result, of the right shape and of type `out_dtype`. It may overlap an operand.
    bias : array-like, optional
        Shape (n,), float; added in float32.
    activation : str, optional
        "relu", "relu6", "gelu" (the exact one, by erf), "gelu_tanh", "silu", "sigmoid" or "tanh", applied in float32.
    residual : array-like, optional
        The result's shape, float; added in float32 after the activation.

    Returns
    -------
    ndarray
        The same bits for every instruction set, thread count, batch size, packing and stride.

    Raises
    ------
    TypeError
        The operands' types have no product: floats have, with int8 on the right too, int8 and uint8 with each other (a
        uint8 `b` is a matrix). Or `out_dtype` is int32 where scales or an epilogue make floats.
    ValueError
        The shapes do not fit, `activation` is unknown, or an integer product is too deep to be exact (the numerics page
        has the limits: int8 k <= 131071, less with uint8 and zero points).

    Notes
    -----
    Operands of different float types meet in their common type (float16 with bfloat16: float32) and are widened where
    they are multiplied; float8 and int8 on the right of a wider float are too. Two quantized operands, `a` with one
    scale or one per row, `b` with one or one per column, multiply as integers, zero points included, and are rescaled:
    ``float(sum) * row_scale * col_scale``. A quantized `b` beside a float32, float16 or bfloat16 `a` is multiplied as
    it is, ``(a @ values) * scale``, if it has no zero points, its codes are not uint8, and its scales are one, one per
    column, or one per column and group of k, a group being a multiple of 8. Any other quantized operand is dequantized
    first: beside float64 to float64, else to float32. The matrices of a `b` of more axes are multiplied one by one.
    The default type is that of a float operand of more than 8 bits, else float32.
    The numerics page states the order of operations and proves an error bound, at most ``gamma_k |A| |B|``.

    Examples
    --------
    >>> a = np.array([[1, 2], [3, 4]], np.float16)
    >>> matmul(a, a)
    array([[ 7., 10.],
           [15., 22.]], dtype=float16)
    """
    result = short_way(a, b, out_dtype, out, bias, activation, residual, False, None, None)
    return _long_way(a, b, out_dtype, out, bias, activation, residual) if result is None else result


def dynamic_matmul(a, b, *, scale=None, out_dtype=None, out=None, bias=None, activation=None, residual=None):
    """Return ``activation(q(a) @ b + bias) + residual`` for quantized weights, `a` quantized to int8 on the way.

    What ``matmul(quantize(a, axis=every axis but the last), b)`` gives, bit for bit, without an array in between.

    Parameters
    ----------
    a : array-like
        Shape (..., m, k) or (k,), float; integers become float32.
    b : PackedMatrix
        Shape (k, n), int8, packed from a :class:`QuantizedArray`.
    scale : float, optional
        What one step of `a` stands for. None: each row has its own, ``max|a| / 127``.
    out_dtype, out, bias, activation, residual
        As in :func:`matmul`; `out_dtype` is by default the type of `a`.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `a` is not numeric, `b` no packed int8 matrix with scales, or `scale` no number.
    ValueError
        The shapes do not fit, or `scale` is not positive and finite.

    Examples
    --------
    >>> from mp_core import pack, quantize
    >>> w = pack(quantize(np.array([[1.0, 0.5], [0.25, 1.0]]), axis=1))
    >>> dynamic_matmul(np.array([[1.0, 2.0]], np.float32), w).round(1)
    array([[1.5, 2.5]], dtype=float32)
    """
    if (not isinstance(b, PackedMatrix) or (<PackedMatrix>b).format != MP_I8 or (<PackedMatrix>b).scale is None
            or (<PackedMatrix>b).group or len((<PackedMatrix>b).shape) != 2):
        found = b if isinstance(b, PackedMatrix) else type(b).__name__
        raise TypeError(f"`b` must be a PackedMatrix of int8 with scales by column; received {found}")
    if scale is not None:
        try:
            step = <float>scale
        except OverflowError:
            step = float("inf")
        except TypeError:
            raise TypeError(f"`scale` must be a number; received {scale!r}") from None
        if not 0 < step < float("inf"):
            raise ValueError(f"`scale` must be positive and finite in float32; received {scale}")
        scale = step
    result = short_way(a, b, out_dtype, out, bias, activation, residual, True, scale, None)
    if result is None:
        result = _long_dynamic(a, b, scale, None, out_dtype, out, bias, activation, residual)
    return result


cdef bint is_vector(cnp.ndarray x, int type_number, Py_ssize_t length) noexcept:
    """Whether the array, whatever a subclass says, is contiguous and of that type and length."""
    return (cnp.PyArray_TYPE(x) == type_number and cnp.PyArray_ISCARRAY_RO(x) and cnp.PyArray_NDIM(x) == 1
            and cnp.PyArray_DIM(x, 0) == length)


def fixed_matmul(a, PackedMatrix b not None, cnp.ndarray steps not None, cnp.ndarray zeros not None, *, bias=None,
                 activation=None):
    """Return ``activation(codes @ b + bias)``, ``codes = quantize(a, axis=-1, scale=steps, zero_point=zeros).values``.

    `b` is packed int8 with scales by column that has taken in the `steps`, contiguous float32 (k,), and `bias` the
    share of `zeros`, contiguous int32 (k,): what a calibrated layer keeps, and has checked. The result has a's type.

    Parameters
    ----------
    a : array-like
        Shape (..., m, k) or (k,), float; integers become float32.
    b : PackedMatrix
        Shape (k, n).
    steps, zeros : ndarray
        Shape (k,).
    bias, activation
        As in :func:`matmul`.

    Returns
    -------
    ndarray

    Raises
    ------
    TypeError
        `a` is not numeric, or `b` no packed int8 matrix with scales by column.
    ValueError
        `steps` or `zeros` is of another type or length, or not contiguous; shapes do not fit.

    Examples
    --------
    >>> from mp_core import pack, quantize
    >>> w = pack(quantize(np.array([[1.0, 0.5], [0.25, 1.0]]), axis=1))
    >>> fixed_matmul(np.ones((1, 2), np.float32), w, np.full(2, 0.5, np.float32), np.zeros(2, np.int32)).round(1)
    array([[2.5, 3. ]], dtype=float32)
    """
    if b.format != MP_I8 or b.scale is None or b.group or len(b.shape) != 2:
        raise TypeError(f"`b` must be a PackedMatrix of int8 with scales by column; received {b!r}")
    if not is_vector(steps, _types[<int>MP_F32], b.k) or not is_vector(zeros, _int32, b.k):
        raise ValueError(f"`steps` and `zeros` must be contiguous float32 and int32 of length {b.k}; received "
                         f"{steps.dtype} {np.shape(steps)} and {zeros.dtype} {np.shape(zeros)}")
    result = short_way(a, b, None, None, bias, activation, None, True, steps, zeros)
    return _long_dynamic(a, b, steps, zeros, None, None, bias, activation, None) if result is None else result
