#include "vocabulary.h"

#include "casts/conversions.h"
#include "casts/decode.h"
#include "products/packing.h"
#include "rows/functions.h"

#include "products/epilogue.h"

/* The kinds of product: what differs between them, around the one template. */

V vf32 broadcast_f32(const void *p) {
    float x;
    memcpy(&x, p, sizeof x);
    return set_f32(x);
}

V vu32 broadcast_group(const void *p) {
    uint32_t group;
    memcpy(&group, p, sizeof group);
    return set_u32(group);
}

/* Rows or columns of so many bytes, `apart` bytes from the next, are one stretch of memory but for small gaps. */
V int is_stretch(ptrdiff_t bytes, ptrdiff_t apart) { return apart >= 0 && 8 * apart < 9 * bytes; }

/* Rows of b to be fetched line by line in memory's order. A processor follows rows side by side itself if each is read by
 * whole lines; that narrower ones are one stretch of memory must be shown to it. */
typedef struct {
    const char *line, *row;        /* the next line; where its row begins */
    ptrdiff_t row_bytes, apart;
} rows_ahead;

V rows_ahead rows_from(const char *row, ptrdiff_t row_bytes, ptrdiff_t apart) {
    return (rows_ahead){row, row, is_stretch(row_bytes, apart) ? PTRDIFF_MAX : row_bytes, apart};
}

/* Into a cache of the first level or the second. */
V void fetch_lines(rows_ahead *r, const int lines, const int level) {
    UNROLL for (int i = 0; i < lines; i++) {
        if (level == 1)
            __builtin_prefetch(r->line + i * 64, 0, 3);
        else
            __builtin_prefetch(r->line + i * 64, 0, 2);
    }
    r->line += lines * 64;
    if (r->line - r->row >= r->row_bytes) r->line = r->row += r->apart;
}

_Static_assert(MP_TILE_ROWS <= MP_ROWS, "what the plan counts on");

/* What a tile fetches beside its multiplications: nothing; the panel that it reads, so many bytes ahead; a share of g->fetch. */
typedef enum { NOTHING, OWN, NEXT } fetches;
enum { OWN_AHEAD = 1 << 13 };

/* Tiles of a panel, one below the other. */
typedef struct {
    ptrdiff_t count, row, column; /* how many to go; where the next one begins */
    char *acc;                    /* there, or what each tile uses if g->acc is NULL */
    int direct;                   /* they end in their registers */
    fetches fetching;
    rows_ahead next;                 /* of g->fetch, see plan_fetch: */
    ptrdiff_t pairs, share, between; /* pairs of cache lines to go; of each tile; groups of k from one to the next, less 1 */
} tile_run;

#define OUT(G, T) ((char *)(G)->out + ((T)->row * (G)->ldo + (T)->column) * SIZE(G))
#define CHAIN(G, T) ((char *)(G)->chain + ((T)->row * (G)->ld_acc + (T)->column) * 4)

/* The compiler is to read what follows from memory again rather than to keep it there itself: a tile ends with up to 24
 * stores, and those that the next one begins with would fill the queue in which they wait for the last sums. */
#define MP_FORGET __asm__ volatile("" ::: "memory")

/* For each accumulator, SUM. at: row i of what begins at PLACE, its rows LD bytes apart; MP_VECTOR(j): 16 numbers of it. */
#define SUM c[i * vectors + j]
#define EACH(DO) UNROLL16 for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) { DO; }
#define EACH_AT(PLACE, LD, DO) {                                                                           \
        char *at = (char *)(PLACE);                                                                        \
        UNROLL16 for (int i = 0; i < rows; i++, at += (LD)) UNROLL for (int j = 0; j < vectors; j++) { DO; } \
    }
#define MP_VECTOR(J) ((void *)(at + (J) * MP_LANES * 4))

enum { FETCHED_ROWS = 1 << 14, FETCHED_COLUMNS = 1 << 19 }; /* bytes ahead that stay in a first, a second-level cache */
enum { FETCHLESS = 3 }; /* rows: a tile of no more has no time for it */

