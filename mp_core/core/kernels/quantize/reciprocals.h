/* Codes by the reciprocal of the scale, if these are certainly the same as those of the quotient f = x / scale, rounded
 * to f32, which quotients.h computes.
 *
 * Integers: the code is floor(f + zero_point + 1/2), unless that is a tie. Computed instead is
 *     t = x (1 / scale) + zero_point + 1/2,    a fixed-point number with 16 bits of fraction; let u = 2^-16.
 * If |f| > 256, t and f + zero_point + 1/2 are both beyond the same end of the codes. If |f| <= 256, these are the
 * errors of t: the inverse is rounded by at most 2^-24 of itself, which changes its product with x by at most u; f is
 * rounded by at most u / 2; the fused multiply-add rounds numbers below 2^23 u by at most u / 4; the conversion to an
 * integer rounds by at most u / 2. So t is within 2.25 u of f + zero_point + 1/2. Then 4 u are added to t. If its
 * fraction is at least 8 u now, the fraction of f + zero_point + 1/2 is above 0: there is no tie, both have the same
 * floor, and the code is certain. A fraction is less in one of 8192 numbers, and in NaN and numbers beyond 2^15, which
 * are converted to a fraction of 0.
 *
 * 8-bit floats: y = |x| (1 / scale), clamped to the largest code, and w is the bits of y as an integer plus half the
 * distance between the bits of two codes. y and f have three roundings together, of at most 2^-24 of them each, which
 * is at most 3 units of their bits; 4 are added to w. If the bits of w below those of a code are at least 8 now, y and
 * f are on the same side of the middle between two codes, and the code is the bits above, less the difference of the
 * biases. These low bits are below 8 in one of 2^17 (e4m3fn) or 2^18 (e5m2) numbers. NaN is not certain either, nor is
 * y between 0 and the smallest normal number of the codes. y = 0 is certain: f is 0 too, or so small that it is rounded
 * to 0 in these formats.
 *
 * A block of 64 in which a code is not certain goes to quotients.h. */

/* Constants for all integer codes of a part. A code is certain if one of the bits `certain` is set in the fraction of
 * t. code - middle is a signed byte (middle: 128 for unsigned codes, else 0). If `adjust`, these bytes are clamped to
 * lo and hi, and middle is added by inverting the bits `flip`. */
typedef struct {
    int32_t middle;
    int adjust;
    vu32 certain, lo, hi, flip;
} mp_bytes;

/* factor: the reciprocal 1 / scale; for integer codes 2^16 / scale, since t is in units of u = 2^-16. start, only for
 * integer codes: 2^16 (zero_point - middle + 1/2 + 4 u). stride 0: one of each for all numbers; 1: one for every 16. */
typedef struct {
    const vf32 *factor, *start;
    int stride;
} mp_terms;

/* Parameters that are always constants: the kind of the codes; `full`: the block has all 64 numbers; `stream`: codes
 * are stored by non-temporal stores, and q is a multiple of 64. */
typedef struct {
    mp_code kind;
    int full, stream;
} mp_how;

MP_INLINE vu32 set_bytes(int32_t byte) { return set_u32(0x01010101u * (uint8_t)byte); }
MP_INLINE mp_bytes bytes_of(const mp_part *p) {
    const int32_t middle = p->qmax > INT8_MAX ? 128 : 0;
    const int bounded = p->qmax - p->qmin < UINT8_MAX && !(p->mode & MP_NO_CLAMP);
    return (mp_bytes){middle,
                      bounded || middle,
                      set_u32(0xFFF8u),
                      set_bytes(p->qmin - middle),
                      set_bytes(p->qmax - middle),
                      set_bytes(middle)};
}

/* `factor` of up to 16 scales, and their `start` (see mp_terms). */
MP_INLINE vf32 factors_of(const float *scale, ptrdiff_t n, const mp_code kind) {
    return div_f32(set_f32(is_integer(kind) ? 0x1p16f : 1.0f), loadn_f32(scale, n));
}
MP_INLINE vf32 starts_of(const int32_t *zero, ptrdiff_t n, int32_t middle) {
    const vu32 shift = zero ? sub_u32(loadn_u32(zero, n), set_u32((uint32_t)middle)) : set_u32((uint32_t)-middle);
    return f32_from_i32(add_u32(shl_u32(shift, 16), set_u32(0x8004)));
}

