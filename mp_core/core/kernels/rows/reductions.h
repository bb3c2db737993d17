/* Sums of blocks, lane by lane, in the order of rows/sums.h: lane i of a block is the sum of the elements i, i + 16, i
 * + 32, ..., starting at +0. library/sums.c adds the blocks, lane by lane, and then the 16 lanes. Only sum_rows has no
 * lanes. */

/* Sum `count` blocks of n elements, `stride` bytes apart. Each addition waits several cycles for the one before it in
 * its block; the additions of `count` blocks overlap. */
MP_INLINE void sum_together(mp_format format, const int count, const char *x, ptrdiff_t stride, ptrdiff_t n,
                            float *lanes) {
    vf32 total[MP_ROWS_TOGETHER];
    ptrdiff_t i = 0;
    MP_UNROLL_8 for (int b = 0; b < count; b++) total[b] = set_f32(0.0f);
#define ADD_BLOCKS(I, N) \
    MP_UNROLL_8 for (int b = 0; b < count; b++) total[b] = add_f32(total[b], read_row(format, x + b * stride, I, N))
    FOR_VECTORS(i, n, ADD_BLOCKS)
    MP_UNROLL_8 for (int b = 0; b < count; b++) store_f32(lanes + b * MP_LANES, total[b]);
}

MP_INLINE void sum_all_blocks(mp_format format, const char *x, ptrdiff_t blocks, ptrdiff_t stride, ptrdiff_t n,
                              float *lanes) {
    for (; blocks >= MP_ROWS_TOGETHER; blocks -= MP_ROWS_TOGETHER) {
        sum_together(format, MP_ROWS_TOGETHER, x, stride, n, lanes);
        x += MP_ROWS_TOGETHER * stride, lanes += MP_ROWS_TOGETHER * MP_LANES;
    }
    for (; blocks > 0; blocks--, x += stride, lanes += MP_LANES) sum_together(format, 1, x, stride, n, lanes);
}

/* Prefetch distance in rows: hardware prefetchers do not continue from one row to the next. With 8 rows, 64 x 512 x 768
 * is summed over its middle axis at 14.6 GB/s instead of 10.6 (float32, one Zen 4 core, November 2026). */
enum { MP_PREFETCH_DISTANCE_IN_ROWS = 8 };

/* Sum n columns of a block of `rows` rows, `stride` bytes apart: lane i of column j is lanes[i][j]. */
MP_INLINE void sum_columns_of(mp_format format, const char *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n,
                              float *lanes) {
    memset(lanes, 0, (size_t)(MP_LANES * n) * sizeof *lanes);
    for (ptrdiff_t row = 0; row < rows; row++, x += stride) {
        float *const at = lanes + row % MP_LANES * n;
        ptrdiff_t j = 0;
#define ADD_ROW(J, N)                                                                                          \
    do {                                                                                                       \
        __builtin_prefetch(x + MP_PREFETCH_DISTANCE_IN_ROWS * stride + J * mp_element_bytes[format]);          \
        write_row(MP_F32, at, J, add_f32(read_row(MP_F32, at, J, N), read_row(format, x, J, N)), N);           \
    } while (0)
        FOR_VECTORS(j, n, ADD_ROW)
    }
}

enum { MP_VECTORS_TOGETHER = 4 }; /* of columns, with their sums in registers: additions overlap */

/* Sum `count` vectors of columns, n elements in all. */
MP_INLINE void sum_vectors(mp_format format, const int count, const char *x, ptrdiff_t rows, ptrdiff_t stride,
                           ptrdiff_t n, float *sum) {
    vf32 total[MP_VECTORS_TOGETHER];
    MP_UNROLL_8 for (int v = 0; v < count; v++) total[v] = set_f32(0.0f);
    for (ptrdiff_t row = 0; row < rows; row++, x += stride) {
        __builtin_prefetch(x + MP_PREFETCH_DISTANCE_IN_ROWS * stride);
        MP_UNROLL_8 for (int v = 0; v < count; v++)
            total[v] = add_f32(total[v], read_row(format, x, v * MP_LANES, at_most(n - v * MP_LANES, MP_LANES)));
    }
    MP_UNROLL_8 for (int v = 0; v < count; v++)
        write_row(MP_F32, sum, v * MP_LANES, total[v], at_most(n - v * MP_LANES, MP_LANES));
}

/* Sum n columns of `rows` rows, `stride` bytes apart: sum[j] starts at +0 and adds the rows in order. */
MP_INLINE void sum_rows_of(mp_format format, const char *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *sum) {
    enum { TOGETHER = MP_VECTORS_TOGETHER * MP_LANES };
    const int size = mp_element_bytes[format];
    ptrdiff_t j = 0;
    for (; j + TOGETHER <= n; j += TOGETHER)
        sum_vectors(format, MP_VECTORS_TOGETHER, x + j * size, rows, stride, TOGETHER, sum + j);
    for (; j + MP_LANES <= n; j += MP_LANES) sum_vectors(format, 1, x + j * size, rows, stride, MP_LANES, sum + j);
    if (j < n) sum_vectors(format, 1, x + j * size, rows, stride, n - j, sum + j);
}

static void sum_blocks(mp_format format, const void *x, ptrdiff_t blocks, ptrdiff_t stride, ptrdiff_t n,
                       float *lanes) {
    switch (format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: sum_all_blocks(MP_##FORMAT, x, blocks, stride, n, lanes); break;
#include "formats.def"
    default: break;
    }
}

static void sum_columns(mp_format format, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *lanes) {
    switch (format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: sum_columns_of(MP_##FORMAT, x, rows, stride, n, lanes); break;
#include "formats.def"
    default: break;
    }
}

static void sum_rows(mp_format format, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *sum) {
    switch (format) {
#define MP_FLOAT(FORMAT, ...) \
    case MP_##FORMAT: sum_rows_of(MP_##FORMAT, x, rows, stride, n, sum); break;
#include "formats.def"
    default: break;
    }
}
