#include "library/window_rows.h"

#include <string.h>

#include "library/cast.h"
#include "library/plan.h"

enum { LAST = MP_WINDOW_AXES - 1 };

void mp_convert(mp_conversion c, const char *from, ptrdiff_t n, char *to) {
    if (c.widen) c.widen(from, (float *)to, n, 0);
    else if (c.to_bf16) c.to_bf16(from, to, n);
    else if (n * c.to <= MP_SHORT_COPY) mp_copy_short(from, to, n * c.to);
    else memcpy(to, from, (size_t)(n * c.to));
}

static inline char *fill(const mp_window_rows *w, mp_conversion c, ptrdiff_t places, char *to) {
    const ptrdiff_t bytes = places * w->channels * c.to;
    if (bytes) memset(to, w->fill, (size_t)bytes);
    return to + bytes;
}

/* The first place of a window's line, from 0 to `places`, that is at `at` or behind it; the line starts at `start`. */
static ptrdiff_t place_at(const mp_window_rows *w, ptrdiff_t start, ptrdiff_t at) {
    const ptrdiff_t from = at - start, apart = w->dilation[LAST];
    return from <= 0 ? 0 : mp_min(apart == 1 ? from : mp_ceil_div(from, apart), w->size[LAST]);
}

/* The places of a window along the last axis that are inside of the array, and how they are copied. */
typedef struct {
    ptrdiff_t begin, end;    /* of these places */
    ptrdiff_t offset, apart; /* bytes from the start of the line to the first copy, and from one copy to the next */
    ptrdiff_t copies, n;     /* elements of a copy */
} line_part;

static line_part inside_of_line(const mp_window_rows *w, mp_conversion c, ptrdiff_t start) {
    line_part p = {.begin = place_at(w, start, 0), .apart = w->dilation[LAST] * w->stride[LAST]};
    const int together = p.apart == w->channels * c.from;
    p.end = mp_max(place_at(w, start, w->length[LAST]), p.begin);
    p.offset = (start + p.begin * w->dilation[LAST]) * w->stride[LAST];
    p.copies = together ? p.end > p.begin : p.end - p.begin, p.n = w->channels * (together ? p.end - p.begin : 1);
    return p;
}

static inline char *gather_line(const mp_window_rows *w, mp_conversion c, line_part p, const char *line, char *to) {
    to = fill(w, c, p.begin, to);
    for (ptrdiff_t copy = 0; copy < p.copies; copy++, to += p.n * c.to)
        mp_convert(c, line + p.offset + copy * p.apart, p.n, to);
    return fill(w, c, w->size[LAST] - p.end, to);
}

char *mp_gather_line(const mp_window_rows *w, mp_conversion c, const char *line, ptrdiff_t start, char *to) {
    return gather_line(w, c, inside_of_line(w, c, start), line, to);
}

static int is_inside(const mp_window_rows *w, int axis, ptrdiff_t at) { return at >= 0 && at < w->length[axis]; }

/* Copy the places along the last axis of `rows` windows of a line, the first of which starts at `start`, to places of
 * their rows, `row` bytes apart. `line` is the first place of the array's line; NULL: all places are padding. */
static void gather_places(const mp_window_rows *w, mp_conversion c, const char *line, ptrdiff_t start, ptrdiff_t rows,
                          ptrdiff_t row, char *to) {
    const ptrdiff_t last = w->length[LAST] - 1 - (w->size[LAST] - 1) * w->dilation[LAST]; /* start without padding */
    const ptrdiff_t from = start * w->stride[LAST], step = w->step[LAST] * w->stride[LAST];
    line_part whole = inside_of_line(w, c, 0);
    if (!line) {
        for (ptrdiff_t i = 0; i < rows; i++) fill(w, c, w->size[LAST], to + i * row);
        return;
    }
    for (ptrdiff_t i = 0; i < rows; i++, start += w->step[LAST], to += row) {
        if (start < 0 || start > last) gather_line(w, c, inside_of_line(w, c, start), line, to);
        else if (whole.copies == 1) mp_convert(c, line + from + i * step, whole.n, to);
        else gather_line(w, c, (whole.offset = from + i * step, whole), line, to);
    }
}

void mp_gather_windows(const mp_window_rows *w, mp_conversion c, const char *x, ptrdiff_t first, ptrdiff_t rows,
                       char *to) {
    const ptrdiff_t bytes = w->size[LAST] * w->channels * c.to, row = w->size[0] * w->size[1] * bytes;
    for (ptrdiff_t end = first + rows, together; first < end; first += together, to += (together - 1) * row) {
        ptrdiff_t start[MP_WINDOW_AXES], image = first;
        together = mp_min(end - first, w->count[LAST] - first % w->count[LAST]);
        for (int axis = LAST; axis >= 0; image /= w->count[axis--])
            start[axis] = image % w->count[axis] * w->step[axis] - w->before[axis];
        for (ptrdiff_t i = 0; i < w->size[0]; i++)
            for (ptrdiff_t j = 0; j < w->size[1]; j++, to += bytes) {
                const ptrdiff_t y = start[0] + i * w->dilation[0], z = start[1] + j * w->dilation[1];
                const char *const line = x + image * w->image + y * w->stride[0] + z * w->stride[1];
                const int inside = is_inside(w, 0, y) && is_inside(w, 1, z);
                gather_places(w, c, inside ? line : NULL, start[LAST], together, row, to);
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
