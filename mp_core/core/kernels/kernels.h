/* The contract between the kernels (C17, one static library per ISA) and the code that calls them.
 *
 * A kernel is a leaf function: it allocates no memory, starts no thread and has no state. Counts and strides are in
 * elements unless a name or its comment says bytes. Pointers may be unaligned. A kernel reads and writes no byte
 * outside of the ranges given here. Every kernel gives the same bits on every ISA (docs/numerics.md), except products
 * of bf16 by AMX tiles, which add in the tile order (mp_tiles). */
#ifndef MP_KERNELS_H
#define MP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "special_cases.h"

/* These enclose the declarations of a header that Python modules use too: if MP_PYTHON is defined, their symbols are
 * exported. The public functions are always exported; all other symbols are hidden. (On Windows, mp_core/meson.build
 * lists the exported symbols.) */
#if defined(MP_PYTHON) && !defined(_WIN32)
#define MP_SHARED_BEGIN _Pragma("GCC visibility push(default)")
#define MP_SHARED_END _Pragma("GCC visibility pop")
#else
#define MP_SHARED_BEGIN
#define MP_SHARED_END
#endif

/* Storage formats: first the floats of kernels/formats.def in its order, so that they are indices into widen[] and
 * narrow[]; then the other formats of packed panels. F4 is float4_e2m1fn. */
typedef enum {
#define MP_FLOAT(NAME, ...) MP_##NAME,
#include "formats.def"
    MP_FLOATS,
    MP_I8 = MP_FLOATS, MP_I4, MP_F4,
    MP_PANEL_FORMATS,
    MP_I32 = MP_PANEL_FORMATS, /* only a result of integer products */
    MP_U8,                     /* only a left operand of integer products */
    MP_FORMATS,
} mp_format;

/* Bits of `mode`: how a kernel writes, and what it may assume. */
enum {
    MP_SATURATE = 1, /* casts: clamp to the largest finite value instead of overflowing */
    MP_STREAM = 2,   /* write by non-temporal stores, which bypass the caches */
    MP_NO_CLAMP = 4,   /* quantize: the scales cover every finite value, so no clamp is needed */
    MP_NO_FENCE = 8,   /* dequantize: no fence after the stores, since the caller makes another call without this bit */
};

/* Activations: MP_LINEAR (none), then those of kernels/activations.def in its order. */
typedef enum {
    MP_LINEAR,
#define MP_ACTIVATION(NAME, WORD, FUNCTION) MP_##NAME,
#include "activations.def"
} mp_activation;

/* Their names without that of MP_LINEAR, then NULL. */
static const char *const mp_activation_names[] = {
#define MP_ACTIVATION(NAME, WORD, FUNCTION) WORD,
#include "activations.def"
    NULL,
};

/* The arithmetic of a product: the type in which kernels read elements of A, and how many along K one operation
 * multiplies. If a panel has another format, its elements are decoded, in registers or into a copy (mp_copies). */
typedef enum {
    MP_WIDE,  /* f32, one element at a time */
    MP_PAIRS, /* bf16, two elements at a time */
    MP_QUADS, /* 8-bit integers, four elements at a time */
    MP_ARITHMETICS,
} mp_arithmetic;

enum {
    MP_LANES = 16,   /* every vector is 16 lanes wide on every ISA, so reductions have one order */
    MP_PANEL = 64,   /* columns of a packed panel; the last panel may have fewer */
    MP_ROWS = 6,     /* the largest MR of any ISA; except pieces of a transposed B (transposed.h): up to 12 rows */
    /* Rows that go through a pass together if they fit 16 KiB as f32; row blocks that are summed together. */
    MP_ROWS_TOGETHER = 4,
    MP_TRANSPOSED_ROWS = 24, /* most rows of A for which a transposed B is not packed */
    MP_SLACK = 64,   /* bytes after a panel that kernels may read, and copies overwrite; octs have 128 */
    MP_OCT = 8,      /* elements along K in a group of octs: see `recoded` of mp_products */
    /* Elements of a K block: part of the numerics contract. They are 4 KiB of a row of A. */
    MP_BLOCK_WIDE = 1024, MP_BLOCK_PAIRS = 2048,
    MP_BLOCK_ROW = 4096, /* elements of a row block: its sum starts at +0 in every lane. Part of the contract too */
};

