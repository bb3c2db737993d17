/* mp_core for C and C++: mixed-precision casts, matrix products, quantization, softmax and norms on CPUs.
 *
 * The functions can be called in two ways, with the same names and the same results:
 *   - linked: link libmp_core, from the wheel or built without Python (meson setup -Dpython=false), and call
 *     mp_core_cast(...);
 *   - from an extension module of Python: link nothing; mp_core_python.h imports a table of the functions from the
 *     installed package. Call mp_core_api->cast(...).
 *
 * Rules for all functions:
 *   - The caller allocates all memory. Counts and strides are in elements unless a comment says bytes, and not negative
 *     unless one says so. The elements of a row are contiguous. Counts, and the elements that a stride spans, are at
 *     most 2^50. Pointers may have any alignment that C allows for the type of the elements; 64 bytes are fastest.
 *   - Memory that is written must not overlap memory that is read, unless a comment allows it. Elements between rows
 *     are never written.
 *   - `threads`, from 1 to 1024, is the largest number of threads that run a call, including the caller's. The others
 *     belong to one pool of the process. A small call runs on the caller's thread alone. Results do not depend on the
 *     number of threads. Functions may be called from several threads at once, without Python's interpreter lock, and
 *     in the child of a fork().
 *   - Functions return MP_CORE_OK or the reason of a failure. After MP_CORE_INVALID, MP_CORE_BAD_ISA or
 *     MP_CORE_BAD_ORDER nothing was written; after MP_CORE_NO_MEMORY or MP_CORE_NO_ROW results are undefined. No
 *     function prints, throws or ends the process. Functions read the memory that the arguments describe, and may read
 *     the gaps between rows of B. They cannot check that a pointer has as much memory as the shape says.
 *   - Numbers are computed in float32 and rounded once, to nearest even, with the same bits on every CPU, with two
 *     exceptions: payloads of NaN may differ; and products of bfloat16 and float8 differ on CPUs with Intel AMX, unless
 *     mp_core_set_reproducible(1) was called. docs/numerics.md states both orders of sums. float8 and bfloat16 are the
 *     types of ml_dtypes.
 *   - The first field of a struct is its size: sizeof the struct with which the caller was compiled. Set unused fields
 *     to 0: begin with = {.size = sizeof(...)}, or = {} in C++. New fields are appended; 0 in them has no effect. */
#ifndef MP_CORE_H
#define MP_CORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32) && defined(MP_CORE_EXPORTS) /* while the library itself is compiled */
#define MP_CORE_PUBLIC __declspec(dllexport)
#elif defined(__GNUC__) && !defined(_WIN32)
#define MP_CORE_PUBLIC __attribute__((visibility("default")))
#else
#define MP_CORE_PUBLIC
#endif

/* Rises when something is appended to this file: a program that was compiled with a smaller number runs with this
 * library too, and one that was compiled with this number needs a library that has it. 2: mp_core_set_reproducible,
 * mp_core_is_reproducible, MP_CORE_BAD_ORDER. */
#define MP_CORE_API_VERSION 2
/* Rises when something changes that callers rely on: a caller then must be compiled again. */
#define MP_CORE_ABI_VERSION 1

typedef enum mp_core_status {
    MP_CORE_OK = 0,
    MP_CORE_INVALID = 1,   /* an argument is not allowed: see the comment of the function */
    MP_CORE_NO_MEMORY = 2, /* there was no memory for scratch */
    MP_CORE_BAD_ISA = 3,   /* MP_CORE_ISA, or `name`, is not an instruction set that this machine can use */
    MP_CORE_NO_ROW = 4,    /* an index in an input of a plan is outside of the table in which it is looked up */
    MP_CORE_BAD_ORDER = 5  /* products only: MP_CORE_REPRODUCIBLE is neither 0 nor 1 */
} mp_core_status;

/* The types of elements. An int4 is a value from -8 to 7, a float4_e2m1fn a code from 0 to 15; the functions that
 * accept them say how they are stored. */
typedef enum mp_core_type {
    MP_CORE_FLOAT32 = 0,
    MP_CORE_FLOAT16 = 1,
    MP_CORE_BFLOAT16 = 2,
    MP_CORE_FLOAT8_E4M3FN = 3,
    MP_CORE_FLOAT8_E5M2 = 4,
    MP_CORE_FLOAT64 = 5,
    MP_CORE_INT8 = 6,
    MP_CORE_UINT8 = 7,
    MP_CORE_INT32 = 8,
    MP_CORE_INT4 = 9,
    MP_CORE_UINT4 = 10,
    MP_CORE_FLOAT4_E2M1FN = 11
} mp_core_type;

