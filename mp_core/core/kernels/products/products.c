/* The kernel tables of an instruction set for products (see kinds.def) and for packing their operands. */
#include "environment.h"
#include "vocabulary.h"

#include "casts/conversions.h"
#include "casts/decode.h"
#include "products/prefetch.h"
#include "products/packing.h"
#include "rows/functions.h"

#include "products/flushing.h"
#include "products/epilogue.h"

/* Run a product in the floating-point environment of the contract, not in the caller's: it rounds to nearest and keeps
 * subnormal numbers. Pairs of bf16 are an exception: vdpbf16ps treats subnormal operands as zero and flushes subnormal
 * results, so their products do so on every ISA, from the operands to the last operation of the epilogue. */
MP_INLINE void in_environment(const mp_gemm *g, void (*product)(const mp_gemm *), const mp_arithmetic arithmetic) {
    const uint64_t wanted = arithmetic == MP_PAIRS ? MP_FLUSHING : MP_PRECISE, saved = mp_get_environment();
    if (saved != wanted) mp_set_environment(wanted);
    product(g);
    if (saved != wanted) mp_set_environment(saved);
}

/* A compiler barrier: after it the compiler reads memory again. Without it GCC moves the first loads of the next
 * register block before the last stores (up to 24) of this one, and has to spill the loaded values: the spills fill the
 * store buffer, in which those stores wait for the last sums. */
#if MP_HAS(STORES_BEFORE_LOADS)
#define MP_COMPILER_BARRIER __asm__ volatile("" ::: "memory")
#else
#define MP_COMPILER_BARRIER (void)0
#endif

#ifdef MP_NATIVE_TILES
#include "products/amx.h"

static void gemm_tiles_i8(const mp_gemm *g) { in_environment(g, panel_tiles_i8, MP_QUADS); }
static void gemm_tiles_bf16(const mp_gemm *g) { in_environment(g, panel_tiles_bf16, MP_PAIRS); }

extern const mp_tiles MP_EXPORTED(tiles);
const mp_tiles MP_EXPORTED(tiles) = {.gemm = {[MP_PAIRS] = gemm_tiles_bf16, [MP_QUADS] = gemm_tiles_i8}};

#else
#include "products/kinds.h"
#include "products/again.h"
#ifdef MP_NATIVE_OCTS
#include "products/octs.h"
#endif
#include "products/micro_kernel.h"
#include "products/panel.h"
#include "products/in_turn.h"
#include "products/transposed_int8.h"

#ifndef MP_QUADS_ONLY
#include "products/row_by_columns.h"
#include "products/transposed.h"
MP_TRANSPOSED(wide_f32)
MP_TRANSPOSED(wide_f16)
MP_TRANSPOSED(wide_bf16)
MP_TRANSPOSED(pairs_bf16)
#endif

#ifdef MP_NATIVE_S8
#define MP_KERNEL_OF(G, OF, NAME) (KIND_##NAME == KIND_quads_s8 && !(G)->operands.a_flip ? OF##_quads_i8 : OF##_##NAME)
#else
#define MP_KERNEL_OF(G, OF, NAME) OF##_##NAME
#endif
#define MP_FUNCTION_gemm(ARITHMETIC, NAME) \
    static void gemm_##NAME(const mp_gemm *g) { in_environment(g, MP_KERNEL_OF(g, panel, NAME), ARITHMETIC); }
#define MP_FUNCTION_gemm_shifted(ARITHMETIC, NAME) \
    static void gemm_shifted_##NAME(const mp_gemm *g) { in_environment(g, panel_##NAME, ARITHMETIC); }
#define MP_FUNCTION_in_place(ARITHMETIC, NAME) \
    static void in_place_##NAME(const mp_gemm *g) { in_environment(g, panel_##NAME, ARITHMETIC); }
#define MP_FUNCTION_transposed(ARITHMETIC, NAME) \
    static void transposed_##NAME(const mp_gemm *g) { in_environment(g, panel_transposed_##NAME, ARITHMETIC); }
