"""Compiled parts of quantized arrays: their fields, and recipes for each type of codes, shape and axis."""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, uint8_t

from mp_core.core.arrays cimport apart
from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport (
    MP_CODE_E2M1, MP_CODE_E4M3FN, MP_CODE_E5M2, MP_CODE_I8, MP_CODE_U8, MP_STREAM, MP_NO_CLAMP, mp_active, mp_kernels,
    mp_listener,
)
from mp_core.core.library cimport (
    MP_ASYMMETRIC, MP_POSITIVE, MP_QUANTIZE_WORK, MP_STREAMED, MP_SYMMETRIC, mp_quantization, mp_run_quantization,
    mp_scales_from,
)
from mp_core.core.signals cimport heard, listen

cnp.import_array()

# Type of codes -> mp_code. Codes of 4 bits are computed in bytes (int4 and uint4 as int8) and packed afterwards.
KINDS = {
    "int8": MP_CODE_I8, "uint8": MP_CODE_U8, "int4": MP_CODE_I8, "uint4": MP_CODE_I8, "float8_e4m3fn": MP_CODE_E4M3FN,
    "float8_e5m2": MP_CODE_E5M2, "float4_e2m1fn": MP_CODE_E2M1,
}


cdef class QuantizedFields:
    """The fields of a :class:`mp_core.QuantizedArray` as C members, which compiled code reads without a look-up."""

    def __init__(self, cnp.ndarray values not None, cnp.ndarray scale not None, cnp.ndarray zero_point,
                 tuple axis not None, group_size, dtype, tuple shape not None):
        self.values, self.scale, self.zero_point = values, scale, zero_point
        self.axis, self.group_size, self.dtype, self.shape = axis, group_size, dtype, shape


cdef class Recipe:
    """Everything that depends only on a type of codes, a shape, and which elements share a scale; it is cached."""

    def __cinit__(self, tuple shape, codes, tuple stored, plan, bint symmetric):
        cdef mp_quantization *z = &self.prepared
        cdef int i
        self.shape, self.codes, self.dtype, self.wide = shape, codes, codes.dtype, codes.is_wide
        self.axes, self.group_size, self.scale_shape = plan.axes, plan.group_size, plan.scale_shape
        for i in range(len(shape)):
            self.lengths[i], self.sizes[i], self.scale_sizes[i] = shape[i], stored[i], plan.scale_shape[i]
        self.storage, self.with_zeros = (<cnp.dtype>codes.storage).num, not symmetric
        self.as_they_are = plan.order is None and (plan.in_pairs or not codes.packed) and not self.wide
        self.how = MP_ASYMMETRIC if not symmetric else MP_SYMMETRIC if codes.qmin else MP_POSITIVE
        self.qmin = codes.qmin if not symmetric else -codes.qmax if codes.qmin else 0
        (z.layout.outer, z.layout.outer_stride, z.layout.rows, z.layout.row_stride, z.layout.cols, z.layout.group,
         z.layout.groups, z.layout.by_column) = plan.blocks
        z.codes.kind, z.codes.nibbles = KINDS.get(codes.dtype.name, MP_CODE_I8), codes.packed
        z.codes.qmin, z.codes.qmax, z.codes.largest = codes.qmin, codes.qmax, <float>codes.qmax

    cdef QuantizedFields new(self, type kind, bint with_zeros):
        """Return a new quantized array with uninitialized arrays. Checks are not needed, since they fit the recipe."""
        cdef QuantizedFields q = kind.__new__(kind)
        cdef int ndim = <int>len(self.shape)
        q.values = cnp.PyArray_EMPTY(ndim, self.sizes, self.storage, 0)
        q.scale = cnp.PyArray_EMPTY(ndim, self.scale_sizes, cnp.NPY_FLOAT32, 0)
        if with_zeros:
            q.zero_point = cnp.PyArray_EMPTY(ndim, self.scale_sizes, cnp.NPY_INT32, 0)
        q.axis, q.group_size, q.dtype, q.shape = self.axes, self.group_size, self.dtype, self.shape
        return q

    cdef bint agrees(self, QuantizedFields q) except -1:
        """Return whether q has this shape, type of codes, axis and group size."""
        return (q.shape == self.shape and q.dtype is self.dtype and q.axis == self.axes
                and q.group_size == self.group_size)

    cdef bint holds(self, QuantizedFields q, cnp.ndarray x, bint to_write) except -1:
        """Return whether the arrays of q have the types and shapes of this recipe, and share no memory with x.

        They may have changed, since NumPy allows to change the shape and type of an array in place.
        """
        cdef int ndim = <int>len(self.shape)
        return (fits(q.values, self.storage, ndim, self.sizes, to_write)
                and fits(q.scale, cnp.NPY_FLOAT32, ndim, self.scale_sizes, to_write)
                and (q.zero_point is None or fits(q.zero_point, cnp.NPY_INT32, ndim, self.scale_sizes, to_write))
                and apart(x, q.values) and apart(x, q.scale) and (q.zero_point is None or apart(x, q.zero_point)))

    cdef int run(self, cnp.ndarray x, int fmt, QuantizedFields q, bint given, bint back) except -1:
        """Quantize x, of format fmt, into q (also its scales, unless `given`); if `back`, dequantize q into x."""
        return self.run_arrays(x, fmt, q.values, q.scale, q.zero_point, given, back, self.prepared.codes.nibbles)

    cdef int run_arrays(self, cnp.ndarray x, int fmt, cnp.ndarray values, cnp.ndarray scale, cnp.ndarray zero_point,
                        bint given, bint back, bint packed) except -1:
        cdef mp_quantization z = self.prepared
        cdef double elements
        cdef int threads, failed
        cdef mp_listener listener
        z.kernels, z.format, z.size, z.x = mp_active(), fmt, <int>cnp.PyArray_ITEMSIZE(x), cnp.PyArray_BYTES(x)
        z.q, z.scale = <uint8_t *>cnp.PyArray_BYTES(values), <float *>cnp.PyArray_DATA(scale)
        z.zero_point = NULL if zero_point is None else <int32_t *>cnp.PyArray_DATA(zero_point)
        z.codes.nibbles, z.back = packed, back
        if not given:
            z.how, z.codes.qmin = <mp_scales_from>self.how, self.qmin
        z.mode = MP_NO_CLAMP if z.how == MP_SYMMETRIC else 0
        if (cnp.PyArray_NBYTES(x) if back else cnp.PyArray_NBYTES(values)) >= MP_STREAMED:
            z.mode |= MP_STREAM
        elements = <double>cnp.PyArray_SIZE(x)
        threads = threads_for(elements, MP_QUANTIZE_WORK)
        listen(&listener)
        with nogil:
            failed = mp_run_quantization(&z, threads)
        heard(&listener)
        if failed:
            raise MemoryError("no memory for the ranges of an array that is quantized")
        return 0

    def convert(self, cnp.ndarray x not None, int fmt, cnp.ndarray values not None, QuantizedFields q not None,
                bint given, bint back, bint packed):
        """Do what :meth:`run` does, with `values` in place of q.values: transposed, or not `packed` in pairs."""
        in_order(x)
        in_order(values)
        in_order(q.scale)
        if q.zero_point is not None:
            in_order(q.zero_point)
        self.run_arrays(x, fmt, values, q.scale, q.zero_point, given, back, packed)


