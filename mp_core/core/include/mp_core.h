/* mp_core for C and C++: mixed-precision casts, matrix products, quantization, softmax and norms on CPUs.
 *
 * There are two ways to these functions, with the same names and bits:
 *   - linked: libmp_core, of the wheel or built without Python (meson setup -Dpython=false), and the call is
 *     mp_core_cast(...);
 *   - in an extension module of Python: nothing is linked; mp_core_python.h imports a table of them from the installed
 *     package, and the call is mp_core_api->cast(...).
 *
 * What holds for all of them:
 *   - Memory is the caller's. Counts and strides are in elements, and not negative, unless it says bytes. Rows have
 *     unit stride. Counts, and what strides span, are at most 2^50. Pointers may have any alignment that C allows for
 *     the type of the elements; 64 bytes are fastest.
 *   - What is written must not overlap what is read, unless it says so. Elements between rows are never written.
 *   - `threads` is the most threads that run a call, the caller's among them, from 1 to 1024. Threads beside the
 *     caller's are those of one pool of the process; a call that is too small for them runs on the caller's alone.
 *     Results do not depend on it. Functions may be called from several threads at once, and need no lock of Python.
 *     They may be called in the child of a fork().
 *   - Functions return MP_CORE_OK or what was wrong. After MP_CORE_INVALID, MP_CORE_BAD_ISA or MP_CORE_BAD_ORDER
 *     nothing has been written; after MP_CORE_NO_MEMORY or MP_CORE_NO_ROW, what was written is of no use. None prints,
 *     throws or ends the process. They read the memory that the arguments describe, and maybe the gaps between rows of
 *     B. They cannot check that a pointer has as much memory as the shape says.
 *   - Numbers are computed in float32 and rounded once, to nearest even, with the same bits on every CPU, with two
 *     exceptions. Payloads of NaN may differ. Products of bfloat16 and float8 differ on CPUs with Intel AMX, unless
 *     mp_core_set_reproducible(1) is called; docs/numerics.md states both orders of sums. float8 and bfloat16 are those
 *     of ml_dtypes.
 *   - Structs begin with their size, which must be sizeof the struct that the caller was compiled with. Fields that are
 *     not set are 0, so begin with = {.size = sizeof(...)}, or = {} in C++. New fields are appended, and 0 keeps what
 *     was before. */
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
    MP_CORE_BAD_ISA = 3,   /* MP_CORE_ISA, or the name given, is none that this machine can use */
    MP_CORE_NO_ROW = 4,    /* an index of a plan's inputs is outside of the table in which it is looked up */
    MP_CORE_BAD_ORDER = 5  /* MP_CORE_REPRODUCIBLE is neither 0 nor 1: products only */
} mp_core_status;

/* The types of elements. int4 is a value from -8 to 7; how it is stored is told where it is allowed. */
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
    MP_CORE_UINT4 = 10
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

/* What a status means: a constant text. */
MP_CORE_PUBLIC const char *mp_core_status_text(int status);

/* The name of the instruction set in use; NULL if MP_CORE_ISA names none that this machine can use. */
MP_CORE_PUBLIC const char *mp_core_isa(void);

/* Use another instruction set, for the whole process: only speed changes, and sizes of scratch. The bits stay, except
 * for products of bfloat16 and float8 between avx512_amx and the others, unless the order of sums is the reproducible
 * one. MP_CORE_BAD_ISA if this machine cannot use it. */
MP_CORE_PUBLIC int mp_core_set_isa(const char *name);

/* The number of CPUs on which the calling thread may run: a good number of threads. */
MP_CORE_PUBLIC int mp_core_cpus(void);

/* Cast n elements. src_type is float64 or narrower, dst_type float32 or narrower, both floats. Each element is rounded
 * once; NaN stays NaN. Overflow gives infinity, or NaN in float8_e4m3fn, which has no infinity; with `saturate` the
 * largest finite value. dst may be src if their elements are equally wide. */
MP_CORE_PUBLIC int mp_core_cast(ptrdiff_t n, int src_type, const void *src, int dst_type, void *dst, int saturate,
                                int threads);

/* ---- packed matrices: the right operand of products, in the layout that kernels read. It is the same on every CPU of
 * this version of the library, and may be written to a file and mapped.
 *
 * Bytes of a packed (k, n) matrix of a type: any float but float64, int8 or int4; -1 for others, or if it is too
 * big. */
MP_CORE_PUBLIC ptrdiff_t mp_core_packed_bytes(int type, ptrdiff_t k, ptrdiff_t n);

