/* The table of kernels over rows. kernels.h includes this file. */
#ifndef MP_ROWS_TABLE_H
#define MP_ROWS_TABLE_H

/* `rows` rows of n > 0 elements each; rows of x, `work` and out are ldx, ldw and ldo elements apart. Each pass leaves
 * f32 in `work` for the next one, and the last pass rounds it. `work` may be x or out, if that is f32; x may be out. */
typedef struct {
    ptrdiff_t rows, n, ldx, ldw, ldo;
    mp_format x_format, out_format;
    const void *x;
    float *work;
    void *out;
} mp_row_block;

/* A row of a norm of x; d is the gradient of its result. */
typedef struct {
    const float *x, *d, *gamma; /* gamma: NULL or the scale of the norm */
    ptrdiff_t n;
    float epsilon;
    int is_centred;             /* 1: layer_norm, 0: rms_norm */
    float *out;                 /* the gradient of x */
    float *shares;              /* d times the normalized x, whose sums over rows are the gradient of gamma */
} mp_norm_row;

/* A function of n elements of x, and of y if it has two operands. `out` may be an operand. */
typedef void mp_row_function(const float *x, const float *y, ptrdiff_t n, float *out);

static inline ptrdiff_t mp_rows_together(ptrdiff_t n) { return n <= 1024 ? MP_ROWS_TOGETHER : 1; }

/* softmax: keep is NULL, or n bytes for each row, keep_stride bytes apart; elements whose byte is 0 are left out.
 * Norms: gamma and beta may be NULL; residual is NULL or has the format and stride of x. activate: out may be x.
 * functions: those of functions.def, in its order. turn: rotate `vectors` contiguous vectors of 2 * `half` elements
 * each (rotary positions); `angles` has `half` cosines, then `half` sines. softmax_gradient, log_softmax_gradient: for
 * one row; y is its result, d the gradient of that; out may be d. sum_blocks: write the lanes of blocks of n elements,
 * `stride` bytes apart, to lanes[blocks][16]. sum_columns: write the lanes of n columns of a block of rows, `stride`
 * bytes apart, to lanes[16][n]. A block has at most MP_BLOCK_ROW elements. sum_rows: write the sums of n columns to
 * sum[n]; rows, of any number, are added in order, starting at +0. */
typedef struct {
    void (*softmax)(const mp_row_block *b, const uint8_t *keep, ptrdiff_t keep_stride, float scale);
    void (*log_softmax)(const mp_row_block *b);
    void (*layer_norm)(const mp_row_block *b, const void *residual, const float *gamma, const float *beta,
                       float epsilon);
    void (*rms_norm)(const mp_row_block *b, const float *gamma, float epsilon);
    void (*activate)(mp_activation activation, const float *x, ptrdiff_t n, float *out);
    mp_row_function *const *functions;
    void (*turn)(const float *x, const float *angles, ptrdiff_t half, ptrdiff_t vectors, float *out);
    void (*softmax_gradient)(const float *y, const float *d, ptrdiff_t n, float scale, float *out);
    void (*log_softmax_gradient)(const float *y, const float *d, ptrdiff_t n, float *out);
    void (*norm_gradient)(const mp_norm_row *r);
    void (*sum_blocks)(mp_format format, const void *x, ptrdiff_t blocks, ptrdiff_t stride, ptrdiff_t n, float *lanes);
    void (*sum_columns)(mp_format format, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *lanes);
    void (*sum_rows)(mp_format format, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *sum);
} mp_rows;

#endif
