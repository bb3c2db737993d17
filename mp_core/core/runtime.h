/* The state of the process that the Cython modules share: the kernels in use, threads, scratch. */
#ifndef MP_RUNTIME_H
#define MP_RUNTIME_H

#include <stddef.h>

#include "mp_core.h"

const mp_kernels *mp_active(void);
void mp_activate(const mp_kernels *kernels);

/* Call run(context, index) for every index below tasks, on up to that many threads. Each begins with a range of its own,
 * the same in every call like this one, so that it finds in its caches what it left there; who is done helps the others. */
void mp_parallel_for(int threads, ptrdiff_t tasks, void (*run)(void *context, ptrdiff_t index), void *context);

/* How many CPUs the calling thread may run on, 0 where the system does not say. */
int mp_allowed_cpus(void);

/* At least `bytes` bytes, 64-byte aligned, that belong to the calling thread until its next call; NULL without memory.
 * The block grows, is reused, and is freed when its thread ends. */
void *mp_scratch(size_t bytes);

#endif