/* How many pairs of cache lines g->fetch is, from `next` on. The line in which a row begins has come with what precedes it. */
V ptrdiff_t pairs_of_fetch(const mp_gemm *g, rows_ahead *next) {
    const int stretch = is_stretch(g->fetch_width, g->fetch_step);
    const ptrdiff_t rows = stretch ? 1 : g->fetch_rows, bytes = stretch ? g->fetch_rows * g->fetch_step : g->fetch_width;
    *next = rows_from(g->fetch + at_most(63, g->fetch_width - 1), g->fetch_width, g->fetch_step);
    return rows * ((bytes + 127) / 128);
}

/* The tiles of more than FETCHLESS rows share out g->fetch, by pairs of cache lines in memory's order, which the processor
 * then follows; as far apart as lets all tiles together reach the last one. */
V void plan_fetch(const mp_gemm *g, tile_run *t, ptrdiff_t tiles, ptrdiff_t groups) {
    t->pairs = pairs_of_fetch(g, &t->next);
    int shift = 0;
    while (groups >> (shift + 1) && t->pairs <= tiles * (groups >> (shift + 1))) shift++;
    t->share = groups >> shift, t->between = ((ptrdiff_t)1 << shift) - 1;
}

/* columns.inc: of how many columns, and how many words of each, a piece is. Caches are read well along 32 columns, memory
 * along as few as are transposed at a time; there the pieces are short, so that little waits for their transposition. */
enum { NEAR_COLUMNS = 2 * MP_LANES, NEAR_WORDS = 2 * MP_LANES, FAR_WORDS = MP_LANES };
#define FAR_COLUMNS(SIZE, GROUP) AT_A_TIME(SIZE, GROUP)

/* ---- a in f32: one element at a time */
#define START(INIT) set_f32(0.0f)
#define ADD add_f32
#define SCALED mul_f32
#define ADD_SCALED fma_f32
#define BROADCAST broadcast_f32
#define DOT(ACC, X, Y) fma_f32(X, Y, ACC)
#define FINISH finish_floats
#define DIRECT(G) (((G)->out_format == MP_F32 || (G)->out_format == MP_F16) && is_linear(G))
#define SIZE(G) ((G)->out_format == MP_F16 ? 2 : 4)
#define TO_FLOATS
#define PUT_ALL                                                                                                     \
    if (g->out_format == MP_F16)                                                                                    \
        EACH_AT(OUT(g, t), g->ldo * 2, store_u16((uint16_t *)at + j * MP_LANES, f16_from_f32(SUM)))                 \
    else                                                                                                            \
        EACH_AT(OUT(g, t), g->ldo * 4, store_f32(MP_VECTOR(j), SUM))

#define KIND wide_f32
#define TALL 1
#define IN_PLACE
#define GROUP 1
#define PARTS 1
#define STEP 64
#define A float
#define LOAD_B(P, S) load_f32((const void *)(P))
#define TURNED pack_words
#include "products/micro_kernel.inc"

#define KIND wide_f16
#define TALL 1
#define IN_PLACE
#define GROUP 1
#define PARTS 1
#define STEP 32
#define A float
#define LOAD_B(P, S) f32_from_f16(load_u16(P))
#define TURNED pack_halves
#include "products/micro_kernel.inc"

#define KIND wide_bf16
#define TALL 1
#define GROUP 2
#define PARTS 2
#define STEP 64
#define A float
#define LOAD_B(P, S) wide_part_bf16(load_u32(P), S)
#define TURNED pack_pairs
#include "products/micro_kernel.inc"

#define KIND wide_e4m3fn
#define DECODED 5
#define AT_ONCE 2
#define GROUP 4
#define PARTS 4
#define STEP 64
#define A float
#define LOAD_B(P, S) wide_part_e4m3fn(load_u32(P), S)
#include "products/micro_kernel.inc"

#define KIND wide_e5m2
#define DECODED 5
#define AT_ONCE 2
#define GROUP 4
#define PARTS 4
#define STEP 64
#define A float
#define LOAD_B(P, S) wide_part_e5m2(load_u32(P), S)
#include "products/micro_kernel.inc"

