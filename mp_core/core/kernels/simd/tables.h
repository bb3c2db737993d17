/* 8-bit formats to bf16 by lookup tables: vpermi2b looks up 64 bytes at a time in a table of 128, by the low seven bits
 * of each index. A bf16 has two bytes, so there is a table of the high bytes and one of the low bytes. The compiler
 * computes both by the formulas below. */

typedef struct {
    uint8_t high[128], low[128];
} mp_table;

#define MP_EIGHT(F, PART, I) \
    PART(F(I)), PART(F(I + 1)), PART(F(I + 2)), PART(F(I + 3)), \
    PART(F(I + 4)), PART(F(I + 5)), PART(F(I + 6)), PART(F(I + 7))
#define MP_SIXTY_FOUR(F, PART, I)                                                                             \
    MP_EIGHT(F, PART, I), MP_EIGHT(F, PART, I + 8), MP_EIGHT(F, PART, I + 16), MP_EIGHT(F, PART, I + 24),     \
    MP_EIGHT(F, PART, I + 32), MP_EIGHT(F, PART, I + 40), MP_EIGHT(F, PART, I + 48), MP_EIGHT(F, PART, I + 56)
#define MP_UPPER(X) ((X) >> 8)
#define MP_LOWER(X) ((X) & 0xFF)
#define MP_TABLE(F, I) \
    {{MP_SIXTY_FOUR(F, MP_UPPER, I), MP_SIXTY_FOUR(F, MP_UPPER, I + 64)}, \
     {MP_SIXTY_FOUR(F, MP_LOWER, I), MP_SIXTY_FOUR(F, MP_LOWER, I + 64)}}

/* A positive integer below 256 times 2^E, as bf16. */
#define MP_LOG2(N) \
    ((N) < 2 ? 0 : (N) < 4 ? 1 : (N) < 8 ? 2 : (N) < 16 ? 3 : (N) < 32 ? 4 : (N) < 64 ? 5 : (N) < 128 ? 6 : 7)
#define MP_BF16_OF(N, E) (((127 + (E) + MP_LOG2(N)) << 7) + (((N) << (7 - MP_LOG2(N))) & 0x7F))

/* The bf16 of code C without its sign. Normal: fields shifted, difference of the biases added. Subnormal: mantissa
 * times the value of its last bit. */
#define MP_E4M3FN(C) ((C) == 0 ? 0 : (C) < 8 ? MP_BF16_OF(C, -9) : (C) == 0x7F ? 0x7FC0 : ((C) << 4) + (120 << 7))
#define MP_E5M2(C) \
    ((C) == 0 ? 0 : (C) < 4 ? MP_BF16_OF(C, -16) : (C) < 0x7C ? ((C) << 5) + (112 << 7) : 0x7F80 | (C) << 5)
#define MP_I8_UPWARDS(N) ((N) == 0 ? 0 : MP_BF16_OF(N, 0))
#define MP_I8_DOWNWARDS(N) (0x8000 | MP_BF16_OF(128 - (N), 0)) /* of -128, -127, ... -1 */

static const mp_table e4m3fn_table = MP_TABLE(MP_E4M3FN, 0), e5m2_table = MP_TABLE(MP_E5M2, 0),
                      i8_table[2] = {MP_TABLE(MP_I8_UPWARDS, 0), MP_TABLE(MP_I8_DOWNWARDS, 0)};

MP_INLINE vu32 look_up(vu32 codes, const uint8_t *table) {
    return _mm512_permutex2var_epi8(_mm512_loadu_si512(table), codes, _mm512_loadu_si512(table + 64));
}

/* In each 128 bits: bytes 0 and 1 of all four groups, then bytes 2 and 3. Then interleave(low, high, 0) is the bf16 of
 * the first two elements of each group, and interleave(low, high, 1) of the others. */
MP_INLINE vu32 pairs_first(vu32 word) {
    return _mm512_shuffle_epi8(word, _mm512_set4_epi32(0x0F0E0B0A, 0x07060302, 0x0D0C0908, 0x05040100));
}

MP_INLINE vu32 interleave(vu32 low, vu32 high, const int s) {
    return s ? _mm512_unpackhi_epi8(low, high) : _mm512_unpacklo_epi8(low, high);
}

#define MP_NATIVE_F8_PAIRS
MP_INLINE vu32 pair_from_f8(vu32 word, const int s, const mp_table *table) {
    const vu32 codes = pairs_first(word), high = look_up(codes, table->high), sign = set_u32(0x80808080u);
    return interleave(look_up(codes, table->low), _mm512_ternarylogic_epi32(high, codes, sign, 0xF8) /* a | b & c */,
                      s);
}
MP_INLINE vu32 pair_from_e4m3fn(vu32 word, const int s) { return pair_from_f8(word, s, &e4m3fn_table); }
MP_INLINE vu32 pair_from_e5m2(vu32 word, const int s) { return pair_from_f8(word, s, &e5m2_table); }

#define MP_NATIVE_I8_PAIRS
MP_INLINE vu32 pair_from_i8(vu32 word, const int s) {
    const vu32 codes = pairs_first(word);
    const __mmask64 negative = _mm512_movepi8_mask(codes);
    const mp_table *up = &i8_table[0], *down = &i8_table[1];
    const vu32 low = _mm512_mask_blend_epi8(negative, look_up(codes, up->low), look_up(codes, down->low));
    const vu32 high = _mm512_mask_blend_epi8(negative, look_up(codes, up->high), look_up(codes, down->high));
    return interleave(low, high, s);
}

/* vpmultishiftqb: each byte is eight bits of a 64-bit lane, from the bit number in its control on. */
#define MP_NATIVE_U4_QUADS
MP_INLINE vu32 quad_from_u4(vu32 word, const int s) {
    const vu32 first = _mm512_set1_epi64(0x3424302014041000), from = add_u32(first, set_u32(0x08080808u * (uint32_t)s));
    return and_u32(_mm512_multishift_epi64_epi8(from, word), set_u32(0x0F0F0F0Fu));
}
