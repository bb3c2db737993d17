/* Rows that are windows of an array with up to three spatial axes: the left operand of a convolution's product. */
#ifndef MP_WINDOW_ROWS_H
#define MP_WINDOW_ROWS_H

#include <stddef.h>

#include "windows/windows.h"

MP_SHARED_BEGIN

typedef struct {
    char *data;
    int format, size; /* a float; bytes of an element */
} mp_window_array;

/* Row i is window i of an array [images][length...][channels], in C order of image and position. Its elements are those
 * of the places of the window, in C order; a place outside of the array has elements whose bytes are all `fill`. With
 * fewer than three spatial axes, the first axes have one place. */
typedef struct {
    ptrdiff_t length[MP_WINDOW_AXES], stride[MP_WINDOW_AXES]; /* of the array; strides are in bytes */
    ptrdiff_t image;                     /* bytes from one image to the next */
    ptrdiff_t channels;                  /* contiguous elements of a place */
    ptrdiff_t count[MP_WINDOW_AXES];     /* windows */
    ptrdiff_t size[MP_WINDOW_AXES];      /* places of a window */
    ptrdiff_t step[MP_WINDOW_AXES];      /* from one window to the next, in places of the array */
    ptrdiff_t dilation[MP_WINDOW_AXES];  /* from one place of a window to the next */
    ptrdiff_t before[MP_WINDOW_AXES];    /* places of padding before the first one */
    int fill;
} mp_window_rows;

/* How elements are copied: unchanged if there is no function. */
typedef struct {
    ptrdiff_t from, to; /* bytes of an element, before and after */
    void (*widen)(const void *src, float *dst, ptrdiff_t n, int mode);
    void (*to_bf16)(const void *src, void *dst, ptrdiff_t n);
} mp_conversion;

/* Copy n contiguous elements. */
void mp_convert(mp_conversion c, const char *from, ptrdiff_t n, char *to);

/* Copy the places of a window along the last axis; return the address behind the copy. `line` is the first place of the
 * array's line, `start` the number of the window's first place. */
char *mp_gather_line(const mp_window_rows *w, mp_conversion c, const char *line, ptrdiff_t start, char *to);

/* Copy windows from number `first` on to contiguous rows. x is the first element of the array. */
void mp_gather_windows(const mp_window_rows *w, mp_conversion c, const char *x, ptrdiff_t first, ptrdiff_t rows,
                       char *to);

/* Whether all windows are contiguous, without padding, and start equally far apart; then set that distance. `size` is
 * the bytes of an element. */
int mp_windows_are_lines(const mp_window_rows *w, ptrdiff_t images, ptrdiff_t size, ptrdiff_t *distance);

MP_SHARED_END
#endif
