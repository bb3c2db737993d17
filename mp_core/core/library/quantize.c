/* Quantizing and dequantizing arrays: in which order their memory is read. The arithmetic is in the kernels.
 *
 * passage_of chooses the order from sizes, types and the number of threads; the run_... functions read in this order. A
 * part (mp_part) is the argument of a kernel: some rows and columns of the array. */
#include <stdlib.h>
#include <string.h>

#include "library/plan.h"
#include "library/quantize.h"
#include "library/runtime.h"

/* Measured on one Zen 4 core with 32 KiB of L1d and 1 MiB of L2, November 2026. */
enum {
    STRIP = 1024,          /* columns in a task: with 128 rows they are 512 KiB of float32, and stay in L2 */
    FROM_MEMORY = 1 << 21, /* the fewest bytes of an array that is assumed to be in memory: twice L2 */
    IN_CACHE = 1 << 17,    /* elements that stay in L2 while their range and then their codes are computed: 512 KiB */
};

/* ---- a part of an array: its ranges, its scales, its codes */

/* A part that starts at element `at` of the array, with rows `ld` elements apart. The caller sets rows and columns. */
static mp_part part_at(const mp_quantization *z, ptrdiff_t at, ptrdiff_t ld) {
    return (mp_part){.x = (float *)(z->x + at * z->size), .q = z->q + (at >> z->codes.nibbles), .ldx = ld, .ldq = ld,
                     .qmin = z->codes.qmin, .qmax = z->codes.qmax, .mode = z->mode};
}

/* ---- chunks: if numbers are not float32, or a byte has two codes, a part is converted in buffers, chunk by chunk */

static ptrdiff_t rows_of_chunk(const mp_part *p) { return MP_CHUNK / mp_max(1, mp_min(p->cols, MP_CHUNK)); }

/* How many chunks a part has. A chunk has at most MP_CHUNK elements: several whole rows, or a piece of one. */
static ptrdiff_t chunks_of(const mp_part *p) {
    return mp_ceil_div(p->rows, rows_of_chunk(p)) * mp_ceil_div(p->cols, MP_CHUNK);
}

/* Chunk number `index` of p, row by row; set (i, j) to its first element. The caller sets its x and q. */
static mp_part chunk_of(const mp_part *p, ptrdiff_t index, ptrdiff_t *i, ptrdiff_t *j) {
    mp_part chunk = *p;
    const ptrdiff_t across = mp_ceil_div(p->cols, MP_CHUNK), rows = rows_of_chunk(p);
    *i = index / across * rows, *j = index % across * MP_CHUNK;
    const ptrdiff_t at = *i * p->by_row + *j * p->by_column;
    chunk.rows = mp_min(p->rows - *i, rows), chunk.cols = mp_min(p->cols - *j, MP_CHUNK);
    chunk.ldx = chunk.ldq = chunk.cols, chunk.mode = p->mode & MP_NO_CLAMP, chunk.prefetch_distance = 0;
    if (p->scale) chunk.scale = p->scale + at;
    if (p->zero_point) chunk.zero_point = p->zero_point + at;
    return chunk;
}

static void widen(const mp_quantization *z, const mp_part *p, ptrdiff_t i, ptrdiff_t j, const mp_part *chunk) {
    for (ptrdiff_t r = 0; r < chunk->rows; r++)
        z->kernels->casts->widen[z->format]((char *)p->x + ((i + r) * p->ldx + j) * z->size, chunk->x + r * chunk->ldx,
                                            chunk->cols, 0);
}

static void convert_in(const mp_quantization *z, const mp_part *p) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    (z->back ? quantizers->dequantize : quantizers->quantize)[z->codes.kind](p);
}

