/* A task computes parts of lines, each `together` windows along the last axis. It reads lines of x in place if they are
 * float32 and the windows need no padding there; else it copies them into scratch, as float32 with padding. Copies are
 * kept for the next lines of windows, which read most of them again. */
#include "library/depthwise.h"

#include <string.h>

#include "library/elementwise.h" /* MP_ELEMENTWISE_WORK */
#include "library/plan.h"
#include "library/runtime.h"

enum {
    LAST = MP_WINDOW_AXES - 1,
    COPIED = 1 << 15, /* elements of copied lines that a task keeps: 128 KiB, so that they stay in L2 */
    AT_LEAST = 8,     /* windows computed together */
};

static ptrdiff_t parts_of_line(const mp_depthwise *d) { return mp_ceil_div(d->windows.count[LAST], d->together); }
static ptrdiff_t parts_of_image(const mp_depthwise *d) {
    return parts_of_line(d) * d->windows.count[0] * d->windows.count[1];
}

/* Lines of x that are kept for each place along the first axis of a window. */
static ptrdiff_t kept_lines(const mp_window_rows *w) {
    return mp_max(1, mp_min((w->size[1] - 1) * w->dilation[1] + 1, w->length[1]));
}

/* Places along the last axis that n windows read. */
static ptrdiff_t reach_of(const mp_window_rows *w, ptrdiff_t n) {
    return (n - 1) * w->step[LAST] + (w->size[LAST] - 1) * w->dilation[LAST] + 1;
}

