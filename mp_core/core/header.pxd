# Declarations for Cython from kernels/kernels.h, kernels/cpu.h, library/runtime.h, library/system.h and
# library/tuning.h. The C structs have more fields.
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef extern from "kernels.h" nogil:
    ctypedef enum mp_format:
        MP_F32
        MP_F16
        MP_BF16
        MP_FLOATS
        MP_I8
        MP_I4
        MP_F4
        MP_PANEL_FORMATS
        MP_I32
        MP_U8
        MP_FORMATS

    ctypedef enum mp_activation:
        MP_LINEAR

    const char *const mp_activation_names[]

    ctypedef enum mp_arithmetic:
        MP_PAIRS
        MP_QUADS

    enum:
        MP_SATURATE
        MP_STREAM
        MP_NO_CLAMP
        MP_LANES
        MP_PANEL
        MP_OCT
        MP_ROWS
        MP_SLACK

    const Py_ssize_t mp_element_bytes[]
    const Py_ssize_t mp_group[]
    const Py_ssize_t mp_group_bytes[]
    const char *const mp_format_names[]
    Py_ssize_t mp_column_bytes(int format, Py_ssize_t k)

    ctypedef struct mp_epilogue:
        Py_ssize_t row_stride
        mp_activation activation
        mp_format residual_format, out_format

    ctypedef struct mp_gemm:
        mp_epilogue epilogue

    ctypedef enum mp_code:
        MP_CODE_I8
        MP_CODE_U8
        MP_CODE_E4M3FN
        MP_CODE_E5M2
        MP_CODE_E2M1

    ctypedef struct mp_part:
        Py_ssize_t rows, cols
        float *x
        Py_ssize_t ldx
        uint8_t *q
        Py_ssize_t ldq
        const float *scale
        const int32_t *zero_point
        Py_ssize_t by_row

    ctypedef struct mp_casts:
        void (*widen[MP_FLOATS])(const void *src, float *dst, Py_ssize_t n, int mode) noexcept nogil
        void (*narrow[MP_FLOATS])(const float *src, void *dst, Py_ssize_t n, int mode) noexcept nogil
        int (*all_finite[MP_FLOATS])(const void *x, Py_ssize_t n) noexcept nogil

    ctypedef struct mp_quantizers:
        void (*dequantize[4])(const mp_part *p) noexcept nogil
        void (*pack_nibbles)(const uint8_t *src, Py_ssize_t n, uint8_t *dst) noexcept nogil
        void (*unpack_nibbles)(const uint8_t *src, Py_ssize_t n, int is_signed, uint8_t *dst) noexcept nogil

    ctypedef struct mp_scale_codes:
        int shift
        float unit

    ctypedef struct mp_packing:
        void (*unpack[MP_PANEL_FORMATS])(Py_ssize_t k, Py_ssize_t n, const void *src, void *dst,
                                         Py_ssize_t ldd) noexcept nogil

    ctypedef struct mp_copies:
        Py_ssize_t few_rows[MP_PANEL_FORMATS]

    ctypedef struct mp_products:
        mp_copies recoded

    ctypedef struct mp_tiles:
        void (*gemm[3])(const mp_gemm *g) noexcept nogil

    ctypedef struct mp_kernels:
        const char *isa
        const mp_casts *casts
        const mp_quantizers *quantizers
        const mp_packing *packing
        const mp_products *products[3]
        const mp_tiles *tiles

cdef extern from "kernels/cpu.h" nogil:
    const char *const mp_feature_names[]

    ctypedef struct mp_isa:
        const char *name
        uint32_t needs
        const mp_kernels *kernels

    ctypedef enum mp_cpu_family:
        MP_CPU_ZEN4
        MP_CPU_INTEL_AMX

    const mp_isa mp_isas[]
    const char *const mp_left_out
    uint32_t mp_cpu_features()
    mp_cpu_family mp_cpu_family_here()
    Py_ssize_t mp_cpu_cache_bytes(int level)

cdef extern from "library/runtime.h" nogil:
    const mp_kernels *mp_active()
    void mp_activate(const mp_kernels *kernels)
    int mp_is_reproducible()
    void mp_set_reproducible(int reproducible)
    void mp_parallel_for(int threads, Py_ssize_t tasks, void (*run)(void *context, Py_ssize_t index) noexcept nogil,
                         void *context)
    void mp_keep_awake(int change)
    ctypedef struct mp_listener:
        int (*ask)(void *context) noexcept nogil
    void mp_listen(mp_listener *listener, int (*ask)(void *context) noexcept nogil, void *context)
    int mp_end_listening(mp_listener *listener)
    int mp_stopped()
    enum:
        MP_MOST_THREADS

cdef extern from "library/system.h" nogil:
    int mp_allowed_cpus()

cdef extern from "library/tuning.h" nogil:
    ctypedef struct mp_tuning:
        double thread_work
        Py_ssize_t small_mc
        Py_ssize_t prefetch_mc[2]
        Py_ssize_t in_place_mc[3]
        Py_ssize_t transposed_mc[3]
