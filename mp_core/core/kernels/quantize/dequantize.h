/* Codes of a tile to numbers: scale * (q - zero_point), rounded once. */

APART vf32 value_of(vu8 q, vf32 scale, vu32 zero, const mp_code kind) {
    if (kind == MP_CODE_E4M3FN) return mul_f32(f32_from_e4m3fn(q), scale);
    if (kind == MP_CODE_E5M2) return mul_f32(f32_from_e5m2(q), scale);
    return mul_f32(f32_from_i32(sub_u32(kind == MP_CODE_I8 ? widen_i8(q) : widen_u8(q), zero)), scale);
}

/* Elements [j, j + n) of a row, n <= 16. */
V vf32 value_at(const mp_tile *t, ptrdiff_t i, ptrdiff_t j, ptrdiff_t n, const mp_code kind, const int by_column,
                const int zeros) {
    const ptrdiff_t at = by_column ? j : i * t->row_step;
    const vf32 scale = by_column ? loadn_f32(t->scale + at, n) : set_f32(t->scale[at]);
    const vu32 zero = !zeros      ? set_u32(0)
                      : by_column ? loadn_u32(t->zero_point + at, n)
                                  : set_u32((uint32_t)t->zero_point[at]);
    return value_of(loadn_u8(t->q + i * t->ldq + j, n), scale, zero, kind);
}

APART void value_row(const mp_tile *t, ptrdiff_t i, const mp_code kind, const int by_column, const int zeros,
                     const int stream) {
    float *x = t->x + i * t->ldx;
    const ptrdiff_t head = stream ? unaligned_head(x, sizeof *x, t->cols) : 0;
    ptrdiff_t j = 0;
    for (ptrdiff_t n; j < head; j += n) {
        n = at_most(head - j, MP_LANES);
        storen_f32(x + j, value_at(t, i, j, n, kind, by_column, zeros), n);
    }
    for (; j + BLOCK <= t->cols; j += BLOCK) {
        vf32 y[4];
        UNROLL for (int v = 0; v < 4; v++) y[v] = value_at(t, i, j + v * MP_LANES, MP_LANES, kind, by_column, zeros);
        UNROLL for (int v = 0; v < 4; v++) {
            if (stream) stream_f32(x + j + v * MP_LANES, y[v]);
            else store_f32(x + j + v * MP_LANES, y[v]);
        }
    }
    for (ptrdiff_t n; j < t->cols; j += n) {
        n = at_most(t->cols - j, MP_LANES);
        storen_f32(x + j, value_at(t, i, j, n, kind, by_column, zeros), n);
    }
}

/* Short runs of whole vectors that follow each other, streamed: between two that do not begin with a cache line is one that
 * belongs to both. */
V void value_runs(const mp_tile *t, const mp_code kind) {
    const ptrdiff_t rows = t->rows, cols = t->cols, head = unaligned_head(t->x, sizeof *t->x, cols), tail = MP_LANES - head;
    const float *scale = t->scale;
    const int32_t *zero = t->zero_point;
    if (head && rows) storen_f32(t->x, value_at(t, 0, 0, head, kind, 0, zero != NULL), head);
    float *x = t->x + head;
    const uint8_t *q = t->q + head;
    for (ptrdiff_t i = 0; i < rows; i++) {
        vf32 s = set_f32(scale[i]);
        vu32 z = set_u32(zero ? (uint32_t)zero[i] : 0);
        for (ptrdiff_t j = head; j + MP_LANES <= cols; j += MP_LANES, x += MP_LANES, q += MP_LANES)
            stream_f32(x, value_of(load_u8(q), s, z, kind));
        if (!head) continue;
        if (i + 1 == rows) storen_f32(x, value_of(loadn_u8(q, tail), s, z, kind), tail);
        else {
            s = select_f32(first_n(tail), s, set_f32(scale[i + 1]));
            if (zero) z = select_u32(first_n(tail), z, set_u32((uint32_t)zero[i + 1]));
            stream_f32(x, value_of(load_u8(q), s, z, kind)), x += MP_LANES, q += MP_LANES;
        }
    }
}

V void value_tile(const mp_tile *t, const mp_code kind) {
    const int zeros = t->zero_point != NULL, streamed = t->mode & MP_STREAM;
    /* Where rows do not begin with a cache line, each has a head and a tail that are not streamed. */
    const int aligned = !(((uintptr_t)t->x | (uintptr_t)t->ldx * sizeof *t->x) % 64);
    const int stream = streamed && (aligned || t->cols >= SHORT);
    if (streamed && !stream && t->row_step && !(t->cols % MP_LANES) && t->ldx == t->cols && t->ldq == t->cols) {
        value_runs(t, kind);
    } else {
        for (ptrdiff_t i = 0; i < t->rows; i++) {
            if (stream && t->col_step) value_row(t, i, kind, 1, zeros, 1);
            else if (stream) value_row(t, i, kind, 0, zeros, 1);
            else if (t->col_step && zeros) value_row(t, i, kind, 1, 1, 0);
            else if (t->col_step) value_row(t, i, kind, 1, 0, 0);
            else if (zeros) value_row(t, i, kind, 0, 1, 0);
            else value_row(t, i, kind, 0, 0, 0);
        }
    }
    if (streamed && !(t->mode & MP_MORE)) stream_fence();
}

#define MP_DEQUANTIZE(KIND) static void dequantize_##KIND(const mp_tile *t) { value_tile(t, MP_CODE_##KIND); }
MP_DEQUANTIZE(I8)
MP_DEQUANTIZE(U8)
MP_DEQUANTIZE(E4M3FN)
MP_DEQUANTIZE(E5M2)

/* ---- two codes to a byte, the even one in its low half: four codes are the bytes of a lane */

enum { NIBBLES_AHEAD = 1 << 12 }; /* bytes: two buffers of codes later */

static void pack_nibbles(const uint8_t *src, ptrdiff_t n, uint8_t *dst) {
    const vu32 low = set_u32(0x0F0F0F0Fu), even = set_u32(0x00FF00FFu);
    ptrdiff_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        const vu32 codes = and_u32(load_u32(src + i), low), pairs = and_u32(or_u32(codes, shr_u32(codes, 4)), even);
        store_u16(dst + i / 2, narrow_u16(or_u32(pairs, shr_u32(pairs, 8))));
    }
    for (; i < n; i += 2) dst[i / 2] = (uint8_t)((src[i] & 0xF) | (i + 1 < n ? src[i + 1] << 4 : 0));
}

static void unpack_nibbles(const uint8_t *src, ptrdiff_t n, int is_signed, uint8_t *dst) {
    const vu32 low = set_u32(0x0F0F0F0Fu), even = set_u32(0x00FF00FFu), top = set_u32(is_signed ? 0x08080808u : 0);
    ptrdiff_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        __builtin_prefetch(src + i / 2 + NIBBLES_AHEAD, 0, 3);
        const vu32 bytes = widen_u16(load_u16(src + i / 2)), pairs = and_u32(or_u32(bytes, shl_u32(bytes, 8)), even);
        const vu32 codes = and_u32(or_u32(pairs, shl_u32(pairs, 4)), low), sign = and_u32(codes, top);
        store_u32(dst + i, or_u32(codes, sub_u32(shl_u32(sign, 5), shl_u32(sign, 1)))); /* 8 * 30 = 0xF0 */
    }
    for (; i < n; i++) {
        const uint8_t code = src[i / 2] >> (i % 2 * 4) & 0xF;
        dst[i] = is_signed && code & 8 ? code | 0xF0 : code;
    }
}
