/* All kernels of one ISA. Compiled once per row of isa.def with MP_ISA (its name) and MP_SIMD (its vocabulary), into a
 * static library of its own; exports nothing but the table. */
#if defined(__SSE__)
#include <immintrin.h>
#endif

#include "kernels.h"

#include "formats.inc"
#include "math.inc"
#include "convert.inc"
#include "quantize.inc"
#include "rows.inc"
#include "finite.inc"
#include "pack.inc"
#include "epilogue.inc"
#include "products.inc"

#define MP_STRING_(X) #X
#define MP_STRING(X) MP_STRING_(X)

extern const mp_kernels MP_CONCAT(mp_kernels_, MP_ISA);
const mp_kernels MP_CONCAT(mp_kernels_, MP_ISA) = {
    .isa = MP_STRING(MP_ISA),
#define MP_FLOAT(FORMAT, ...) \
    .widen[MP_##FORMAT] = widen_##FORMAT, .narrow[MP_##FORMAT] = narrow_##FORMAT, \
    .all_finite[MP_##FORMAT] = all_finite_##FORMAT,
#include "formats.def"
#undef MP_FLOAT
    .round_odd = round_odd,
    .gemm = {[MP_GEMM_F32] = panel_f32, [MP_GEMM_F16] = panel_f16, [MP_GEMM_BF16] = panel_bf16_flushed, [MP_GEMM_I8] = panel_i8},
    .pack = {[MP_GEMM_F32] = pack_f32, [MP_GEMM_F16] = pack_f16, [MP_GEMM_BF16] = pack_bf16, [MP_GEMM_I8] = pack_i8},
    .unpack = {[MP_GEMM_F32] = unpack_f32, [MP_GEMM_F16] = unpack_f16, [MP_GEMM_BF16] = unpack_bf16, [MP_GEMM_I8] = unpack_i8},
    .column_sums = column_sums,
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
    .activate = activate,
};
