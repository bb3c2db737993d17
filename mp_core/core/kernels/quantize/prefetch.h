/* Sizes that the whole family shares, and prefetching beside the loads of x. */

enum {
    BLOCK = 4 * MP_LANES, /* elements that one pass of a loop takes; as codes, a cache line */
    ROWS = 4,             /* rows that meet the scales or ranges of 64 columns while these are in registers */
    SHORT = 256,          /* elements of a run that is handled together with its neighbours */
};

/* The four cache lines that lie `distance` elements behind the 64 numbers at x. */
V void prefetch(const float *x, ptrdiff_t distance) {
    if (!distance) return;
    UNROLL for (int i = 0; i < 4; i++) __builtin_prefetch((const char *)(x + distance) + i * 64, 0, 3);
}