typedef enum mp_core_activation {
    MP_CORE_LINEAR = 0, /* none */
    MP_CORE_RELU = 1,
    MP_CORE_GELU = 2,   /* by the error function */
    MP_CORE_SILU = 3,
    MP_CORE_RELU6 = 4,
    MP_CORE_GELU_TANH = 5,
    MP_CORE_SIGMOID = 6,
    MP_CORE_TANH = 7
} mp_core_activation;

/* The version of the library, as "1.2.3". */
MP_CORE_PUBLIC const char *mp_core_version(void);

/* A description of a status. The string is constant. */
MP_CORE_PUBLIC const char *mp_core_status_text(int status);

/* The name of the instruction set in use; NULL if MP_CORE_ISA is not the name of one that this machine can use. */
MP_CORE_PUBLIC const char *mp_core_isa(void);

/* Use another instruction set in the whole process. This changes the speed and the sizes of scratch. It changes results
 * only of products of bfloat16 and float8, between avx512_amx and the others, and not with the reproducible order of
 * sums. MP_CORE_BAD_ISA: this machine cannot use it. */
MP_CORE_PUBLIC int mp_core_set_isa(const char *name);

/* The number of CPUs on which the calling thread may run: a good number of threads. */
MP_CORE_PUBLIC int mp_core_cpus(void);

/* Cast n elements. src_type is any float, dst_type any float except float64. Each element is rounded once; NaN stays
 * NaN. Overflow gives infinity, NaN in float8_e4m3fn (which has no infinity), or with `saturate` the largest finite
 * value. dst may be src if their elements have the same size. */
MP_CORE_PUBLIC int mp_core_cast(ptrdiff_t n, int src_type, const void *src, int dst_type, void *dst, int saturate,
                                int threads);

/* ---- packed matrices: the right operand of products, in the layout that kernels read. In one version of the library
 * the layout is the same on every CPU, so a packed matrix may be written to a file and mapped.
 *
 * The size of a packed (k, n) matrix in bytes. The type is any float except float64, int8, int4 or float4_e2m1fn; -1
 * for other types or if the matrix is too large. */
MP_CORE_PUBLIC ptrdiff_t mp_core_packed_bytes(int type, ptrdiff_t k, ptrdiff_t n);

/* Pack b: element (p, j) is b[rs * p + cs * j]; rs and cs may be negative. A byte has one int4 or float4_e2m1fn.
 * `packed` has mp_core_packed_bytes(type, k, n) bytes, aligned to 4, better to 64. */
MP_CORE_PUBLIC int mp_core_pack(int type, ptrdiff_t k, ptrdiff_t n, const void *b, ptrdiff_t rs, ptrdiff_t cs,
                                void *packed, int threads);

/* A product with its epilogue, for i < m and j < n; za and zb are zero points:
 *     sum       = sum of (a[i][p] - za[i]) * (b[p][j] - zb[j]) for p < k
 *     out[i][j] = activation(sum * a_scale[i] * b_scale[j] + bias[j]) + residual[i][j]
 * With b_group > 0, b_scale[p / b_group][j] scales the terms of its group instead. Sums are exact int32 if both
 * operands are integers, else float32. If A is bfloat16 or float8 and B neither float32 nor float16, two terms are
 * added at a time ("pairs" in docs/numerics.md). For two integers, k is at most 131071; 65793 if A is uint8 or has zero
 * points, or if B has zero points; 33025 if both. If k is 0, sums are 0, and a, b and packed may be NULL.
 *
 * Allowed types of A and B: both of float32, float16, bfloat16; A one of these and B float8, int8, int4 or
 * float4_e2m1fn; both the same float8; A int8 or uint8 and B int8. If A is a float, b_scale scales the numbers of B.
 * Types of four bits must be packed. out_type is any float except float64, or int32 for the sum of two integers alone:
 * without scales, bias, activation and residual. */
