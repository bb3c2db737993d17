/* Counts the bytes that a process has allocated, for tests/fuzz/limits.py, whose process loads this file before
 * the C library (LD_PRELOAD): those of Python, of NumPy, of mp_core and of every other library. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>

static atomic_long live, most;
static long start;

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

/* Begin to look for the largest number of bytes. */
void watch_allocations(void) { start = live, most = live; }

/* How many bytes there were at most since then, beyond those at that time. */
long most_allocated(void) { return most - start; }

static void *taken(void *block) {
    const long bytes = (long)malloc_usable_size(block), now = atomic_fetch_add(&live, bytes) + bytes;
    for (long before = most; now > before && !atomic_compare_exchange_weak(&most, &before, now);) {}
    return block;
}

static void given_back(void *block) { atomic_fetch_sub(&live, (long)malloc_usable_size(block)); }

void *malloc(size_t size) { return taken(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return taken(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **block, size_t alignment, size_t size) {
    *block = memalign(alignment, size);
    return *block ? 0 : ENOMEM;
}
void free(void *block) {
    given_back(block);
    __libc_free(block);
}
/* Until it returns, the old block counts beside the new one, as both may exist. */
void *realloc(void *block, size_t size) {
    const long bytes = (long)malloc_usable_size(block);
    void *const other = __libc_realloc(block, size);
    if (!other && size) return NULL;
    taken(other);
    atomic_fetch_sub(&live, bytes);
    return other;
}
