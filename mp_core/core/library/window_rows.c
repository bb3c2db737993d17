#include "library/window_rows.h"

#include <string.h>

#include "library/plan.h"

enum { LAST = MP_WINDOW_AXES - 1 };

void mp_convert(mp_conversion c, const char *from, ptrdiff_t n, char *to) {
    if (c.widen) c.widen(from, (float *)to, n, 0);
    else if (c.to_bf16) c.to_bf16(from, to, n);
    else memcpy(to, from, (size_t)(n * c.to));
}

static char *fill(const mp_window_rows *w, mp_conversion c, ptrdiff_t places, char *to) {
    const ptrdiff_t bytes = places * w->channels * c.to;
    memset(to, w->fill, (size_t)bytes);
    return to + bytes;
}

/* The first place of a window's line, from 0 to `places`, that is at `at` or behind it; the line starts at `start`. */
static ptrdiff_t place_at(const mp_window_rows *w, ptrdiff_t start, ptrdiff_t at) {
    const ptrdiff_t from = at - start;
    return from <= 0 ? 0 : mp_min(mp_ceil_div(from, w->dilation[LAST]), w->size[LAST]);
}

char *mp_gather_line(const mp_window_rows *w, mp_conversion c, const char *line, ptrdiff_t start, char *to) {
    const ptrdiff_t begin = place_at(w, start, 0), end = mp_max(place_at(w, start, w->length[LAST]), begin);
    const ptrdiff_t apart = w->dilation[LAST] * w->stride[LAST];
    const int together = apart == w->channels * c.from;
    const ptrdiff_t copies = together ? 1 : end - begin, n = w->channels * (together ? end - begin : 1);
    to = fill(w, c, begin, to);
    if (end > begin) {
        line += (start + begin * w->dilation[LAST]) * w->stride[LAST];
        for (ptrdiff_t copy = 0; copy < copies; copy++, line += apart, to += n * c.to) mp_convert(c, line, n, to);
    }
    return fill(w, c, w->size[LAST] - end, to);
}

static int is_inside(const mp_window_rows *w, int axis, ptrdiff_t at) { return at >= 0 && at < w->length[axis]; }

void mp_gather_windows(const mp_window_rows *w, mp_conversion c, const char *x, ptrdiff_t first, ptrdiff_t rows,
                       char *to) {
    for (ptrdiff_t row = first; row < first + rows; row++) {
        ptrdiff_t start[MP_WINDOW_AXES], image = row;
        for (int axis = LAST; axis >= 0; image /= w->count[axis--])
            start[axis] = image % w->count[axis] * w->step[axis] - w->before[axis];
        for (ptrdiff_t i = 0; i < w->size[0]; i++)
            for (ptrdiff_t j = 0; j < w->size[1]; j++) {
                const ptrdiff_t y = start[0] + i * w->dilation[0], z = start[1] + j * w->dilation[1];
                const char *const line = x + image * w->image + y * w->stride[0] + z * w->stride[1];
                if (is_inside(w, 0, y) && is_inside(w, 1, z)) to = mp_gather_line(w, c, line, start[LAST], to);
                else to = fill(w, c, w->size[LAST], to);
            }
    }
}

int mp_windows_are_lines(const mp_window_rows *w, ptrdiff_t images, ptrdiff_t size, ptrdiff_t *distance) {
    ptrdiff_t next = w->channels * size, rows = 1; /* where the next place has to be; rows so far */
    *distance = 0;
    for (int axis = LAST; axis >= 0; axis--) {
        const ptrdiff_t end = (w->count[axis] - 1) * w->step[axis] + (w->size[axis] - 1) * w->dilation[axis];
        if (w->before[axis] || end >= w->length[axis]) return 0;
        if (w->size[axis] > 1 && w->dilation[axis] * w->stride[axis] != next) return 0;
        next *= w->size[axis];
    }
    for (int axis = LAST; axis >= -1; axis--) {
        const ptrdiff_t count = axis < 0 ? images : w->count[axis];
        const ptrdiff_t apart = axis < 0 ? w->image : w->step[axis] * w->stride[axis];
        if (count > 1 && rows == 1) *distance = apart;
        if (count > 1 && apart != rows * *distance) return 0;
        rows *= count;
    }
    if (rows == 1) *distance = next;
    return 1;
}