typedef struct mp_core_product {
    size_t size; /* sizeof(mp_core_product) */
    ptrdiff_t m, n, k;
    int a_type, b_type, out_type;
    const void *a;               /* rows lda >= k elements apart */
    ptrdiff_t lda;
    const void *b;               /* element (p, j) is b[b_rs * p + b_cs * j]; or NULL */
    ptrdiff_t b_rs, b_cs;
    const void *packed;          /* if b is NULL: B, written by mp_core_pack */
    void *out;                   /* rows ldo >= n elements apart */
    ptrdiff_t ldo;
    const float *b_scale;        /* [n], or NULL: 1. If A is float32, float16 or bfloat16: only for a B of at most 8
                                    bits; if A is float8: NULL */
    ptrdiff_t b_group;           /* > 0: b_scale is [ceil(k / b_group)][n], a scale for each b_group elements of K; a
                                    multiple of 8. B is packed, A float */
    const int32_t *b_zero_point; /* [n], from -128 to 127, or NULL: 0. Only for two integers */
    int quantize_a;              /* 1: quantize each row of a float A to int8, by amax / 127 or by a_scale; B is int8,
                                    int4, or float4_e2m1fn with b_group */
    const float *a_scale;        /* [m], or [1] if a_shared, or NULL: 1. Only for an integer A, or for quantize_a with
                                    a_shared */
    const int32_t *a_zero_point; /* as many as a_scale, values of the type of A; or NULL: 0. Only for an integer A */
    int a_shared;
    const float *bias;           /* [n] or NULL */
    int activation;
    const void *residual;        /* rows ldr >= n elements apart, any float except float64; or NULL. It may be out if it
                                    has the type of out and ldr = ldo */
    int residual_type;
    ptrdiff_t ldr;
} mp_core_product;

/* Bytes of scratch that a product needs on `threads` threads, enough for both orders of sums; -1 if an argument or
 * MP_CORE_ISA is invalid. Pointers are only compared with NULL. */
MP_CORE_PUBLIC ptrdiff_t mp_core_product_scratch(const mp_core_product *product, int threads);

/* Multiply. scratch has mp_core_product_scratch bytes, for the same number of threads and instruction set, and is
 * aligned to 64; only one call at a time may use it. With NULL, each thread allocates scratch and keeps it for later
 * calls. */
MP_CORE_PUBLIC int mp_core_multiply(const mp_core_product *product, void *scratch, int threads);

/* ---- quantization: x is about scale * (q - zero_point). x is divided by the scale (not multiplied by its inverse) and
 * rounded to nearest even. */

typedef enum mp_core_scales {
    MP_CORE_ONE_SCALE = 0,  /* one for the whole array; `group` is ignored */
    MP_CORE_ROW_SCALES = 1, /* [rows][ceil(cols / group)] */
    MP_CORE_COLUMN_SCALES = 2 /* [ceil(rows / group)][cols] */
} mp_core_scales;

typedef enum mp_core_scales_from {
    MP_CORE_SYMMETRIC = 0,  /* max |x| / the largest code; for uint8 and uint4 max(x, 0) / the largest code. zero_point
                               is ignored */
    MP_CORE_ASYMMETRIC = 1, /* from the range min(x, 0) to max(x, 0); int8, uint8, int4 and uint4 only */
    MP_CORE_GIVEN = 2       /* the caller has set scales and zero points; zero points are codes */
} mp_core_scales_from;

/* A C-contiguous array and its codes. If it has no elements, nothing is written, no scales either. */
typedef struct mp_core_quantization {
    size_t size; /* sizeof(mp_core_quantization) */
    ptrdiff_t rows, cols;
    int x_type;          /* float32, float16 or bfloat16 */
    int q_type;          /* int8, uint8, int4, uint4, a float8 or float4_e2m1fn. A byte has two 4-bit codes, that of the
                            even column in its low half: cols must be even and, with ROW_SCALES, group too */
    void *x;             /* quantize reads it, dequantize writes it */
    void *q;
    int scales;          /* mp_core_scales */
    ptrdiff_t group;     /* elements of a row (ROW_SCALES) or column (COLUMN_SCALES) that share a scale; 0: all */
    int from;            /* mp_core_scales_from: how quantize computes scale and zero_point; dequantize ignores it */
    float *scale;
    int32_t *zero_point; /* as many as scales; NULL: zeros. ASYMMETRIC needs it; for floats it is NULL */
} mp_core_quantization;

MP_CORE_PUBLIC int mp_core_quantize(const mp_core_quantization *quantization, int threads);
MP_CORE_PUBLIC int mp_core_dequantize(const mp_core_quantization *quantization, int threads);

/* ---- rows of n elements of any float type except float64, computed in float32. x and out may be the same if ldx is
 * ldo. */

typedef struct mp_core_rows {
    size_t size; /* sizeof(mp_core_rows) */
    ptrdiff_t rows, n;
    int type;
    const void *x;
    ptrdiff_t ldx; /* >= n */
    void *out;
    ptrdiff_t ldo; /* >= n */
} mp_core_rows;

/* out = softmax(scale * x). `keep` is NULL, or a mask of n bytes for each row, keep_stride >= n bytes apart (0: one
 * mask for all rows). Elements whose byte is 0 are left out of the softmax, and are 0 in out. */
