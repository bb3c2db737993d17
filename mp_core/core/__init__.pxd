# For Cython modules of other projects: cimport the functions of include/mp_core.h from the installed package.
#
#     from mp_core.core cimport MP_CORE_OK, import_mp_core, mp_core_api, mp_core_product
#     import_mp_core()
#
# Then mp_core_api.multiply(&product, NULL, 1) and so on, with or without the interpreter lock. A compiler needs
# mp_core.get_include() in its include path.
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int32_t, uint8_t

cdef extern from "mp_core_python.h" nogil:
    enum:
        MP_CORE_API_VERSION, MP_CORE_ABI_VERSION
        MP_CORE_OK, MP_CORE_INVALID, MP_CORE_NO_MEMORY, MP_CORE_BAD_ISA, MP_CORE_NO_ROW, MP_CORE_BAD_ORDER
        MP_CORE_FLOAT32, MP_CORE_FLOAT16, MP_CORE_BFLOAT16, MP_CORE_FLOAT8_E4M3FN, MP_CORE_FLOAT8_E5M2
        MP_CORE_FLOAT64, MP_CORE_INT8, MP_CORE_UINT8, MP_CORE_INT32, MP_CORE_INT4, MP_CORE_UINT4,
        MP_CORE_FLOAT4_E2M1FN
        MP_CORE_LINEAR, MP_CORE_RELU, MP_CORE_GELU, MP_CORE_SILU, MP_CORE_RELU6, MP_CORE_GELU_TANH, MP_CORE_SIGMOID
        MP_CORE_TANH
        MP_CORE_ONE_SCALE, MP_CORE_ROW_SCALES, MP_CORE_COLUMN_SCALES
        MP_CORE_SYMMETRIC, MP_CORE_ASYMMETRIC, MP_CORE_GIVEN

    ctypedef struct mp_core_product:
        size_t size
        ptrdiff_t m, n, k
        int a_type, b_type, out_type
        const void *a
        ptrdiff_t lda
        const void *b
        ptrdiff_t b_rs, b_cs
        const void *packed
        void *out
        ptrdiff_t ldo
        const float *b_scale
        ptrdiff_t b_group
        const int32_t *b_zero_point
        int quantize_a
        const float *a_scale
        const int32_t *a_zero_point
        int a_shared
        const float *bias
        int activation
        const void *residual
        int residual_type
        ptrdiff_t ldr

    ctypedef struct mp_core_quantization:
        size_t size
        ptrdiff_t rows, cols
        int x_type, q_type
        void *x
        void *q
        int scales
        ptrdiff_t group
        int from_ "from"
        float *scale
        int32_t *zero_point

    ctypedef struct mp_core_rows:
        size_t size
        ptrdiff_t rows, n
        int type
        const void *x
        ptrdiff_t ldx
        void *out
        ptrdiff_t ldo

    ctypedef struct mp_core_plan:
        pass

    ctypedef struct mp_core_table:
        int abi_version, api_version
        const char *(*version)() noexcept nogil
        const char *(*status_text)(int status) noexcept nogil
        const char *(*isa)() noexcept nogil
        int (*set_isa)(const char *name) noexcept nogil
        int (*cpus)() noexcept nogil
        int (*cast)(ptrdiff_t n, int src_type, const void *src, int dst_type, void *dst, int saturate,
                    int threads) noexcept nogil
        ptrdiff_t (*packed_bytes)(int type, ptrdiff_t k, ptrdiff_t n) noexcept nogil
        int (*pack)(int type, ptrdiff_t k, ptrdiff_t n, const void *b, ptrdiff_t rs, ptrdiff_t cs, void *packed,
                    int threads) noexcept nogil
        ptrdiff_t (*product_scratch)(const mp_core_product *product, int threads) noexcept nogil
        int (*multiply)(const mp_core_product *product, void *scratch, int threads) noexcept nogil
        int (*quantize)(const mp_core_quantization *quantization, int threads) noexcept nogil
        int (*dequantize)(const mp_core_quantization *quantization, int threads) noexcept nogil
        int (*softmax)(const mp_core_rows *rows, float scale, const uint8_t *keep, ptrdiff_t keep_stride,
                       int threads) noexcept nogil
        int (*layer_norm)(const mp_core_rows *rows, const void *residual, const float *gamma, const float *beta,
                          float epsilon, int threads) noexcept nogil
        int (*rms_norm)(const mp_core_rows *rows, const float *gamma, float epsilon, int threads) noexcept nogil
        int (*activate)(const mp_core_rows *rows, int activation, int threads) noexcept nogil
        int (*run_plan)(mp_core_plan *plan, const void *const *inputs, void *const *outputs,
                        int threads) noexcept nogil
        ptrdiff_t (*plan_bytes)(const mp_core_plan *plan, int is_output, int index) noexcept nogil
        int (*set_reproducible)(int reproducible) noexcept nogil
        int (*is_reproducible)() noexcept nogil

    const mp_core_table *mp_core_api

cdef extern from "mp_core_python.h":
    int import_mp_core() except -1
