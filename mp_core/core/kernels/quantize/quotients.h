/* Codes by correctly rounded quotients: the definition of every code.
 *
 *   integers      q = clamp(round(x / scale) + zero_point, qmin, qmax), a true division, nearest even; NaN: zero_point
 *   small floats  q = narrow(clamp(x / scale, -largest, largest)), a true division; NaN: +0
 *
 * With `divide`, the quotient is computed by a division; this works for every scale. Without it, it is computed from
 * the inverse of the scale, with the same bits, for scales that are ordinary(). */

/* The constants for elements with one scale: lo and hi are bounds of x or, with `divide`, of its quotient. */
typedef struct {
    vf32 scale, minus, inverse, lo, hi; /* minus: -scale; inverse: 1 / scale, only without `divide` */
    vu32 zero;
} mp_rule;

MP_INLINE float largest_of(const mp_code kind) {
    return kind == MP_CODE_E4M3FN ? 448.0f : kind == MP_CODE_E5M2 ? 57344.0f : 6.0f;
}
MP_INLINE int is_integer(const mp_code kind) { return kind == MP_CODE_I8 || kind == MP_CODE_U8; }

MP_INLINE mp_rule rule_of(const mp_part *p, vf32 scale, vu32 zero, const mp_code kind, const int divide) {
    mp_rule r = {.scale = scale, .minus = sub_f32(set_f32(-0.0f), scale), .zero = zero};
    if (is_integer(kind)) {
        r.lo = f32_from_i32(sub_u32(set_u32((uint32_t)p->qmin), zero));
        r.hi = f32_from_i32(sub_u32(set_u32((uint32_t)p->qmax), zero));
    } else {
        r.lo = set_f32(-largest_of(kind)), r.hi = set_f32(largest_of(kind));
    }
    if (!divide) r.inverse = div_f32(set_f32(1.0f), scale), r.lo = mul_f32(r.lo, scale), r.hi = mul_f32(r.hi, scale);
    return r;
}

/* clamp(x / scale, lo, hi), with a correctly rounded quotient. Without `divide`, a first correction of x * inverse
 * gives one of the two floats next to the quotient, and a second one the nearer of them (Markstein, IBM J. Res. Dev.
 * 34(1), 1990), if no operation overflows or underflows, which ordinary() ensures. Then x is clamped, not the quotient:
 * lo and hi are (code - zero point) * scale, where code - zero point is at most 383 in magnitude, and their quotients
 * are rounded to the same codes again. The sign of a quotient of zero is lost. */
MP_INLINE vf32 quotient(vf32 x, const mp_rule *r, const int divide) {
    if (divide) return min_f32(r->hi, max_f32(r->lo, div_f32(x, r->scale)));
    const vf32 bounded = min_f32(r->hi, max_f32(r->lo, x));
    vf32 q = mul_f32(bounded, r->inverse);
    q = fma_f32(fma_f32(q, r->minus, bounded), r->inverse, q);
    return fma_f32(fma_f32(q, r->minus, bounded), r->inverse, q);
}

MP_OUTLINED vu8 code_of(vf32 x, const mp_rule *r, const mp_code kind, const int divide) {
    const vf32 y = quotient(x, r, divide);
    if (is_integer(kind)) return narrow_u8(add_u32(i32_from_f32(y), r->zero)); /* NaN: 0 + zero */
    const vmask nan = gt_i32(and_u32(as_u32(x), set_u32(0x7FFFFFFF)), set_u32(0x7F800000));
    const vu32 with_sign = or_u32(as_u32(y), and_u32(as_u32(x), set_u32(0x80000000u)));
    const vf32 number = as_f32(select_u32(nan, set_u32(0), with_sign));
    if (kind == MP_CODE_E2M1) return narrow_u8(narrow_code(number, 2, 1, 0x40E00000 /* 7, which is never reached */));
    return kind == MP_CODE_E4M3FN ? e4m3fn_from_f32(number) : e5m2_from_f32(number);
}