static void convert_chunk(const mp_quantization *z, const mp_part *p, ptrdiff_t index, int is_last) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    mp_chunk_floats numbers;
    mp_chunk_codes codes;
    ptrdiff_t i, j;
    mp_part chunk = chunk_of(p, index, &i, &j);
    if (z->format != MP_F32) {
        chunk.x = numbers.at;
    } else {
        chunk.x = p->x + i * p->ldx + j, chunk.ldx = p->ldx, chunk.prefetch_distance = p->prefetch_distance;
        chunk.mode = !z->back ? p->mode & ~MP_STREAM : is_last ? p->mode : p->mode | MP_NO_FENCE;
    }
    if (z->codes.nibbles) chunk.q = codes.at;
    else chunk.q = p->q + i * p->ldq + j, chunk.ldq = p->ldq;
    const ptrdiff_t cols = chunk.cols;
    if (z->back && z->codes.nibbles)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            quantizers->unpack_nibbles(p->q + (((i + r) * p->ldq + j) >> 1), cols, z->codes.qmin < 0,
                                       codes.at + r * cols);
    else if (!z->back && z->format != MP_F32)
        widen(z, p, i, j, &chunk);
    convert_in(z, &chunk);
    if (z->back && z->format != MP_F32)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            z->kernels->casts->narrow[z->format](numbers.at + r * cols, (char *)p->x + ((i + r) * p->ldx + j) * z->size,
                                                 cols, 0);
    else if (!z->back && z->codes.nibbles)
        for (ptrdiff_t r = 0; r < chunk.rows; r++)
            quantizers->pack_nibbles(codes.at + r * cols, cols, p->q + (((i + r) * p->ldq + j) >> 1));
}

/* ---- a part */

static void find_in(const mp_quantization *z, const mp_part *p, float *lo, float *hi) {
    if (z->how == MP_SYMMETRIC) z->kernels->quantizers->amax(p, hi);
    else z->kernels->quantizers->range(p, lo, hi);
}

/* For each scale of p, extend [lo, hi] to the elements of p. For symmetric scales hi is amax, and lo is not used. */
static void find_ranges(const mp_quantization *z, const mp_part *p, float *lo, float *hi) {
    mp_chunk_floats numbers;
    if (z->format == MP_F32) {
        find_in(z, p, lo, hi);
        return;
    }
    for (ptrdiff_t index = 0, chunks = chunks_of(p); index < chunks; index++) {
        ptrdiff_t i, j;
        mp_part chunk = chunk_of(p, index, &i, &j);
        chunk.x = numbers.at;
        widen(z, p, i, j, &chunk);
        const ptrdiff_t at = i * p->by_row + j * p->by_column;
        find_in(z, &chunk, lo + at, hi + at);
    }
}

/* Compute the scales first, ..., first + n - 1 and their zero points from their ranges. */
static void make_scales(const mp_quantization *z, const float *lo, const float *hi, ptrdiff_t first, ptrdiff_t n) {
    const mp_quantizers *quantizers = z->kernels->quantizers;
    if (z->how == MP_ASYMMETRIC)
        quantizers->asymmetric_scales(lo, hi, n, z->codes.qmin, z->codes.qmax, z->scale + first, z->zero_point + first);
    else
        quantizers->symmetric_scales(hi, n, z->codes.largest, z->scale + first);
}

/* Convert the numbers of a part to codes, or back, by the scales from number `first` on. */
static void convert(const mp_quantization *z, mp_part *p, ptrdiff_t first) {
    p->scale = z->scale + first;
    if (z->zero_point) p->zero_point = z->zero_point + first;
    if (z->format == MP_F32 && !z->codes.nibbles) {
        convert_in(z, p);
        return;
    }
    const ptrdiff_t chunks = chunks_of(p);
    for (ptrdiff_t index = 0; index < chunks; index++) convert_chunk(z, p, index, index + 1 == chunks);
}

/* Compute the codes (or numbers) of a part by the scales from number `first` on. If these are not given, compute them
 * first; then there are at most MP_CHUNK. */
static void quantize_part(const mp_quantization *z, mp_part *p, ptrdiff_t first) {
    mp_chunk_floats lo, hi;
    const ptrdiff_t n = p->by_row ? p->rows : p->by_column ? p->cols : 1;
    if (z->how != MP_GIVEN) {
        memset(lo.at, 0, (size_t)n * sizeof(float));
        memset(hi.at, 0, (size_t)n * sizeof(float));
        find_ranges(z, p, lo.at, hi.at);
        make_scales(z, lo.at, hi.at, first, n);
        if (z->passage.prefetch_next) p->prefetch_distance = p->rows * p->ldx;
    }
    convert(z, p, first);
}

/* ---- the route through the array */

static ptrdiff_t elements_of(const mp_scale_layout *a) { return a->outer * a->rows * a->cols; }

