/* The contract between the kernels (C17, one static library per ISA) and the code that drives them.
 *
 * A kernel is a leaf function over pointers: it allocates nothing, starts no thread and owns no state. Counts and
 * strides are in elements unless a name or its comment says bytes; pointers may be unaligned; a kernel touches no byte
 * outside the ranges given here. Every kernel gives the same bits on every ISA (docs/numerics.md), except products of
 * bf16 by AMX tiles, which have the tile order (mp_tiles). */
#ifndef MP_KERNELS_H
#define MP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "special_cases.h"

/* Around what a header declares for the modules of Python too. All symbols are hidden but those, if MP_PYTHON is
 * defined, and the public functions. (On Windows there are no hidden symbols: mp_core/meson.build says which are
 * exported.) */
#if defined(MP_PYTHON) && !defined(_WIN32)
#define MP_SHARED_BEGIN _Pragma("GCC visibility push(default)")
#define MP_SHARED_END _Pragma("GCC visibility pop")
#else
#define MP_SHARED_BEGIN
#define MP_SHARED_END
#endif

/* Storage formats: first the floats of kernels/formats.def in its order, whose numbers are the indices into widen[] and
 * narrow[]; then the integers that a packed panel may hold. */
typedef enum {
#define MP_FLOAT(NAME, ...) MP_##NAME,
#include "formats.def"
    MP_FLOATS,
    MP_I8 = MP_FLOATS, MP_I4,
    MP_PANEL_FORMATS,
    MP_I32 = MP_PANEL_FORMATS, /* only a result of integer products */
    MP_U8,                     /* only a left operand of integer products */
    MP_FORMATS,
} mp_format;

