/* The sums of a register block, and computing them again if flushing was not exact. */
enum { MOST_ROWS = 2 * MP_MR, MOST_VECTORS = 4 }; /* only pieces of transposed.h have more than MR rows */

/* The addresses of a group along K. */
typedef struct {
    const char *a, *b;
    ptrdiff_t lda, stride;        /* bytes from one row of a to the next; from one row of B to the next, if in place */
    const uint32_t *zero;         /* zero points of the K block, if the kind is_shifted */
} place;

/* Part number `part` of the groups of vector j. */
MP_INLINE vf32 load_at(const place *at, const int j, const int kind, const int part) {
    const uint32_t *const zero = is_shifted(kind) ? at->zero + j * MP_LANES : NULL;
    return load_b(at->b + j * vector_bytes(kind), at->stride, zero, kind, part);
}

MP_INLINE void load_sums(vf32 (*c)[MOST_VECTORS], const char *at, ptrdiff_t ld, const int rows, const int vectors) {
    MP_UNROLL_16 for (int i = 0; i < rows; i++, at += ld)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) c[i][j] = load_f32((const void *)(at + j * MP_LANES * 4));
}

MP_INLINE void store_sums(vf32 (*c)[MOST_VECTORS], char *at, ptrdiff_t ld, const int rows, const int vectors) {
    MP_UNROLL_16 for (int i = 0; i < rows; i++, at += ld)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) store_f32((void *)(at + j * MP_LANES * 4), c[i][j]);
}

/* A register block over `k` elements of a K block, with its sums in memory. */
typedef struct {
    place at;
    ptrdiff_t k, b_stride;        /* b_stride: bytes from one group along K to the next */
    char *sums;                   /* ld bytes from one row to the next */
    ptrdiff_t ld;
    int rows, vectors;
} again_block;

/* Whether results of a kind have to be watched: see flushing.h. */
MP_INLINE int is_watched(const int kind) {
#ifdef MP_WATCHES_FLUSHING
    return kinds[kind].arithmetic == MP_PAIRS;
#else
    (void)kind;
    return 0;
#endif
}

/* x y, and x y + z, as the arithmetic of a kind flushes. */
MP_INLINE vf32 mul_of_kind(vf32 x, vf32 y, const int kind) {
    return is_watched(kind) ? mul_flushing(x, y) : mul_f32(x, y);
}
MP_INLINE vf32 fma_of_kind(vf32 x, vf32 y, vf32 z, const int kind) {
    return is_watched(kind) ? fma_flushing(x, y, z) : fma_f32(x, y, z);
}

/* Start to watch: clear the status of earlier results. */
MP_INLINE void watch(const int kind) {
#ifdef MP_WATCHES_FLUSHING
    if (is_watched(kind)) mp_has_flushed();
#else
    (void)kind;
#endif
}

/* Whether a result was flushed since watch(), after all of the sums c have been computed. */
MP_INLINE int has_flushed(vf32 (*c)[MOST_VECTORS], const int kind, const int rows, const int vectors) {
#ifdef MP_WATCHES_FLUSHING
    if (!is_watched(kind)) return 0;
    MP_UNROLL_16 for (int i = 0; i < rows; i++)
        MP_UNROLL_8 for (int j = 0; j < vectors; j++) {
            vf32 sum = c[i][j];
            __asm__ volatile("" : "+m"(sum)); /* is not moved past the next volatile asm, which reads the status */
            c[i][j] = sum;
        }
    return mp_has_flushed();
#else
    (void)c, (void)kind, (void)rows, (void)vectors;
    return 0;
#endif
}

/* Add the products of pairs to the sums, and flush after rounding. It is slow, but rare: only after a product or a sum
 * below 2^-126. */
MP_INLINE void add_again(const again_block *t, const int kind) {
    enum { PAIRS_OF_GROUP = 4 }; /* at most: 8 elements */
    const int group = group_of(kind);
    place at = t->at;
    for (ptrdiff_t p = 0; p < t->k; p += group, at.b += t->b_stride)
        for (int i = 0; i < t->rows; i++) {
            uint32_t pairs[PAIRS_OF_GROUP] = {0};
            memcpy(pairs, at.a + i * at.lda + p * 2, (size_t)at_most(t->k - p, group) * 2);
            for (int j = 0; j < t->vectors; j++) {
                float *const to = (float *)(t->sums + i * t->ld) + j * MP_LANES;
                vf32 sum = load_f32(to);
                MP_UNROLL_8 for (int part = 0; part < group / 2; part++) {
                    if (p + 2 * part >= t->k) continue;
                    const vu32 x = set_u32(pairs[part]), odd = set_u32(0xFFFF0000u);
                    const vu32 y = as_u32(load_at(&at, j, kind, part));
                    sum = fma_flushing(as_f32(and_u32(x, odd)), as_f32(and_u32(y, odd)), sum);
                    sum = fma_flushing(as_f32(shl_u32(x, 16)), as_f32(shl_u32(y, 16)), sum);
                }
                store_f32(to, sum);
            }
        }
}

#define MP_KIND(NAME, ...) \
    static __attribute__((noinline, unused)) void add_again_##NAME(const again_block *t) { add_again(t, KIND_##NAME); }
#include "products/kinds.def"

MP_INLINE void multiply_again(const again_block *t, const int kind) {
    switch (kind) {
#define MP_KIND(NAME, ...) case KIND_##NAME: add_again_##NAME(t); break;
#include "products/kinds.def"
    default: __builtin_unreachable();
    }
}
