/* The public functions for quantization (../include/mp_core.h). */
#include "library/api.h"
#include "library/cast.h"
#include "library/quantize.h"

/* A type of codes, as the kernels need it. `least`: the lowest code with symmetric scales. */
typedef struct {
    int type, kind, nibbles;
    int32_t qmin, qmax, least;
} code_type;

static const code_type code_types[] = {
    {MP_CORE_INT8, MP_CODE_I8, 0, -128, 127, -127},
    {MP_CORE_UINT8, MP_CODE_U8, 0, 0, 255, 0},
    {MP_CORE_INT4, MP_CODE_I8, 1, -8, 7, -7},
    {MP_CORE_UINT4, MP_CODE_I8, 1, 0, 15, 0},
    {MP_CORE_FLOAT8_E4M3FN, MP_CODE_E4M3FN, 0, -448, 448, -448},
    {MP_CORE_FLOAT8_E5M2, MP_CODE_E5M2, 0, -57344, 57344, -57344},
    {MP_CORE_FLOAT4_E2M1FN, MP_CODE_E2M1, 1, -6, 6, -6},
};

static const code_type *codes_of(int type) {
    for (size_t i = 0; i < sizeof code_types / sizeof *code_types; i++)
        if (code_types[i].type == type) return &code_types[i];
    return NULL;
}

static int is_valid(const mp_core_quantization *q, int back) {
    if (!q || q->size != sizeof(*q)) return 0;
    const code_type *codes = codes_of(q->q_type);
    if (!codes || q->x_type < 0 || q->x_type > MP_CORE_BFLOAT16 || !mp_are_rows(q->rows, q->cols, q->cols)
        || q->group < 0)
        return 0;
    if (q->scales < MP_CORE_ONE_SCALE || q->scales > MP_CORE_COLUMN_SCALES) return 0;
    if (!back && (q->from < MP_CORE_SYMMETRIC || q->from > MP_CORE_GIVEN)) return 0;
    const int is_float = codes->kind > MP_CODE_U8, asymmetric = !back && q->from == MP_CORE_ASYMMETRIC;
    if (is_float && (q->zero_point || asymmetric)) return 0;
    if (asymmetric && !q->zero_point) return 0;
    if (codes->nibbles && (q->cols % 2 || (q->scales == MP_CORE_ROW_SCALES && q->group % 2))) return 0;
    return q->rows == 0 || q->cols == 0 || (q->x && q->q && q->scale);
}

/* See the comment of mp_scale_layout. */
static mp_scale_layout layout_of(const mp_core_quantization *q) {
    const ptrdiff_t rows = q->rows, cols = q->cols;
    if (q->scales == MP_CORE_ONE_SCALE)
        return (mp_scale_layout){.outer = 1, .outer_stride = rows * cols, .rows = 1, .row_stride = rows * cols,
                                 .cols = rows * cols, .group = rows * cols, .groups = 1};
    const ptrdiff_t along = q->scales == MP_CORE_ROW_SCALES ? cols : rows;
    const ptrdiff_t group = q->group ? mp_min(q->group, along) : along;
    mp_scale_layout a = {.outer = rows, .outer_stride = cols, .rows = 1, .row_stride = cols, .cols = cols,
                         .group = group, .groups = mp_ceil_div(along, group)};
    if (q->scales == MP_CORE_COLUMN_SCALES) a.outer = 1, a.outer_stride = rows * cols, a.rows = rows, a.by_column = 1;
    return a;
}

static int run(const mp_core_quantization *q, int back, int threads) {
    mp_quantization z = {.kernels = mp_kernels_in_use(), .back = back};
    if (!z.kernels) return MP_CORE_BAD_ISA;
    if (!is_valid(q, back) || !mp_are_threads(threads)) return MP_CORE_INVALID;
    if (q->rows == 0 || q->cols == 0) return MP_CORE_OK;
    const code_type *codes = codes_of(q->q_type);
    const int given = back || q->from == MP_CORE_GIVEN, asymmetric = !given && q->from == MP_CORE_ASYMMETRIC;
    z.layout = layout_of(q);
    z.codes = (mp_codes_kind){.kind = codes->kind, .nibbles = codes->nibbles, .qmax = codes->qmax,
                              .qmin = given || asymmetric ? codes->qmin : codes->least, .largest = (float)codes->qmax};
    z.how = given ? MP_GIVEN : asymmetric ? MP_ASYMMETRIC : codes->qmin ? MP_SYMMETRIC : MP_POSITIVE;
    z.format = q->x_type, z.size = mp_element_bytes[q->x_type];
    z.x = q->x, z.q = q->q, z.scale = q->scale, z.zero_point = given || asymmetric ? q->zero_point : NULL;
    z.mode = z.how == MP_SYMMETRIC ? MP_NO_CLAMP : 0;
    const ptrdiff_t elements = q->rows * q->cols;
    if ((back ? elements * z.size : codes->nibbles ? elements / 2 : elements) >= MP_STREAMED) z.mode |= MP_STREAM;
    return mp_run_quantization(&z, threads) ? MP_CORE_NO_MEMORY : MP_CORE_OK;
}

int mp_core_quantize(const mp_core_quantization *q, int threads) { return run(q, 0, threads); }

int mp_core_dequantize(const mp_core_quantization *q, int threads) { return run(q, 1, threads); }
