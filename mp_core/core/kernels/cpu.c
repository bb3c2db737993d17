#include "cpu.h"

#include <string.h>

#include "library/system.h"
#include "updates/updates.h"
#include "windows/windows.h"

#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    extern const mp_casts mp_casts_##MOST; \
    extern const mp_rows mp_rows_##MOST; \
    extern const mp_quantizers mp_quantizers_##QUANTIZERS; \
    extern const mp_packing mp_packing_##MOST; \
    extern const mp_products mp_products_##MOST[MP_ARITHMETICS], mp_products_##PAIRS[MP_ARITHMETICS], \
        mp_products_##QUADS[MP_ARITHMETICS]; \
    extern const mp_tiles mp_tiles_##TILES;
#include "isa.def"
const mp_tiles mp_tiles_NONE = {.gemm = {NULL}};

#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    static const mp_kernels kernels_##NAME = { \
        .isa = #NAME, \
        .casts = &mp_casts_##MOST, \
        .rows = &mp_rows_##MOST, \
        .quantizers = &mp_quantizers_##QUANTIZERS, \
        .packing = &mp_packing_##MOST, \
        .products = {[MP_WIDE] = &mp_products_##MOST[MP_WIDE], [MP_PAIRS] = &mp_products_##PAIRS[MP_PAIRS], \
                     [MP_QUADS] = &mp_products_##QUADS[MP_QUADS]}, \
        .tiles = &mp_tiles_##TILES, \
        .decoding = mp_products_##MOST, \
    };
#include "isa.def"

const mp_isa mp_isas[] = {
#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) {#NAME, NEEDS, &kernels_##NAME},
#include "isa.def"
    {NULL, 0, NULL},
};

#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) extern mp_update_function mp_update_##MOST;
#include "isa.def"

mp_update_function *mp_update_of(const mp_kernels *kernels) {
#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    if (kernels == &kernels_##NAME) return mp_update_##MOST;
#include "isa.def"
    return NULL; /* not reached: every kernels_... is in a row of isa.def */
}

#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    extern mp_window_function *const mp_window_functions_##MOST[];
#include "isa.def"

mp_window_function *const *mp_window_functions_of(const mp_kernels *kernels) {
#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    if (kernels == &kernels_##NAME) return mp_window_functions_##MOST;
#include "isa.def"
    return NULL; /* not reached: every kernels_... is in a row of isa.def */
}

const char *const mp_left_out = MP_LEFT_OUT;

const char *const mp_feature_names[] = {
#define MP_FEATURE(NAME, WORD) WORD,
#include "isa.def"
    NULL,
};

ptrdiff_t mp_cpu_cache_bytes(int level) {
    static const ptrdiff_t usual[] = {0, 1 << 15, 1 << 19, 1 << 23};
    ptrdiff_t bytes = mp_cpu_cache_by_itself(level);
    if (!bytes) bytes = mp_system_cache_bytes(level);
    return bytes ? bytes : usual[level];
}
