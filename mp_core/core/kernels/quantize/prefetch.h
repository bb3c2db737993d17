/* Sizes for all kernels of this folder, and prefetching x. */

enum {
    BLOCK = 4 * MP_LANES, /* elements of an iteration, called a block of 64; its codes are a cache line */
    ROWS = 4,             /* rows that share the scales or ranges of 64 columns in registers */
    SHORT = 256,          /* runs (rows with one scale) of at most this many elements are computed together */
};

/* Prefetch the four cache lines `distance` elements after the 64 numbers at x; none if `distance` is 0. */
MP_INLINE void prefetch(const float *x, ptrdiff_t distance) {
    if (!distance) return;
    MP_UNROLL_8 for (int i = 0; i < 4; i++) __builtin_prefetch((const char *)(x + distance) + i * 64, 0, 3);
}
