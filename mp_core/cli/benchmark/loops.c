/* Loops at the limits of the machine: the multiply-adds of a product in registers, and a plain read. The caller times
 * them. This file is compiled once per instruction set, like the kernels. */
#include "vocabulary.h"

#include "loops.h"


enum { CHAINS = MP_MR * MP_NR_VECTORS }; /* the accumulators of a product: enough to hide the latency */
_Static_assert((int)CHAINS <= (int)MP_LOOP_VECTORS, "callers provide MP_LOOP_VECTORS sums");
#define EACH_CHAIN(I) _Pragma("GCC unroll 32") for (int I = 0; I < CHAINS; I++)

/* Do one DOT into each accumulator, `rounds` times. The accumulators come from memory, and the operands are loaded in
 * every round, so the compiler can neither merge accumulators nor move work out of the loop. Return the number of
 * operations: 2 x TERMS per lane of a DOT. */
#define MP_LIMIT(ARITHMETIC, DOT, TERMS)                                                               \
    static double limit_##ARITHMETIC(const float *operands, ptrdiff_t rounds, float *sums) {           \
        vf32 c[CHAINS];                                                                                \
        EACH_CHAIN(i) c[i] = load_f32(sums + i * MP_LANES);                                            \
        for (ptrdiff_t r = 0; r < rounds; r++) {                                                       \
            __asm__ volatile("" ::: "memory");                                                         \
            const vf32 x = load_f32(operands), y = load_f32(operands + MP_LANES);                      \
            EACH_CHAIN(i) c[i] = DOT(c[i], x, y);                                                      \
        }                                                                                              \
        EACH_CHAIN(i) store_f32(sums + i * MP_LANES, c[i]);                                            \
        return 2.0 * (TERMS) * MP_LANES * CHAINS * (double)rounds;                                     \
    }

#define FMA_F32(ACC, X, Y) fma_f32(X, Y, ACC)
MP_LIMIT(wide, FMA_F32, 1)

#ifdef MP_NATIVE_BF16
#define DOT_BF16(ACC, X, Y) dot_bf16(ACC, as_u32(X), as_u32(Y))
MP_LIMIT(pairs, DOT_BF16, 2)
#else
#define limit_pairs limit_wide /* a pair is two FMAs */
#endif

#ifdef MP_QUADS_BY_TWO
MP_LIMIT(quads, FMA_F32, 2)
#else
#define DOT_I8(ACC, X, Y) as_f32(dot_u8s8(as_u32(ACC), as_u32(X), as_u32(Y)))
MP_LIMIT(quads, DOT_I8, 4)
#endif

#ifdef MP_NATIVE_TILES
/* The same with AMX: four tiles of sums, each a product of one of two tiles of A and one of two tiles of B. */
enum { TILE = 16, DEPTH = 64 };
_Static_assert((int)TILE <= (int)MP_LOOP_VECTORS, "callers provide MP_LOOP_VECTORS sums");

#define MP_LIMIT_TILES(FORMAT, DOT, SIZE)                                                              \
    static double limit_tiles_##FORMAT(const float *operands, ptrdiff_t rounds, float *sums) {         \
        struct {                                                                                       \
            uint8_t palette, start_row, reserved[14];                                                  \
            uint16_t row_bytes[16];                                                                    \
            uint8_t rows[16];                                                                          \
        } shapes = {.palette = 1};                                                                     \
        for (int t = 0; t < 8; t++) shapes.row_bytes[t] = DEPTH, shapes.rows[t] = TILE;                \
        _tile_loadconfig(&shapes);                                                                     \
        _tile_loadd(4, operands, 0);                                                                   \
        _tile_loadd(5, operands, 0);                                                                   \
        _tile_loadd(6, operands, 0);                                                                   \
        _tile_loadd(7, operands, 0);                                                                   \
        for (ptrdiff_t r = 0; r < rounds; r++) {                                                       \
            DOT(0, 4, 6);                                                                              \
            DOT(1, 4, 7);                                                                              \
            DOT(2, 5, 6);                                                                              \
            DOT(3, 5, 7);                                                                              \
        }                                                                                              \
        _tile_stored(0, sums, DEPTH);                                                                  \
        _tile_release();                                                                               \
        return 2.0 * 4 * TILE * TILE * DEPTH / (SIZE) * (double)rounds;                                \
    }
MP_LIMIT_TILES(i8, _tile_dpbssd, 1)
MP_LIMIT_TILES(bf16, _tile_dpbf16ps, 2)
#endif

/* Read all whole blocks of 256 bytes of x once. Return the exclusive or of their 32-bit words. */
static uint32_t read_all(const void *x, ptrdiff_t bytes) {
    const char *p = x;
    vu32 seen[4] = {set_u32(0), set_u32(0), set_u32(0), set_u32(0)};
    for (const char *end = p + bytes / 256 * 256; p < end; p += 256)
        MP_UNROLL_8 for (int j = 0; j < 4; j++) seen[j] = xor_u32(seen[j], load_u32(p + 64 * j));
    uint32_t lane[MP_LANES], all = 0;
    store_u32(lane, xor_u32(xor_u32(seen[0], seen[1]), xor_u32(seen[2], seen[3])));
    for (int i = 0; i < MP_LANES; i++) all ^= lane[i];
    return all;
}

extern const mp_loops MP_EXPORTED(loops);
const mp_loops MP_EXPORTED(loops) = {
    .multiply = {[MP_WIDE] = limit_wide, [MP_PAIRS] = limit_pairs, [MP_QUADS] = limit_quads},
#ifdef MP_NATIVE_TILES
    .multiply_tiles = {[MP_PAIRS] = limit_tiles_bf16, [MP_QUADS] = limit_tiles_i8},
#endif
    .read_all = read_all,
};
