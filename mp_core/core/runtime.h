/* The state of the process that the Cython modules share: the kernels in use, the thread pool's fork rule, scratch. */
#ifndef MP_RUNTIME_H
#define MP_RUNTIME_H

#include <stddef.h>

#include "mp_core.h"

const mp_kernels *mp_active(void);
void mp_activate(const mp_kernels *kernels);

/* GNU OpenMP cannot run a team in the child of a process that has run one: after fork() the child must not try.
 * Returns 1 if the caller may start a team, and remembers that it did. */
int mp_enter_team(void);

/* At least `bytes` bytes, 64-byte aligned, that belong to the calling thread until its next call; NULL without memory.
 * The block grows, is reused, and is freed when its thread ends. */
void *mp_scratch(size_t bytes);

#endif
