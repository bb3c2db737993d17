"""Packed right operands of products: immutable objects with the layout of core/kernels/kernels.h."""

from math import prod
from operator import index as whole_number

cimport numpy as cnp
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int32_t
from libc.string cimport memset

from mp_core.core.cpu cimport threads_for
from mp_core.core.header cimport (
    MP_F4, MP_I4, MP_I8, MP_OCT, MP_PANEL, MP_SLACK, mp_active, mp_column_bytes, mp_element_bytes, mp_group,
    mp_group_bytes, mp_kernels, mp_listener,
)
from mp_core.core.signals cimport heard, listen

import numpy as np

from mp_core.arrays.formats import PANEL_DTYPES, PANELS
from mp_core.arrays.products.scale_codes import decoded, encoded

cdef extern from "library/packing.h" nogil:
    enum:
        MP_PACKING_WORK

    ctypedef struct mp_packed_matrix:
        const mp_kernels *kernels
        int format
        Py_ssize_t k, n
        const char *src
        Py_ssize_t rs, cs
        char *dst
        int32_t *sums

    void mp_pack_matrix(const mp_packed_matrix *p, int threads)

cnp.import_array()

cdef dict _formats = {}  # cache: dtype -> format, since NumPy takes microseconds to return the name of a dtype


cdef int panel_format(dtype) except? -1:
    """Return the panel format of a native dtype; -1 if it cannot be packed."""
    fmt = _formats.get(dtype)
    if fmt is None and dtype.isnative and dtype.name in PANELS:
        fmt = _formats[dtype] = PANELS[dtype.name]
    return -1 if fmt is None else fmt


cdef Product product = NULL


cdef object multiplied(a, b):
    """Return `a @ b`."""
    if product == NULL:
        import mp_core.arrays.products.matmul  # no-cython-lint: it sets product
    return product(a, b)