#define MP_FUNCTION_decode(ARITHMETIC, NAME)                                            \
    static void decode_##NAME(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst) {   \
        decode(k, n, src, dst, KIND_##NAME);                                            \
    }
#define MP_FUNCTION_recode(ARITHMETIC, NAME)                                            \
    static void recode_##NAME(ptrdiff_t k, ptrdiff_t n, const void *src, void *dst) {   \
        recode(k, n, src, dst, KIND_##NAME);                                            \
    }
#define MP_WAY(WAY, ARITHMETIC, FORMAT, NAME) MP_FUNCTION_##WAY(ARITHMETIC, NAME)
#include "products/kinds.def"

#ifndef MP_QUADS_ONLY
#define MP_SHIFTED(NAME, ARITHMETIC, FORMAT, WIDER)                                                   \
    static void NAME(ptrdiff_t k, ptrdiff_t n, const void *src, const mp_zeros *zeros, void *dst) {   \
        decode_shifted(k, n, src, zeros, dst, ARITHMETIC, FORMAT, WIDER);                             \
    }
MP_SHIFTED(copy_wide, MP_WIDE, MP_I4, 0)
MP_SHIFTED(copy_pairs, MP_PAIRS, MP_I4, 0)
MP_SHIFTED(copy_quads, MP_QUADS, MP_I4, 0)
MP_SHIFTED(copy_quads_f4, MP_QUADS, MP_F4, 0)
#ifdef MP_WIDENS
MP_SHIFTED(copy_wider_pairs, MP_PAIRS, MP_I4, 1)
MP_SHIFTED(copy_wider_quads, MP_QUADS, MP_I4, 1)
MP_SHIFTED(copy_wider_f4, MP_QUADS, MP_F4, 1)
#endif
#endif

MP_INLINE void gemm_nibbles(const mp_gemm *g, void (*panel)(const mp_gemm *)) {
    mp_gemm padded = *g;
    padded.shape.k += -g->shape.k & 7;
    in_environment(&padded, panel, MP_QUADS);
}
static void gemm_shifted_quads(const mp_gemm *g) { gemm_nibbles(g, panel_quads_shifted); }
static void gemm_shifted_f4(const mp_gemm *g) { gemm_nibbles(g, panel_quads_f4); }

#ifdef MP_WIDENS
static void gemm_recoded_pairs(const mp_gemm *g) {
    mp_gemm padded = *g;
    padded.shape.k += g->shape.k % 2;
    in_environment(&padded, panel_wide_f32, MP_PAIRS);
}
static void gemm_recoded_quads(const mp_gemm *g) {
    mp_gemm bytes = *g;
    bytes.shape.k *= 2, bytes.shape.k_block *= 2, bytes.operands.lda *= 2;
    in_environment(&bytes, panel_words_i16, MP_QUADS);
}
#elif defined(MP_NATIVE_OCTS)
static void gemm_recoded_quads(const mp_gemm *g) {
    in_environment(g, g->operands.a_flip ? panel_octs_s8 : panel_octs_u8, MP_QUADS);
}
#endif

/* The fields of mp_products that MP_WAY fills. */
#define MP_FIELD_gemm(FORMAT) gemm[FORMAT]
#define MP_FIELD_gemm_shifted(FORMAT) gemm_shifted[FORMAT]
#define MP_FIELD_in_place(FORMAT) in_place[FORMAT]
#define MP_FIELD_transposed(FORMAT) transposed[FORMAT]
#define MP_FIELD_in_turn(FORMAT) in_turn[FORMAT]
#define MP_FIELD_decode(FORMAT) decoded.copy[FORMAT]
#define MP_FIELD_recode(FORMAT) recoded.copy[FORMAT]

