# Declarations for Cython from the headers of library/. The C structs may have more fields.
from libc.stdint cimport int32_t, int8_t, uint32_t, uint64_t, uint8_t

from mp_core.core.header cimport (
    mp_activation, mp_cpu_family, mp_format, mp_gemm, mp_kernels, mp_scale_codes, mp_tuning,
)

cdef extern from "library/plan.h" nogil:
    ctypedef enum mp_way:
        MP_PANELS, MP_IN_TURN, MP_DECODED, MP_WIDER, MP_OCTS, MP_TILES, MP_DECODED_TILES, MP_IN_PLACE, MP_TRANSPOSED

    ctypedef struct mp_machine:
        const mp_tuning *tuning
        Py_ssize_t l1d, l2

    ctypedef struct mp_layout:
        int format, size
        Py_ssize_t rs, cs

    ctypedef struct mp_problem:
        const mp_kernels *kernels
        const mp_machine *machine
        Py_ssize_t matrices, m, n, k
        int threads
        mp_layout a, b
        bint packed, quantized_here, finds_scales, row_zero, zero_point, code_zero
        Py_ssize_t group
        bint reproducible

    ctypedef struct mp_task_scratch:
        Py_ssize_t row_scales, a_copy, a_narrow, a_gathered, row_sums, accumulators, partial_sums, made, copy
        Py_ssize_t column_sums, group_scales, group_zeros, group_sums, total

    ctypedef struct mp_plan:
        int arithmetic, format
        Py_ssize_t k_block
        mp_way way
        bint small, reads_a_in_place, sums_wanted, from_memory, prefetch_within, prefetch_next
        Py_ssize_t mc, row_tasks, task_panels, panel_tasks, kc, nc_panels, tail
        mp_task_scratch scratch

    int mp_copies_panels(const mp_plan *p)
    int mp_by_tiles(const mp_plan *p)
    Py_ssize_t mp_multiplied_bytes(const mp_plan *p, Py_ssize_t k)
    int mp_arithmetic_of(int a_format, int b_format)
    mp_machine mp_machine_of(mp_cpu_family family, Py_ssize_t l1d, Py_ssize_t l2)
    const mp_machine *mp_this_machine()
    Py_ssize_t mp_few_rows(const mp_problem *q, int arithmetic)
    void mp_make_plan(const mp_problem *q, mp_plan *p)
    void mp_find_plan(const mp_problem *q, mp_plan *p)

cdef extern from "library/window_rows.h" nogil:
    ctypedef struct mp_window_array:
        char *data
        int format, size

    ctypedef struct mp_window_rows:
        Py_ssize_t *length
        Py_ssize_t *stride
        Py_ssize_t image, channels
        Py_ssize_t *count
        Py_ssize_t *size
        Py_ssize_t *step
        Py_ssize_t *dilation
        Py_ssize_t *before
        int fill

    int mp_windows_are_lines(const mp_window_rows *w, Py_ssize_t images, Py_ssize_t size, Py_ssize_t *distance)

cdef extern from "library/product.h" nogil:
    ctypedef struct mp_axis:
        Py_ssize_t length, a, b, out, residual

    ctypedef struct mp_left:
        const char *data
        int format
        Py_ssize_t size, rs, cs
        const mp_window_rows *windows
        const float *row_scale
        const int32_t *row_zero
        bint quantized_here
        const float *scales
        const int32_t *zeros

    ctypedef struct mp_right:
        const char *data
        int format
        Py_ssize_t rs, cs
        bint packed
        Py_ssize_t matrix_bytes
        const int32_t *sums
        const float *scale
        const void *group_scale
        mp_scale_codes scale_codes
        Py_ssize_t group
        const int32_t *zero_point
        const int8_t *code_zero

    ctypedef struct mp_lines:
        char *data
        Py_ssize_t rs, size

    ctypedef struct mp_product:
        const mp_kernels *kernels
        Py_ssize_t m, n, k
        mp_left a
        mp_right b
        mp_lines out, residual
        const float *bias
        Py_ssize_t bias_stride
        mp_gemm common
        bint reproducible
        int batch_axes
        mp_axis *batch
        mp_plan plan
        int status

    void mp_column_as_row(mp_product *p)
    void mp_run_product(mp_product *p, Py_ssize_t matrices, int threads)

cdef extern from "library/contract.h" nogil:
    ctypedef enum mp_refusal:
        MP_ACCEPTED, MP_BAD_TYPES, MP_BAD_SCALES, MP_TOO_DEEP, MP_BAD_RESULT, MP_REFUSALS

    int mp_types_multiply(int a_format, int b_format, int quantized)
    Py_ssize_t mp_most_exact_k(int unsigned_a, int shifted_b)
    mp_refusal mp_refusal_of(const mp_product *p)

