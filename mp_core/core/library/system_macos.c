/* system.h for macOS, together with system_posix.c. */
#include <stdint.h>
#include <sys/sysctl.h>

#include "library/system.h"

int mp_allowed_cpus(void) { return 0; } /* macOS cannot bind threads to CPUs */

void mp_keep_away(const mp_thread *threads, int count) { (void)threads, (void)count; }

/* If there are two kinds of CPUs, this is for the fast ones, "perflevel0". If sysctl writes only 4 bytes, the upper
 * half of `bytes` stays 0. */
ptrdiff_t mp_system_cache_bytes(int level) {
    static const char *const names[][2] = {
        {0},
        {"hw.perflevel0.l1dcachesize", "hw.l1dcachesize"},
        {"hw.perflevel0.l2cachesize", "hw.l2cachesize"},
        {"hw.perflevel0.l3cachesize", "hw.l3cachesize"},
    };
    for (int i = 0; i < 2; i++) {
        int64_t bytes = 0;
        size_t size = sizeof bytes;
        if (!sysctlbyname(names[level][i], &bytes, &size, NULL, 0) && bytes > 0) return (ptrdiff_t)bytes;
    }
    return 0;
}

int mp_ask_for_tiles(void) { return 0; } /* no Mac has AMX tiles of Intel */
