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

/* Storage formats: the floats of kernels/formats.def in its order, which are the indices into widen[] and narrow[], then
 * the integers that a packed panel may hold; MP_I32 is only the output of an int8 product. */
typedef enum {
#define MP_FLOAT(NAME, ...) MP_##NAME,
#include "formats.def"
    MP_FLOATS,
    MP_I8 = MP_FLOATS, MP_I4,
    MP_PANEL_FORMATS,
    MP_I32 = MP_PANEL_FORMATS,
} mp_format;

/* How a kernel writes and what it may rely on: bits of `mode`, or 0. */
enum {
    MP_SATURATE = 1, /* casts: clamp to the largest finite value instead of overflowing */
    MP_STREAM = 2,   /* write past the caches */
    MP_WITHIN = 4,   /* quantize: the scales cover every finite value, so no clamp is needed */
    MP_MORE = 8,     /* dequantize: the caller makes more such calls, so the fence of the streaming stores can wait */
};

/* Activations: MP_LINEAR, which is none, and those of kernels/activations.def in its order. */
typedef enum {
    MP_LINEAR,
#define MP_ACTIVATION(NAME, WORD, FUNCTION) MP_##NAME,
#include "activations.def"
} mp_activation;

/* Their names, from the one after MP_LINEAR on, then NULL. */
static const char *const mp_activation_names[] = {
#define MP_ACTIVATION(NAME, WORD, FUNCTION) WORD,
#include "activations.def"
    NULL,
};

/* How products are computed, which also says how the rows of A are read. A panel in another format than the one named is
 * converted to it in registers, or by `decode` before. */
typedef enum {
    MP_WIDE,  /* f32 elements by fused multiply-adds */
    MP_PAIRS, /* pairs of bf16 */
    MP_QUADS, /* groups of four 8-bit integers */
    MP_ARITHMETICS,
} mp_arithmetic;

enum {
    MP_LANES = 16,   /* every vector is 16 lanes wide on every ISA, so reductions have one order */
    MP_PANEL = 64,   /* columns of a packed panel, but for the last one */
    MP_ROWS = 6,     /* most rows of a register block on any ISA */
    MP_TRANSPOSED_ROWS = 24, /* most rows of A for which transposed B is multiplied where it lies */
    MP_SLACK = 64,   /* bytes behind a panel that a kernel may read, and of decoded panels write */
    /* Length of a block of k: part of the numerics contract. 4 KiB of the row of a as it is read. */
    MP_BLOCK_WIDE = 1024, MP_BLOCK_PAIRS = 2048,
    MP_BLOCK_ROW = 4096, /* elements of a row whose sum starts at +0 in every lane: part of the contract too */
};

/* Packed right operand of a product, the same on every ISA. Panel j holds the columns [64 j, 64 j + w), w = 64 or
 * what is left, as [ceil(k / group)][w] groups, zero padded. A group is `group` neighbours along k: 1 (f32, f16),
 * 2 (bf16), 4 (float8, int8) or 8 (int4), 32 bits (f16: 16) together, first in the lowest bits; the even int4 take the
 * lower half, the odd ones the upper. Panels follow each other without gaps. By format: bytes of an element as it comes
 * (int4: in a byte), neighbours in a group, bytes of a group. */
static const ptrdiff_t mp_element_bytes[MP_PANEL_FORMATS] = {
#define MP_FORMAT(NAME, WORD, BYTES, GROUP, GROUP_BYTES) [MP_##NAME] = BYTES,
#include "formats.def"
};
static const ptrdiff_t mp_group[MP_PANEL_FORMATS] = {
#define MP_FORMAT(NAME, WORD, BYTES, GROUP, GROUP_BYTES) [MP_##NAME] = GROUP,
#include "formats.def"
};
static const ptrdiff_t mp_group_bytes[MP_PANEL_FORMATS] = {
#define MP_FORMAT(NAME, WORD, BYTES, GROUP, GROUP_BYTES) [MP_##NAME] = GROUP_BYTES,
#include "formats.def"
};
static const char *const mp_format_names[MP_PANEL_FORMATS] = {
#define MP_FORMAT(NAME, WORD, BYTES, GROUP, GROUP_BYTES) [MP_##NAME] = WORD,
#include "formats.def"
};

/* Bytes of k elements of one column of a panel: panel j starts 64 j times as many into its matrix. */
static inline ptrdiff_t mp_column_bytes(int format, ptrdiff_t k) {
    return (k + mp_group[format] - 1) / mp_group[format] * mp_group_bytes[format];
}

/* One call of a product kernel: m rows of A times the columns of one panel (in place: any n), over a range of K that is
 * whole K blocks, the end of K, or lies in one K block. In each K block, for i < m, j < n,
 *     partial = resume ? partial : init;    partial += a[i][p] * b[p][j] for each p of the block, ascending
 *     sum     = first block ? partial : sum + partial   (with block_scale: partial * scale, fma(partial, scale, sum))
 * and, in the last range of K, the epilogue
 *     x         = sum                                   (integers: - zero points * sums of elements, then to f32)
 *     out[i][j] = narrow(activation(x * row_scale[i] * col_scale[j] + bias[j]) + residual[i][j]).
 * Partial sums of floats are chains of fused multiply-adds (pairs of bf16: the odd element first). Integer sums are exact
 * modulo 2^32, with a taken as the unsigned byte a ^ a_flip (but by AMX tiles).
 *
 * Shape: rows of A and of the result, columns of B, depth of this range; counts of elements. */
