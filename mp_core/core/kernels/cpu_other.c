/* Any other CPU: no features, unknown caches. */
#include "cpu.h"

uint32_t mp_cpu_features(void) { return 0; }
mp_cpu_family mp_cpu_family_here(void) { return MP_CPU_ZEN4; }
ptrdiff_t mp_cpu_cache_by_itself(int level) {
    (void)level;
    return 0;
}
