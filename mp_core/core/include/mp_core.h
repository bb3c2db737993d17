/* mp_core: the contract between the kernels (C17, one static library per ISA) and the code that drives them.
 *
 * A kernel is a leaf function over pointers: it allocates nothing, starts no thread and owns no state. Counts and
 * strides are in elements unless a name says bytes; pointers may be unaligned; a kernel touches no byte outside the
 * ranges given here. Every kernel gives the same bits on every ISA (docs/numerics.md).
 */
#ifndef MP_CORE_H
#define MP_CORE_H

#include <stddef.h>
#include <stdint.h>

/* Storage formats. Those that FORMATS in kernels/formats.def lists are floats the kernels convert to and from f32. */
typedef enum {
    MP_F32, MP_F16, MP_BF16, MP_F8_E4M3FN, MP_F8_E5M2, /* floats: the index into widen[] and narrow[] */
    MP_FLOATS,
    MP_I32 = MP_FLOATS, /* only as the output of an int8 product */
} mp_format;

/* How a cast writes: clamped to the largest finite value instead of overflowing; past the caches. Bits, or 0. */
enum { MP_SATURATE = 1, MP_STREAM = 2 };

typedef enum { MP_LINEAR, MP_RELU, MP_GELU, MP_SILU } mp_activation;

/* What one product is made of: the element type of the packed panel decides the inner loop. */
typedef enum { MP_GEMM_F32, MP_GEMM_F16, MP_GEMM_BF16, MP_GEMM_I8, MP_GEMMS } mp_gemm_kind;

enum {
    MP_LANES = 16,   /* every vector is 16 lanes wide on every ISA, so reductions have one order */
    MP_PANEL = 64,   /* columns of a packed panel; the last one is rounded up to MP_LANES only */
    /* Length of a block of k, by kind of product: part of the numerics contract. 4 KiB of the row of a as it is read. */
    MP_BLOCK_F32 = 1024, MP_BLOCK_F16 = 1024, MP_BLOCK_BF16 = 2048, MP_BLOCK_I8 = 4096,
};

/* Packed right operand of a product, the same on every ISA. Panel j holds the columns [64 j, 64 j + w), w = 64 or
 * what is left rounded up to 16, as [ceil(k / group)][w][group] elements, zero padded; group = 1 (f32, f16), 2 (bf16)
 * or 4 (int8) neighbours along k. Panels follow each other without gaps. */

/* One panel times one block of rows, over one block of k:
 *     acc[i][j]  = (first ? 0 : acc[i][j]) + init[j] + sum_p a[i][p] * b[p][j]        i < m, j < n <= MP_PANEL
 * and, in the last block of k,
 *     out[i][j]  = narrow(activation(acc[i][j] * row_scale[i] * col_scale[j] + bias[j]))
 * The float sum over the block starts from 0 and is a chain of fused multiply-adds, k ascending (bf16: in pairs, the
 * odd element first); the int8 sum is exact modulo 2^32, with a taken as unsigned bytes a ^ a_flip. */
typedef struct {
    ptrdiff_t m, n, k;
    const void *a;               /* f32 (MP_GEMM_F32, MP_GEMM_F16), bf16 or 8-bit elements, unit stride along k */
    ptrdiff_t lda;
    const void *b;               /* the panel's block: ceil(k / group) groups */
    void *acc;                   /* f32 or i32 [m][MP_PANEL]; carried between blocks of k, NULL if there is only one */
    int first, last;
    uint32_t a_flip;             /* int8: 0x80808080 turns signed into unsigned + 128, 0 leaves uint8 */
    const int32_t *init;         /* int8: [n rounded up to 16], -128 * column sums; NULL: zeros */
    const float *row_scale;      /* [m] or NULL */
    const float *col_scale;      /* [n] or NULL */
    const float *bias;           /* [n] or NULL */
    mp_activation activation;
    mp_format out_format;        /* MP_I32: the raw int8 sums, no epilogue */
    void *out;
    ptrdiff_t ldo;
} mp_gemm;

