#include "cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES) \
    extern const mp_casts mp_casts_##MOST; \
    extern const mp_rows mp_rows_##MOST; \
    extern const mp_quantizers mp_quantizers_##MOST; \
    extern const mp_packing mp_packing_##MOST; \
    extern const mp_products mp_products_##MOST[MP_ARITHMETICS], mp_products_##QUADS[MP_ARITHMETICS]; \
    extern const mp_tiles mp_tiles_##TILES;
#include "isa.def"
const mp_tiles mp_tiles_NONE = {.gemm = {NULL}};

#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES) \
    static const mp_kernels kernels_##NAME = { \
        .isa = #NAME, \
        .casts = &mp_casts_##MOST, \
        .rows = &mp_rows_##MOST, \
        .quantizers = &mp_quantizers_##MOST, \
        .packing = &mp_packing_##MOST, \
        .products = {[MP_WIDE] = &mp_products_##MOST[MP_WIDE], [MP_PAIRS] = &mp_products_##MOST[MP_PAIRS], \
                     [MP_QUADS] = &mp_products_##QUADS[MP_QUADS]}, \
        .tiles = &mp_tiles_##TILES, \
    };
#include "isa.def"

const mp_isa mp_isas[] = {
#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES) {#NAME, NEEDS, &kernels_##NAME},
#include "isa.def"
    {NULL, 0, NULL},
};

const char *const mp_feature_names[] = {
#define MP_FEATURE(NAME, WORD) WORD,
#include "isa.def"
    NULL,
};

/* The first word of a file that describes cache number `index` of the first CPU; empty if there is none. */
static void read_cache_file(int index, const char *name, char word[32]) {
    char path[80];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *file = fopen(path, "r");
    word[0] = 0;
    if (!file) return;
    if (fscanf(file, "%31s", word) != 1) word[0] = 0;
    fclose(file);
}

/* What Linux says; 0 if it says nothing. */
static ptrdiff_t cache_by_sysfs(int level) {
    enum { MOST_CACHES = 16 };
    char word[32];
    for (int index = 0; index < MOST_CACHES; index++) {
        read_cache_file(index, "level", word);
        if (!word[0]) break;
        if (word[0] - '0' != level || word[1]) continue;
        read_cache_file(index, "type", word);
        if (strcmp(word, "Instruction") == 0) continue;
        read_cache_file(index, "size", word);
        char *unit;
        const long kibibytes = strtol(word, &unit, 10);
        if (*unit == 'K' && kibibytes > 0) return (ptrdiff_t)kibibytes << 10;
    }
    return 0;
}

ptrdiff_t mp_cpu_cache_bytes(int level) {
    static const ptrdiff_t usual[] = {0, 1 << 15, 1 << 19, 1 << 23};
    ptrdiff_t bytes = mp_cpu_cache_by_itself(level);
    if (!bytes) bytes = cache_by_sysfs(level);
    return bytes ? bytes : usual[level];
}
