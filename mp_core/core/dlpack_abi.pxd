# The structures of the public DLPack ABI: version 0 (capsules named `dltensor`) and version 1.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

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
    typedef struct mp_dl_versioned {
        uint32_t major, minor;
        void *context;
        void (*deleter)(struct mp_dl_versioned *);
        uint64_t flags;
        mp_dl_tensor tensor;
    } mp_dl_versioned;
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
    ctypedef struct mp_dl_versioned:
        uint32_t major, minor
        void *context
        void (*deleter)(mp_dl_versioned *) noexcept
        uint64_t flags
        mp_dl_tensor tensor

cdef enum:          # flags of version 1
    READ_ONLY = 1
    IS_COPIED = 2   # the producer made a copy, as requested
    IS_PADDED = 4   # each element of fewer than 8 bits takes a byte
