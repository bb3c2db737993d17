/* Converting the codes of a part to numbers: scale * (q - zero_point), rounded once. */

MP_OUTLINED vf32 value_of(vu8 q, vf32 scale, vu32 zero, const mp_code kind) {
    if (kind == MP_CODE_E4M3FN) return mul_f32(f32_from_e4m3fn(q), scale);
    if (kind == MP_CODE_E5M2) return mul_f32(f32_from_e5m2(q), scale);
    if (kind == MP_CODE_E2M1) return mul_f32(widen_code(widen_u8(q), 2, 1), scale);
    return mul_f32(f32_from_i32(sub_u32(kind == MP_CODE_I8 ? widen_i8(q) : widen_u8(q), zero)), scale);
}

/* The numbers of elements j to j + n - 1 of row i, n <= 16. */
MP_INLINE vf32 value_at(const mp_part *p, ptrdiff_t i, ptrdiff_t j, ptrdiff_t n, const mp_code kind,
                        const int by_column, const int zeros) {
    const ptrdiff_t at = by_column ? j : i * p->by_row;
    const vf32 scale = by_column ? loadn_f32(p->scale + at, n) : set_f32(p->scale[at]);
    const vu32 zero = !zeros      ? set_u32(0)
                      : by_column ? loadn_u32(p->zero_point + at, n)
                                  : set_u32((uint32_t)p->zero_point[at]);
    return value_of(loadn_u8(p->q + i * p->ldq + j, n), scale, zero, kind);
}

/* Store the numbers of row i. */
MP_OUTLINED void value_row(const mp_part *p, ptrdiff_t i, const mp_code kind, const int by_column, const int zeros,
                     const int stream) {
    float *x = p->x + i * p->ldx;
    const ptrdiff_t head = stream ? unaligned_head(x, sizeof *x, p->cols) : 0;
    ptrdiff_t j = 0;
    for (ptrdiff_t n; j < head; j += n) {
        n = at_most(head - j, MP_LANES);
        storen_f32(x + j, value_at(p, i, j, n, kind, by_column, zeros), n);
    }
    for (; j + BLOCK <= p->cols; j += BLOCK) {
        vf32 y[4];
        MP_UNROLL_8 for (int v = 0; v < 4; v++)
            y[v] = value_at(p, i, j + v * MP_LANES, MP_LANES, kind, by_column, zeros);
        MP_UNROLL_8 for (int v = 0; v < 4; v++) {
            if (stream) stream_f32(x + j + v * MP_LANES, y[v]);
            else store_f32(x + j + v * MP_LANES, y[v]);
        }
    }
    for (ptrdiff_t n; j < p->cols; j += n) {
        n = at_most(p->cols - j, MP_LANES);
        storen_f32(x + j, value_at(p, i, j, n, kind, by_column, zeros), n);
    }
}

/* Stream the numbers of short runs that are whole vectors and contiguous in memory. If they do not start at a cache
 * line boundary, the line between two runs has numbers of both: it is one vector with two different scales in its
 * lanes. */
MP_INLINE void value_runs(const mp_part *p, const mp_code kind) {
    const ptrdiff_t rows = p->rows, cols = p->cols, head = unaligned_head(p->x, sizeof *p->x, cols),
                    tail = MP_LANES - head;
    const float *scale = p->scale;
    const int32_t *zero = p->zero_point;
    if (head && rows) storen_f32(p->x, value_at(p, 0, 0, head, kind, 0, zero != NULL), head);
    float *x = p->x + head;
    const uint8_t *q = p->q + head;
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

MP_INLINE void dequantize_part(const mp_part *p, const mp_code kind) {
    const int zeros = p->zero_point != NULL, streamed = p->mode & MP_STREAM;
    /* If rows do not start at cache line boundaries, each has a head and a tail that are not streamed. */
    const int aligned = !(((uintptr_t)p->x | (uintptr_t)p->ldx * sizeof *p->x) % 64);
    const int stream = streamed && (aligned || p->cols >= SHORT);
    if (streamed && !stream && p->by_row && !(p->cols % MP_LANES) && p->ldx == p->cols && p->ldq == p->cols) {
        value_runs(p, kind);
    } else {
        for (ptrdiff_t i = 0; i < p->rows; i++) {
            if (stream && p->by_column) value_row(p, i, kind, 1, zeros, 1);
            else if (stream) value_row(p, i, kind, 0, zeros, 1);
            else if (p->by_column && zeros) value_row(p, i, kind, 1, 1, 0);
            else if (p->by_column) value_row(p, i, kind, 1, 0, 0);
            else if (zeros) value_row(p, i, kind, 0, 1, 0);
            else value_row(p, i, kind, 0, 0, 0);
        }
    }
    if (streamed && !(p->mode & MP_NO_FENCE)) stream_fence();
}

static void dequantize_i8(const mp_part *p) { dequantize_part(p, MP_CODE_I8); }
static void dequantize_u8(const mp_part *p) { dequantize_part(p, MP_CODE_U8); }
static void dequantize_e4m3fn(const mp_part *p) { dequantize_part(p, MP_CODE_E4M3FN); }
static void dequantize_e5m2(const mp_part *p) { dequantize_part(p, MP_CODE_E5M2); }
static void dequantize_e2m1(const mp_part *p) { dequantize_part(p, MP_CODE_E2M1); }
