"""DLPack import: check every field of a producer's tensor, then make an ndarray on its memory.

The structures are those of the public DLPack ABI: version 0 (capsules named ``dltensor``) and version 1.
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_INCREF

from mp_core.core.dlpack_abi cimport READ_ONLY, mp_dl_managed, mp_dl_tensor, mp_dl_versioned

cnp.import_array()

cdef enum:
    MOST_AXES = 64  # NumPy's limit

# (DLDataTypeCode, bits) of DLPack 1.1 -> dtype name, for types whose elements are whole bytes.
NAMES = {
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64",
    (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32", (1, 64): "uint64",
    (2, 16): "float16", (2, 32): "float32", (2, 64): "float64",
    (4, 16): "bfloat16", (6, 8): "bool", (9, 8): "float8_e4m3b11fnuz", (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz", (12, 8): "float8_e5m2", (13, 8): "float8_e5m2fnuz", (14, 8): "float8_e8m0fnu",
}


cdef class _Owner:
    """Owns the producer's tensor, and releases it when the last array on its memory is freed."""
    cdef mp_dl_managed *managed
    cdef mp_dl_versioned *versioned

    def __dealloc__(self):
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)
        if self.versioned != NULL and self.versioned.deleter != NULL:
            self.versioned.deleter(self.versioned)


def from_dlpack(x, dict dtypes not None):
    """Return an array on the memory of ``x.__dlpack__()``; `dtypes` maps the names in :data:`NAMES` to dtypes.

    Raises
    ------
    TypeError
        The capsule violates DLPack, its type is not in :data:`NAMES`, or its memory is not CPU memory.
    """
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of version 0
        capsule = x.__dlpack__()
    return from_capsule(capsule, dtypes)


def from_capsule(capsule, dict dtypes not None):
    """Return an array on the memory of a ``dltensor`` or ``dltensor_versioned`` capsule; see :func:`from_dlpack`."""
    cdef mp_dl_managed *managed = NULL
    cdef mp_dl_versioned *versioned = NULL
    cdef mp_dl_tensor *tensor
    cdef _Owner owner = _Owner()
    cdef cnp.npy_intp shape[MOST_AXES]
    cdef cnp.npy_intp strides[MOST_AXES]
    cdef cnp.dtype dtype
    cdef cnp.ndarray array
    cdef int flags = 0  # read-only in version 0, which cannot state this (JAX' memory must not be written)
    if PyCapsule_IsValid(capsule, "dltensor"):
        managed = <mp_dl_managed *>PyCapsule_GetPointer(capsule, "dltensor")
        tensor = &managed.tensor
    elif PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <mp_dl_versioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if versioned.major != 1:
            raise TypeError(f"a DLPack capsule must be of version 0 or 1; received {versioned.major}")
        tensor = &versioned.tensor
        if not versioned.flags & READ_ONLY:
            flags = cnp.NPY_ARRAY_WRITEABLE
    else:
        raise TypeError("a DLPack capsule must be an unused 'dltensor' or 'dltensor_versioned'")
    name = NAMES.get((tensor.dtype.code, tensor.dtype.bits))
    if name is None or tensor.dtype.lanes != 1 or tensor.device.device_type != 1:
        raise TypeError(
            f"DLPack tensors must be on the CPU, in {', '.join(NAMES.values())}; received type code "
            f"{tensor.dtype.code} with {tensor.dtype.bits} bits on device type {tensor.device.device_type}")
    dtype = dtypes[name]
    lay_out(tensor, dtype.itemsize, shape, strides)
    PyCapsule_SetName(capsule, "used_dltensor" if versioned == NULL else "used_dltensor_versioned")
    owner.managed, owner.versioned = managed, versioned
    array = cnp.PyArray_New(cnp.ndarray, tensor.ndim, shape, dtype.num, strides,
                            <char *>tensor.data + tensor.byte_offset, dtype.itemsize, flags, None)
    Py_INCREF(owner)
    cnp.PyArray_SetBaseObject(array, owner)  # steals that reference
    return array


cdef int lay_out(const mp_dl_tensor *tensor, Py_ssize_t size, cnp.npy_intp *shape, cnp.npy_intp *strides) except -1:
    """Set lengths and strides (in bytes); raise TypeError if they are invalid or exceed the address space."""
    cdef Py_ssize_t contiguous = size, step, left = PY_SSIZE_T_MAX - size  # left: bytes that further axes may span
    cdef int axis
    cdef bint empty = False
    if not 0 <= tensor.ndim <= MOST_AXES:
        raise TypeError(f"DLPack tensors must have 0 to {MOST_AXES} axes; received {tensor.ndim}")
    if tensor.ndim and tensor.shape == NULL:
        raise TypeError("DLPack tensors must have a shape; received none")
    for axis in range(tensor.ndim):
        shape[axis] = tensor.shape[axis]
        empty = empty or shape[axis] == 0
        if shape[axis] < 0:
            raise TypeError(f"DLPack tensors must have lengths of at least 0; received {shape[axis]}")
    if tensor.data == NULL and not empty:
        raise TypeError("DLPack tensors must have memory; received one without")
    for axis in range(tensor.ndim - 1, -1, -1):
        strides[axis] = size
        if empty or shape[axis] == 1:
            continue
        step = tensor.strides[axis] if tensor.strides != NULL else contiguous // size
        if not -(left // size) <= step <= left // size or abs(step * size) > left // (shape[axis] - 1):
            raise TypeError(f"DLPack tensors must fit into memory; received a stride of {step} elements for a length "
                            f"of {shape[axis]}")
        strides[axis] = step * size
        left -= abs(step * size) * (shape[axis] - 1)
        if tensor.strides == NULL:
            if shape[axis] > PY_SSIZE_T_MAX // contiguous:
                raise TypeError(f"DLPack tensors must fit into memory; received a length of {shape[axis]}")
            contiguous *= shape[axis]
    return 0