MP_CORE_PUBLIC int mp_core_softmax(const mp_core_rows *rows, float scale, const uint8_t *keep, ptrdiff_t keep_stride,
                                   int threads);

/* out = (y - mean) / sqrt(variance + epsilon) * gamma + beta, y = x + residual. residual is NULL or an array of the
 * layout of x; gamma and beta are [n] or NULL. */
MP_CORE_PUBLIC int mp_core_layer_norm(const mp_core_rows *rows, const void *residual, const float *gamma,
                                      const float *beta, float epsilon, int threads);

/* out = x / sqrt(mean of x^2 + epsilon) * gamma; gamma is [n] or NULL. */
MP_CORE_PUBLIC int mp_core_rms_norm(const mp_core_rows *rows, const float *gamma, float epsilon, int threads);

/* out = activation(x), any mp_core_activation except MP_CORE_LINEAR. */
MP_CORE_PUBLIC int mp_core_activate(const mp_core_rows *rows, int activation, int threads);

/* ---- plans: forward passes that Python recorded (mp_core.compile). In Python, plan.c_plan() returns a PyCapsule
 * "mp_core.plan" with a pointer to this struct, which is valid as long as the capsule lives. One thread at a time may
 * run the plan, without the interpreter lock. It keeps the weights of the recording. */
typedef struct mp_core_plan mp_core_plan;

/* Run a plan. inputs[i] is a C-contiguous array of the shape and type of example i, outputs[i] of
 * the shape and type of result i. No pointer may be NULL, not even that of an array without elements. Arrays are not
 * copied; an output may be written before inputs are read, so it must not overlap an input or another output. */
MP_CORE_PUBLIC int mp_core_run_plan(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads);

/* The size of an input or output of a plan in bytes; -1 if there is no array of this index. */
MP_CORE_PUBLIC ptrdiff_t mp_core_plan_bytes(const mp_core_plan *plan, int is_output, int index);

/* ---- the order of sums (API version 2)
 *
 * On CPUs with Intel AMX, products of bfloat16 and float8 are computed by AMX tiles. These are several times as fast as
 * other instructions, and add in another order. With 1, such products are added in the order of all other CPUs. Without
 * AMX the value makes no difference. It applies to the whole process. Until this function is called, the value is that
 * of the environment variable MP_CORE_REPRODUCIBLE, or 0 without it. A call uses the value at the time when it starts,
 * also a call of mp_core_run_plan. Packed matrices may be used with both values. MP_CORE_INVALID: the value is neither
 * 0 nor 1. */
MP_CORE_PUBLIC int mp_core_set_reproducible(int reproducible);

/* That setting: 0 or 1; -1 if MP_CORE_REPRODUCIBLE is neither. */
MP_CORE_PUBLIC int mp_core_is_reproducible(void);

/* ---- the table of all of these functions, in the order of their appearance; new ones are appended. */
typedef struct mp_core_table {
    int abi_version, api_version;
    const char *(*version)(void);
    const char *(*status_text)(int status);
    const char *(*isa)(void);
    int (*set_isa)(const char *name);
    int (*cpus)(void);
    int (*cast)(ptrdiff_t n, int src_type, const void *src, int dst_type, void *dst, int saturate, int threads);
    ptrdiff_t (*packed_bytes)(int type, ptrdiff_t k, ptrdiff_t n);
    int (*pack)(int type, ptrdiff_t k, ptrdiff_t n, const void *b, ptrdiff_t rs, ptrdiff_t cs, void *packed,
                int threads);
    ptrdiff_t (*product_scratch)(const mp_core_product *product, int threads);
    int (*multiply)(const mp_core_product *product, void *scratch, int threads);
    int (*quantize)(const mp_core_quantization *quantization, int threads);
    int (*dequantize)(const mp_core_quantization *quantization, int threads);
    int (*softmax)(const mp_core_rows *rows, float scale, const uint8_t *keep, ptrdiff_t keep_stride, int threads);
    int (*layer_norm)(const mp_core_rows *rows, const void *residual, const float *gamma, const float *beta,
                      float epsilon, int threads);
    int (*rms_norm)(const mp_core_rows *rows, const float *gamma, float epsilon, int threads);
    int (*activate)(const mp_core_rows *rows, int activation, int threads);
    int (*run_plan)(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads);
    ptrdiff_t (*plan_bytes)(const mp_core_plan *plan, int is_output, int index);
    int (*set_reproducible)(int reproducible);
    int (*is_reproducible)(void);
} mp_core_table;

MP_CORE_PUBLIC const mp_core_table *mp_core_functions(void);

#ifdef __cplusplus
}
#endif
#endif
