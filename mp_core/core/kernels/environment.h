/* The floating-point environment of the calling thread: how it rounds, and whether subnormal numbers are flushed. */
#ifndef MP_ENVIRONMENT_H
#define MP_ENVIRONMENT_H

#include <stdint.h>

#if defined(__SSE__)
#include <immintrin.h>
enum { MP_PRECISE = 0x1F80, MP_FLUSHING = 0x9FC0 /* FTZ, DAZ */ }; /* MXCSR; both mask all exceptions */
static inline uint64_t mp_get_environment(void) { return _mm_getcsr(); }
static inline void mp_set_environment(uint64_t environment) { _mm_setcsr((unsigned)environment); }

#elif defined(__aarch64__)
enum { MP_PRECISE = 0, MP_FLUSHING = 1 << 24 /* FZ */ }; /* FPCR */
static inline uint64_t mp_get_environment(void) {
    uint64_t environment;
    __asm__ volatile("mrs %0, fpcr" : "=r"(environment));
    return environment;
}
static inline void mp_set_environment(uint64_t environment) {
    __asm__ volatile("msr fpcr, %0" : : "r"(environment) : "memory");
}

/* FZ flushes a result that is below 2^-126 before rounding, MXCSR one that is below it after rounding to 24 bits. They
 * differ from 2^-126 - 2^-151 to 2^-126. So flushing is watched: bit UFC of FPSR is set when a result is flushed, and
 * stays set. Return this bit, and clear it. */
#define MP_WATCHES_FLUSHING
static inline int mp_has_flushed(void) {
    enum { UFC = 1 << 3 };
    uint64_t status;
    __asm__ volatile("mrs %0, fpsr" : "=r"(status) : : "memory");
    if (!(status & UFC)) return 0;
    __asm__ volatile("msr fpsr, %0" : : "r"(status & ~(uint64_t)UFC) : "memory");
    return 1;
}

#else
enum { MP_PRECISE, MP_FLUSHING };
static inline uint64_t mp_get_environment(void) { return MP_PRECISE; }
static inline void mp_set_environment(uint64_t environment) { (void)environment; }
#endif

#endif
