/* 16 lanes of 16 bits in one 256-bit register: the same words on AVX2 and AVX-512. */

MP_INLINE vu16 set_u16(uint16_t x) { return _mm256_set1_epi16((short)x); }
MP_INLINE vu16 u16_from_u8(vu8 x) { return _mm256_cvtepu8_epi16(x); }
MP_INLINE vu16 and_u16(vu16 a, vu16 b) { return _mm256_and_si256(a, b); }
MP_INLINE vu16 or_u16(vu16 a, vu16 b) { return _mm256_or_si256(a, b); }
#define shl_u16(X, N) _mm256_slli_epi16(X, N)