cdef class PackedMatrix:
    """The right operand of products, packed for :func:`mp_core.matmul`. Make it with :func:`mp_core.pack`.

    It is immutable and picklable, and has the same layout on every instruction set.

    Attributes
    ----------
    shape : tuple of int
        The logical shape, ``(..., k, n)``.
    dtype : numpy.dtype
        float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int8, int4 or float4_e2m1fn.
    scale : numpy.ndarray or None
        For a packed :class:`mp_core.QuantizedArray`: float32, of shape (n,) or (groups along k, n). Scales that are
        powers of two, or float8_e4m3fn times one number, are stored in a byte each, and decoded when this is read.
    zero_point : numpy.ndarray or None
        The codes that mean 0. For int8: int32, of shape (n,). For int4: int8, of the shape of `scale`. None: 0.
    group_size : int or None
        The number of elements along k that share a scale.
    nbytes : int
        The bytes stored, including scales and column sums.
    """

    __array_ufunc__ = None  # NumPy then leaves `array @ packed` to __rmatmul__; there are no other operators

    def __cinit__(self, shape, dtype, data, column_sums=None, scale=None, zero_point=None, group_size=None):
        self.shape, self.dtype = tuple([whole_number(length) for length in shape]), dtype
        self.format = panel_format(dtype) if isinstance(dtype, np.dtype) else -1
        if (not 2 <= len(self.shape) <= 64 or min(self.shape) < 0 or max(self.shape) > PY_SSIZE_T_MAX
                or self.format < 0):
            raise ValueError("a PackedMatrix has a shape (..., k, n) of at most 64 axes and is of native type "
                             f"{', '.join(PANELS)}; received shape {shape} and dtype {dtype}")
        data_bytes = _data_bytes(self.format, self.shape)
        *batch, self.k, self.n = self.shape
        self.matrices, self.matrix_bytes = prod(batch), mp_column_bytes(self.format, self.k) * self.n
        self.axes = <int>len(batch)
        step = 1
        for axis in range(self.axes - 1, -1, -1):
            self.lengths[axis], self.strides[axis] = batch[axis], step
            step *= batch[axis]
        groups = ()
        if group_size is not None:
            self.group_size = group_size = whole_number(group_size)
            if group_size < 1 or group_size % mp_group[self.format]:
                raise ValueError(f"`group_size` must be a positive multiple of {mp_group[self.format]}; "
                                 f"received {group_size}")
            groups = (-(-self.shape[len(batch)] // group_size),)
            whole = max(self.k, 1) + MP_OCT - 1
            self.group = min(group_size, whole - whole % MP_OCT)
        self.data = _part(data, "data", (data_bytes,), np.uint8)
        self.column_sums = _part(column_sums, "column_sums",
                                 (self.matrices, self.n) if self.format == MP_I8 else None, np.int32)
        scaled = scale is not None or group_size is not None or self.format in (MP_I4, MP_F4)
        self.scales = _part(scale, "scale", (*groups, self.n) if scaled else None, np.float32)
        found = encoded(self.scales) if groups else None
        if found is not None:
            codes, self.scale_codes.shift, self.scale_codes.unit = found
            self.scales = np.asarray(memoryview(codes).toreadonly())
        shifted = zero_point is not None and scale is not None and (
            self.format == MP_I4 or (self.format == MP_I8 and not groups))
        self.zero_point = _part(zero_point, "zero_point", (*groups, self.n) if shifted else None,
                                np.int8 if self.format == MP_I4 else np.int32)
        least, most = (-8, 7) if self.format == MP_I4 else (-128, 127)
        if shifted and np.any((self.zero_point < least) | (self.zero_point > most)):
            raise ValueError(f"`zero_point` must lie in [{least}, {most}]; received {zero_point}")

    @property
    def scale(self):
        if not self.scale_codes.shift:
            return self.scales
        scales = decoded(self.scales, self.n, self.scale_codes.shift, self.scale_codes.unit)
        return np.asarray(memoryview(scales).toreadonly())

    @property
    def parts(self):
        """The arrays that are stored."""
        every = (self.data, self.column_sums, self.scales, self.zero_point)
        return tuple([part for part in every if part is not None])

    @property
    def nbytes(self):
        return sum(part.nbytes for part in self.parts)

    @property
    def ndim(self):
        return len(self.shape)

    def unpack(self):
        """Return the matrix before packing: an array of `shape` and `dtype` with exactly the same elements."""
        cdef cnp.ndarray out = np.empty(self.shape, self.dtype)
        cdef Py_ssize_t matrix, column, size = mp_element_bytes[self.format]
        cdef const mp_kernels *use = mp_active()
        for matrix in range(self.matrices if cnp.PyArray_SIZE(out) else 0):
            for column in range(0, self.n, MP_PANEL):
                use.packing.unpack[self.format](
                    self.k, min(self.n - column, <Py_ssize_t>MP_PANEL),
                    cnp.PyArray_BYTES(self.data) + matrix * self.matrix_bytes
                    + column * mp_column_bytes(self.format, self.k),
                    cnp.PyArray_BYTES(out) + (matrix * self.k * self.n + column) * size, self.n)
        return out

    def __matmul__(self, other):
        return multiplied(self, other)

    def __rmatmul__(self, other):
        return multiplied(other, self)

    def __array__(self, dtype=None, copy=None):
        raise TypeError("a PackedMatrix cannot be converted to an ndarray: unpack() returns the elements that it holds")

    def __reduce__(self):
        return _restore, (self.shape, self.dtype.name, self.data, self.column_sums, self.scale, self.zero_point,
                          self.group_size)

    def __repr__(self):
        return f"PackedMatrix(shape={self.shape}, dtype={self.dtype.name})"


def _restore(shape, name, data, column_sums, scale, zero_point, group_size):
    return PackedMatrix(shape, PANEL_DTYPES.get(name), data, column_sums, scale, zero_point, group_size)


def _data_bytes(int fmt, shape):
    """Return the bytes of the panels and MP_SLACK; raise ValueError if they, with lengths of at least 1, overflow."""
    *batch, k, n = shape
    columns = [prod(batch), n, -(-k // mp_group[fmt]) * mp_group_bytes[fmt]]
    if prod([max(length, 1) for length in columns]) > PY_SSIZE_T_MAX - MP_SLACK:
        raise ValueError(f"a PackedMatrix of shape {shape} is too big for the address space")
    return prod(columns) + MP_SLACK


def _part(array, name, shape, dtype):
    """Check shape and type of an array of a PackedMatrix, and return it read-only; None if `shape` is None.

    Kernels rely on its contents, so the result cannot be made writeable again.
    """
    if array is None and shape is None:
        return None
    if isinstance(array, np.ndarray):
        array = np.asarray(array)  # a subclass may override shape and dtype
    if (not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype
            or not array.flags.c_contiguous):
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        wanted = "None" if shape is None else f"contiguous {np.dtype(dtype).name} of shape {shape}"
        raise ValueError(f"`{name}` must be {wanted}; received {found}")
    return np.asarray(memoryview(array).toreadonly())


def aligned_empty(Py_ssize_t nbytes):
    """Return an uninitialized uint8 array that starts at a multiple of 64 bytes."""
    cdef cnp.ndarray block = np.empty(nbytes + 64, np.uint8)
    cdef Py_ssize_t shift = <Py_ssize_t>(63 - (<size_t>cnp.PyArray_BYTES(block) + 63) % 64)
    return block[shift:shift + nbytes]


def pack(cnp.ndarray b not None, dtype, scale=None, zero_point=None, group_size=None):
    """Pack `b`, of shape (..., k, n), native byte order and any strides.

    `dtype` is the dtype of `b`, or int4 or float4_e2m1fn for codes with one in each byte.
    """
    cdef mp_packed_matrix p
    cdef int ndim = cnp.PyArray_NDIM(b), threads
    cdef Py_ssize_t matrices = 1, axis
    cdef tuple shape = (<object>b).shape
    cdef cnp.ndarray sums = None, matrix, data
    cdef PackedMatrix packed
    cdef mp_listener listener
    for axis in range(ndim - 2):
        matrices *= cnp.PyArray_DIM(b, <int>axis)
    p.kernels, p.format = mp_active(), panel_format(dtype)
    p.k, p.n = shape[ndim - 2], shape[ndim - 1]
    if p.format == MP_I8:
        sums = np.zeros((matrices, p.n), np.int32)
    data = aligned_empty(_data_bytes(p.format, shape))
    memset(cnp.PyArray_BYTES(data) + cnp.PyArray_SIZE(data) - MP_SLACK, 0, MP_SLACK)
    packed = PackedMatrix(shape, dtype, data, sums, scale, zero_point, group_size)
    p.rs, p.cs = cnp.PyArray_STRIDE(b, ndim - 2), cnp.PyArray_STRIDE(b, ndim - 1)
    threads = threads_for(<double>p.k * p.n, MP_PACKING_WORK)
    for index, place in enumerate(np.ndindex(shape[:ndim - 2]) if cnp.PyArray_SIZE(b) else ()):
        matrix = b[place]
        p.src = cnp.PyArray_BYTES(matrix)
        p.dst = cnp.PyArray_BYTES(data) + <Py_ssize_t>index * packed.matrix_bytes
        p.sums = NULL if sums is None else <int32_t *>cnp.PyArray_DATA(sums) + <Py_ssize_t>index * p.n
        listen(&listener)
        with nogil:
            mp_pack_matrix(&p, threads)
        heard(&listener)
    return packed