extern const mp_products MP_EXPORTED(products)[MP_ARITHMETICS];
const mp_products MP_EXPORTED(products)[MP_ARITHMETICS] = {
#define MP_WAY(WAY, ARITHMETIC, FORMAT, NAME) [ARITHMETIC].MP_FIELD_##WAY(FORMAT) = WAY##_##NAME,
#include "products/kinds.def"
    [MP_WIDE].decoded.few_rows = MP_FEW_ROWS_WIDE,
    [MP_PAIRS].decoded.few_rows = MP_FEW_ROWS_PAIRS,
    [MP_WIDE].decoded.few_rows_shifted = MP_FEW_ROWS_SHIFTED_WIDE,
    [MP_PAIRS].decoded.few_rows_shifted = MP_FEW_ROWS_SHIFTED_PAIRS,
    [MP_QUADS].decoded.few_rows_shifted = MP_FEW_ROWS_SHIFTED_QUADS,
    [MP_QUADS].gemm_shifted[MP_I4] = gemm_shifted_quads, [MP_QUADS].gemm_shifted[MP_F4] = gemm_shifted_f4,
#ifndef MP_QUADS_ONLY
    [MP_WIDE].decoded.copy_shifted[MP_I4] = copy_wide, [MP_PAIRS].decoded.copy_shifted[MP_I4] = copy_pairs,
    [MP_QUADS].decoded.copy_shifted[MP_I4] = copy_quads, [MP_QUADS].decoded.copy_shifted[MP_F4] = copy_quads_f4,
#ifdef MP_WIDENS
    [MP_PAIRS].recoded.copy_shifted[MP_I4] = copy_wider_pairs,
    [MP_QUADS].recoded.copy_shifted[MP_I4] = copy_wider_quads,
    [MP_QUADS].recoded.copy_shifted[MP_F4] = copy_wider_f4,
#endif
#endif
#ifdef MP_WIDENS
    [MP_PAIRS].gemm_recoded = gemm_recoded_pairs,
    [MP_PAIRS].recoded.few_rows = MP_FEW_ROWS_RECODED_PAIRS,
    [MP_PAIRS].widen_row = widen_pairs, [MP_QUADS].widen_row = widen_bytes,
#endif
#if defined(MP_WIDENS) || defined(MP_NATIVE_OCTS)
    [MP_QUADS].gemm_recoded = gemm_recoded_quads,
    [MP_QUADS].recoded.few_rows = MP_FEW_ROWS_RECODED_QUADS,
#endif
    [MP_WIDE].micro_panel = MICRO_PANEL, [MP_PAIRS].micro_panel = MICRO_PANEL, [MP_QUADS].micro_panel = MICRO_PANEL,
#ifdef MP_PANELS_IN_TURN
    [MP_WIDE].turn_panels = MP_PANELS_IN_TURN, [MP_PAIRS].turn_panels = MP_PANELS_IN_TURN,
    [MP_QUADS].turn_panels = MP_PANELS_IN_TURN,
#endif
    [MP_QUADS].is_signed = !MP_FLIPS,
    [MP_QUADS].column_sums = column_sums,
    [MP_QUADS].row_sums = row_sums,
};

#ifndef MP_QUADS_ONLY
extern const mp_packing MP_EXPORTED(packing);
const mp_packing MP_EXPORTED(packing) = {
    .pack = {[MP_F32] = pack_words,
             [MP_F16] = pack_halves,
             [MP_BF16] = pack_pairs,
             [MP_F8_E4M3FN] = pack_quads,
             [MP_F8_E5M2] = pack_quads,
             [MP_I8] = pack_quads,
             [MP_I4] = pack_i4,
             [MP_F4] = pack_i4},
    .unpack = {[MP_F32] = unpack_words,
               [MP_F16] = unpack_halves,
               [MP_BF16] = unpack_pairs,
               [MP_F8_E4M3FN] = unpack_quads,
               [MP_F8_E5M2] = unpack_quads,
               [MP_I8] = unpack_quads,
               [MP_I4] = unpack_i4,
               [MP_F4] = unpack_f4},
    .scales = scales,
};
#endif
#endif
