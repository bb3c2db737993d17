/* All kernels of one ISA. Compiled once per row of isa.def with MP_ISA (its name) and MP_SIMD (its vocabulary), into a
 * static library of its own; exports nothing but the table. A vocabulary that only multiplies bytes faster than MP_BASE, the
 * ISA that it includes, or does so by tiles, makes the functions that do that; the others are taken from there. */
#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "kernels.h"

#ifdef MP_BASE
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#endif

#include "formats.inc"
#include "math.inc"
#include "convert.inc"
#include "ranges.inc"
#include "quantize.inc"
#include "dequantize.inc"
#include "rows.inc"
#include "finite.inc"
#include "decode.inc"
#include "pack.inc"
#include "epilogue.inc"
#include "products.inc"
#ifdef MP_NATIVE_TILES
#include "tiles.inc"
#endif
#include "limits.inc"

#define MP_STRING_(X) #X
#define MP_STRING(X) MP_STRING_(X)

#define MP_KERNELS_OF(ISA) MP_CONCAT(mp_kernels_, ISA)

extern const mp_kernels MP_KERNELS_OF(MP_ISA);
#ifdef MP_BASE
extern const mp_kernels MP_KERNELS_OF(MP_BASE);
#endif
const mp_kernels MP_KERNELS_OF(MP_ISA) = {
    .isa = MP_STRING(MP_ISA),
#ifdef MP_NATIVE_TILES
    .gemm_tiles[MP_QUADS] = gemm_tiles_i8,
    .limit[MP_QUADS] = limit_tiles_i8,
#ifdef MP_OWN_ORDER
    .own_order = 1,
    .gemm_tiles[MP_PAIRS] = gemm_tiles_bf16,
    .limit[MP_PAIRS] = limit_tiles_bf16,
#endif
#else
    .gemm[MP_QUADS] = {[MP_I8] = gemm_quads_i8},
    .gemm_in_place[MP_QUADS] = {[MP_I8] = gemm_quads_in_place},
    .gemm_turned[MP_QUADS] = {[MP_I8] = gemm_turned_quads_i8},
    .column_sums = column_sums,
    .row_sums = row_sums,
    .limit[MP_QUADS] = limit_quads,
#endif
#ifdef MP_BASE
    .base = &MP_KERNELS_OF(MP_BASE),
#else
#define MP_FLOAT(FORMAT, ...) \
    .widen[MP_##FORMAT] = widen_##FORMAT, .narrow[MP_##FORMAT] = narrow_##FORMAT, \
    .all_finite[MP_##FORMAT] = all_finite_##FORMAT,
#include "formats.def"
#undef MP_FLOAT
    .to_bf16 = {[MP_F8_E4M3FN] = to_bf16_e4m3fn, [MP_F8_E5M2] = to_bf16_e5m2},
    .round_odd = round_odd,
    .gemm[MP_WIDE] = {[MP_F32] = gemm_wide_f32, [MP_F16] = gemm_wide_f16, [MP_BF16] = gemm_wide_bf16,
                      [MP_F8_E4M3FN] = gemm_wide_e4m3fn, [MP_F8_E5M2] = gemm_wide_e5m2, [MP_I8] = gemm_wide_i8,
                      [MP_I4] = gemm_wide_i4},
    .gemm[MP_PAIRS] = {[MP_BF16] = gemm_pairs_bf16, [MP_F8_E4M3FN] = gemm_pairs_e4m3fn, [MP_F8_E5M2] = gemm_pairs_e5m2,
                       [MP_I8] = gemm_pairs_i8, [MP_I4] = gemm_pairs_i4},
    .gemm_in_place[MP_WIDE] = {[MP_F32] = gemm_wide_f32, [MP_F16] = gemm_wide_f16},
    .gemm_in_place[MP_PAIRS] = {[MP_BF16] = gemm_pairs_in_place},
    .gemm_turned[MP_WIDE] = {[MP_F32] = gemm_turned_wide_f32, [MP_F16] = gemm_turned_wide_f16,
                             [MP_BF16] = gemm_turned_wide_bf16},
    .gemm_turned[MP_PAIRS] = {[MP_BF16] = gemm_turned_pairs_bf16},
    .decode[MP_WIDE] = {[MP_F8_E4M3FN] = decode_wide_e4m3fn, [MP_F8_E5M2] = decode_wide_e5m2, [MP_I8] = decode_wide_i8,
                        [MP_I4] = decode_wide_i4},
    .decode[MP_PAIRS] = {[MP_F8_E4M3FN] = decode_pairs_e4m3fn, [MP_F8_E5M2] = decode_pairs_e5m2,
                         [MP_I8] = decode_pairs_i8, [MP_I4] = decode_pairs_i4},
    .few_rows = MP_FEW_ROWS,
    .pack = {[MP_F32] = pack_words, [MP_F16] = pack_halves, [MP_BF16] = pack_pairs, [MP_F8_E4M3FN] = pack_quads,
             [MP_F8_E5M2] = pack_quads, [MP_I8] = pack_quads, [MP_I4] = pack_i4},
    .unpack = {[MP_F32] = unpack_words, [MP_F16] = unpack_halves, [MP_BF16] = unpack_pairs, [MP_F8_E4M3FN] = unpack_quads,
               [MP_F8_E5M2] = unpack_quads, [MP_I8] = unpack_quads, [MP_I4] = unpack_i4},
    .amax = amax,
    .range = range,
    .symmetric_scales = symmetric_scales,
    .asymmetric_scales = asymmetric_scales,
    .quantize = {[MP_CODE_I8] = quantize_I8, [MP_CODE_U8] = quantize_I8, [MP_CODE_E4M3FN] = quantize_E4M3FN,
                 [MP_CODE_E5M2] = quantize_E5M2},
    .dequantize = {[MP_CODE_I8] = dequantize_I8, [MP_CODE_U8] = dequantize_U8, [MP_CODE_E4M3FN] = dequantize_E4M3FN,
                   [MP_CODE_E5M2] = dequantize_E5M2},
    .pack_nibbles = pack_nibbles,
    .unpack_nibbles = unpack_nibbles,
    .softmax = softmax,
    .layer_norm = layer_norm,
    .rms_norm = rms_norm,
    .activate = activate,
    .limit[MP_WIDE] = limit_wide,
    .limit[MP_PAIRS] = limit_pairs,
    .read_all = read_all,
#endif
};