/* What a quantized element is stored as. */
typedef enum { MP_CODE_I8, MP_CODE_U8, MP_CODE_E4M3FN, MP_CODE_E5M2, MP_CODES } mp_code;

/* Rows of numbers and of their codes, x ~ scale * (q - zero_point). The scale of element (i, j) is
 * scale[i * row_step + j * col_step], at most one of the steps 1 and the others 0. */
typedef struct {
    ptrdiff_t rows, cols;
    float *x;
    ptrdiff_t ldx;
    uint8_t *q;
    ptrdiff_t ldq;
    const float *scale;
    const int32_t *zero_point;   /* NULL: zeros */
    ptrdiff_t row_step, col_step;
    int32_t qmin, qmax;          /* of integer codes */
    int mode;                    /* MP_STREAM or 0 */
    ptrdiff_t ahead;             /* from an element to the one that will be read next after this tile */
} mp_tile;

typedef struct {
    const char *isa;

    /* Casts. widen is exact; narrow rounds once, to nearest even, NaN stays NaN. round_odd takes f64 to f32 rounding to odd, so that narrow(round_odd(x)) is x
     * rounded once (Boldo & Melquiond 2008: 24 bits >= 11 + 2). dst may equal src where the elements are equally wide. */
    void (*widen[MP_FLOATS])(const void *src, float *dst, ptrdiff_t n, int mode);
    void (*narrow[MP_FLOATS])(const float *src, void *dst, ptrdiff_t n, int mode);
    void (*round_odd)(const double *src, float *dst, ptrdiff_t n);

    /* Products. pack writes one panel's block of k (layout above) from elements at the byte strides rs (along k) and cs
     * (along n); unpack is its inverse, to rows ldd elements apart; column_sums does sums[j] += factor * sum_p b[p][j]
     * for a packed int8 block, j < n rounded up to 16. */
    void (*gemm[MP_GEMMS])(const mp_gemm *g);
    void (*pack[MP_GEMMS])(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst);
    void (*unpack[MP_GEMMS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd);
    void (*column_sums)(ptrdiff_t k, ptrdiff_t n, const void *packed, int32_t factor, int32_t *sums);

    /* Quantization. amax (of |x|) and range widen what *amax, or [*lo, *hi] around 0, hold by the finite values of x:
     * one number or pair per scale of the tile, in its place. The scales are 1 where a range is empty.  pack_nibbles puts n codes into (n + 1) / 2 bytes. */
    void (*amax)(const mp_tile *t, float *amax);
    void (*range)(const mp_tile *t, float *lo, float *hi);
    void (*symmetric_scales)(const float *amax, ptrdiff_t n, float largest, float *scale);
    void (*asymmetric_scales)(const float *lo, const float *hi, ptrdiff_t n, int32_t qmin, int32_t qmax, float *scale,
                              int32_t *zero_point);
    void (*quantize[MP_CODES])(const mp_tile *t);
    void (*dequantize[MP_CODES])(const mp_tile *t);
    void (*pack_nibbles)(const uint8_t *src, ptrdiff_t n, uint8_t *dst);
    void (*unpack_nibbles)(const uint8_t *src, ptrdiff_t n, int is_signed, uint8_t *dst);

    /* Rows. out may equal x; keep, residual, gamma and beta may be NULL. */
    void (*softmax)(const float *x, const uint8_t *keep, float scale, ptrdiff_t n, float *out);
    void (*layer_norm)(const float *x, const float *residual, const float *gamma, const float *beta, float epsilon,
                       ptrdiff_t n, float *out);
    void (*activate)(mp_activation activation, const float *x, ptrdiff_t n, float *out);

    /* 1 if no element is infinite or NaN, else 0. */
    int (*all_finite[MP_FLOATS])(const void *x, ptrdiff_t n);
} mp_kernels;

#endif