/* Store n <= 64 codes, with one rule for all (stride 0) or one for every 16 (stride 1). */
MP_INLINE void code_block(const float *x, uint8_t *q, ptrdiff_t n, const mp_rule *rules, const int stride,
                          const int stream, const mp_code kind, const int divide) {
    if (n == BLOCK) {
        MP_UNROLL_8 for (int v = 0; v < 4; v++) {
            const vu8 codes = code_of(load_f32(x + v * MP_LANES), rules + v * stride, kind, divide);
            if (stream) stream_u8(q + v * MP_LANES, codes);
            else store_u8(q + v * MP_LANES, codes);
        }
        return;
    }
    for (ptrdiff_t j = 0, v = 0; j < n; j += MP_LANES, v += stride) {
        const ptrdiff_t left = at_most(n - j, MP_LANES);
        storen_u8(q + j, code_of(loadn_f32(x + j, left), rules + v, kind, divide), left);
    }
}

/* Store the codes of a part with a scale for each row, or one for all. */
MP_INLINE void code_runs(const mp_part *p, ptrdiff_t distance, const int stream, const mp_code kind, const int divide) {
    for (ptrdiff_t i = 0; i < p->rows; i++) {
        const ptrdiff_t at = i * p->by_row;
        const vu32 zero = set_u32(p->zero_point ? (uint32_t)p->zero_point[at] : 0);
        const mp_rule rule = rule_of(p, set_f32(p->scale[at]), zero, kind, divide);
        const float *x = p->x + i * p->ldx;
        for (ptrdiff_t j = 0; j < p->cols; j += BLOCK) {
            prefetch(x + j, distance);
            code_block(x + j, p->q + i * p->ldq + j, at_most(p->cols - j, BLOCK), &rule, 0, stream, kind, divide);
        }
    }
}

/* Store the codes of a part with a scale for each column. */
MP_INLINE void code_columns(const mp_part *p, const mp_code kind, const int divide) {
    for (ptrdiff_t i = 0; i < p->rows; i += ROWS)
        for (ptrdiff_t j = 0; j < p->cols; j += BLOCK) {
            const ptrdiff_t n = at_most(p->cols - j, BLOCK);
            mp_rule rules[4];
            MP_UNROLL_8 for (int v = 0; v < 4; v++) {
                const ptrdiff_t at = at_most(j + v * MP_LANES, p->cols - 1), left = at_most(p->cols - at, MP_LANES);
                const vu32 zero = p->zero_point ? loadn_u32(p->zero_point + at, left) : set_u32(0);
                rules[v] = rule_of(p, loadn_f32(p->scale + at, left), zero, kind, divide);
            }
            for (ptrdiff_t r = i; r < i + at_most(p->rows - i, ROWS); r++) {
                const float *x = p->x + r * p->ldx + j;
                code_block(x, p->q + r * p->ldq + j, n, rules, 1, 0, kind, divide);
            }
        }
}

MP_INLINE void quantize_as(const mp_part *p, const mp_code kind, const int divide) {
    const int stream = p->mode & MP_STREAM && !(((uintptr_t)p->q | (uintptr_t)p->ldq) % MP_LANES);
    if (p->by_column) code_columns(p, kind, divide);
    else if (stream) code_runs(p, p->prefetch_distance, 1, kind, divide);
    else code_runs(p, p->prefetch_distance, 0, kind, divide);
    if (stream) stream_fence();
}

/* Whether every scale is from 2^-60 to 2^60: then quotients need no division, and reciprocals.h may be used. */
MP_INLINE int ordinary(const mp_part *p) {
    const ptrdiff_t n = p->by_column ? p->cols : p->by_row ? p->rows : 1;
    uint32_t outside = 0;
    for (ptrdiff_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, p->scale + i, sizeof bits);
        outside |= bits - (67u << 23) > 120u << 23;
    }
    return MP_HAS(RECIPROCALS) && !outside;
}