/* How a kernel writes and what it may rely on: bits of `mode`, or 0. */
enum {
    MP_SATURATE = 1, /* casts: clamp to the largest finite value instead of overflowing */
    MP_STREAM = 2,   /* write by non-temporal stores, past the caches */
    MP_NO_CLAMP = 4,   /* quantize: the scales cover every finite value, so no clamp is needed */
    MP_NO_FENCE = 8,   /* dequantize: the caller makes other such calls; the last one issues the fence of all stores */
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

/* The arithmetic of a product: the type in which the elements of A are read, and how many of them along K one operation
 * multiplies. If a panel holds another format than this type, its elements are decoded: in registers, or in a
 * copy before (mp_copies). */
typedef enum {
    MP_WIDE,  /* f32, one element at a time */
    MP_PAIRS, /* bf16, two elements at a time */
    MP_QUADS, /* 8-bit integers, four elements at a time */
    MP_ARITHMETICS,
} mp_arithmetic;

enum {
    MP_LANES = 16,   /* every vector is 16 lanes wide on every ISA, so reductions have one order */
    MP_PANEL = 64,   /* columns of a packed panel; the last panel may have fewer */
    MP_ROWS = 6,     /* the largest MR of any ISA; only pieces of a transposed B (transposed.h) have up to 12 rows */
    /* Rows that go through a pass together if they fit 16 KiB as f32; blocks that are summed side by side. */
    MP_ROWS_TOGETHER = 4,
    MP_TRANSPOSED_ROWS = 24, /* most rows of A for which transposed B is multiplied piece by piece, and not packed */
    MP_SLACK = 64,   /* bytes after a panel that kernels may read, and copies overwrite; octs have 128 */
    MP_OCT = 8,      /* elements along K in a group of octs: see `recoded` of mp_products */
    /* Elements of a K block: part of the numerics contract. They are 4 KiB of a row of A as the arithmetic reads it. */
    MP_BLOCK_WIDE = 1024, MP_BLOCK_PAIRS = 2048,
    MP_BLOCK_ROW = 4096, /* elements of a row whose sum starts at +0 in every lane: part of the contract too */
};

/* The packed right operand of a product, which is the same on every ISA. Panel j holds the columns [64 j, 64 j + w), w
 * being 64 or what is left, as an array [ceil(K / group)][w] of groups; elements beyond K are 0. A group is `group`
 * neighbours along K in one word, the first in its lowest bits:
 *     f32: 1 in 32 bits   f16: 1 in 16 bits   bf16: 2 in 32 bits   float8, int8: 4 in 32 bits
 *     int4: 8 in 32 bits, elements 0, 2, 4, 6 in the lower 16, elements 1, 3, 5, 7 in the upper 16
 * Panels follow each other without gaps. The four arrays below give, by format, the bytes of an element in an array (an
 * int4 takes a byte there), the elements of a group, the bytes of a group, and the name that users write. */
static const ptrdiff_t mp_element_bytes[MP_FORMATS] = {
#define MP_FORMAT(NAME, WORD, BYTES, GROUP, GROUP_BYTES) [MP_##NAME] = BYTES,
#include "formats.def"
    [MP_I32] = 4, [MP_U8] = 1,
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

/* Bytes of k elements of one column of a panel. Panel j begins 64 j mp_column_bytes(format, K) bytes into its
 * matrix. */
static inline ptrdiff_t mp_column_bytes(int format, ptrdiff_t k) {
    return (k + mp_group[format] - 1) / mp_group[format] * mp_group_bytes[format];
}

/* One call of a product kernel (mp_gemm, below): m rows of A times the columns of one panel (in place: any n), over a
 * range of K. The range is a number of whole K blocks (at the end of K the last one may be incomplete), or lies within
 * one K block. In each K block, for i < m, j < n,
 *     partial = resume ? partial : init;    partial += a[i][p] * b[p][j] for each p of the K block, ascending
 *     sum     = first K block ? partial : sum + partial   (with block_scale: partial * scale, fma(partial, scale, sum))
 * and, in the last range of K, the epilogue
 *     x         = sum                                   (integers: - zero points * sums of elements, then to f32; with
 *                                                        block_scale the sums are f32 already)
 *     out[i][j] = narrow(activation(x * row_scale[i] * col_scale[j] + bias[j]) + residual[i][j]).
 * Products of floats are added to a partial sum by one fused multiply-add each (of a pair of bf16 the odd element
 * first; by AMX tiles as mp_tiles says). Sums of integers are exact modulo 2^32. An unsigned byte is multiplied by a
 * signed one: with packed panels a ^ a_flip is the unsigned one and b the signed one; in place and transposed, b ^ 0x80
 * is unsigned and a is signed. AMX tiles, gemm_recoded, and sets that are `is_signed`, multiply a and b as they are.
 *
 * Shape: rows of A and of the result, columns of B, elements of K in this range. */
typedef struct {
    ptrdiff_t m, n, k;
    ptrdiff_t k_block;           /* elements of a K block, a multiple of the group; integers without block_scale: at
                                    least k */
} mp_shape;

/* Zero points of int4, as they are subtracted: [scale groups][MP_PANEL] words, one for each column of a panel and each
 * `group` elements along K. The word of a zero point z is base - (z + 8) * unit: every element that an arithmetic takes
 * at a time has its share of it. */
typedef struct {
    const uint32_t *words;
    ptrdiff_t group;             /* a multiple of the K block, or PTRDIFF_MAX: one for each column */
} mp_zeros;
static const struct {
    uint32_t base, unit;
} mp_zero_words[MP_ARITHMETICS] = {
    [MP_WIDE] = {0x10101010u, 0x01010101u}, [MP_PAIRS] = {0x10101010u, 0x01010101u},
    [MP_QUADS] = {0x80808080u, 0x01010101u},
};
/* That of gemm_shifted in quads, which multiplies codes q + 8: z + 8 itself. */
static const uint32_t mp_zero_of_quads = UINT32_MAX;

/* What is multiplied. a: f32, bf16, 8-bit elements or int16; neighbours along K are neighbours in memory, and rows lie
 * lda elements apart. b: where this range of K begins. b_stride: bytes from one group along K to the next; of a
 * transposed B, from one column to the next; in turn, from one panel to the next. */
typedef struct {
    const void *a;
    ptrdiff_t lda;
    const void *b;
    ptrdiff_t b_stride;
    uint32_t a_flip;             /* 0x80808080 if a is signed: a ^ 0x80 = a + 128 is unsigned; 0 if a is unsigned */
    mp_zeros zeros;              /* gemm_shifted: of this range of the panel's columns */
    const int32_t *block_sums;   /* gemm_shifted of quads: [m][block_sums_ld], minus the sum of a over each K block */
    ptrdiff_t block_sums_ld;
} mp_operands;

/* Sums that calls hand on to each other: f32 or i32 [m][ld], ld >= n rounded up to MP_LANES. `sums` (of whole K blocks)
 * and `partial` (of the K block in progress) may be one array. sums is NULL if no other call needs it: then n <=
 * MP_PANEL and ld is MP_PANEL. Kernels read whole vectors of sums, partial, init and block_scale: of each row, n
 * rounded up to MP_LANES elements must be readable. */
typedef struct {
    void *sums, *partial;
    ptrdiff_t ld;
    int first;                   /* no whole K block precedes this range */
    int last;                    /* this range ends K: the epilogue follows */
    int resume;                  /* the range continues a K block, whose partial sums the call before has left */
    int suspend;                 /* the range ends within a K block, whose partial sums the next call continues */
    const int32_t *init;         /* where sums of integers start: [n], or, if init_ld is not 0, [K blocks of this
                                    range][init_ld], one row for each K block; or NULL: at 0 */
    ptrdiff_t init_ld;
    const float *block_scale;    /* [K blocks of this range][block_scale_ld]: scales of their partial sums, which are
                                    converted to f32 first if they are integers; or NULL */
    ptrdiff_t block_scale_ld;
} mp_accumulators;

/* The epilogue: what happens to a sum before it is stored. Every pointer but out may be NULL; ldr and ldo are in
 * elements. With a and b as the bytes that are multiplied, after ^ 0x80 (see above), za[i] = a_zero + row_zero[i] is
 * the zero point of row i of A and zb[j] = b_zero + col_zero[j] that of column j of B: sum - za[i] * col_sum[j] -
 * row_sum[i] * zb[j] is what sum would be if the zero points had been subtracted from these before. */
typedef struct {
    int32_t a_zero;
    const int32_t *row_zero;     /* [m], or one value: see row_stride */
    const int32_t *col_sum;      /* [n]: sum of column j of b; NULL: za is 0, or init holds its share already */
    int32_t b_zero;
    const int32_t *col_zero;     /* [n] */
    const int32_t *row_sum;      /* [m]: the sum over K of a[i][p] - row_zero[i], where a is the signed or unsigned
                                    number that the caller has; NULL: zb is 0 */
    const float *row_scale;      /* [m], or one value: see row_stride */
    ptrdiff_t row_stride;        /* elements of row_scale and row_zero from one row to the next: 1, or 0: one value */
    const float *col_scale;      /* [n] */
    const float *bias;           /* [n] */
    mp_activation activation;
    mp_format residual_format, out_format; /* out_format MP_I32: the integers themselves; nothing of the float part */
    const void *residual;
    ptrdiff_t ldr;
    void *out;
    ptrdiff_t ldo;
} mp_epilogue;

/* Which memory is wanted soon: products/prefetch.h says which function prefetches what, and when. */
typedef struct {
    const char *next;            /* where the part of B begins that this call prefetches for later ones; NULL: none */
    ptrdiff_t rows, row_bytes;   /* that part is `rows` > 0 rows of row_bytes > 0 bytes, ... */
    ptrdiff_t row_stride;        /* ... row_stride bytes apart. Kernels of a transposed B read none of these three */
    int this_panel;              /* prefetch this call's own panel, which comes from memory */
    int from_memory;             /* B is larger than half of L2: it is taken to come from memory */
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

/* A part of an array that is quantized: a matrix of numbers x and the matrix of their codes q,
 * x ~ scale * (q - zero_point). Element (i, j) has scale and zero point number i * by_row + j * by_column. */
typedef struct {
    ptrdiff_t rows, cols;
    float *x;
    ptrdiff_t ldx;               /* elements from one row of x to the next */
    uint8_t *q;
    ptrdiff_t ldq;               /* codes from one row of q to the next */
    const float *scale;
    const int32_t *zero_point;   /* or NULL: zeros */
    ptrdiff_t by_row, by_column; /* 1 if every row (column) has a scale of its own, else 0; not both 1 */
    int32_t qmin, qmax;          /* of integer codes */
    int mode;                    /* MP_STREAM, MP_NO_CLAMP, MP_NO_FENCE */
    ptrdiff_t prefetch_distance; /* quantize, unless by_column: elements from a load of x to what is prefetched with it,
                                    which may lie beyond the array; 0: nothing is prefetched */
} mp_part;

/* Casts of n elements. widen is exact; so is to_bf16, which only the 8-bit floats have. narrow rounds once, to nearest
 * even. NaN stays NaN. round_odd rounds f64 to odd in f32, so that narrow(round_odd(x)) is x rounded once (Boldo &
 * Melquiond 2008: 24 bits >= 11 + 2). dst may equal src if their elements are equally wide. all_finite returns 1 if no
 * element is infinite or NaN, else 0. */
typedef struct {
    void (*widen[MP_FLOATS])(const void *src, float *dst, ptrdiff_t n, int mode);
    void (*to_bf16[MP_FLOATS])(const void *src, void *dst, ptrdiff_t n);
    void (*narrow[MP_FLOATS])(const float *src, void *dst, ptrdiff_t n, int mode);
    void (*round_odd)(const double *src, float *dst, ptrdiff_t n);
    int (*all_finite[MP_FLOATS])(const void *x, ptrdiff_t n);
} mp_casts;

#include "rows/table.h"

/* Quantization. For each scale number s of the part (see mp_part), over its finite elements x:
 *     amax    amax[s] = max(amax[s], |x|)
 *     range   lo[s] = min(lo[s], x), hi[s] = max(hi[s], x), where lo[s] <= 0 <= hi[s] before
 * A scale is 1 where amax is 0, or where lo and hi are both 0. Ranges are read twice: scales must not overlap them. */
typedef struct {
    void (*amax)(const mp_part *p, float *amax);
    void (*range)(const mp_part *p, float *lo, float *hi);
    void (*symmetric_scales)(const float *restrict amax, ptrdiff_t n, float largest, float *restrict scale);
    void (*asymmetric_scales)(const float *restrict lo, const float *restrict hi, ptrdiff_t n, int32_t qmin,
                              int32_t qmax, float *restrict scale, int32_t *restrict zero_point);
    void (*quantize[MP_CODES])(const mp_part *p);
    void (*dequantize[MP_CODES])(const mp_part *p);
    void (*pack_nibbles)(const uint8_t *src, ptrdiff_t n, uint8_t *dst); /* n codes into (n + 1) / 2 bytes */
    void (*unpack_nibbles)(const uint8_t *src, ptrdiff_t n, int is_signed, uint8_t *dst);
} mp_quantizers;

/* Packing. pack writes k elements of n columns of one panel, in the layout above, from elements that lie rs bytes apart
 * along K and cs bytes apart along N; int4 from int8. unpack is its inverse, to rows ldd elements apart. */
typedef struct {
    void (*pack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst);
    void (*unpack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd);
} mp_packing;

/* Copies of packed panels, by the format of b. `copy` writes a range of K of a panel as micro-panels of micro_panel
 * (see mp_products) columns, or fewer at the end; NULL if there is no such copy. Copying and multiplying the copy is
 * faster than multiplying the panel beside more than few_rows rows of A. copy_shifted does the same of int4, each less
 * its zero point, and is faster beside more than few_rows_shifted rows. */
typedef struct {
    void (*copy[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst);
    void (*copy_shifted)(ptrdiff_t k, ptrdiff_t n, const void *src, const mp_zeros *zeros, void *dst);
    ptrdiff_t few_rows[MP_PANEL_FORMATS], few_rows_shifted;
} mp_copies;

/* Products of one arithmetic, by the format of b; NULL where there is no such function.
 *   gemm        b is a packed panel.
 *   gemm_shifted
 *               b is a packed panel of int4, each less its zero point (mp_operands.zeros). In quads a is signed, ranges
 *               of K are whole K blocks, and each eight elements of a row of a are in the order 0, 4, 1, 5, 2, 6, 3, 7.
 *               The row ends with whole eights: if K does not, with zeros.
 *   in_place    b is rows of a row-major B; n columns are readable to whole vectors, k rows to whole groups. Integers
 *               of a are signed.
 *   transposed  b is columns of a transposed B, for at most MP_TRANSPOSED_ROWS rows of A and all of K;
 *               accumulators.ld is MP_PANEL. Integers of a are signed.
 *   in_turn     b is turn_panels whole packed panels or fewer, b_stride bytes apart, beside one row of A and over all
 *               of K: faster than gemm if they come from memory. There are no block_scale and no init.
 *   decoded     copies in the format that the arithmetic multiplies, for gemm of that format.
 *   recoded     copies for gemm_recoded. If there is widen_row, pairs become f32, the odd one of each first (and a 0 if
 *               K is odd), and int8 becomes int16. Else int8 becomes octs: groups of MP_OCT along K.
 *   widen_row   writes k elements of a row of A as `recoded` writes those of b. dst is aligned to two of its elements.
 *   column_sums adds the sum of each column of a packed int8 range to sums[n].
 *   row_sums    writes the sum of each row of a ^ a_flip to sums[m].
 *   is_signed   of integers: a, if a_flip says that it is signed, and b are multiplied as they are, so no zero point of
 *               128, which a ^ 0x80 and b ^ 0x80 bring with them, has to be subtracted. */
typedef struct {
    void (*gemm[MP_PANEL_FORMATS])(const mp_gemm *g), (*gemm_recoded)(const mp_gemm *g);
    void (*gemm_shifted)(const mp_gemm *g);
    void (*in_place[MP_PANEL_FORMATS])(const mp_gemm *g);
    void (*transposed[MP_PANEL_FORMATS])(const mp_gemm *g);
    void (*in_turn[MP_PANEL_FORMATS])(const mp_gemm *g);
    mp_copies decoded, recoded;
    void (*widen_row)(ptrdiff_t k, const void *src, int is_signed, void *dst);
    ptrdiff_t micro_panel, turn_panels;
    int is_signed;
    void (*column_sums)(ptrdiff_t k, ptrdiff_t n, const void *packed, int32_t *sums);
    void (*row_sums)(ptrdiff_t m, ptrdiff_t k, const void *a, ptrdiff_t lda, uint32_t a_flip, int32_t *sums);
} mp_products;

/* Products by AMX tiles, by arithmetic; NULL where there are none. They do what gemm does for packed panels. A K block
 * is all of K or, if the K blocks have scales, a multiple of MP_TILE_PAIRS; accumulators.ld is MP_PANEL.
 *   MP_QUADS  panels of int8. a is multiplied as it is, signed if a_flip is not 0: so a_zero is 0.
 *   MP_PAIRS  panels of bf16. The sum of a K block is that of docs/numerics.md in tile order. */
enum { MP_TILE_PAIRS = 32 }; /* bf16 along K in an AMX tile: as many products are added to each other before their
                               total is added to the sum */
typedef struct { void (*gemm[MP_ARITHMETICS])(const mp_gemm *g); } mp_tiles;

/* The kernels of an instruction set. isa.def says for which set each family was compiled. */
typedef struct {
    const char *isa;
    const mp_casts *casts;
    const mp_rows *rows;
    const mp_quantizers *quantizers;
    const mp_packing *packing;
    const mp_products *products[MP_ARITHMETICS];
    const mp_tiles *tiles;
    const mp_products *decoding; /* by arithmetic: the copies `decoded` of the set that decodes fastest, and its
                                    micro_panel */
} mp_kernels;

#endif
