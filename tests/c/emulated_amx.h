/* Intel AMX by AVX-512, for tests of the products by AMX tiles on CPUs that have none: built with -Demulate_amx=true, which
 * includes this file before all others where the kernels by AMX tiles are compiled. Nothing of it is in a library that is
 * built without.
 *
 * Each function does what the Intel SDM states for the instruction of its intrinsic, and ends the process (#UD, #GP) where
 * the SDM says that the instruction faults. A thread has tiles of its own, as a thread of a CPU has. */
#ifndef MP_EMULATED_AMX_H
#define MP_EMULATED_AMX_H

#include <immintrin.h>
#include <stdint.h>
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

/* LDTILECFG: byte 0 is the palette, byte 1 the row at which an interrupted load would go on; the bytes of a row of tile t
 * are the 16-bit number at 16 + 2 t, its rows the byte at 48 + t. All tiles become zeros. */
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
    emulated_demand(emulated.bytes[sums] % 4 == 0 && emulated.bytes[a] % 4 == 0 && emulated.rows[sums] == emulated.rows[a]
                    && emulated.bytes[sums] == emulated.bytes[b] && emulated.bytes[a] / 4 == emulated.rows[b]);
}

static inline __mmask16 emulated_columns(int sums) { return (__mmask16)((1u << emulated.bytes[sums] / 4) - 1); }

static inline uint32_t emulated_word(int t, int row, int k) {
    uint32_t word;
    memcpy(&word, &emulated.at[t][row][4 * k], 4);
    return word;
}

/* TDPBF16PS: for each sum, the even products are added to 0 by fused multiply-adds, and so are the odd ones; then one to the
 * other, and that to the sum. Every operation rounds to nearest even, takes subnormal operands for zeros and flushes
 * subnormal results, whatever MXCSR says. */
static inline void emulated_dpbf16ps(int sums, int a, int b) {
    const unsigned caller = _mm_getcsr();
    emulated_demand_shapes(sums, a, b);
    _mm_setcsr(0x9FC0); /* round to nearest, FTZ, DAZ, all exceptions masked */
    __asm__ volatile("" ::: "memory");
    for (int i = 0; i < emulated.rows[sums]; i++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int k = 0; k < emulated.bytes[a] / 4; k++) {
            const __m512i x = _mm512_set1_epi32((int)emulated_word(a, i, k)), y = _mm512_load_si512(emulated.at[b][k]);
            const __m512i high = _mm512_set1_epi32((int)0xFFFF0000u);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                   _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)), even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                                  _mm512_castsi512_ps(_mm512_and_si512(y, high)), odd);
        }
        void *const row = emulated.at[sums][i];
        const __m512 sum = _mm512_add_ps(_mm512_load_ps(row), _mm512_add_ps(even, odd));
        _mm512_store_ps(row, _mm512_maskz_mov_ps(emulated_columns(sums), sum));
    }
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(caller);
}

/* TDPBSSD, TDPBUSD: four products of bytes of a, signed or not, by signed bytes of b, added modulo 2^32. */
static inline void emulated_dpb(int sums, int a, int b, int is_signed) {
    emulated_demand_shapes(sums, a, b);
    for (int i = 0; i < emulated.rows[sums]; i++) {
        void *const row = emulated.at[sums][i];
        __m512i sum = _mm512_load_si512(row);
        for (int k = 0; k < emulated.bytes[a] / 4; k++)
            for (int byte = 0; byte < 4; byte++) {
                const uint8_t x = emulated.at[a][i][4 * k + byte];
                const __m512i y = _mm512_srai_epi32(_mm512_sllv_epi32(_mm512_load_si512(emulated.at[b][k]),
                                                                      _mm512_set1_epi32(24 - 8 * byte)), 24);
                sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_set1_epi32(is_signed ? (int8_t)x : x), y));
            }
        _mm512_store_si512(row, _mm512_maskz_mov_epi32(emulated_columns(sums), sum));
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

#endif