/* The packed right operand of a product. Its layout is the same on every ISA. Panel j has the w columns from 64 j on (w
 * = 64, or fewer in the last panel), as an array [ceil(K / group)][w] of groups; elements beyond K are 0. A group is
 * `group` consecutive elements along K in one word, the first in the lowest bits:
 *     f32: 1 in 32 bits   f16: 1 in 16 bits   bf16: 2 in 32 bits   float8, int8: 4 in 32 bits
 *     int4, F4: 8 in 32 bits, elements 0, 2, 4, 6 in the lower 16, elements 1, 3, 5, 7 in the upper 16
 * There are no gaps between panels. The four arrays below have, for each format, the bytes of an element in an array (1
 * for int4 and F4), the elements of a group, the bytes of a group, and the name that users write. */
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

/* Bytes of k elements of a column of a panel. Panel j starts at byte 64 j mp_column_bytes(format, K) of its matrix. */
static inline ptrdiff_t mp_column_bytes(int format, ptrdiff_t k) {
    return (k + mp_group[format] - 1) / mp_group[format] * mp_group_bytes[format];
}

/* One call of a product kernel (mp_gemm, below): m rows of A times the columns of one panel (in place: any n), over a
 * range of K. The range is several whole K blocks (the last block of K may be incomplete), or a part of one. For each K
 * block, i < m and j < n,
 *     partial = resume ? partial : init;    partial += a[i][p] * b[p][j] for each p of the K block, ascending
 *     sum     = first K block ? partial : sum + partial   (with block_scale: partial * scale, fma(partial, scale, sum))
 * and, in the last range of K, the epilogue
 *     x         = sum                                   (integers: - zero points * sums of elements, then to f32; with
 *                                                        block_scale the sums are f32 already)
 *     out[i][j] = narrow(activation(x * row_scale[i] * col_scale[j] + bias[j]) + residual[i][j]).
 * Products of floats are added to a partial sum by one fused multiply-add each; of a pair of bf16, the odd element is
 * first. (For AMX tiles see mp_tiles.) Sums of integers are exact modulo 2^32. Kernels multiply unsigned bytes by
 * signed ones: of packed panels, unsigned a ^ a_flip by signed b; in place and transposed, signed a by unsigned b ^
 * 0x80. AMX tiles, gemm_recoded, and ISAs that are `is_signed` multiply a and b as they are.
 *
 * Shape: rows of A and of the result, columns of B, elements of K in this range. */
typedef struct {
    ptrdiff_t m, n, k;
    ptrdiff_t k_block;           /* elements of a K block, a multiple of the group; integers without block_scale: at
                                    least k */
} mp_shape;

/* Zero points of int4, encoded for subtraction: [scale groups][MP_PANEL] words, one for each column of a panel and each
 * `group` elements along K. The word of a zero point z is base - (z + 8) * unit: it has a field for each of the
 * elements that the arithmetic multiplies at a time. */
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
/* For gemm_shifted in quads, which multiplies codes q + 8, the word is z + 8. For F4, z is MP_F4_ZERO: twice its value
 * plus 12 is multiplied instead of q + 8. */
enum { MP_F4_ZERO = 4 };
static const uint32_t mp_zero_of_quads = UINT32_MAX;

/* The operands. a: f32, bf16, 8-bit elements or int16; rows are contiguous and lda elements apart. b: the start of this
 * range of K. b_stride: bytes from one group along K to the next; for a transposed B, from one column to the next; for
 * in_turn, from one panel to the next. */
typedef struct {
    const void *a;
    ptrdiff_t lda;
    const void *b;
    ptrdiff_t b_stride;
    uint32_t a_flip;             /* 0x80808080 if a is signed: a ^ 0x80 = a + 128 is unsigned; 0 if a is unsigned */
    mp_zeros zeros;              /* gemm_shifted: for this range of K */
    const int32_t *block_sums;   /* gemm_shifted of quads: [m][block_sums_ld], minus the sum of a over each K block */
    ptrdiff_t block_sums_ld;
} mp_operands;

/* Sums that one call leaves for the next: f32 or i32 [m][ld], ld >= n rounded up to MP_LANES. `sums` (of whole K
 * blocks) and `partial` (of an incomplete K block) may be one array. sums is NULL if no other call needs it: then n <=
 * MP_PANEL and ld is MP_PANEL. Kernels read whole vectors of sums, partial, init and block_scale: n rounded up to
 * MP_LANES elements of each row must be readable. */
