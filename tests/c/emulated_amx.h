/* Intel AMX in plain C beside the vocabulary of AVX2, for tests of the products by AMX tiles on CPUs that have none:
 * where
 * -Demulate_amx=true is set, meson.build compiles the kernels by AMX tiles with this header in the place of
 * simd/avx512_amx.h. Nothing of it is in a library that is built without.
 *
 * Each function does what the Intel SDM states for the instruction of its intrinsic, and ends the process (#UD, #GP)
 * where the SDM says that the instruction faults. A thread has tiles of its own, as a thread of a CPU has. */
#define MP_NATIVE_TILES
#include "simd/avx2.h"

#include <immintrin.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_BYTES = 64 };

/* The state of the tiles: unless they are configured, no instruction but ldtilecfg and tilerelease may be used. */
static _Thread_local struct {
    int configured;
    int rows[EMULATED_TILES], bytes[EMULATED_TILES]; /* bytes of a row */
    _Alignas(64) uint8_t at[EMULATED_TILES][EMULATED_ROWS][EMULATED_BYTES];
} emulated;

static inline void emulated_demand(int truth) {
    if (!truth) __builtin_trap();
}

static inline void emulated_demand_tile(int t) {
    emulated_demand(emulated.configured && emulated.rows[t] > 0 && emulated.bytes[t] > 0);
}

/* LDTILECFG: byte 0 is the palette, byte 1 the row at which an interrupted load would go on; the bytes of a row of tile
 * t are the 16-bit number at 16 + 2 t, its rows the byte at 48 + t. All tiles become zeros. */
static inline void emulated_loadconfig(const void *shapes) {
    const uint8_t *s = shapes;
    memset(&emulated, 0, sizeof emulated);
    emulated_demand(s[0] == 1 && s[1] == 0);
    for (int i = 2; i < 16; i++) emulated_demand(s[i] == 0);
    for (int t = 0; t < 16; t++) {
        const int bytes = s[16 + 2 * t] | s[17 + 2 * t] << 8, rows = s[48 + t];
        emulated_demand(bytes <= EMULATED_BYTES && rows <= EMULATED_ROWS && (bytes == 0) == (rows == 0)
                        && (t < EMULATED_TILES || rows == 0));
        if (t < EMULATED_TILES) emulated.rows[t] = rows, emulated.bytes[t] = bytes;
    }
    emulated.configured = 1;
}

static inline void emulated_release(void) { memset(&emulated, 0, sizeof emulated); }

static inline void emulated_zero(int t) {
    emulated_demand_tile(t);
    memset(emulated.at[t], 0, sizeof emulated.at[t]);
}

/* TILELOADD: rows lie `stride` bytes apart; what is beyond the shape of the tile becomes zeros. */
static inline void emulated_loadd(int t, const void *from, ptrdiff_t stride) {
    emulated_zero(t);
    for (int i = 0; i < emulated.rows[t]; i++)
        memcpy(emulated.at[t][i], (const char *)from + i * stride, (size_t)emulated.bytes[t]);
}

static inline void emulated_stored(int t, void *to, ptrdiff_t stride) {
    emulated_demand_tile(t);
    for (int i = 0; i < emulated.rows[t]; i++)
        memcpy((char *)to + i * stride, emulated.at[t][i], (size_t)emulated.bytes[t]);
}

/* The three tiles differ, and their shapes multiply: sums m x n, a m x k, b k x n words of 32 bits. */
static inline void emulated_demand_shapes(int sums, int a, int b) {
    emulated_demand(sums != a && sums != b && a != b);
    emulated_demand_tile(sums), emulated_demand_tile(a), emulated_demand_tile(b);
    emulated_demand(emulated.bytes[sums] % 4 == 0 && emulated.bytes[a] % 4 == 0
                    && emulated.rows[sums] == emulated.rows[a] && emulated.bytes[sums] == emulated.bytes[b]
                    && emulated.bytes[a] / 4 == emulated.rows[b]);
}

enum { EMULATED_COLUMNS = EMULATED_BYTES / 4 };

static inline float emulated_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t emulated_word(int t, int row, int column) {
    uint32_t word;
    memcpy(&word, &emulated.at[t][row][4 * column], sizeof word);
    return word;
}

