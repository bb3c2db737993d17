/* The route through an array that is quantized, or whose codes become numbers again. The arithmetic is in the kernels.
 *
 * passage_of decides in which order memory is read, from sizes, types and the number of threads; the run_... functions
 * read it so. A part (mp_part) is what one call of a kernel gets: some rows and columns of the array. What happens to a
 * part is in quantize_parts.h. */
#include <stdlib.h>
#include <string.h>

#include "library/plan.h"
#include "library/quantize.h"
#include "library/runtime.h"

/* These were found on one Zen 4 core with 32 KiB of L1d and 1 MiB of L2, November 2026. */
enum {
    STRIP = 1024,          /* columns of a task: beside 128 rows, their float32 elements are 512 KiB and stay in L2 */
    FROM_MEMORY = 1 << 21, /* bytes from which an array is taken to come from memory: twice L2 */
    IN_CACHE = 1 << 17,    /* elements that stay in L2 while their range and then their codes are computed: 512 KiB */
};

#include "library/quantize_parts.h"

static ptrdiff_t elements_of(const mp_scale_layout *a) { return a->outer * a->rows * a->cols; }

/* Decide how to go through the array. This depends on sizes, types and the number of threads, and on no element. */
static mp_passage passage_of(const mp_quantization *z, int threads) {
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t rows = mp_max(1, mp_min(a->group, a->rows)), along = a->rows > 1 ? a->rows : a->cols;
    const int beyond_cache = a->by_column && a->groups == 1 && rows > 1 && rows * a->cols > IN_CACHE;
    mp_passage passage = {.strip = z->how == MP_GIVEN ? MP_CHUNK : STRIP, .share = 1};
    /* Codes that are 8-bit floats take longer to compute than numbers take to come from memory, so the next part is
     * prefetched meanwhile; codes that are integers are computed faster than memory delivers. */
    passage.prefetch_next = z->how != MP_GIVEN && !a->by_column && z->codes.kind > MP_CODE_U8
                        && elements_of(a) * z->size >= FROM_MEMORY && a->outer * a->groups > 1;
    if (a->by_column) passage.route = MP_COLUMNS, passage.tasks = a->outer * a->groups * mp_ceil_div(a->cols, passage.strip);
    else if (a->rows == 1) passage.route = MP_RUNS, passage.tasks = a->outer * a->groups;
    else passage.route = MP_SLICES, passage.tasks = a->outer;
    if (beyond_cache
        || (1 < threads && passage.tasks < 2 * threads && a->groups == 1 && (a->rows > 1 || !a->by_column))) {
        passage.route = MP_SPLIT, passage.share = mp_ceil_div(along, 4 * threads);
        if (a->rows == 1) passage.share = mp_round_up(passage.share, 64);
        passage.share = mp_max(1, passage.share);
        passage.tasks = mp_ceil_div(along, passage.share);
    } else if (passage.route == MP_RUNS) {
        passage.share = mp_max(1, threads > 1 ? mp_ceil_div(passage.tasks, 4 * threads) : passage.tasks);
        passage.tasks = mp_ceil_div(passage.tasks, passage.share);
    }
    return passage;
}

/* One task: a strip of columns of a scale group of rows. */
static void run_columns(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t strips = mp_ceil_div(a->cols, z->passage.strip), column = index % strips * z->passage.strip;
    const ptrdiff_t block = index / strips, row = block % a->groups * a->group;
    mp_part p = part_at(z, block / a->groups * a->outer_stride + row * a->row_stride + column, a->row_stride);
    p.rows = mp_min(a->group, a->rows - row), p.cols = mp_min(z->passage.strip, a->cols - column), p.by_column = 1;
    quantize_part(z, &p, block * a->cols + column);
}

/* One task: a share of the runs. Those that are equally long and follow each other are one part. */
static void run_runs(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t full = a->group ? a->cols / a->group : 1;
    const ptrdiff_t last = mp_min((index + 1) * z->passage.share, a->outer * a->groups);
    for (ptrdiff_t at = index * z->passage.share, n; at < last; at += n) {
        ptrdiff_t length = a->group;
        n = last - at;
        if (full < a->groups) { /* the last run of a slab is shorter */
            n = mp_min(n, full - at % a->groups);
            if (n == 0) n = 1, length = a->cols - full * a->group;
        }
        if (z->how != MP_GIVEN) n = mp_min(n, mp_max(1, MP_CHUNK / mp_max(length, 1)));
        mp_part p = part_at(z, at / a->groups * a->outer_stride + at % a->groups * a->group, length);
        p.rows = n, p.cols = length, p.by_row = 1;
        quantize_part(z, &p, at);
    }
}

