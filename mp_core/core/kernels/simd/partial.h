/* loadn_ and storen_ for instruction sets without masked loads: with a buffer of a whole vector. */
#include <string.h>

#define MP_PARTIAL(T, ELEMENT, POINTER, LOADN, LOAD, STOREN, STORE) \
    MP_INLINE T LOADN(POINTER p, ptrdiff_t n) {                             \
        if (n >= MP_LANES) return LOAD(p);                          \
        ELEMENT lanes[MP_LANES] = {0};                              \
        memcpy(lanes, p, (size_t)n * sizeof(ELEMENT));              \
        return LOAD(lanes);                                         \
    }                                                               \
    MP_INLINE void STOREN(void *p, T x, ptrdiff_t n) {                      \
        if (n >= MP_LANES) {                                        \
            STORE(p, x);                                            \
            return;                                                 \
        }                                                           \
        ELEMENT lanes[MP_LANES];                                    \
        STORE(lanes, x);                                            \
        memcpy(p, lanes, (size_t)n * sizeof(ELEMENT));              \
    }

MP_PARTIAL(vf32, float, const float *, loadn_f32, load_f32, storen_f32, store_f32)
MP_PARTIAL(vu32, uint32_t, const void *, loadn_u32, load_u32, storen_u32, store_u32)
MP_PARTIAL(vu16, uint16_t, const void *, loadn_u16, load_u16, storen_u16, store_u16)
MP_PARTIAL(vu8, uint8_t, const void *, loadn_u8, load_u8, storen_u8, store_u8)

MP_INLINE void storen_bytes(void *p, vu32 x, ptrdiff_t n) {
    uint8_t bytes[sizeof x];
    store_u32(bytes, x);
    memcpy(p, bytes, (size_t)n);
}