int mp_depthwise_is_large(const void *context) {
    const mp_depthwise *d = context;
    const mp_window_rows *w = &d->windows;
    const double windows = (double)d->images * (double)w->count[0] * (double)w->count[1] * (double)w->count[LAST];
    return windows * (double)(w->channels * w->size[0] * w->size[1] * w->size[LAST]) >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_depthwise(void *context, ptrdiff_t images, int threads, int reproducible) {
    mp_depthwise *d = context;
    const mp_window_rows *w = &d->windows;
    (void)reproducible;
    d->kernels = mp_active();
    if (images >= 0) d->images = images;
    const ptrdiff_t lines = w->size[0] * kept_lines(w), reach = COPIED / mp_max(1, lines * w->channels);
    const ptrdiff_t fit = (reach - reach_of(w, 1)) / w->step[LAST] + 1;
    d->together = mp_min(w->count[LAST], mp_max(fit, AT_LEAST));
    const ptrdiff_t parts = d->images * parts_of_image(d), tasks = threads > 1 ? 4 * threads : 1;
    d->share = mp_share(parts, tasks, d->together * w->channels * w->size[0] * w->size[1] * w->size[LAST]);
    return mp_ceil_div(parts, d->share);
}

/* The scratch of a task. */
typedef struct {
    mp_window_rows line; /* copies a line of x, as a window of one line */
    mp_window_row row;
    const float **x;     /* the memory of row.x */
    ptrdiff_t *held;     /* the number of the line that each copy has; -1: none */
    float *copies;       /* the last one has zeros */
    float *results;
    ptrdiff_t copy;      /* elements of a copy */
} work;

static int find_work(const mp_depthwise *d, work *k) {
    const mp_window_rows *w = &d->windows;
    const ptrdiff_t lines = w->size[0] * w->size[1], copies = w->size[0] * kept_lines(w) + 1;
    k->copy = reach_of(w, d->together) * w->channels;
    const size_t floats = (size_t)(copies * k->copy + d->together * w->channels);
    char *const memory = mp_scratch((size_t)lines * sizeof *k->x + (size_t)copies * sizeof *k->held
                                    + floats * sizeof(float));
    if (!memory) return 0;
    k->x = (const float **)memory, k->held = (ptrdiff_t *)(k->x + lines);
    k->copies = (float *)(k->held + copies), k->results = k->copies + copies * k->copy;
    memset(k->copies + (copies - 1) * k->copy, 0, (size_t)k->copy * sizeof(float));
    k->line = *w, k->line.dilation[LAST] = 1, k->line.fill = 0;
    k->row = (mp_window_row){
        .x = k->x, .rows = lines, .width = w->size[LAST], .step = w->step[LAST], .dilation = w->dilation[LAST],
        .channels = w->channels, .weights = d->weights, .bias = d->bias,
    };
    return 1;
}

static void forget_copies(const mp_depthwise *d, work *k) {
    for (ptrdiff_t i = 0; i < d->windows.size[0] * kept_lines(&d->windows); i++) k->held[i] = -1;
}

/* Return a line of x from place `start` on, as float32: in place, or the copy of number `slot`. */
static const float *line_of(const mp_depthwise *d, work *k, const char *x, ptrdiff_t line, ptrdiff_t slot,
                            ptrdiff_t start) {
    const mp_window_rows *w = &d->windows;
    if (d->x.format == MP_F32 && w->stride[LAST] == w->channels * d->x.size && start >= 0
        && start + k->line.size[LAST] <= w->length[LAST])
        return (const float *)(x + start * w->stride[LAST]);
    float *const copy = k->copies + slot * k->copy;
    if (k->held[slot] != line) {
        const mp_conversion c = {.from = d->x.size, .to = sizeof(float),
                                 .widen = d->x.format == MP_F32 ? NULL : d->kernels->casts->widen[d->x.format]};
        mp_gather_line(&k->line, c, x, start, (char *)copy);
        k->held[slot] = line;
    }
    return copy;
}

/* Find the lines of x for line (i, j) of windows, from place `start` of the last axis on. */
static void find_lines(const mp_depthwise *d, work *k, const char *image, ptrdiff_t i, ptrdiff_t j, ptrdiff_t start) {
    const mp_window_rows *w = &d->windows;
    const ptrdiff_t kept = kept_lines(w), zeros = w->size[0] * kept;
    for (ptrdiff_t row = 0; row < k->row.rows; row++) {
        const ptrdiff_t place = row / w->size[1];
        const ptrdiff_t y = i * w->step[0] - w->before[0] + place * w->dilation[0];
        const ptrdiff_t z = j * w->step[1] - w->before[1] + row % w->size[1] * w->dilation[1];
        const int inside = y >= 0 && y < w->length[0] && z >= 0 && z < w->length[1];
        k->x[row] = inside ? line_of(d, k, image + y * w->stride[0] + z * w->stride[1], y * w->length[1] + z,
                                     place * kept + z % kept, start)
                           : k->copies + zeros * k->copy;
    }
}

/* Compute part number `part` of an image. */
static void run_part(const mp_depthwise *d, work *k, ptrdiff_t image, ptrdiff_t part) {
    const mp_window_rows *w = &d->windows;
    const ptrdiff_t lines = w->count[0] * w->count[1], line = part % lines, first = part / lines * d->together;
    const ptrdiff_t count = mp_min(d->together, w->count[LAST] - first), n = count * w->channels;
    char *const out = d->out.data + ((image * lines + line) * w->count[LAST] + first) * w->channels * d->out.size;
    k->line.size[LAST] = reach_of(w, count), k->row.count = count;
    k->row.out = d->out.format == MP_F32 ? (float *)out : k->results;
    find_lines(d, k, d->x.data + image * w->image, line / w->count[1], line % w->count[1],
               first * w->step[LAST] - w->before[LAST]);
    mp_window_functions_of(d->kernels)[MP_WINDOW_PRODUCTS](&k->row);
    if (d->activation) d->kernels->rows->activate(d->activation, k->row.out, n, k->row.out);
    if (d->out.format != MP_F32) d->kernels->casts->narrow[d->out.format](k->row.out, out, n, 0);
}

void mp_run_depthwise(void *context, ptrdiff_t task) {
    mp_depthwise *d = context;
    const ptrdiff_t parts = parts_of_image(d), lines = d->windows.count[0] * d->windows.count[1];
    const ptrdiff_t first = task * d->share, end = mp_min(first + d->share, d->images * parts);
    work k;
    if (!find_work(d, &k)) {
        mp_fail(&d->status, MP_NO_MEMORY);
        return;
    }
    for (ptrdiff_t part = first; part < end; part++) {
        if (part == first || part % parts % lines == 0) forget_copies(d, &k);
        run_part(d, &k, part / parts, part % parts);
    }
}
