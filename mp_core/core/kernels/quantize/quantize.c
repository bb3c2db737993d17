/* Numbers to codes and back: ranges, scales, codes. */
#include "vocabulary.h"

#include "casts/conversions.h"
#include "quantize/ranges.h"

#include "quantize/quotients.h"

#include "quantize/dequantize.h"

extern const mp_quantizers MP_EXPORTED(quantizers);
const mp_quantizers MP_EXPORTED(quantizers) = {
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
};
