/* The vocabulary in plain C, for any CPU: a vector is an array of 16 lanes, and a fused multiply-add is fmaf. It is
 * slow, and every build has it. */
typedef struct { float x[MP_LANES]; } vf32;
typedef struct { uint32_t x[MP_LANES]; } vu32;
typedef struct { uint16_t x[MP_LANES]; } vu16;
typedef struct { uint8_t x[MP_LANES]; } vu8;
typedef vu32 vmask; /* 1 or 0 per lane */
#undef UNROLL16 /* here vectors are arrays in memory: unrolling gains nothing and takes minutes to compile */
#define UNROLL16
#define MP_OUT_OF_LINE

#define MP_EACH(T, EXPRESSION)                                          \
    do {                                                                \
        T r;                                                            \
        for (int i = 0; i < MP_LANES; i++) r.x[i] = (EXPRESSION);       \
        return r;                                                       \
    } while (0)
#define MP_EACH2(T, R, NAME, EXPRESSION) V R NAME(T a, T b) { MP_EACH(R, EXPRESSION); }

V vf32 set_f32(float x) { MP_EACH(vf32, x); }
V vu32 set_u32(uint32_t x) { MP_EACH(vu32, x); }

#define MP_MEMORY(T, POINTER, LOAD, STORE)                              \
    V T LOAD(POINTER p) { T r; memcpy(&r, p, sizeof r); return r; }     \
    V void STORE(void *p, T x) { memcpy(p, &x, sizeof x); }
MP_MEMORY(vf32, const float *, load_f32, store_f32)
MP_MEMORY(vu32, const void *, load_u32, store_u32)
MP_MEMORY(vu16, const void *, load_u16, store_u16)
MP_MEMORY(vu8, const void *, load_u8, store_u8)
#define stream_f32 store_f32
#define stream_u16 store_u16
#define stream_u8 store_u8
V void stream_fence(void) {}
#include "partial.h"

V vu32 as_u32(vf32 x) { vu32 r; memcpy(&r, &x, sizeof r); return r; }
V vf32 as_f32(vu32 x) { vf32 r; memcpy(&r, &x, sizeof r); return r; }

