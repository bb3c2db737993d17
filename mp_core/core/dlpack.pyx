"""DLPack import for the types that numpy.from_dlpack refuses: bfloat16 and float8.

The structures are those of the public DLPack ABI, version 0 (unversioned capsules, which every producer offers).
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_SetName
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t

cnp.import_array()

cdef extern from *:
    """
    #include <stdint.h>
    typedef struct { int32_t device_type, device_id; } mp_dl_device;
    typedef struct { uint8_t code, bits; uint16_t lanes; } mp_dl_type;
    typedef struct {
        void *data;
        mp_dl_device device;
        int32_t ndim;
        mp_dl_type dtype;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    } mp_dl_tensor;
    typedef struct mp_dl_managed {
        mp_dl_tensor tensor;
        void *context;
        void (*deleter)(struct mp_dl_managed *);
    } mp_dl_managed;
    """
    ctypedef struct mp_dl_device:
        int32_t device_type, device_id
    ctypedef struct mp_dl_type:
        uint8_t code, bits
        uint16_t lanes
    ctypedef struct mp_dl_tensor:
        void *data
        mp_dl_device device
        int32_t ndim
        mp_dl_type dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct mp_dl_managed:
        mp_dl_tensor tensor
        void *context
        void (*deleter)(mp_dl_managed *) noexcept

# (DLDataTypeCode, bits) of DLPack 1.1 -> dtype name.
NAMES = {(4, 16): "bfloat16", (10, 8): "float8_e4m3fn", (12, 8): "float8_e5m2"}


cdef class _Owner:
    """Keeps the producer's memory until the last array on it is gone."""
    cdef mp_dl_managed *managed

    def __dealloc__(self):
        if self.managed != NULL and self.managed.deleter != NULL:
            self.managed.deleter(self.managed)


def from_capsule(capsule, dict dtypes not None):
    """Return the array that a ``dltensor`` capsule holds, without a copy; `dtypes` maps the names of :data:`NAMES`.

    Raises
    ------
    TypeError
        The element type is none of :data:`NAMES`, or the memory is not the CPU's, or missing.
    """
    cdef mp_dl_managed *managed
    cdef mp_dl_tensor *tensor
    cdef _Owner owner = _Owner()
    cdef cnp.npy_intp shape[64]
    cdef cnp.npy_intp strides[64]
    cdef int axis, size
    cdef bint empty = False
    if not PyCapsule_IsValid(capsule, "dltensor"):
        raise TypeError("a DLPack capsule must be an unused 'dltensor'")
    managed = <mp_dl_managed *>PyCapsule_GetPointer(capsule, "dltensor")
    tensor = &managed.tensor
    name = NAMES.get((tensor.dtype.code, tensor.dtype.bits))
    if name is None or tensor.dtype.lanes != 1 or tensor.device.device_type != 1 or tensor.ndim > 64:
        raise TypeError(
            f"DLPack tensors must be on the CPU, of at most 64 axes, in {', '.join(NAMES.values())} or a type of "
            f"NumPy; received type code {tensor.dtype.code} with {tensor.dtype.bits} bits on device type "
            f"{tensor.device.device_type}")
    for axis in range(tensor.ndim):
        empty = empty or tensor.shape[axis] == 0
    if tensor.data == NULL and not empty:
        raise TypeError("DLPack tensors must have memory; received one without")
    PyCapsule_SetName(capsule, "used_dltensor")
    owner.managed = managed
    dtype = dtypes[name]
    size = dtype.itemsize
    for axis in range(tensor.ndim - 1, -1, -1):
        shape[axis] = tensor.shape[axis]
        if tensor.strides != NULL:
            strides[axis] = tensor.strides[axis] * size
        else:
            strides[axis] = size if axis == tensor.ndim - 1 else strides[axis + 1] * shape[axis + 1]
    array = cnp.PyArray_New(cnp.ndarray, tensor.ndim, shape, cnp.NPY_UINT16 if size == 2 else cnp.NPY_UINT8, strides,
                            <char *>tensor.data + tensor.byte_offset, size, 0, None)
    Py_INCREF(owner)
    cnp.PyArray_SetBaseObject(array, owner)  # takes over that reference
    return array.view(dtype)