static __attribute__((noinline)) void emulated_add_bf16(int sums, int a, int b) {
    float y[EMULATED_ROWS][2][EMULATED_COLUMNS]; /* even and odd elements */
    for (int k = 0; k < emulated.rows[b]; k++)
        for (int j = 0; j < EMULATED_COLUMNS; j++) {
            y[k][0][j] = emulated_float(emulated_word(b, k, j) << 16);
            y[k][1][j] = emulated_float(emulated_word(b, k, j) & 0xFFFF0000u);
        }
    for (int i = 0; i < emulated.rows[sums]; i++) {
        float even[EMULATED_COLUMNS] = {0}, odd[EMULATED_COLUMNS] = {0}, sum[EMULATED_COLUMNS];
        for (int k = 0; k < emulated.rows[b]; k++) {
            const uint32_t pair = emulated_word(a, i, k);
            const float x = emulated_float(pair << 16), next = emulated_float(pair & 0xFFFF0000u);
            for (int j = 0; j < EMULATED_COLUMNS; j++) {
                even[j] = __builtin_fmaf(x, y[k][0][j], even[j]);
                odd[j] = __builtin_fmaf(next, y[k][1][j], odd[j]);
            }
        }
        memcpy(sum, emulated.at[sums][i], sizeof sum);
        for (int j = 0; j < EMULATED_COLUMNS; j++) sum[j] = sum[j] + (even[j] + odd[j]);
        memcpy(emulated.at[sums][i], sum, (size_t)emulated.bytes[sums]);
    }
}

/* TDPBF16PS: for each sum, the even products are added to 0 by fused multiply-adds, and so are the odd ones; then one
 * to the other, and that to the sum. Every operation rounds to nearest even, takes subnormal operands for zeros and
 * flushes subnormal results, whatever MXCSR says. */
static inline void emulated_dpbf16ps(int sums, int a, int b) {
    const unsigned caller = _mm_getcsr();
    emulated_demand_shapes(sums, a, b);
    _mm_setcsr(0x9FC0); /* round to nearest, FTZ, DAZ, all exceptions masked */
    emulated_add_bf16(sums, a, b);
    _mm_setcsr(caller);
}

/* TDPBSSD, TDPBUSD: four products of bytes of a, signed or not, by signed bytes of b, added modulo 2^32. */
static inline void emulated_dpb(int sums, int a, int b, int is_signed) {
    int32_t y[EMULATED_BYTES][EMULATED_COLUMNS];
    emulated_demand_shapes(sums, a, b);
    for (int k = 0; k < emulated.bytes[a]; k++)
        for (int j = 0; j < EMULATED_COLUMNS; j++) y[k][j] = (int8_t)emulated.at[b][k / 4][4 * j + k % 4];
    for (int i = 0; i < emulated.rows[sums]; i++) {
        uint32_t sum[EMULATED_COLUMNS];
        memcpy(sum, emulated.at[sums][i], sizeof sum);
        for (int k = 0; k < emulated.bytes[a]; k++) {
            const int32_t x = is_signed ? (int8_t)emulated.at[a][i][k] : emulated.at[a][i][k];
            for (int j = 0; j < EMULATED_COLUMNS; j++) sum[j] += (uint32_t)(x * y[k][j]);
        }
        memcpy(emulated.at[sums][i], sum, (size_t)emulated.bytes[sums]);
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbusd
#define _tile_loadconfig(SHAPES) emulated_loadconfig(SHAPES)
#define _tile_release() emulated_release()
#define _tile_zero(T) emulated_zero(T)
#define _tile_loadd(T, FROM, STRIDE) emulated_loadd(T, FROM, STRIDE)
#define _tile_stored(T, TO, STRIDE) emulated_stored(T, TO, STRIDE)
#define _tile_dpbf16ps(SUMS, A, B) emulated_dpbf16ps(SUMS, A, B)
#define _tile_dpbssd(SUMS, A, B) emulated_dpb(SUMS, A, B, 1)
#define _tile_dpbusd(SUMS, A, B) emulated_dpb(SUMS, A, B, 0)

