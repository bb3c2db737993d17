#include "library/window_pooling.h"

#include <string.h>

#include "library/elementwise.h" /* MP_ELEMENTWISE_WORK */
#include "library/plan.h"
#include "library/runtime.h"

static int is_gradient(const mp_window_pooling *p) { return p->what >= MP_WINDOW_MAXIMA_GRADIENT; }

/* Elements of x in a line along the last spatial axis; then those in a row of the batch. */
static ptrdiff_t line_of(const mp_window_pooling *p) { return p->length[2] * p->channels; }
static ptrdiff_t image_of(const mp_window_pooling *p) { return p->length[0] * p->length[1] * line_of(p); }

/* Rows of windows in a row of the batch; then elements of the results of a row; then lines of x in a window. */
static ptrdiff_t rows_of(const mp_window_pooling *p) { return p->windows[0] * p->windows[1]; }
static ptrdiff_t results_of(const mp_window_pooling *p) { return p->windows[2] * p->channels; }
static ptrdiff_t depth_of(const mp_window_pooling *p) { return p->window[0] * p->window[1]; }

int mp_window_pooling_is_large(const void *context) {
    const mp_window_pooling *p = context;
    return (double)p->batch * (double)image_of(p) >= MP_ELEMENTWISE_WORK;
}

ptrdiff_t mp_plan_window_pooling(void *context, ptrdiff_t batch, int threads, int reproducible) {
    mp_window_pooling *p = context;
    (void)reproducible;
    p->kernels = mp_active();
    if (batch >= 0) p->batch = batch;
    if (is_gradient(p)) return p->batch;
    const ptrdiff_t rows = p->batch * rows_of(p);
    const ptrdiff_t parts = threads > 1 && mp_window_pooling_is_large(p) ? 4 * threads : 1;
    p->share = mp_share(rows, parts, image_of(p) / mp_max(1, rows_of(p)));
    return mp_ceil_div(rows, p->share);
}

static int overlap(const mp_window_pooling *p) {
    return p->window[0] > p->step[0] || p->window[1] > p->step[1] || p->window[2] > p->step[2];
}

/* The scratch of a task. */
typedef struct {
    mp_window_row row;
    const float **x; /* the memory of row.x and row.to */
    float **to;
    float *wide;     /* rows of x */
    float *results;  /* a row of results, or of their gradients */
    float *image;    /* the gradient of a row of the batch */
} work;

static int find_work(const mp_window_pooling *p, work *w) {
    const ptrdiff_t depth = depth_of(p), wide = p->x.format == MP_F32 ? 0 : depth * line_of(p);
    const ptrdiff_t kept = is_gradient(p) ? depth * p->window[2] * MP_LANES : 0;
    const ptrdiff_t image = is_gradient(p) && p->out.format != MP_F32 ? image_of(p) : 0;
    char *const memory = mp_scratch((size_t)(2 * depth) * sizeof(float *)
                                    + (size_t)(wide + kept + image + results_of(p)) * sizeof(float));
    if (!memory) return 0;
    w->x = (const float **)memory;
    w->to = (float **)(w->x + depth);
    w->wide = (float *)(w->to + depth);
    w->results = w->wide + wide;
    w->image = w->results + results_of(p);
    w->row = (mp_window_row){
        .x = w->x, .rows = depth, .width = p->window[2], .step = p->step[2], .count = p->windows[2],
        .channels = p->channels, .out = w->results, .to = w->to, .adds = overlap(p), .kept = w->image + image,
    };
    return 1;
}

/* Return n elements from element `first` on as float32: in place if they are, else converted into `buffer`. */
static const float *widened(const mp_window_pooling *p, const mp_window_array *x, ptrdiff_t first, ptrdiff_t n,
                            float *buffer) {
    const char *at = x->data + first * x->size;
    if (x->format == MP_F32) return (const float *)at;
    p->kernels->casts->widen[x->format](at, buffer, n, 0);
    return buffer;
}

/* Find the lines of x, in row `image` of the batch, for row number `row` of windows. */
static void find_rows(const mp_window_pooling *p, ptrdiff_t image, ptrdiff_t row, work *w) {
    const ptrdiff_t line = line_of(p), top = row / p->windows[1] * p->step[0], left = row % p->windows[1] * p->step[1];
    for (ptrdiff_t i = 0; i < w->row.rows; i++) {
        const ptrdiff_t at = ((top + i / p->window[1]) * p->length[1] + left + i % p->window[1]) * line;
        if (p->what != MP_WINDOW_SUMS_GRADIENT)
            w->x[i] = widened(p, &p->x, image * image_of(p) + at, line, w->wide + i * line);
        if (is_gradient(p)) w->to[i] = w->image + at;
    }
}

static void pool_row(const mp_window_pooling *p, ptrdiff_t row, work *w) {
    const ptrdiff_t n = results_of(p);
    char *const out = p->out.data + row * n * p->out.size;
    if (p->out.format == MP_F32) w->row.out = (float *)out;
    find_rows(p, row / rows_of(p), row % rows_of(p), w);
    mp_window_functions_of(p->kernels)[p->what](&w->row);
    if (p->out.format != MP_F32) p->kernels->casts->narrow[p->out.format](w->results, out, n, 0);
}

static void spread_image(const mp_window_pooling *p, ptrdiff_t image, work *w) {
    const ptrdiff_t n = results_of(p), elements = image_of(p);
    char *const out = p->out.data + image * elements * p->out.size;
    if (p->out.format == MP_F32) w->image = (float *)out;
    memset(w->image, 0, (size_t)elements * sizeof(float));
    for (ptrdiff_t row = 0; row < rows_of(p); row++) {
        w->row.d = widened(p, &p->d, (image * rows_of(p) + row) * n, n, w->results);
        find_rows(p, image, row, w);
        mp_window_functions_of(p->kernels)[p->what](&w->row);
    }
    if (p->out.format != MP_F32) p->kernels->casts->narrow[p->out.format](w->image, out, elements, 0);
}

void mp_run_window_pooling(void *context, ptrdiff_t task) {
    mp_window_pooling *p = context;
    const ptrdiff_t end = mp_min((task + 1) * p->share, p->batch * rows_of(p));
    work w;
    if (!find_work(p, &w)) mp_fail(&p->status, MP_NO_MEMORY);
    else if (is_gradient(p)) spread_image(p, task, &w);
    else for (ptrdiff_t row = task * p->share; row < end; row++) pool_row(p, row, &w);
}
