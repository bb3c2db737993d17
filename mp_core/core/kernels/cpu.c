#if defined(__linux__)
#define _DEFAULT_SOURCE /* syscall */
#endif
#include "cpu.h"

#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES, ORDER) \
    extern const mp_casts mp_casts_##MOST; \
    extern const mp_rows mp_rows_##MOST; \
    extern const mp_quantizers mp_quantizers_##MOST; \
    extern const mp_packing mp_packing_##MOST; \
    extern const mp_products mp_products_##MOST[MP_ARITHMETICS], mp_products_##QUADS[MP_ARITHMETICS]; \
    extern const mp_tiles mp_tiles_##TILES;
#include "isa.def"
const mp_tiles mp_tiles_NONE = {.gemm = {NULL}};

#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES, ORDER) \
    static const mp_kernels kernels_##NAME = { \
        .isa = #NAME, \
        .own_order = ORDER, \
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
#define MP_ISA(NAME, NEEDS, MOST, QUADS, TILES, ORDER) {#NAME, NEEDS, &kernels_##NAME},
#include "isa.def"
    {NULL, 0, NULL},
};

const char *const mp_feature_names[] = {
#define MP_FEATURE(NAME, WORD) WORD,
#include "isa.def"
    NULL,
};

#if defined(__x86_64__)

#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* XCR0: which register files the operating system saves at a context switch. */
static uint32_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

#define BIT(REGISTER, N) (((REGISTER) >> (N)) & 1u)

/* Linux lets a process use the tile registers, whose state is 8 KiB, after it has asked for them. */
static int may_use_tiles(void) {
#ifdef __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

uint32_t mp_cpu_features(void) {
    uint32_t a, b, c, d, unused, found = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!BIT(c, 27) /* OSXSAVE */) return 0;
    const uint32_t saved = xcr0();
    const int fma = BIT(c, 12), f16c = BIT(c, 29), avx = BIT(c, 28);
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const uint32_t subleaves = a;
    if ((saved & 0x6) == 0x6 /* XMM and YMM state */ && avx && fma && f16c && BIT(b, 5)) found |= MP_CPU_AVX2;
    uint32_t more = 0; /* leaf 7, subleaf 1, eax */
    if (subleaves >= 1) __get_cpuid_count(7, 1, &more, &unused, &unused, &unused);
    if ((found & MP_CPU_AVX2) && BIT(more, 4)) found |= MP_CPU_AVX_VNNI;
    if ((found & MP_CPU_AVX2) && (saved & 0xE0) == 0xE0 /* opmask and ZMM state */ &&
        BIT(b, 16) /* F */ && BIT(b, 17) /* DQ */ && BIT(b, 30) /* BW */ && BIT(b, 31) /* VL */) {
        found |= MP_CPU_AVX512;
        if (BIT(c, 1)) found |= MP_CPU_AVX512_VBMI;
        if (BIT(c, 11)) found |= MP_CPU_AVX512_VNNI;
        if (BIT(more, 5)) found |= MP_CPU_AVX512_BF16;
        if ((saved & 0x60000) == 0x60000 /* tile state */ && BIT(d, 24) && may_use_tiles()) {
            if (BIT(d, 22)) found |= MP_CPU_AMX_BF16;
            if (BIT(d, 25)) found |= MP_CPU_AMX_INT8;
        }
    }
    return found;
}

#else

uint32_t mp_cpu_features(void) { return 0; }

#endif
