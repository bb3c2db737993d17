/* AVX-512 with VNNI, VBMI (permutations of bytes) and BF16: vdpbf16ps adds the odd product of a pair, then the even
 * one, each rounded once. */
#define MP_NATIVE_VNNI
#define MP_NATIVE_BYTES
#define MP_SAME_ISA avx512
#include "avx512.h"

#define MP_NATIVE_BF16
MP_INLINE int any_subnormal(vf32 x) { return _mm512_fpclass_ps_mask(x, 0x20) != 0; }
MP_INLINE vu16 bf16_of_normal(vf32 x) { return (vu16)_mm512_cvtneps_pbh(x); }
MP_INLINE vf32 dot_bf16(vf32 acc, vu32 a, vu32 b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
