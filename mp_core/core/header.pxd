# The C side as Cython sees it: kernels/kernels.h, kernels/cpu.h, library/runtime.h and library/tuning.h.
from libc.stdint cimport int32_t, uint8_t, uint32_t

cdef extern from "kernels.h" nogil:
    ctypedef enum mp_format:
        MP_F32
        MP_F16
        MP_BF16
        MP_F8_E4M3FN
        MP_F8_E5M2
        MP_FLOATS
        MP_I8
        MP_I4
        MP_PANEL_FORMATS
        MP_I32

    ctypedef enum mp_activation:
        MP_LINEAR

    const char *const mp_activation_names[]

    ctypedef enum mp_arithmetic:
        MP_WIDE
        MP_PAIRS
        MP_QUADS
        MP_ARITHMETICS

    enum:
        MP_SATURATE
        MP_STREAM
        MP_WITHIN
        MP_MORE
        MP_LANES
        MP_PANEL
        MP_ROWS
        MP_TRANSPOSED_ROWS
        MP_SLACK
        MP_BLOCK_WIDE
        MP_BLOCK_PAIRS

    const Py_ssize_t mp_element_bytes[]
    const Py_ssize_t mp_group[]
    const Py_ssize_t mp_group_bytes[]
    const char *const mp_format_names[]
    Py_ssize_t mp_column_bytes(int format, Py_ssize_t k)

    ctypedef struct mp_shape:
        Py_ssize_t m, n, k, k_block

    ctypedef struct mp_operands:
        const void *a
        Py_ssize_t lda
        const void *b
        Py_ssize_t b_stride
        uint32_t a_flip

    ctypedef struct mp_accumulators:
        void *sums
        void *partial
        Py_ssize_t ld
        int first, last, resume, suspend
        const int32_t *init
        const float *block_scale
        Py_ssize_t block_scale_ld

    ctypedef struct mp_epilogue:
        int32_t a_zero
        const int32_t *row_zero
        const int32_t *col_sum
        int32_t b_zero
        const int32_t *col_zero
        const int32_t *row_sum
        const float *row_scale
        Py_ssize_t row_stride
        const float *col_scale
        const float *bias
        mp_activation activation
        mp_format residual_format, out_format
        const void *residual
        Py_ssize_t ldr
        void *out
        Py_ssize_t ldo

    ctypedef struct mp_prefetch:
        const char *next
        Py_ssize_t rows, row_bytes, row_stride
        int own, from_memory

    ctypedef struct mp_gemm:
        mp_shape shape
        mp_operands operands
        mp_accumulators accumulators
        mp_epilogue epilogue
        mp_prefetch prefetch

    ctypedef enum mp_code:
        MP_CODE_I8
        MP_CODE_U8
        MP_CODE_E4M3FN
        MP_CODE_E5M2
        MP_CODES

    ctypedef struct mp_part:
        Py_ssize_t rows, cols
        float *x
        Py_ssize_t ldx
        uint8_t *q
        Py_ssize_t ldq
        const float *scale
        const int32_t *zero_point
        Py_ssize_t by_row, by_column
        int32_t qmin, qmax
        int mode
        Py_ssize_t prefetch_distance

    ctypedef struct mp_casts:
        void (*widen[MP_FLOATS])(const void *src, float *dst, Py_ssize_t n, int mode) noexcept nogil
        void (*to_bf16[MP_FLOATS])(const void *src, void *dst, Py_ssize_t n) noexcept nogil
        void (*narrow[MP_FLOATS])(const float *src, void *dst, Py_ssize_t n, int mode) noexcept nogil
        void (*round_odd)(const double *src, float *dst, Py_ssize_t n) noexcept nogil
        int (*all_finite[MP_FLOATS])(const void *x, Py_ssize_t n) noexcept nogil

    ctypedef struct mp_row_block:
        Py_ssize_t rows, n, ldx, ldw, ldo
        mp_format x_format, out_format
        const void *x
        float *work
        void *out

    Py_ssize_t mp_rows_together(Py_ssize_t n)

    ctypedef struct mp_rows:
        void (*softmax)(const mp_row_block *b, const uint8_t *keep, Py_ssize_t keep_stride, float scale) noexcept nogil
        void (*layer_norm)(const mp_row_block *b, const void *residual, const float *gamma, const float *beta,
                           float epsilon) noexcept nogil
        void (*rms_norm)(const mp_row_block *b, const float *gamma, float epsilon) noexcept nogil
        void (*activate)(mp_activation activation, const float *x, Py_ssize_t n, float *out) noexcept nogil
        void (*combine[2])(const float *x, const float *y, Py_ssize_t n, float *out) noexcept nogil
        void (*turn)(const float *x, const float *angles, Py_ssize_t half, Py_ssize_t vectors,
                     float *out) noexcept nogil
        void (*sum_blocks)(mp_format format, const void *x, Py_ssize_t blocks, Py_ssize_t stride, Py_ssize_t n,
                           float *lanes) noexcept nogil
        void (*sum_columns)(mp_format format, const void *x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
                            float *lanes) noexcept nogil

    ctypedef struct mp_quantizers:
        void (*amax)(const mp_part *p, float *amax) noexcept nogil
        void (*range)(const mp_part *p, float *lo, float *hi) noexcept nogil
        void (*symmetric_scales)(const float *amax, Py_ssize_t n, float largest, float *scale) noexcept nogil
        void (*asymmetric_scales)(const float *lo, const float *hi, Py_ssize_t n, int32_t qmin, int32_t qmax,
                                  float *scale, int32_t *zero_point) noexcept nogil
        void (*quantize[4])(const mp_part *p) noexcept nogil
        void (*dequantize[4])(const mp_part *p) noexcept nogil
        void (*pack_nibbles)(const uint8_t *src, Py_ssize_t n, uint8_t *dst) noexcept nogil
        void (*unpack_nibbles)(const uint8_t *src, Py_ssize_t n, int is_signed, uint8_t *dst) noexcept nogil

    ctypedef struct mp_packing:
        void (*pack[MP_PANEL_FORMATS])(Py_ssize_t k, Py_ssize_t n, const void *src, Py_ssize_t rs, Py_ssize_t cs,
                                       void *dst) noexcept nogil
        void (*unpack[MP_PANEL_FORMATS])(Py_ssize_t k, Py_ssize_t n, const void *src, void *dst,
                                         Py_ssize_t ldd) noexcept nogil

    ctypedef struct mp_products:
        void (*gemm[MP_PANEL_FORMATS])(const mp_gemm *g) noexcept nogil
        void (*in_place[MP_PANEL_FORMATS])(const mp_gemm *g) noexcept nogil
        void (*transposed[MP_PANEL_FORMATS])(const mp_gemm *g) noexcept nogil
        void (*decode[MP_PANEL_FORMATS])(Py_ssize_t k, Py_ssize_t n, const void *src, void *dst) noexcept nogil
        Py_ssize_t few_rows[MP_PANEL_FORMATS]
        void (*column_sums)(Py_ssize_t k, Py_ssize_t n, const void *packed, int32_t *sums) noexcept nogil
        void (*row_sums)(Py_ssize_t m, Py_ssize_t k, const void *a, Py_ssize_t lda, uint32_t a_flip,
                         int32_t *sums) noexcept nogil

    ctypedef struct mp_tiles:
        void (*gemm[3])(const mp_gemm *g) noexcept nogil

    ctypedef struct mp_kernels:
        const char *isa
        int own_order
        const mp_casts *casts
        const mp_rows *rows
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
        MP_CPU_ZEN5
        MP_CPU_INTEL_AMX
        MP_CPU_OTHER
        MP_CPU_FAMILIES

    const mp_isa mp_isas[]
    uint32_t mp_cpu_features()
    mp_cpu_family mp_cpu_family_here()
    Py_ssize_t mp_cpu_cache_bytes(int level)