typedef struct {
    ptrdiff_t m, n, k;
    ptrdiff_t k_block;           /* length of a K block, a multiple of the group; integers: at least k */
} mp_shape;

/* What is multiplied. a: f32, bf16 or 8-bit elements, neighbours along K side by side, rows lda elements apart. b: the
 * panel's range, b_stride bytes from one group to the next; transposed B: from one column to the next. */
typedef struct {
    const void *a;
    ptrdiff_t lda;
    const void *b;
    ptrdiff_t b_stride;
    uint32_t a_flip;             /* 0x80808080 turns signed bytes into unsigned + 128, 0 leaves unsigned ones */
} mp_operands;

/* Sums that calls hand on to each other: f32 or i32 [m][ld], ld >= n rounded up to MP_LANES. `sums` (of whole K blocks) and
 * `partial` (of the K block in progress) may be one array. sums is NULL where no call before or after needs it: then
 * n <= MP_PANEL and ld is MP_PANEL. Where one is read by vectors it is readable to 16 lanes. */
typedef struct {
    void *sums, *partial;
    ptrdiff_t ld;
    int first, last;             /* no K block precedes; the epilogue follows */
    int resume, suspend;         /* partial comes from the call before; goes to the next one */
    const int32_t *init;         /* [n]: where integer sums start; or NULL: at 0 */
    const float *block_scale;    /* [K blocks][block_scale_ld]: scale of each block's partial sums; or NULL */
    ptrdiff_t block_scale_ld;
} mp_accumulators;

/* What happens to a sum before it is stored. Pointers may be NULL but for out; ldr and ldo count elements. */
typedef struct {
    int32_t a_zero;              /* what stands for 0 in a ^ a_flip, for all rows ... */
    const int32_t *row_zero;     /* ... plus, by row */
    const int32_t *col_sum;      /* [n]: column sums of b, needed with a_zero or row_zero */
    int32_t b_zero;              /* what stands for 0 in b, for all columns ... */
    const int32_t *col_zero;     /* ... plus [n] */
    const int32_t *row_sum;      /* [m]: sum of (a ^ a_flip) - zero, needed with b_zero or col_zero */
    const float *row_scale;
    ptrdiff_t row_stride;        /* elements of row_scale and row_zero from one row to the next: 1, or 0 for one value */
    const float *col_scale;      /* [n] */
    const float *bias;           /* [n] */
    mp_activation activation;
    mp_format residual_format, out_format; /* out: MP_I32 are integers without the float part */
    const void *residual;
    ptrdiff_t ldr;
    void *out;
    ptrdiff_t ldo;
} mp_epilogue;

/* Which memory is wanted soon: products/prefetch.h says who prefetches what, and when. */
typedef struct {
    const char *next;            /* what the next call multiplies, or NULL: `rows` > 0 rows of row_bytes > 0 bytes, ... */
    ptrdiff_t rows, row_bytes;
    ptrdiff_t row_stride;        /* ... row_stride bytes apart. A transposed B says only where it is */
    int own;                     /* prefetch this call's own panel, which comes from memory */
    int from_memory;             /* b is too large for the second-level cache: it is taken to come from memory */
} mp_prefetch;

typedef struct {
    mp_shape shape;
    mp_operands operands;
    mp_accumulators accumulators;
    mp_epilogue epilogue;
    mp_prefetch prefetch;
} mp_gemm;

/* What a quantized element is stored as. */
typedef enum { MP_CODE_I8, MP_CODE_U8, MP_CODE_E4M3FN, MP_CODE_E5M2, MP_CODES } mp_code;

/* A part of an array that is quantized: a matrix of numbers x and the matrix of their codes q, x ~ scale * (q - zero_point).
 * Element (i, j) has scale and zero point number i * by_row + j * by_column. */
typedef struct {
    ptrdiff_t rows, cols;
    float *x;
    ptrdiff_t ldx;               /* elements from one row of x to the next */
    uint8_t *q;
    ptrdiff_t ldq;
    const float *scale;
    const int32_t *zero_point;   /* or NULL: zeros */
    ptrdiff_t by_row, by_column; /* 1 if every row (column) has a scale of its own, else 0; not both 1 */
    int32_t qmin, qmax;          /* of integer codes */
    int mode;                    /* MP_STREAM, MP_WITHIN, MP_MORE */
    ptrdiff_t prefetch_distance; /* quantize, unless by_column: elements from a load of x to what is prefetched with it,
                                    maybe beyond the array; 0: nothing */
} mp_part;