cdef extern from "library/cast.h" nogil:
    enum:
        MP_F64, MP_COPY, MP_CAST_WORK, MP_STREAMED

    ctypedef struct mp_cast:
        const mp_kernels *kernels
        const char *src
        char *dst
        Py_ssize_t n, share
        int src_format, dst_format, src_size, dst_size, mode

    void mp_run_cast(mp_cast *c, int threads)
    void mp_cast_line(const mp_cast *c, const char *src, Py_ssize_t src_stride, char *dst, Py_ssize_t dst_stride,
                      Py_ssize_t n)

cdef extern from "library/quantize.h" nogil:
    ctypedef enum mp_scales_from:
        MP_SYMMETRIC, MP_POSITIVE, MP_ASYMMETRIC

    enum:
        MP_QUANTIZE_WORK

    ctypedef struct mp_scale_layout:
        Py_ssize_t outer, outer_stride, rows, row_stride, cols, group, groups
        bint by_column

    ctypedef struct mp_codes_kind:
        int kind
        bint nibbles
        int32_t qmin, qmax
        float largest

    ctypedef struct mp_quantization:
        const mp_kernels *kernels
        mp_scale_layout layout
        mp_codes_kind codes
        mp_scales_from how
        bint back
        int mode, format
        Py_ssize_t size
        char *x
        uint8_t *q
        float *scale
        int32_t *zero_point

    int mp_run_quantization(mp_quantization *z, int threads)

# ---- operations: their contexts, and what runs, notes and repeats them

cdef extern from "library/operation.h" nogil:
    ctypedef enum mp_status:
        MP_DONE, MP_NO_MEMORY, MP_NO_ROW, MP_UNSEEN

    ctypedef enum mp_operation_number:
        MP_OPERATION_CAST, MP_OPERATION_FILL, MP_OPERATION_ROWS, MP_OPERATION_ELEMENTWISE, MP_OPERATION_SUMS
        MP_OPERATION_ROW_GRADIENTS, MP_OPERATION_ROW_SUMS, MP_OPERATION_TAKEN_ROWS
        MP_OPERATION_ATTENTION_GRADIENT, MP_OPERATION_WINDOWS, MP_OPERATION_RANDOM, MP_OPERATION_POOLING_GRADIENT
        MP_OPERATION_SUMS_JOIN, MP_OPERATION_ROTARY, MP_OPERATION_LOOK_UP, MP_OPERATION_STORE, MP_OPERATION_PLACES
        MP_OPERATION_POOLING, MP_OPERATION_ATTENTION, MP_OPERATION_PRODUCT, MP_OPERATION_WINDOW_POOLING
        MP_OPERATION_DEPTHWISE, MP_OPERATION_INDEXED, MP_OPERATION_ORDER

    ctypedef struct mp_operation:
        const char *name
        int (*is_large)(const void *context) noexcept nogil

    const mp_operation mp_operations[]
    mp_status mp_do(const mp_operation *operation, void *context, int threads, int reproducible)

cdef extern from "library/recording.h" nogil:
    enum:
        MP_NO_ARITHMETIC

    ctypedef struct mp_span:
        const char *begin
        const char *end

    ctypedef struct mp_spans:
        mp_span *at

    ctypedef struct mp_link:
        Py_ssize_t offset, buffer, delta

    ctypedef struct mp_cost:
        Py_ssize_t rows
        double operations
        int arithmetic
        Py_ssize_t moved

    ctypedef struct mp_note:
        mp_cost cost
        int link_count
        mp_link *links

    ctypedef struct mp_recording:
        mp_note *notes
        Py_ssize_t count
        mp_spans buffers

    mp_recording **mp_recorder()
    mp_status mp_add_buffer(mp_recording *r, mp_span memory)
    mp_status mp_add_constant(mp_recording *r, mp_span memory)
    Py_ssize_t mp_find_buffer(const mp_recording *r, const char *at)
    int mp_holds_constant(const mp_recording *r, const char *at)
    mp_status mp_record(mp_recording *r, const mp_operation *operation, const void *context, mp_cost cost)
    void mp_forget_recording(mp_recording *r)

cdef extern from "library/replay.h" nogil:
    ctypedef struct mp_replay:
        pass

    ctypedef struct mp_run:
        char *const *buffers
        const Py_ssize_t *rows
        int threads, reproducible

    ctypedef struct mp_passes:
        mp_replay *const *replays
        int replay_count
        char **buffers
        Py_ssize_t buffer_count
        const int *given
        Py_ssize_t given_count
        char *const *addresses
        const Py_ssize_t *rows
        Py_ssize_t size_count
        int reproducible

    struct mp_core_plan:
        mp_replay *replay
        char **buffers
        const int *results
        int inputs, outputs
        const Py_ssize_t *bytes

    mp_replay *mp_make_replay(const mp_recording *r, const int *follows)
    void mp_free_replay(mp_replay *replay)
    void mp_run_replay(mp_replay *replay, const mp_run *run)
    void mp_plan_replay(mp_replay *replay, const mp_run *run)
    Py_ssize_t mp_run_noted(mp_replay *replay, Py_ssize_t number, int threads)
    mp_status mp_replay_status(mp_replay *replay, Py_ssize_t *number)
    void mp_run_passes(mp_passes *p, Py_ssize_t passes)