typedef struct {
    void *sums, *partial;
    ptrdiff_t ld;
    int first;                   /* no whole K block precedes this range */
    int last;                    /* this range ends K: the epilogue follows */
    int resume;                  /* the range continues a K block: `partial` has the sums of the call before */
    int suspend;                 /* the range ends inside of a K block: `partial` gets the sums for the next call */
    const int32_t *init;         /* initial sums of integers: [n] or, if init_ld is not 0, one row for each K block
                                    of this range: [K blocks][init_ld]; NULL: 0 */
    ptrdiff_t init_ld;
    const float *block_scale;    /* [K blocks of this range][block_scale_ld]: the factors of their partial sums
                                    (integers are first converted to f32); or NULL */
    ptrdiff_t block_scale_ld;
} mp_accumulators;

/* The epilogue: how results are computed from sums. Every pointer except out may be NULL; ldr and ldo are in elements.
 * za[i] = a_zero + row_zero[i] is the zero point of row i of A, zb[j] = b_zero + col_zero[j] that of column j of B,
 * both for bytes as they are multiplied, after ^ 0x80 (see above). Then sum - za[i] * col_sum[j] - row_sum[i] * zb[j]
 * is the sum over (a - za) * (b - zb). */
typedef struct {
    int32_t a_zero;
    const int32_t *row_zero;     /* [m], or one value: see row_stride */
    const int32_t *col_sum;      /* [n]: sum of column j of b; NULL: za is 0, or already subtracted in init */
    int32_t b_zero;
    const int32_t *col_zero;     /* [n] */
    const int32_t *row_sum;      /* [m]: the sum over K of a[i][p] - row_zero[i], where a is the caller's signed or
                                    unsigned number; NULL: zb is 0 */
    const float *row_scale;      /* [m], or one value: see row_stride */
    ptrdiff_t row_stride;        /* 1: row_scale and row_zero have a value for each row; 0: one value for all rows */
    const float *col_scale;      /* [n] */
    const float *bias;           /* [n] */
    mp_activation activation;
    mp_format residual_format, out_format; /* out_format MP_I32: the integer sums, without scales and so on */
    const void *residual;
    ptrdiff_t ldr;
    void *out;
    ptrdiff_t ldo;
} mp_epilogue;

/* What to prefetch: products/prefetch.h says which function prefetches what, and when. */
typedef struct {
    const char *next;            /* the start of the part of B that this call prefetches for later calls; NULL: none */
    ptrdiff_t rows, row_bytes;   /* that part is `rows` > 0 rows of row_bytes > 0 bytes, ... */
    ptrdiff_t row_stride;        /* ... row_stride bytes apart. Kernels of a transposed B ignore these three fields */
    int this_panel;              /* prefetch this call's own panel, which is in memory */
    int from_memory;             /* B is assumed to be in memory: it is larger than half of L2 */
} mp_prefetch;

typedef struct {
    mp_shape shape;
    mp_operands operands;
    mp_accumulators accumulators;
    mp_epilogue epilogue;
    mp_prefetch prefetch;
} mp_gemm;

/* The types of quantized elements. */
typedef enum { MP_CODE_I8, MP_CODE_U8, MP_CODE_E4M3FN, MP_CODE_E5M2, MP_CODE_E2M1, MP_CODES } mp_code;

/* A part of an array that is quantized: a matrix of numbers x and a matrix of their codes q, with x about
 * scale * (q - zero_point). Element (i, j) has scale and zero point number i * by_row + j * by_column. */
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
    ptrdiff_t prefetch_distance; /* quantize, unless by_column: x is prefetched this many elements before it is loaded,
                                    even beyond the end of the array; 0: not prefetched */
} mp_part;

/* Casts of n elements. widen is exact, and so is to_bf16, which exists only for 8-bit floats. narrow rounds once, to
 * nearest even. NaN stays NaN. round_odd rounds f64 to f32, to odd, so that narrow(round_odd(x)) is x rounded once
 * (Boldo & Melquiond 2008: 24 bits >= 11 + 2). dst may be src if their elements have the same size. stochastic rounds
 * up or down by random integers of mp_random_bits(format) bits each (casts/stochastic.h); src, random and dst do not
 * overlap. all_finite returns 1 if no element is infinite or NaN, else 0. */
static inline int mp_random_bits(int format) { return format == MP_BF16 ? 16 : 32; }