/* Numbers 16 v to 16 v + 15 of the n <= 64 numbers at x; 0 beyond the last one. */
MP_INLINE vf32 numbers_of(const float *x, ptrdiff_t n, int v, const int full) {
    const ptrdiff_t left = at_most(n - v * MP_LANES, MP_LANES);
    return full ? load_f32(x + v * MP_LANES) : left > 0 ? loadn_f32(x + v * MP_LANES, left) : set_f32(0.0f);
}
/* Store n <= 64 codes, one in each byte of a vector. */
MP_INLINE void put_codes(uint8_t *q, vu32 codes, ptrdiff_t n, const mp_how how) {
    if (!how.full) storen_bytes(q, codes, n);
    else if (how.stream) stream_f32((float *)q, as_f32(codes));
    else store_u32(q, codes);
}

/* Store n <= 64 codes that are 8-bit floats and return 1, or store nothing and return 0 if one of them is not
 * certain. */
MP_INLINE int try_floats(const float *x, uint8_t *q, ptrdiff_t n, mp_terms terms, const mp_how how) {
    const mp_code kind = how.kind;
    const int mantissa = kind == MP_CODE_E4M3FN ? 3 : 2, bias = kind == MP_CODE_E4M3FN ? 7 : 15, shift = 23 - mantissa;
    const uint32_t smallest = (uint32_t)(128 - bias) << 23; /* the bits of the format's smallest normal number */
    const vu32 half = set_u32((1u << (shift - 1)) + 4), below = set_u32((1u << shift) - 8);
    const vu32 base = set_u32((uint32_t)(127 - bias) << 23), one = set_u32(1), least = set_u32(smallest - 1);
    const vf32 largest = set_f32(largest_of(kind));
    vu32 codes[4], distance[4], before[4], any = set_u32(0);
    MP_UNROLL_8 for (int v = 0; v < 4; v++) {
        const vf32 y = mul_f32(numbers_of(x, n, v, how.full), terms.factor[v * terms.stride]);
        const vu32 u = as_u32(min_f32(largest, as_f32(and_u32(as_u32(y), set_u32(MAGNITUDE))))); /* NaN stays */
        const vu32 w = add_u32(u, half), code = sub_u32(max_u32(w, base), base);
        distance[v] = and_u32(w, below), before[v] = sub_u32(u, one), any = or_u32(any, code);
        /* The code is a signed byte in the upper half of the lane; 128 is subtracted from it if y is negative. */
        codes[v] = or_u32(shr_u32(code, shift - 16), and_u32(sar_u32(as_u32(y), 31), set_u32(0xFF800000u)));
    }
    const vu32 nearest = min_u32(min_u32(distance[0], distance[1]), min_u32(distance[2], distance[3]));
    const vu32 first = min_u32(min_u32(before[0], before[1]), min_u32(before[2], before[3])); /* u = 0 wraps around */
    const vu32 too_small = xor_u32(first, max_u32(first, least));
    const vu32 too_large = and_u32(any, set_u32(~0u << (shift + 7)));
    if (__builtin_expect(any_clear(nearest, below) | any_set(or_u32(too_small, too_large), set_u32(~0u)), 0)) return 0;
    put_codes(q, narrow_high_i8(codes[0], codes[1], codes[2], codes[3]), n, how);
    return 1;
}

/* The same for integer codes. */
MP_INLINE int try_integers(const float *x, uint8_t *q, ptrdiff_t n, mp_terms terms, const mp_bytes bytes,
                           const mp_how how) {
    vu32 fixed[4]; /* t, with 16 bits of fraction */
    MP_UNROLL_8 for (int v = 0; v < 4; v++) {
        const int at = v * terms.stride;
        fixed[v] = i32_from_f32(fma_f32(numbers_of(x, n, v, how.full), terms.factor[at], terms.start[at]));
    }
    const vu32 nearest = min_u16(min_u16(fixed[0], fixed[1]), min_u16(fixed[2], fixed[3]));
    if (__builtin_expect(any_clear(nearest, bytes.certain), 0)) return 0;
    vu32 codes = narrow_high_i8(fixed[0], fixed[1], fixed[2], fixed[3]);
    if (bytes.adjust) codes = xor_u32(min_i8(bytes.hi, max_i8(bytes.lo, codes)), bytes.flip);
    put_codes(q, codes, n, how);
    return 1;
}

MP_INLINE int try_block(const float *x, uint8_t *q, ptrdiff_t n, mp_terms terms, const mp_bytes bytes,
                        const mp_how how) {
    return is_integer(how.kind) ? try_integers(x, q, n, terms, bytes, how) : try_floats(x, q, n, terms, how);
}
