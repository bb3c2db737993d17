/* system.h for Linux with glibc or musl, together with system_posix.c. */
#define _GNU_SOURCE /* sched_getcpu and others */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "library/system.h"

int mp_allowed_cpus(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) ? 0 : CPU_COUNT(&allowed);
}

void mp_keep_away(const mp_thread *threads, int count) {
    cpu_set_t allowed;
    const int here = sched_getcpu();
    if (here < 0 || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    CPU_CLR((size_t)here, &allowed);
    for (int i = 0; CPU_COUNT(&allowed) && i < count; i++) pthread_setaffinity_np(threads[i], sizeof allowed, &allowed);
}

/* Read the first word of a file about cache number `index` of the first CPU; empty if there is no such file. */
static void read_cache_file(int index, const char *name, char word[32]) {
    char path[80];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
    FILE *file = fopen(path, "r");
    word[0] = 0;
    if (!file) return;
    if (fscanf(file, "%31s", word) != 1) word[0] = 0;
    fclose(file);
}

ptrdiff_t mp_system_cache_bytes(int level) {
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

int mp_ask_for_tiles(void) {
#if defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}
