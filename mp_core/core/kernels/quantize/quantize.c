/* The kernels of quantization: ranges of numbers, scales from ranges, codes from numbers, and numbers from codes. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "quantize/prefetch.h"

#include "quantize/ranges.h"

#include "quantize/scales.h"

#include "quantize/quotients.h"

#if !MP_DIVIDES
#include "quantize/reciprocals.h"

#include "quantize/by_reciprocals.h"
#endif

#include "quantize/dequantize.h"

#include "quantize/nibbles.h"

MP_INLINE void quantize_any(const mp_part *p, const mp_code kind) {
#if !MP_DIVIDES
    if (ordinary(p)) {
        quantize_fast(p, kind);
        return;
    }
#endif
    quantize_as(p, kind, 1);
}
static void quantize_integers(const mp_part *p) { quantize_any(p, MP_CODE_I8); }
static void quantize_e4m3fn(const mp_part *p) { quantize_any(p, MP_CODE_E4M3FN); }
static void quantize_e5m2(const mp_part *p) { quantize_any(p, MP_CODE_E5M2); }
static void quantize_e2m1(const mp_part *p) { quantize_as(p, MP_CODE_E2M1, 1); }

extern const mp_quantizers MP_EXPORTED(quantizers);
const mp_quantizers MP_EXPORTED(quantizers) = {
    .amax = amax,
    .range = range,
    .symmetric_scales = symmetric_scales,
    .asymmetric_scales = asymmetric_scales,
    .quantize = {[MP_CODE_I8] = quantize_integers, [MP_CODE_U8] = quantize_integers,
                 [MP_CODE_E4M3FN] = quantize_e4m3fn, [MP_CODE_E5M2] = quantize_e5m2,
                 [MP_CODE_E2M1] = quantize_e2m1},
    .dequantize = {[MP_CODE_I8] = dequantize_i8, [MP_CODE_U8] = dequantize_u8,
                   [MP_CODE_E4M3FN] = dequantize_e4m3fn, [MP_CODE_E5M2] = dequantize_e5m2,
                   [MP_CODE_E2M1] = dequantize_e2m1},
    .pack_nibbles = pack_nibbles,
    .unpack_nibbles = unpack_nibbles,
};