/* Pack b: element (p, j) is rs * p + cs * j elements behind b; rs and cs may be negative. int4 values lie in bytes, one
 * in each. `packed` takes mp_core_packed_bytes(type, k, n) bytes, aligned to 4, best to 64. */
MP_CORE_PUBLIC int mp_core_pack(int type, ptrdiff_t k, ptrdiff_t n, const void *b, ptrdiff_t rs, ptrdiff_t cs,
                                void *packed, int threads);

/* A product with its epilogue, for i < m and j < n, za and zb being the zero points:
 *     sum       = sum of (a[i][p] - za[i]) * (b[p][j] - zb[j]) for p < k
 *     out[i][j] = activation(sum * a_scale[i] * b_scale[j] + bias[j]) + residual[i][j]
 * With b_group > 0, b_scale[p / b_group][j] scales the terms of its group instead. Sums are exact int32 if both
 * operands are integers, and else float32; if A is bfloat16 or float8 and B neither float32 nor float16, two terms are
 * added at a time ("pairs" in docs/numerics.md). Of integers, k is at most 131071; 65793 if A is uint8 or has zero
 * points, or if B has zero points; 33025 if both. If k is 0, sums are 0, and a, b and packed may be NULL.
 *
 * Types of A and B that multiply: float32, float16, bfloat16 with each other; these with a B of float8, int8 or int4;
 * two of the same float8; int8 or uint8 with int8. int8 and int4 beside floats are numbers that b_scale scales; int4
 * must be packed. out_type is any float but float64 or, for integers without the float part, int32. */
typedef struct mp_core_product {
    size_t size; /* sizeof(mp_core_product) */
    ptrdiff_t m, n, k;
    int a_type, b_type, out_type;
    const void *a;               /* rows lda >= k elements apart */
    ptrdiff_t lda;
    const void *b;               /* as mp_core_pack takes it: b_rs and b_cs are used; or NULL */
    ptrdiff_t b_rs, b_cs;
    const void *packed;          /* what mp_core_pack wrote, if b is NULL */
    void *out;                   /* rows ldo >= n elements apart */
    ptrdiff_t ldo;
    const float *b_scale;        /* [n], or NULL: 1. Beside an A of float32, float16 or bfloat16: only if B is int8,
                                    int4 or float8; beside an A of float8: NULL */
    ptrdiff_t b_group;           /* > 0: b_scale is [ceil(k / b_group)][n], a scale for each b_group elements of K, a
                                    multiple of 8; B packed, A float and not quantized here */
    const int32_t *b_zero_point; /* [n], from -128 to 127, or NULL: 0. Integers only */
    int quantize_a;              /* a float A becomes int8, a row at a time, by amax / 127 or by a_scale; B is int8 */
    const float *a_scale;        /* [m], or one if a_shared, or NULL: 1. Of integers, or quantize_a: then a_shared */
    const int32_t *a_zero_point; /* like a_scale, of integers, values of their type; or NULL: 0 */
    int a_shared;
    const float *bias;           /* [n] or NULL */
    int activation;
    const void *residual;        /* rows ldr >= n elements apart, a float type but float64; or NULL. It may be out, if
                                    its type and ldr are those of out */
    int residual_type;
    ptrdiff_t ldr;
} mp_core_product;

/* Bytes of scratch that a product needs on so many threads, in either order of sums; -1 if an argument or MP_CORE_ISA
 * is bad. Of the pointers only matters whether they are NULL. */
MP_CORE_PUBLIC ptrdiff_t mp_core_product_scratch(const mp_core_product *product, int threads);

/* Multiply. scratch is mp_core_product_scratch bytes, aligned to 64, asked for with the same threads and instruction
 * set; or NULL: then each thread allocates its own, which it keeps. One call at a time uses it, and at most 64
 * threads. */
MP_CORE_PUBLIC int mp_core_multiply(const mp_core_product *product, void *scratch, int threads);

/* ---- quantization: x ~ scale * (q - zero_point), by true division, rounded to nearest even */

typedef enum mp_core_scales {
    MP_CORE_ONE_SCALE = 0,  /* of the whole array; `group` is ignored */
    MP_CORE_ROW_SCALES = 1, /* [rows][ceil(cols / group)] */
    MP_CORE_COLUMN_SCALES = 2 /* [ceil(rows / group)][cols] */
} mp_core_scales;