#define KIND wide_i8
#define DECODED 5
#define GROUP 4
#define PARTS 4
#define STEP 64
#define A float
#define LOAD_B(P, S) wide_part_i8(load_u32(P), S)
#include "products/micro_kernel.inc"

#define KIND wide_i4
#define DECODED 5
#define GROUP 8
#define PARTS 8
#define STEP 64
#define A float
#define LOAD_B(P, S) wide_part_i4(load_u32(P), S)
#include "products/micro_kernel.inc"

/* ---- a in bf16: pairs */
#undef BROADCAST
#undef DOT
#undef DIRECT
#undef SIZE
#undef PUT_ALL
#define DIRECT(G) (((G)->out_format == MP_F32 || (G)->out_format == MP_BF16) && is_linear(G))
#define SIZE(G) ((G)->out_format == MP_BF16 ? 2 : 4)
#define PUT_ALL                                                                                                     \
    if (g->out_format == MP_BF16)                                                                                   \
        EACH_AT(OUT(g, t), g->ldo * 2, store_u16((uint16_t *)at + j * MP_LANES, bf16_of_flushed(SUM)))              \
    else                                                                                                            \
        EACH_AT(OUT(g, t), g->ldo * 4, store_f32(MP_VECTOR(j), SUM))
#define BROADCAST(P) as_f32(broadcast_group(P))
#define DOT(ACC, X, Y) dot_bf16(ACC, as_u32(X), as_u32(Y))

#define KIND pairs_bf16
#define TALL 2
#define GROUP 2
#define PARTS 1
#define STEP 64
#define A uint16_t
#define LOAD_B(P, S) as_f32(load_u32(P))
#define TURNED pack_pairs
#include "products/micro_kernel.inc"

#define KIND pairs_in_place
#define IN_PLACE
#define GROUP 2
#define PARTS 1
#define STEP 32
#define A uint16_t
#define LOAD_B(P, S) as_f32(or_u32(widen_u16(load_u16(P)), shl_u32(widen_u16(load_u16((P) + step / 2)), 16)))
#include "products/micro_kernel.inc"

#define KIND pairs_e4m3fn
#define DECODED 5
#define AT_ONCE 2
#define GROUP 4
#define PARTS 2
#define STEP 64
#define A uint16_t
#define LOAD_B(P, S) as_f32(pair_part_e4m3fn(load_u32(P), S))
#include "products/micro_kernel.inc"

#define KIND pairs_e5m2
#define DECODED 5
#define AT_ONCE 2
#define GROUP 4
#define PARTS 2
#define STEP 64
#define A uint16_t
#define LOAD_B(P, S) as_f32(pair_part_e5m2(load_u32(P), S))
#include "products/micro_kernel.inc"

#define KIND pairs_i8
#define DECODED 6
#define GROUP 4
#define PARTS 2
#define STEP 64
#define A uint16_t
#define LOAD_B(P, S) as_f32(pair_part_i8(load_u32(P), S))
#include "products/micro_kernel.inc"

#define KIND pairs_i4
#define DECODED 6
#define GROUP 8
#define PARTS 4
#define STEP 64
#define A uint16_t
#define LOAD_B(P, S) as_f32(pair_part_i4(load_u32(P), S))
#include "products/micro_kernel.inc"

/* ---- a in 8-bit integers: quads. Integers in float clothes: GCC keeps an array of __m512i in memory. */
#undef START
#undef ADD
#undef SCALED
#undef ADD_SCALED
#undef BROADCAST
#undef DOT
#undef FINISH
#undef DIRECT
#undef SIZE
#undef TO_FLOATS
#undef PUT_ALL
#define START(INIT) (g->init ? load_f32((const void *)(INIT)) : set_f32(0.0f))
#define ADD(X, Y) as_f32(add_u32(as_u32(X), as_u32(Y)))
#define SCALED(CHAIN, SCALE) ((void)(SCALE), (CHAIN)) /* blocks of integers have no scales */
#define ADD_SCALED(CHAIN, SCALE, ACC) ((void)(SCALE), ADD(CHAIN, ACC))
#define BROADCAST(P) as_f32(xor_u32(broadcast_group(P), set_u32(g->a_flip)))
#define DOT(ACC, X, Y) as_f32(dot_u8s8(as_u32(ACC), as_u32(X), as_u32(Y)))
#define FINISH finish_integers
#define DIRECT(G) \
    (((G)->out_format == MP_F32 || (G)->out_format == MP_I32) && is_linear(G) && !(G)->col_sum && !(G)->row_sum)
