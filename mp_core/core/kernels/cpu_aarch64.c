/* The features of an AArch64 CPU, as the operating system reports them. */
#include "cpu.h"

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#if defined(__linux__)
/* Bits of AT_HWCAP and AT_HWCAP2 (Linux, arch/arm64/include/uapi/asm/hwcap.h). */
enum { ASIMDDP = 1 << 20, I8MM = 1 << 13, BF16 = 1 << 14 };

uint32_t mp_cpu_features(void) {
    const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    uint32_t found = MP_CPU_NEON;
    if (one & ASIMDDP) found |= MP_CPU_DOTPROD;
    if (two & I8MM) found |= MP_CPU_I8MM;
    if (two & BF16) found |= MP_CPU_BF16;
    return found;
}

#elif defined(__APPLE__)
static int64_t setting(const char *name) {
    int64_t value = 0; /* int or int64_t: the machine is little-endian */
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 ? value : 0;
}

uint32_t mp_cpu_features(void) {
    uint32_t found = MP_CPU_NEON;
    if (setting("hw.optional.arm.FEAT_DotProd")) found |= MP_CPU_DOTPROD;
    if (setting("hw.optional.arm.FEAT_I8MM")) found |= MP_CPU_I8MM;
    if (setting("hw.optional.arm.FEAT_BF16")) found |= MP_CPU_BF16;
    return found;
}

#else
uint32_t mp_cpu_features(void) { return MP_CPU_NEON; }
#endif

mp_cpu_family mp_cpu_family_here(void) { return MP_CPU_ZEN4; }

ptrdiff_t mp_cpu_cache_by_itself(int level) {
    (void)level; /* only the operating system can read CLIDR and CCSIDR */
    return 0;
}