typedef struct {
    void (*widen[MP_FLOATS])(const void *src, float *dst, ptrdiff_t n, int mode);
    void (*to_bf16[MP_FLOATS])(const void *src, void *dst, ptrdiff_t n);
    void (*narrow[MP_FLOATS])(const float *src, void *dst, ptrdiff_t n, int mode);
    void (*stochastic[MP_FLOATS])(const float *src, const void *random, void *dst, ptrdiff_t n, int mode);
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

/* Codes of scales, a byte each: code c is the float32 of the bits c << shift, times unit. Codes are at least 1 << (23 -
 * shift), so that this float32 is normal. unit and the scales are at least 2^-125: half of them is normal too.
 *     shift   bits of exponent, of mantissa   for example
 *     23      8, 0                            powers of two
 *     20      5, 3                            float8_e4m3fn times a float32 */
typedef struct {
    int shift;                   /* 0: scales are float32, not codes */
    float unit;
} mp_scale_codes;

/* Packing. pack writes k elements of n columns of one panel, in the layout above. The source has strides rs along K and
 * cs along N, in bytes; a source of 4-bit elements has one in each byte. unpack is the inverse; it writes rows ldd
 * elements apart. scales decodes n scales of scale groups (mp_scale_codes). */
typedef struct {
    void (*pack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, ptrdiff_t rs, ptrdiff_t cs, void *dst);
    void (*unpack[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst, ptrdiff_t ldd);
    void (*scales)(ptrdiff_t n, const void *codes, mp_scale_codes how, float *scales);
} mp_packing;

/* Copies of packed panels, by the format of b. `copy` writes a range of K of a panel as micro-panels of micro_panel
 * columns (see mp_products), the last one with fewer; NULL if there is no such copy. With more than few_rows rows of A,
 * copying a panel and multiplying the copy is faster than multiplying the panel. copy_shifted copies int4 minus zero
 * points, or F4 as twice its value, which is an integer; it is faster with more than few_rows_shifted rows. */
typedef struct {
    void (*copy[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst);
    void (*copy_shifted[MP_PANEL_FORMATS])(ptrdiff_t k, ptrdiff_t n, const void *src, const mp_zeros *zeros, void *dst);
    ptrdiff_t few_rows[MP_PANEL_FORMATS], few_rows_shifted;
} mp_copies;

/* Products of one arithmetic, by the format of b; NULL where there is no such function.
 *   gemm        b is a packed panel.
 *   gemm_shifted
 *               b is a packed panel of int4, minus zero points (mp_operands.zeros), or in quads of F4, as twice its
 *               value plus 12, with zero points that subtract it. In quads a is signed, ranges of K
 *               are whole K blocks, and each eight elements of a row of a are in the order 0, 4, 1, 5, 2, 6, 3, 7,
 *               with zeros after the last one up to a multiple of eight.
 *   in_place    b is rows of a row-major B. Whole vectors of the n columns and whole groups of the k rows must be
 *               readable. Integers of a are signed.
 *   transposed  b is columns of a transposed B, for at most MP_TRANSPOSED_ROWS rows of A and all of K;
 *               accumulators.ld is MP_PANEL. Integers of a are signed.
 *   in_turn     b is at most turn_panels whole packed panels, b_stride bytes apart, for one row of A and all of K:
 *               faster than gemm if they are in memory. There are no block_scale and no init.
 *   decoded     copies in the format that the arithmetic multiplies, for gemm of that format.
 *   recoded     copies for gemm_recoded. If there is widen_row, pairs become f32, the odd one of each first (and a 0 if
 *               K is odd), and int8 becomes int16. Else int8 becomes octs: groups of MP_OCT along K.
 *   widen_row   converts k elements of a row of A like `recoded` those of b. dst is aligned to two of its elements.
 *   column_sums adds the sum of each column of a packed int8 range to sums[n].
 *   row_sums    writes the sum of each row of a ^ a_flip to sums[m].
 *   is_signed   for integers: signed a (see a_flip) and b are multiplied as they are, without ^ 0x80, so there is no
 *               zero point of 128 to be subtracted. */
typedef struct {
    void (*gemm[MP_PANEL_FORMATS])(const mp_gemm *g), (*gemm_recoded)(const mp_gemm *g);
    void (*gemm_shifted[MP_PANEL_FORMATS])(const mp_gemm *g);
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

/* Products by AMX tiles, by arithmetic; NULL if there are none. They multiply packed panels like gemm. A K block is all
 * of K or, if K blocks have scales, a multiple of MP_TILE_PAIRS; accumulators.ld is MP_PANEL.
 *   MP_QUADS  panels of int8. a is multiplied as it is (signed if a_flip is not 0), so a_zero is 0.
 *   MP_PAIRS  panels of bf16. The sum over a K block is in the tile order of docs/numerics.md. */
enum { MP_TILE_PAIRS = 32 }; /* bf16 along K in an AMX tile: their products are added to each other, then the total
                               to the sum */
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
    const mp_products *decoding; /* by arithmetic: `decoded` and micro_panel of the ISA that decodes fastest */
} mp_kernels;

#endif