/* Casts. widen is exact, and so is to_bf16, which there is for 8-bit floats only; narrow rounds once, to nearest even; NaN
 * stays NaN. round_odd takes f64 to f32 rounding to odd, so that narrow(round_odd(x)) is x rounded once (Boldo &
 * Melquiond 2008: 24 bits >= 11 + 2). dst may equal src where the elements are equally wide. all_finite returns 1 if no
 * element is infinite or NaN, else 0. */
typedef struct {
    void (*widen[MP_FLOATS])(const void *src, float *dst, ptrdiff_t n, int mode);
    void (*to_bf16[MP_FLOATS])(const void *src, void *dst, ptrdiff_t n);
    void (*narrow[MP_FLOATS])(const float *src, void *dst, ptrdiff_t n, int mode);
    void (*round_odd)(const double *src, float *dst, ptrdiff_t n);
    int (*all_finite[MP_FLOATS])(const void *x, ptrdiff_t n);
} mp_casts;

/* Rows of f32. out may equal x; keep, residual, gamma and beta may be NULL. */
typedef struct {
    void (*softmax)(const float *x, const uint8_t *keep, float scale, ptrdiff_t n, float *out);
    void (*layer_norm)(const float *x, const float *residual, const float *gamma, const float *beta, float epsilon,
                       ptrdiff_t n, float *out);
    void (*rms_norm)(const float *x, const float *gamma, float epsilon, ptrdiff_t n, float *out);
    void (*activate)(mp_activation activation, const float *x, ptrdiff_t n, float *out);
} mp_rows;

/* Quantization. amax (of |x|) and range widen what *amax, or [*lo, *hi] around 0, hold by the finite values of x: one
 * number or pair per scale of the part, in its place. The scales are 1 where a range is empty. pack_nibbles puts n codes
 * into (n + 1) / 2 bytes. */
typedef struct {
    void (*amax)(const mp_part *p, float *amax);
    void (*range)(const mp_part *p, float *lo, float *hi);
    void (*symmetric_scales)(const float *amax, ptrdiff_t n, float largest, float *scale);
    void (*asymmetric_scales)(const float *lo, const float *hi, ptrdiff_t n, int32_t qmin, int32_t qmax, float *scale,
                              int32_t *zero_point);
    void (*quantize[MP_CODES])(const mp_part *p);
    void (*dequantize[MP_CODES])(const mp_part *p);
    void (*pack_nibbles)(const uint8_t *src, ptrdiff_t n, uint8_t *dst);
    void (*unpack_nibbles)(const uint8_t *src, ptrdiff_t n, int is_signed, uint8_t *dst);
} mp_quantizers;

/* Packing. pack writes one panel's range of k (layout above) from elements at the byte strides rs (along k) and cs (along
 * n), int4 from int8; unpack is its inverse, to rows ldd elements apart. */
typedef struct {
    void (*pack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst);
    void (*unpack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd);
} mp_packing;

/* Products of one arithmetic, by the format of b; NULL where there is no such function.
 *   gemm      b is a packed panel.
 *   in_place  b is rows of k with unit stride along n, readable to whole vectors and groups; integers of a are signed,
 *             those of b unsigned as b ^ 0x80.
 *   transposed  b is columns of such elements with unit stride along k, operands.b_stride bytes apart, for at most
 *             MP_TRANSPOSED_ROWS rows and all of k; accumulators.ld is MP_PANEL.
 *   decode    turns a packed range into the format that the arithmetic multiplies, which is faster than to decode it in
 *             registers beside more than few_rows rows of a.
 *   column_sums, row_sums   of integers: by column of a packed int8 range, added to sums; by row of a ^ a_flip. */
typedef struct {
    void (*gemm[MP_PANEL_FORMATS])(const mp_gemm *g);
    void (*in_place[MP_PANEL_FORMATS])(const mp_gemm *g);
    void (*transposed[MP_PANEL_FORMATS])(const mp_gemm *g);
    void (*decode[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst);
    ptrdiff_t few_rows[MP_PANEL_FORMATS];
    void (*column_sums)(ptrdiff_t k, ptrdiff_t n, const void *packed, int32_t *sums);
    void (*row_sums)(ptrdiff_t m, ptrdiff_t k, const void *a, ptrdiff_t lda, uint32_t a_flip, int32_t *sums);
} mp_products;

/* Products by AMX tiles, by arithmetic; NULL where there are none. They do what gemm does for panels of int8, but with
 * signed a as it is: a_zero is 0; or of bf16, in an order of their own. All of k is one block and
 * accumulators.ld is MP_PANEL. */
typedef struct {
    void (*gemm[MP_ARITHMETICS])(const mp_gemm *g);
} mp_tiles;

/* The kernels of an instruction set. isa.def says for which set each family was compiled. */
typedef struct {
    const char *isa;
    int own_order;               /* products of bf16 go by tiles too: they are added in another order than the contract's */
    const mp_casts *casts;
    const mp_rows *rows;
    const mp_quantizers *quantizers;
    const mp_packing *packing;
    const mp_products *products[MP_ARITHMETICS];
    const mp_tiles *tiles;
} mp_kernels;

#endif