/* One task: a slab of several rows that share a scale. */
static void run_slices(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    mp_part p = part_at(z, index * z->layout.outer_stride, z->layout.row_stride);
    p.rows = z->layout.rows, p.cols = z->layout.cols;
    quantize_part(z, &p, index);
}

/* ---- MP_SPLIT: each thread finds the ranges of its share for all scales; they are merged; then all threads compute codes.
 *
 * A share of the rows of a slab or, if it has only one, of its columns. */
static mp_part share_of(const mp_quantization *z, ptrdiff_t block, ptrdiff_t index) {
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t start = index * z->passage.share;
    mp_part p;
    if (a->rows > 1) {
        p = part_at(z, block * a->outer_stride + start * a->row_stride, a->row_stride);
        p.rows = mp_min(z->passage.share, a->rows - start), p.cols = a->cols, p.by_column = a->by_column;
    } else {
        p = part_at(z, block * a->outer_stride + start, a->cols);
        p.rows = 1, p.cols = mp_min(z->passage.share, a->cols - start);
    }
    return p;
}

/* One task: the ranges of a share of every slab. */
static void find_share(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    const ptrdiff_t scales = z->layout.by_column ? z->layout.cols : 1;
    for (ptrdiff_t block = 0; block < z->layout.outer; block++) {
        const mp_part p = share_of(z, block, index);
        const ptrdiff_t at = (index * z->layout.outer + block) * scales;
        find_ranges(z, &p, z->lo + at, z->hi + at);
    }
}

/* One task: the codes, or the numbers, of a share of every slab. */
static void convert_share(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    for (ptrdiff_t block = 0; block < z->layout.outer; block++) {
        mp_part p = share_of(z, block, index);
        convert(z, &p, block * (z->layout.by_column ? z->layout.cols : 1));
    }
}

/* Find all ranges, and compute the scales from them. Return 0, or -1 if there is no memory. */
static int find_all(mp_quantization *z, int threads) {
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t along = a->rows > 1 ? a->rows : a->cols, scales = a->outer * (a->by_column ? a->cols : 1);
    const mp_passage before = z->passage;
    if (a->rows > 1) { /* one task for each thread, since each has ranges as long as a row */
        z->passage.share = mp_ceil_div(along, threads);
        z->passage.tasks = mp_ceil_div(along, z->passage.share);
    }
    const ptrdiff_t tasks = z->passage.tasks;
    z->lo = calloc((size_t)(2 * tasks * scales), sizeof(float));
    if (!z->lo) return -1;
    z->hi = z->lo + tasks * scales;
    mp_parallel_for(threads, tasks, find_share, z);
    for (ptrdiff_t task = 1; task < tasks; task++)
        for (ptrdiff_t i = 0; i < scales; i++) {
            const float lo = z->lo[task * scales + i], hi = z->hi[task * scales + i];
            if (lo < z->lo[i]) z->lo[i] = lo;
            if (hi > z->hi[i]) z->hi[i] = hi;
        }
    make_scales(z, z->lo, z->hi, 0, scales);
    free(z->lo);
    z->passage = before;
    return 0;
}

int mp_run_quantization(mp_quantization *z, int threads) {
    static void (*const run[])(void *, ptrdiff_t) = {
        [MP_COLUMNS] = run_columns, [MP_RUNS] = run_runs, [MP_SLICES] = run_slices, [MP_SPLIT] = convert_share};
    if (elements_of(&z->layout) < MP_QUANTIZE_WORK) threads = 1;
    if (z->layout.cols == 0 && z->layout.rows > 1) z->layout.rows = 0; /* an array without elements may have more rows than sizes and loops can take */
    z->passage = passage_of(z, threads);
    if (z->passage.route == MP_SPLIT && z->how != MP_GIVEN && find_all(z, threads)) return -1;
    mp_parallel_for(threads, z->passage.tasks, run[z->passage.route], z);
    return 0;
}