/* Choose the route through the array. It depends on sizes, types and the number of threads, not on elements. */
static mp_passage passage_of(const mp_quantization *z, int threads) {
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t rows = mp_max(1, mp_min(a->group, a->rows)), along = a->rows > 1 ? a->rows : a->cols;
    const int beyond_cache = a->by_column && a->groups == 1 && rows > 1 && rows * a->cols > IN_CACHE;
    mp_passage passage = {.strip = z->how == MP_GIVEN ? MP_CHUNK : STRIP, .share = 1};
    /* Computing codes of float8 takes longer than loading the numbers from memory, so the next part is prefetched
     * meanwhile. Integer codes are computed faster than memory is read. */
    passage.prefetch_next = z->how != MP_GIVEN && !a->by_column && z->codes.kind > MP_CODE_U8
                        && elements_of(a) * z->size >= FROM_MEMORY && a->outer * a->groups > 1;
    if (a->by_column)
        passage.route = MP_COLUMNS, passage.tasks = a->outer * a->groups * mp_ceil_div(a->cols, passage.strip);
    else if (a->rows == 1) passage.route = MP_RUNS, passage.tasks = a->outer * a->groups;
    else passage.route = MP_SLICES, passage.tasks = a->outer;
    if (beyond_cache
        || (1 < threads && passage.tasks < 2 * threads && a->groups == 1 && (a->rows > 1 || !a->by_column))) {
        passage.route = MP_SPLIT;
        passage.share = mp_share(along, 4 * threads, a->outer * (a->rows > 1 ? a->cols : 1));
        if (a->rows == 1) passage.share = mp_round_up(passage.share, 64);
        passage.tasks = mp_ceil_div(along, passage.share);
    } else if (passage.route == MP_RUNS) {
        passage.share = mp_share(passage.tasks, threads > 1 ? 4 * threads : 1, a->group ? a->group : a->cols);
        passage.tasks = mp_ceil_div(passage.tasks, passage.share);
    }
    return passage;
}

/* Run a task: a strip of columns of a scale group of rows. */
static void run_columns(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t strips = mp_ceil_div(a->cols, z->passage.strip), column = index % strips * z->passage.strip;
    const ptrdiff_t block = index / strips, row = block % a->groups * a->group;
    mp_part p = part_at(z, block / a->groups * a->outer_stride + row * a->row_stride + column, a->row_stride);
    p.rows = mp_min(a->group, a->rows - row), p.cols = mp_min(z->passage.strip, a->cols - column), p.by_column = 1;
    quantize_part(z, &p, block * a->cols + column);
}

/* Run a task: a share of the runs. Consecutive runs of equal length are one part. */
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

/* Run a task: a slab of several rows that share a scale. */
static void run_slices(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    mp_part p = part_at(z, index * z->layout.outer_stride, z->layout.row_stride);
    p.rows = z->layout.rows, p.cols = z->layout.cols;
    quantize_part(z, &p, index);
}

/* ---- MP_SPLIT: each thread computes the ranges of its share, for all scales; these are merged; then all threads
 * compute codes.
 *
 * A share of the rows of a slab or, if it has only one row, of its columns. */
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

/* Run a task: the ranges of a share of every slab. */
static void find_share(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    const ptrdiff_t scales = z->layout.by_column ? z->layout.cols : 1;
    for (ptrdiff_t block = 0; block < z->layout.outer; block++) {
        const mp_part p = share_of(z, block, index);
        const ptrdiff_t at = (index * z->layout.outer + block) * scales;
        find_ranges(z, &p, z->lo + at, z->hi + at);
    }
}

/* Run a task: the codes, or the numbers, of a share of every slab. */
static void convert_share(void *context, ptrdiff_t index) {
    const mp_quantization *z = context;
    for (ptrdiff_t block = 0; block < z->layout.outer; block++) {
        mp_part p = share_of(z, block, index);
        convert(z, &p, block * (z->layout.by_column ? z->layout.cols : 1));
    }
}

/* Compute all ranges, and the scales from them. Return 0, or -1 if there is no memory. */
static int find_all(mp_quantization *z, int threads) {
    const mp_scale_layout *a = &z->layout;
    const ptrdiff_t along = a->rows > 1 ? a->rows : a->cols, scales = a->outer * (a->by_column ? a->cols : 1);
    const mp_passage before = z->passage;
    if (a->rows > 1) { /* one task for each thread, since the ranges of a task are as long as a row */
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
    /* An array without elements may have so many rows that sizes and loops would overflow. */
    if (z->layout.cols == 0 && z->layout.rows > 1) z->layout.rows = 0;
    z->passage = passage_of(z, threads);
    if (z->passage.route == MP_SPLIT && z->how != MP_GIVEN && find_all(z, threads)) return -1;
    mp_parallel_for(threads, z->passage.tasks, run[z->passage.route], z);
    return 0;
}
