/* Kernels over rows: a part of kernels.h, which includes this file. */
#ifndef MP_ROWS_TABLE_H
#define MP_ROWS_TABLE_H

/* `rows` rows of n > 0 elements each; those of x, `work` and out lie ldx, ldw and ldo elements apart. Each pass
 * leaves f32 in `work` for the next, and the last one rounds it. `work` may be x or out, if that is f32; x may be out. */
typedef struct {
    ptrdiff_t rows, n, ldx, ldw, ldo;
    mp_format x_format, out_format;
    const void *x;
    float *work;
    void *out;
} mp_row_block;

static inline ptrdiff_t mp_rows_together(ptrdiff_t n) { return n <= 1024 ? MP_ROWS_TOGETHER : 1; }

/* softmax: keep is NULL, or n bytes for each row, keep_stride bytes apart: those whose byte is 0 are left out. Norms:
 * gamma and beta may be NULL; residual too, or it has the format and stride of x. combine: x + y, x * y, x - y, x / y, the
 * larger, the smaller; as in activate, out may be an operand. turn: rotate `vectors` vectors of 2 * `half` elements each,
 * one behind the other (rotary positions); `angles` has `half` cosines, then `half` sines. sum_blocks: the lanes of blocks
 * of n elements, `stride` bytes apart, to lanes[blocks][16]. sum_columns: those of n columns of a block of rows, `stride`
 * bytes apart, to lanes[16][n]. A block has at most MP_BLOCK_ROW elements. */
typedef struct {
    void (*softmax)(const mp_row_block *b, const uint8_t *keep, ptrdiff_t keep_stride, float scale);
    void (*layer_norm)(const mp_row_block *b, const void *residual, const float *gamma, const float *beta,
                       float epsilon);
    void (*rms_norm)(const mp_row_block *b, const float *gamma, float epsilon);
    void (*activate)(mp_activation activation, const float *x, ptrdiff_t n, float *out);
    void (*combine[6])(const float *x, const float *y, ptrdiff_t n, float *out);
    void (*turn)(const float *x, const float *angles, ptrdiff_t half, ptrdiff_t vectors, float *out);
    void (*sum_blocks)(mp_format format, const void *x, ptrdiff_t blocks, ptrdiff_t stride, ptrdiff_t n, float *lanes);
    void (*sum_columns)(mp_format format, const void *x, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, float *lanes);
} mp_rows;

#endif
