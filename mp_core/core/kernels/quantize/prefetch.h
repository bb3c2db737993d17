/* Sizes that all kernels of the family share, and prefetching beside the loads of x. */

enum {
    BLOCK = 4 * MP_LANES, /* elements that one pass of a loop takes, called a block of 64; its codes are a cache line */
    ROWS = 4,             /* rows that use the scales or ranges of 64 columns while these are in registers */
    SHORT = 256,          /* elements up to which a run (a row with one scale) is too short to be handled alone */
};

/* Prefetch the four cache lines that lie `distance` elements after the 64 numbers at x; none if it is 0. */
MP_INLINE void prefetch(const float *x, ptrdiff_t distance) {
    if (!distance) return;
    MP_UNROLL_8 for (int i = 0; i < 4; i++) __builtin_prefetch((const char *)(x + distance) + i * 64, 0, 3);
}