cdef bint fits(object a, int type_number, int ndim, const cnp.npy_intp *sizes, bint to_write) noexcept:
    """Return whether a is a C-contiguous, aligned, native ndarray of this type and shape; if `to_write`, writeable."""
    cdef cnp.ndarray array
    cdef int i
    if type(a) is not cnp.ndarray:
        return False
    array = a
    if (cnp.PyArray_TYPE(array) != type_number or cnp.PyArray_NDIM(array) != ndim
            or not (cnp.PyArray_ISCARRAY(array) if to_write else cnp.PyArray_ISCARRAY_RO(array))):
        return False
    for i in range(ndim):
        if cnp.PyArray_DIM(array, i) != sizes[i]:
            return False
    return True


cdef bint in_order(cnp.ndarray x) except -1:
    """Raise ValueError unless x is aligned and C-contiguous, since the kernels take no strides."""
    if not cnp.PyArray_ISCARRAY_RO(x):
        raise ValueError(f"kernels read aligned C-contiguous arrays only; received strides {(<object>x).strides}")
    return True


cpdef bint positive_and_finite(cnp.ndarray scale) except -1:
    """Return whether all elements of a C-contiguous float32 array are positive and finite."""
    cdef const float *s = <const float *>cnp.PyArray_DATA(scale)
    cdef Py_ssize_t i
    cdef bint good = True
    for i in range(cnp.PyArray_SIZE(scale)):
        good &= 0 < s[i] < INFINITY
    return good


cdef bint paired(cnp.ndarray codes, cnp.ndarray packed) except -1:
    """Return True; raise ValueError unless both are C-contiguous bytes of shapes (rows, n), (rows, (n + 1) // 2)."""
    if (in_order(codes) and in_order(packed) and cnp.PyArray_NDIM(codes) == cnp.PyArray_NDIM(packed) == 2
            and cnp.PyArray_ITEMSIZE(codes) == cnp.PyArray_ITEMSIZE(packed) == 1
            and codes.shape[0] == packed.shape[0] and packed.shape[1] == (codes.shape[1] + 1) // 2):
        return True
    raise ValueError(f"codes and their pairs must be bytes of shapes (rows, n) and (rows, (n + 1) // 2); received "
                     f"{codes.dtype} {(<object>codes).shape} and {packed.dtype} {(<object>packed).shape}")


def pack_nibbles(cnp.ndarray codes not None, cnp.ndarray packed not None):
    """Write the low 4 bits of codes (rows, n) into bytes (rows, (n + 1) // 2); even indices go into the low half."""
    cdef Py_ssize_t n, row
    cdef const mp_kernels *k = mp_active()
    paired(codes, packed)
    n = codes.shape[1]
    for row in range(codes.shape[0] if n else 0):
        k.quantizers.pack_nibbles(<uint8_t *>cnp.PyArray_BYTES(codes) + row * n, n,
                                  <uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2))


def unpack_nibbles(cnp.ndarray packed not None, cnp.ndarray codes not None, bint signed):
    """Undo :func:`pack_nibbles`: write codes from -8 to 7 if `signed`, else from 0 to 15."""
    cdef Py_ssize_t n, row
    cdef const mp_kernels *k = mp_active()
    paired(codes, packed)
    n = codes.shape[1]
    for row in range(codes.shape[0] if n else 0):
        k.quantizers.unpack_nibbles(<uint8_t *>cnp.PyArray_BYTES(packed) + row * ((n + 1) // 2), n, signed,
                                    <uint8_t *>cnp.PyArray_BYTES(codes) + row * n)
