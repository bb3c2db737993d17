/* 4-bit codes, two in a byte: that of the even index in the low half. A lane of 32 bits has four codes as bytes. */

/* Prefetch distance, in bytes of packed codes: those for two buffers of quantize.c (Zen 5, November 2026). */
enum { NIBBLES_DISTANCE = 4096 };

/* Pack n codes, one in each byte, into (n + 1) / 2 bytes. */
static void pack_nibbles(const uint8_t *src, ptrdiff_t n, uint8_t *dst) {
    const vu32 low = set_u32(0x0F0F0F0Fu), even = set_u32(0x00FF00FFu);
    ptrdiff_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        const vu32 codes = and_u32(load_u32(src + i), low), pairs = and_u32(or_u32(codes, shr_u32(codes, 4)), even);
        store_u16(dst + i / 2, narrow_u16(or_u32(pairs, shr_u32(pairs, 8))));
    }
    for (; i < n; i += 2) dst[i / 2] = (uint8_t)((src[i] & 0xF) | (i + 1 < n ? src[i + 1] << 4 : 0));
}

/* The inverse of pack_nibbles; the codes are from -8 to 7 if is_signed, else from 0 to 15. */
static void unpack_nibbles(const uint8_t *src, ptrdiff_t n, int is_signed, uint8_t *dst) {
    const vu32 low = set_u32(0x0F0F0F0Fu), even = set_u32(0x00FF00FFu), top = set_u32(is_signed ? 0x08080808u : 0);
    ptrdiff_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        __builtin_prefetch(src + i / 2 + NIBBLES_DISTANCE, 0, 3);
        const vu32 bytes = load_u16_as_u32(src + i / 2), pairs = and_u32(or_u32(bytes, shl_u32(bytes, 8)), even);
        const vu32 codes = and_u32(or_u32(pairs, shl_u32(pairs, 4)), low), sign = and_u32(codes, top);
        store_u32(dst + i, or_u32(codes, sub_u32(shl_u32(sign, 5), shl_u32(sign, 1)))); /* 8 * 30 = 0xF0 */
    }
    for (; i < n; i++) {
        const uint8_t code = src[i / 2] >> (i % 2 * 4) & 0xF;
        dst[i] = is_signed && code & 8 ? code | 0xF0 : code;
    }
}