#define SIZE(G) 4
#define TO_FLOATS if (g->out_format != MP_I32) EACH(SUM = f32_from_i32(as_u32(SUM)))
#define PUT_ALL EACH_AT(OUT(g, t), g->ldo * 4, store_f32(MP_VECTOR(j), SUM))

#define KIND quads_i8
#define TALL 1
#define GROUP 4
#define PARTS 1
#define STEP 64
#define A uint8_t
#define LOAD_B(P, S) as_f32(load_u32(P))
#include "products/micro_kernel.inc"

/* Rows of b, made unsigned, times signed a: its row sums correct that, which are nearer at hand than column sums. */
#undef BROADCAST
#undef DOT
#define BROADCAST(P) as_f32(broadcast_group(P))
#define DOT(ACC, X, Y) as_f32(dot_u8s8(as_u32(ACC), as_u32(Y), as_u32(X)))
V vu32 four_rows(const char *at, ptrdiff_t rs) {
    const vu32 word = interleave_u8(load_u8(at), load_u8(at + rs), load_u8(at + 2 * rs), load_u8(at + 3 * rs));
    return xor_u32(word, set_u32(0x80808080u));
}

#define KIND quads_in_place
#define IN_PLACE
#define GROUP 4
#define PARTS 1
#define STEP 16
#define A uint8_t
#define LOAD_B(P, S) as_f32(four_rows(P, step / 4))
#include "products/micro_kernel.inc"

#include "products/columns_int8.h"

/* A product runs in the floating-point environment of the contract, whatever the caller's: rounding to nearest, and
 * subnormal numbers kept, but for pairs of bf16: vdpbf16ps takes subnormal operands as zero and flushes subnormal results,
 * so their products do so on every ISA, from the operands to the narrowing. */
#if defined(__SSE__)
#define MP_IN_ENVIRONMENT(MXCSR, CALL)        \
    const unsigned saved = _mm_getcsr();      \
    if (saved != (MXCSR)) _mm_setcsr(MXCSR);  \
    CALL;                                     \
    if (saved != (MXCSR)) _mm_setcsr(saved)
#else
#define MP_IN_ENVIRONMENT(MXCSR, CALL) CALL
#endif
#define MP_KEEPING 0x1F80u
#define MP_FLUSHING 0x9FC0u /* FTZ, DAZ */

#define MP_PRODUCT(KIND, MXCSR) \
    static void gemm_##KIND(const mp_gemm *g) { MP_IN_ENVIRONMENT(MXCSR, panel_##KIND(g)); }
MP_PRODUCT(wide_f32, MP_KEEPING)
MP_PRODUCT(wide_f16, MP_KEEPING)
MP_PRODUCT(wide_bf16, MP_KEEPING)
MP_PRODUCT(wide_e4m3fn, MP_KEEPING)
MP_PRODUCT(wide_e5m2, MP_KEEPING)
MP_PRODUCT(wide_i8, MP_KEEPING)
MP_PRODUCT(wide_i4, MP_KEEPING)
MP_PRODUCT(pairs_bf16, MP_FLUSHING)
MP_PRODUCT(pairs_e4m3fn, MP_FLUSHING)
MP_PRODUCT(pairs_e5m2, MP_FLUSHING)
MP_PRODUCT(pairs_i8, MP_FLUSHING)
MP_PRODUCT(pairs_i4, MP_FLUSHING)
MP_PRODUCT(quads_i8, MP_KEEPING)
MP_PRODUCT(pairs_in_place, MP_FLUSHING)
MP_PRODUCT(quads_in_place, MP_KEEPING)
MP_PRODUCT(turned_wide_f32, MP_KEEPING)
MP_PRODUCT(turned_wide_f16, MP_KEEPING)
MP_PRODUCT(turned_wide_bf16, MP_KEEPING)
MP_PRODUCT(turned_pairs_bf16, MP_FLUSHING)
MP_PRODUCT(turned_quads_i8, MP_KEEPING)

