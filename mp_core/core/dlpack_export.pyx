"""DLPack export of arrays whose types NumPy's own export does not support, such as bfloat16."""

cimport numpy as cnp
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t

from mp_core.core.dlpack_abi cimport IS_COPIED, IS_PADDED, READ_ONLY, mp_dl_managed, mp_dl_tensor, mp_dl_versioned

from mp_core.core.dlpack import NAMES

cnp.import_array()

cdef extern from "Python.h":
    bint Py_IsInitialized() noexcept nogil

cdef tuple CPU = (1, 0)  # device type and number
CODES = {name: code for code, name in NAMES.items()} | {"int4": (0, 4), "uint4": (1, 4), "float4_e2m1fn": (17, 4)}
"""Name of a dtype -> (DLDataTypeCode, bits) of DLPack 1.1."""


cdef class Exported:
    """An array that other libraries read by DLPack, without a copy.

    Parameters
    ----------
    array : ndarray
        Its type is in :data:`CODES`.
    """
    cdef cnp.ndarray array
    cdef int code, bits

    def __init__(self, cnp.ndarray array not None):
        self.array = array
        self.code, self.bits = CODES[array.dtype.name]

    def __dlpack_device__(self):
        """Return (1, 0), the CPU."""
        return CPU

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """Return a capsule with the array, as the array API standard specifies.

        Parameters
        ----------
        stream : None
            The CPU has no streams.
        max_version : tuple of int, optional
            The latest version that the caller supports. From (1, 0) on, the capsule has version 1, which states whether
            the memory is read-only; otherwise version 0.
        dl_device : tuple of int, optional
            (1, 0), the CPU.
        copy : bool, optional
            True: the capsule has a copy. False or None: it has the array's memory.

        Raises
        ------
        BufferError
            `dl_device` is another device; a stride is negative or not a whole number of elements; the byte order is not
            this machine's; or the capsule's version cannot state that memory is read-only, or that elements have fewer
            than 8 bits.
        ValueError
            `stream` is not None.
        """
        cdef cnp.ndarray array = self.array
        cdef tuple version = () if max_version is None else tuple(max_version)
        if stream is not None:
            raise ValueError(f"`stream` must be None for memory of the CPU; received {stream!r}")
        if dl_device is not None and tuple(dl_device) != CPU:
            raise BufferError(f"`dl_device` must be {CPU}, the CPU; received {dl_device!r}")
        if copy:
            array = array.copy()
        self.check(array, version)
        return self.version_1(array, bool(copy)) if version >= (1,) else self.version_0(array)

    cdef int check(self, cnp.ndarray array, tuple version) except -1:
        """Raise BufferError unless a capsule of this version can describe the array."""
        cdef Py_ssize_t size = cnp.PyArray_ITEMSIZE(array)
        cdef int axis
        if not cnp.PyArray_ISNOTSWAPPED(array):
            raise BufferError(f"DLPack holds arrays in native byte order; received {array.dtype.str}")
        for axis in range(cnp.PyArray_NDIM(array)):  # torch aborts the process for a negative stride
            if cnp.PyArray_STRIDE(array, axis) < 0 or cnp.PyArray_STRIDE(array, axis) % size:
                raise BufferError(f"strides must be whole elements, {size} bytes each, and not negative; received "
                                  f"{(<object>array).strides}: copy the array first")
        if version < (1,) and not cnp.PyArray_ISWRITEABLE(array):
            raise BufferError("DLPack of version 0 cannot say that an array is read-only: ask for max_version=(1, 0), "
                              "or for a copy")
        if self.bits < 8 and version < (1, 1):
            raise BufferError(f"DLPack before version 1.1 cannot say that elements of {array.dtype} take a byte each: "
                              "ask for max_version=(1, 1)")
        return 0

    cdef object version_1(self, cnp.ndarray array, bint copied):
        cdef mp_dl_versioned *managed = <mp_dl_versioned *>allocate(sizeof(mp_dl_versioned), array)
        managed.major, managed.minor, managed.deleter = 1, 1, delete_version_1
        managed.flags = IS_COPIED if copied else 0
        if not cnp.PyArray_ISWRITEABLE(array):
            managed.flags |= READ_ONLY
        if self.bits < 8:
            managed.flags |= IS_PADDED
        managed.context = self.describe(array, &managed.tensor, <int64_t *>(managed + 1))
        return capsule(managed, "dltensor_versioned", free_version_1, array)

    cdef object version_0(self, cnp.ndarray array):
        cdef mp_dl_managed *managed = <mp_dl_managed *>allocate(sizeof(mp_dl_managed), array)
        managed.deleter = delete_version_0
        managed.context = self.describe(array, &managed.tensor, <int64_t *>(managed + 1))
        return capsule(managed, "dltensor", free_version_0, array)

    cdef void *describe(self, cnp.ndarray array, mp_dl_tensor *tensor, int64_t *lengths) noexcept:
        """Fill `tensor`, with its lengths and strides at `lengths`; return the context for the managed tensor."""
        cdef int axis, axes = cnp.PyArray_NDIM(array)
        tensor.data, tensor.byte_offset = cnp.PyArray_DATA(array), 0
        tensor.device.device_type, tensor.device.device_id = 1, 0
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = <unsigned char>self.code, <unsigned char>self.bits, 1
        tensor.ndim, tensor.shape, tensor.strides = axes, lengths, lengths + axes
        for axis in range(axes):
            tensor.shape[axis] = cnp.PyArray_DIM(array, axis)
            tensor.strides[axis] = cnp.PyArray_STRIDE(array, axis) // cnp.PyArray_ITEMSIZE(array)
        return <PyObject *>array


cdef void *allocate(size_t head, cnp.ndarray array) except NULL:
    """Allocate a managed tensor of `head` bytes, followed by space for the lengths and strides of the array."""
    cdef void *memory = PyMem_RawMalloc(head + 2 * sizeof(int64_t) * cnp.PyArray_NDIM(array))
    if memory == NULL:
        raise MemoryError
    return memory


cdef object capsule(void *managed, const char *name, void (*free)(object) noexcept, cnp.ndarray array):
    """Return a capsule whose managed tensor owns a reference to the array."""
    try:
        result = PyCapsule_New(managed, name, free)
    except BaseException:
        PyMem_RawFree(managed)
        raise
    Py_INCREF(array)
    return result


# A consumer may call the deleter in a thread that Python did not create, or after Python has ended.
cdef void release(void *array) noexcept nogil:
    if Py_IsInitialized():
        with gil:
            Py_DECREF(<object>array)


cdef void delete_version_0(mp_dl_managed *managed) noexcept nogil:
    release(managed.context)
    PyMem_RawFree(managed)


cdef void delete_version_1(mp_dl_versioned *managed) noexcept nogil:
    release(managed.context)
    PyMem_RawFree(managed)


# The consumer of a capsule renames it, and calls the deleter later. These functions free capsules without a consumer.
cdef void free_version_0(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor"):
        delete_version_0(<mp_dl_managed *>PyCapsule_GetPointer(capsule, "dltensor"))


cdef void free_version_1(object capsule) noexcept:
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        delete_version_1(<mp_dl_versioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned"))