MP_EACH2(vf32, vf32, add_f32, a.x[i] + b.x[i])
MP_EACH2(vf32, vf32, sub_f32, a.x[i] - b.x[i])
MP_EACH2(vf32, vf32, mul_f32, a.x[i] * b.x[i])
MP_EACH2(vf32, vf32, div_f32, a.x[i] / b.x[i])
MP_EACH2(vf32, vf32, min_f32, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
MP_EACH2(vf32, vf32, max_f32, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
V vf32 fma_f32(vf32 a, vf32 b, vf32 c) { MP_EACH(vf32, fmaf(a.x[i], b.x[i], c.x[i])); }

MP_EACH2(vu32, vu32, and_u32, a.x[i] & b.x[i])
MP_EACH2(vu32, vu32, or_u32, a.x[i] | b.x[i])
MP_EACH2(vu32, vu32, xor_u32, a.x[i] ^ b.x[i])
MP_EACH2(vu32, vu32, add_u32, a.x[i] + b.x[i])
MP_EACH2(vu32, vu32, sub_u32, a.x[i] - b.x[i])
MP_EACH2(vu32, vu32, mul_u32, a.x[i] * b.x[i])
MP_EACH2(vu32, vu32, min_u32, a.x[i] < b.x[i] ? a.x[i] : b.x[i])
MP_EACH2(vu32, vu32, max_u32, a.x[i] > b.x[i] ? a.x[i] : b.x[i])
V vu32 shl_u32(vu32 a, int n) { MP_EACH(vu32, a.x[i] << n); }
V vu32 shr_u32(vu32 a, int n) { MP_EACH(vu32, a.x[i] >> n); }
V vu32 sar_u32(vu32 a, int n) { MP_EACH(vu32, (uint32_t)((int32_t)a.x[i] >> n)); }

MP_EACH2(vf32, vmask, lt_f32, a.x[i] < b.x[i])
MP_EACH2(vu32, vmask, gt_i32, (int32_t)a.x[i] > (int32_t)b.x[i])
V vf32 select_f32(vmask m, vf32 a, vf32 b) { MP_EACH(vf32, m.x[i] ? a.x[i] : b.x[i]); }
V vu32 select_u32(vmask m, vu32 a, vu32 b) { MP_EACH(vu32, m.x[i] ? a.x[i] : b.x[i]); }
V vmask first_n(ptrdiff_t n) { MP_EACH(vmask, i < n); }

V vf32 f32_from_i32(vu32 a) { MP_EACH(vf32, (float)(int32_t)a.x[i]); }
V vu32 i32_from_f32(vf32 a) { MP_EACH(vu32, (uint32_t)lrintf(a.x[i])); }
V vu32 widen_u16(vu16 a) { MP_EACH(vu32, a.x[i]); }
V vf32 f32_from_bf16(vu16 h) {
    for (int i = 0; i < MP_LANES; i++) h.x[i] |= (uint16_t)(((h.x[i] & 0x7FFF) > 0x7F80) << 6); /* make a NaN quiet */
    return as_f32(shl_u32(widen_u16(h), 16));
}
V vu32 widen_u8(vu8 a) { MP_EACH(vu32, a.x[i]); }
V vu32 widen_i8(vu8 a) { MP_EACH(vu32, (uint32_t)(int8_t)a.x[i]); }
V vu16 narrow_u16(vu32 a) { MP_EACH(vu16, (uint16_t)a.x[i]); }
V vu8 narrow_u8(vu32 a) { MP_EACH(vu8, (uint8_t)a.x[i]); }
V vu32 low_halves(vu32 a, vu32 b) {
    const uint32_t *const x[2] = {a.x, b.x};
    MP_EACH(vu32, (x[i / 8][i % 8 * 2] & 0xFFFF) | x[i / 8][i % 8 * 2 + 1] << 16);
}
V vu32 high_halves(vu32 a, vu32 b) {
    const uint32_t *const x[2] = {a.x, b.x};
    MP_EACH(vu32, x[i / 8][i % 8 * 2] >> 16 | (x[i / 8][i % 8 * 2 + 1] & 0xFFFF0000u));
}

/* A matrix of 16 x 16 words, transposed in place. */
V void transpose_u32(vu32 *r) {
    for (int i = 0; i < MP_LANES; i++)
        for (int j = 0; j < i; j++) {
            const uint32_t word = r[i].x[j];
            r[i].x[j] = r[j].x[i];
            r[j].x[i] = word;
        }
}

V uint32_t top_u32(vu32 v) {
    for (int i = 1; i < MP_LANES; i++) v.x[0] = v.x[i] > v.x[0] ? v.x[i] : v.x[0];
    return v.x[0];
}
V float max_lanes(vf32 v) {
    float best = v.x[0];
    for (int i = 1; i < MP_LANES; i++) best = v.x[i] > best ? v.x[i] : best;
    return best;
}
V float sum_f32(vf32 v) {
    for (int half = MP_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v.x[i] += v.x[i + half];
    return v.x[0];
}

V vu32 dot_u8s8(vu32 acc, vu32 a, vu32 b) {
    for (int i = 0; i < MP_LANES; i++)
        for (int byte = 0; byte < 32; byte += 8)
            acc.x[i] += (a.x[i] >> byte & 0xFF) * (uint32_t)(int8_t)(b.x[i] >> byte & 0xFF);
    return acc;
}

#define MP_DIVIDES 1
#define MP_MR 1
#define MP_NR_VECTORS 1
#define MP_FEW_ROWS_WIDE {[MP_F8_E4M3FN] = 3, [MP_F8_E5M2] = 3, [MP_I8] = 3, [MP_I4] = 3}
#define MP_FEW_ROWS_PAIRS {[MP_F8_E4M3FN] = 3, [MP_F8_E5M2] = 3, [MP_I8] = 3, [MP_I4] = 3}