#ifdef MP_NATIVE_TILES
#include "products/amx.h"

extern const mp_tiles MP_EXPORTED(tiles);
const mp_tiles MP_EXPORTED(tiles) = {.gemm = {[MP_PAIRS] = gemm_tiles_bf16, [MP_QUADS] = gemm_tiles_i8}};

#else

extern const mp_products MP_EXPORTED(quads);
const mp_products MP_EXPORTED(quads) = {
    .gemm = {[MP_I8] = gemm_quads_i8},
    .in_place = {[MP_I8] = gemm_quads_in_place},
    .columns = {[MP_I8] = gemm_turned_quads_i8},
    .column_sums = column_sums,
    .row_sums = row_sums,
};

#ifndef MP_QUADS_ONLY
extern const mp_products MP_EXPORTED(wide), MP_EXPORTED(pairs);
const mp_products MP_EXPORTED(wide) = {
    .gemm = {[MP_F32] = gemm_wide_f32, [MP_F16] = gemm_wide_f16, [MP_BF16] = gemm_wide_bf16,
             [MP_F8_E4M3FN] = gemm_wide_e4m3fn, [MP_F8_E5M2] = gemm_wide_e5m2, [MP_I8] = gemm_wide_i8,
             [MP_I4] = gemm_wide_i4},
    .in_place = {[MP_F32] = gemm_wide_f32, [MP_F16] = gemm_wide_f16},
    .columns = {[MP_F32] = gemm_turned_wide_f32, [MP_F16] = gemm_turned_wide_f16, [MP_BF16] = gemm_turned_wide_bf16},
    .decode = {[MP_F8_E4M3FN] = decode_wide_e4m3fn, [MP_F8_E5M2] = decode_wide_e5m2, [MP_I8] = decode_wide_i8,
               [MP_I4] = decode_wide_i4},
    .few_rows = MP_FEW_ROWS_WIDE,
};
const mp_products MP_EXPORTED(pairs) = {
    .gemm = {[MP_BF16] = gemm_pairs_bf16, [MP_F8_E4M3FN] = gemm_pairs_e4m3fn, [MP_F8_E5M2] = gemm_pairs_e5m2,
             [MP_I8] = gemm_pairs_i8, [MP_I4] = gemm_pairs_i4},
    .in_place = {[MP_BF16] = gemm_pairs_in_place},
    .columns = {[MP_BF16] = gemm_turned_pairs_bf16},
    .decode = {[MP_F8_E4M3FN] = decode_pairs_e4m3fn, [MP_F8_E5M2] = decode_pairs_e5m2, [MP_I8] = decode_pairs_i8,
               [MP_I4] = decode_pairs_i4},
    .few_rows = MP_FEW_ROWS_PAIRS,
};

extern const mp_packing MP_EXPORTED(packing);
const mp_packing MP_EXPORTED(packing) = {
    .pack = {[MP_F32] = pack_words, [MP_F16] = pack_halves, [MP_BF16] = pack_pairs, [MP_F8_E4M3FN] = pack_quads,
             [MP_F8_E5M2] = pack_quads, [MP_I8] = pack_quads, [MP_I4] = pack_i4},
    .unpack = {[MP_F32] = unpack_words, [MP_F16] = unpack_halves, [MP_BF16] = unpack_pairs, [MP_F8_E4M3FN] = unpack_quads,
               [MP_F8_E5M2] = unpack_quads, [MP_I8] = unpack_quads, [MP_I4] = unpack_i4},
};
#endif
#endif