cdef extern from "library/runtime.h" nogil:
    const mp_kernels *mp_active()
    void mp_activate(const mp_kernels *kernels)
    void mp_parallel_for(int threads, Py_ssize_t tasks, void (*run)(void *context, Py_ssize_t index) noexcept nogil,
                         void *context)
    ctypedef struct mp_step:
        void (*run)(void *context, Py_ssize_t index) noexcept nogil
        void *context
        Py_ssize_t tasks
    ctypedef struct mp_progress:
        pass
    void mp_run_steps(int threads, const mp_step *steps, Py_ssize_t count, mp_progress *progress)
    void **mp_recording()
    void mp_keep_awake(int change)
    int mp_allowed_cpus()
    void *mp_scratch(size_t bytes)
    enum:
        MP_CHUNK
    ctypedef struct mp_chunk_floats:
        float at[MP_CHUNK]
    ctypedef struct mp_chunk_codes:
        uint8_t at[MP_CHUNK]

cdef extern from "library/tuning.h" nogil:
    ctypedef struct mp_amx_tuning "mp_tuning_amx":
        Py_ssize_t packed_m, made_m, range_bytes

    ctypedef struct mp_tuning:
        Py_ssize_t packed_mc, made_mc, small_mc
        double thread_work
        int least_tasks, most_tasks
        Py_ssize_t copy_bytes
        Py_ssize_t in_place_mc[3]
        Py_ssize_t in_place_l2_mc
        Py_ssize_t transposed_mc[3]
        Py_ssize_t transposed_quads_k
        Py_ssize_t prefetch_mc, prefetch_decoded_mc
        Py_ssize_t packing_k, packing_memory_k, in_place_k, in_place_memory_k, in_place_again_k
        Py_ssize_t memory_row_bytes
        mp_amx_tuning amx

    const mp_tuning mp_tunings[]