typedef enum mp_core_scales_from {
    MP_CORE_SYMMETRIC = 0,  /* scale = max |x| / the largest code; of uint8 and uint4 max(x, 0) / that; zero_point is
                               ignored */
    MP_CORE_ASYMMETRIC = 1, /* of the range from min(x, 0) to max(x, 0); int8, uint8, int4 and uint4 only */
    MP_CORE_GIVEN = 2       /* the caller's; zero points are codes */
} mp_core_scales_from;

/* A C-contiguous array and its codes. If it has no elements, nothing is written, scales neither. */
typedef struct mp_core_quantization {
    size_t size; /* sizeof(mp_core_quantization) */
    ptrdiff_t rows, cols;
    int x_type;          /* float32, float16 or bfloat16 */
    int q_type;          /* int8, uint8, int4, uint4, a float8. 4-bit codes lie two to a byte, even columns in the low
                            half: cols must be even and, with ROW_SCALES, group too */
    void *x;             /* quantize reads it, dequantize writes it */
    void *q;
    int scales;          /* mp_core_scales */
    ptrdiff_t group;     /* elements that share a scale, along a row (ROW_SCALES) or column (COLUMN_SCALES); 0: all */
    int from;            /* mp_core_scales_from: which quantize computes and writes; dequantize takes them as given */
    float *scale;
    int32_t *zero_point; /* like scale; NULL: zeros, but not for ASYMMETRIC. Of float8: NULL */
} mp_core_quantization;

MP_CORE_PUBLIC int mp_core_quantize(const mp_core_quantization *quantization, int threads);
MP_CORE_PUBLIC int mp_core_dequantize(const mp_core_quantization *quantization, int threads);

/* ---- rows: n elements of a float type but float64 each, computed in float32. x and out may be the same, if ldx is
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

/* out = softmax(scale * x). `keep` is NULL, or n bytes for each row, keep_stride >= n bytes apart (0: the same for
 * all): elements whose byte is 0 are left out, and 0 in out. */
MP_CORE_PUBLIC int mp_core_softmax(const mp_core_rows *rows, float scale, const uint8_t *keep, ptrdiff_t keep_stride,
                                   int threads);

/* out = (y - mean) / sqrt(variance + epsilon) * gamma + beta, y = x + residual. residual is NULL or like x; gamma and
 * beta are [n] or NULL. */
MP_CORE_PUBLIC int mp_core_layer_norm(const mp_core_rows *rows, const void *residual, const float *gamma,
                                      const float *beta, float epsilon, int threads);

/* out = x / sqrt(mean of x^2 + epsilon) * gamma; gamma is [n] or NULL. */
MP_CORE_PUBLIC int mp_core_rms_norm(const mp_core_rows *rows, const float *gamma, float epsilon, int threads);

/* out = activation(x), an mp_core_activation but MP_CORE_LINEAR. */
MP_CORE_PUBLIC int mp_core_activate(const mp_core_rows *rows, int activation, int threads);

/* ---- plans: forward passes that Python recorded (mp_core.compile). plan.c_plan() is a PyCapsule "mp_core.plan" that
 * holds one; it may be run by one thread at a time, without the interpreter lock, for as long as the capsule lives. It
 * keeps the weights that it was made with. */
typedef struct mp_core_plan mp_core_plan;

/* Run it: inputs[i] is a C-contiguous array of the shape and type of example i (integers: int32), outputs[i] one like
 * result i; none is NULL, even without elements. The operations read and write them where they lie; an
 * output is written before the plan ends, so it must not overlap an input or another output. */
MP_CORE_PUBLIC int mp_core_run_plan(mp_core_plan *plan, const void *const *inputs, void *const *outputs, int threads);

/* Bytes of input (output) number `index` of a plan; -1 if it has no such array. */
MP_CORE_PUBLIC ptrdiff_t mp_core_plan_bytes(const mp_core_plan *plan, int is_output, int index);

/* ---- the order of sums (API version 2)
 *
 * On CPUs with Intel AMX, products of bfloat16 and float8 are added by AMX tiles: several times as fast as, and in
 * another order than, any other CPU adds them. With 1, they are added in the order of all other CPUs. Everywhere else
 * both values mean the same. It is a setting of the process; MP_CORE_REPRODUCIBLE=0 or 1 makes it until this is called,
 * and without both it is 0. A call has the setting that it finds when it begins; mp_core_run_plan too, whatever the
 * setting was when the plan was recorded. Packed matrices serve both orders. MP_CORE_INVALID if the value is neither 0
 * nor 1. */
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
