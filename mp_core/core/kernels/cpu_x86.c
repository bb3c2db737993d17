/* The features and caches of an x86-64 CPU, as CPUID reports them. */
#include "cpu.h"

#include <cpuid.h>
#include <string.h>

#include "library/system.h"

/* XCR0: the registers that the operating system saves at a context switch. */
static uint32_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

#define BIT(REGISTER, N) (((REGISTER) >> (N)) & 1u)

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
        if ((saved & 0x60000) == 0x60000 /* state of AMX tiles */ && BIT(d, 24) && mp_ask_for_tiles()) {
            if (BIT(d, 22)) found |= MP_CPU_AMX_BF16;
            if (BIT(d, 25)) found |= MP_CPU_AMX_INT8;
        }
    }
    return found;
}

/* CPUID's leaf 0 returns the vendor as text in ebx, edx, ecx. */
static int vendor_is(const char *name) {
    uint32_t a, text[3];
    return __get_cpuid(0, &a, &text[0], &text[2], &text[1]) && memcmp(text, name, sizeof(text)) == 0;
}

mp_cpu_family mp_cpu_family_here(void) {
    uint32_t a, b, c, d;
    if (vendor_is("GenuineIntel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && BIT(d, 24)) return MP_CPU_INTEL_AMX;
    return MP_CPU_ZEN4;
}

/* CPUID's leaves 4 (Intel) and 0x8000001D (AMD) describe one cache in each subleaf, in the same bits. */
ptrdiff_t mp_cpu_cache_by_itself(int level) {
    enum { END = 0, INSTRUCTIONS = 2, MOST_CACHES = 16 };
    uint32_t a, b, c, d;
    const uint32_t leaf = vendor_is("AuthenticAMD") || vendor_is("HygonGenuine") ? 0x8000001Du : 4;
    for (uint32_t cache = 0; cache < MOST_CACHES && __get_cpuid_count(leaf, cache, &a, &b, &c, &d); cache++) {
        const uint32_t type = a & 31;
        if (type == END) break;
        if (type == INSTRUCTIONS || (int)(a >> 5 & 7) != level) continue;
        const ptrdiff_t ways = (b >> 22) + 1, partitions = (b >> 12 & 1023) + 1, line = (b & 4095) + 1,
                        sets = (ptrdiff_t)c + 1;
        return ways * partitions * line * sets;
    }
    return 0;
}