cdef extern from "library/array_cast.h" nogil:
    ctypedef struct mp_array_cast:
        mp_cast cast
        Py_ssize_t rows, row
        int axes
        Py_ssize_t *shape
        Py_ssize_t *src_stride
        Py_ssize_t *dst_stride

    ctypedef struct mp_fill:
        char *to
        Py_ssize_t bytes, size
        char element[16]

cdef extern from "library/rows.h" nogil:
    ctypedef enum mp_row_operation:
        MP_SOFTMAX, MP_LAYER_NORM, MP_ACTIVATE, MP_RMS_NORM, MP_LOG_SOFTMAX

    ctypedef struct mp_mask:
        const uint8_t *keep
        int axes
        Py_ssize_t *shape
        Py_ssize_t *stride

    ctypedef struct mp_row_call:
        mp_row_operation what
        int format, size
        Py_ssize_t rows, length, ldx, ldo
        const char *x
        const char *residual
        char *out
        float scale, epsilon
        const float *gamma
        const float *beta
        mp_activation activation
        mp_mask mask

cdef extern from "library/row_gradients.h" nogil:
    ctypedef enum mp_row_gradient_of:
        MP_SOFTMAX_GRADIENT, MP_LOG_SOFTMAX_GRADIENT, MP_LAYER_NORM_GRADIENT, MP_RMS_NORM_GRADIENT

    ctypedef struct mp_row_gradient:
        mp_row_gradient_of what
        int format, size, out_format, out_size
        Py_ssize_t rows, length
        const char *x
        const char *residual
        const char *d
        const float *gamma
        char *out
        float *shares
        float scale, epsilon

cdef extern from "library/row_sums.h" nogil:
    ctypedef struct mp_row_sums:
        int format, size
        const char *x
        const float *before
        float *out
        Py_ssize_t rows, columns

cdef extern from "library/elementwise.h" nogil:
    enum:
        MP_BOOL, MP_I16, MP_U16, MP_U32, MP_I64, MP_U64

    ctypedef enum mp_wide:
        MP_SINGLE, MP_SIGNED, MP_UNSIGNED, MP_DOUBLE

    ctypedef int mp_elementwise_function
    const char *const *const mp_elementwise_names
    const int mp_elementwise_operands[]

    ctypedef struct mp_operand:
        const char *data
        int format, size
        Py_ssize_t *stride

    ctypedef struct mp_elementwise:
        mp_elementwise_function function
        mp_activation activation
        mp_wide wide
        int axes
        Py_ssize_t *shape
        mp_operand operand[3]
        char *out
        int out_format, out_size

    void mp_join_axes(mp_elementwise *e, int first)

cdef extern from "library/sums.h" nogil:
    enum:
        MP_SUMS_WORK

    ctypedef struct mp_sum_call:
        const mp_kernels *kernels
        int format, size
        const char *x
        float *out
        float divisor
        Py_ssize_t outer, k, inner
        float *lanes
        int status

    Py_ssize_t mp_lanes_of_sums(const mp_sum_call *s)
    void mp_run_sums(mp_sum_call *s, int threads)

cdef extern from "library/rotary.h" nogil:
    ctypedef struct mp_row_array:
        char *data
        int format
        Py_ssize_t size, stride

    ctypedef struct mp_rotary:
        mp_row_array x, out
        const float *angles
        const int32_t *offsets
        const int32_t *past
        Py_ssize_t rows, length, few, positions, half, vectors

cdef extern from "library/pooling.h" nogil:
    ctypedef enum mp_pool:
        MP_MEAN, MP_MEAN_BY_ROOT, MP_MEAN_BY_PLACE, MP_FIRST_ROW, MP_LAST_ROW, MP_LARGEST

    ctypedef struct mp_pooling:
        mp_product sums
        const int32_t *offsets
        mp_pool how
        Py_ssize_t sequences, skipped

cdef extern from "library/attention.h" nogil:
    ctypedef struct mp_head_strides:
        Py_ssize_t sequence, head, row

    ctypedef struct mp_score_mask:
        const uint8_t *data
        mp_head_strides by

    ctypedef struct mp_weight_dropout:
        const uint32_t *key
        uint64_t least
        float factor

    ctypedef struct mp_score_scale:
        float outer, inner

    ctypedef struct mp_ragged:
        const int32_t *offsets
        const int32_t *past
        const int32_t *pages
        const int32_t *starts
        const int32_t *rows
        Py_ssize_t page

    ctypedef struct mp_attention:
        mp_product scores, context
        mp_head_strides query, key, value, out, bias
        mp_score_mask keep
        mp_ragged ragged
        mp_weight_dropout dropout
        mp_score_scale scale
        Py_ssize_t sequences, heads, sharing, targets, sources, before, after

    double mp_attention_work(const mp_attention *t)

cdef extern from "library/noted_product.h" nogil:
    ctypedef struct mp_noted_product:
        pass

    void mp_describe_noted_product(mp_noted_product *s, const mp_product *p, Py_ssize_t matrices)
