# Included by run.pyx: where the operands of a task begin, and its rows of A as the kernels read them.

cdef enum:
    QUANTIZED = 4096        # elements of A quantized at a time (16 KiB): they are in L1 from the amax to the codes

cdef struct Place:     # of one task: where its operands and its result begin
    const char *a           # MC rows of A, as the kernels read them
    const char *b
    const int32_t *sums
    const char *residual
    char *out


cdef void quantize_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *wide,
                        mp_gemm *g) noexcept nogil:
    """Quantize rows of A to the codes that mp_core.quantize gives: by given scales, or each row by its amax / 127."""
    cdef mp_part part
    cdef float *scales = <float *>g.epilogue.row_scale
    cdef Py_ssize_t i, first = 0, at_once = max(1, QUANTIZED // max(p.k, 1))
    memset(&part, 0, sizeof(part))
    part.rows, part.cols, part.x, part.ldx = rows, p.k, <float *>a, p.a.rs // 4
    if p.a.format != MP_F32:
        for i in range(rows):
            p.kernels.casts.widen[p.a.format](a + i * p.a.rs, <float *>wide + i * p.k, p.k, 0)
        part.x, part.ldx = <float *>wide, p.k
    part.q, part.ldq, part.by_row, part.scale = <uint8_t *>to, p.k, g.epilogue.row_stride, scales
    part.qmin, part.qmax, part.prefetch_distance = -128, 127, part.ldx
    if p.a.scales != NULL:
        part.scale, part.zero_point, part.by_row, part.by_column = p.a.scales, p.a.zeros, 0, 1
    if p.a.scales != NULL or p.a.row_scale != NULL:
        p.kernels.quantizers.quantize[<int>MP_CODE_I8](&part)
        return
    part.qmin, part.mode = -127, MP_WITHIN
    memset(scales, 0, rows * 4)
    while first < rows:
        part.rows, part.scale, part.prefetch_distance = min(rows - first, at_once), scales + first, 0
        p.kernels.quantizers.amax(&part, scales + first)
        p.kernels.quantizers.symmetric_scales(scales + first, part.rows, 127, scales + first)
        part.prefetch_distance = part.rows * part.ldx
        p.kernels.quantizers.quantize[<int>MP_CODE_I8](&part)
        part.x += part.rows * part.ldx
        part.q += part.rows * part.ldq
        first += part.rows


cdef void gather_rows(const Product *p, const char *a, Py_ssize_t rows, char *to, char *gathered) noexcept nogil:
    """Copy rows of A to `to` as the kernels read them: neighbours along K side by side, in the type of the arithmetic.

    Rows whose elements are apart are first made contiguous in `gathered`.
    """
    cdef Py_ssize_t i, q
    cdef Py_ssize_t rs = p.a.rs, k = p.k
    if p.a.cs != p.a.size:
        if p.a.size > 1:
            p.kernels.packing.pack[<int>(MP_F32 if p.a.size == 4 else MP_F16)](rows, p.k, a, p.a.rs, p.a.cs, gathered)
        else:
            for q in range(p.k):
                for i in range(rows):
                    gathered[i * p.k + q] = a[i * p.a.rs + q * p.a.cs]
        a, rs = gathered, p.k * p.a.size
    if rs == k * p.a.size:  # the rows follow each other without gaps: convert them as one
        rows, k = 1, rows * k
    for _ in range(rows):
        if p.plan.arithmetic == MP_WIDE and p.a.format != MP_F32:
            p.kernels.casts.widen[p.a.format](a, <float *>to, k, 0)
        elif p.plan.arithmetic == MP_PAIRS and p.a.format != MP_BF16:
            p.kernels.casts.to_bf16[p.a.format](a, to, k)
        else:
            memcpy(to, a, k * a_bytes(p.plan.arithmetic))
        a += rs
        to += k * a_bytes(p.plan.arithmetic)


cdef Place place_of(const Product *p, Py_ssize_t matrix, Py_ssize_t row) noexcept nogil:
    """Return where the operands and the result of a task begin: the rows from `row` on, of one matrix of the batch."""
    cdef Place at
    cdef Py_ssize_t axis, position, b_matrix = 0
    at.a, at.b, at.out = p.a.data + row * p.a.rs, p.b.data, p.out.data + row * p.out.rs
    at.sums, at.residual = p.b.sums, p.residual.data
    if at.residual != NULL:
        at.residual += row * p.residual.rs
    for axis in range(p.batch_axes - 1, -1, -1):
        position = matrix % p.batch[axis].length
        matrix //= p.batch[axis].length
        at.a += position * p.batch[axis].a
        at.out += position * p.batch[axis].out
        b_matrix += position * p.batch[axis].b
        if at.residual != NULL:
            at.residual += position * p.batch[axis].residual
    at.b += b_matrix * p.b.matrix_bytes if p.b.packed else b_matrix
    if at.sums != NULL:
        at.sums += b_matrix * p.n
    return at


cdef char *prepare_rows(const Product *p, mp_gemm *g, Place *at, Py_ssize_t row, char *work) noexcept nogil:
    """Set the rows of A of a task: where they lie or copied, with their scales, zero points and sums.

    `row` counts the rows of all matrices of the batch. Return the scratch that is left.
    """
    cdef const Scratch *parts = &p.plan.scratch
    cdef Py_ssize_t i
    cdef int32_t *row_sums
    cdef int32_t zero
    g.operands.lda = p.a.rs // a_bytes(p.plan.arithmetic)
    if p.a.row_scale != NULL:
        g.epilogue.row_scale = p.a.row_scale + row * g.epilogue.row_stride
    if parts.row_scales:
        g.epilogue.row_scale, g.epilogue.row_stride = <float *>work, 1
        work += parts.row_scales
    if not p.plan.direct:
        if p.a.quantized_here:
            quantize_rows(p, at.a, g.shape.m, work, work + parts.a_copy, g)
        else:
            gather_rows(p, at.a, g.shape.m, work, work + parts.a_copy)
        at.a, g.operands.lda = work, p.k
    work += parts.a_copy + parts.a_gathered
    if p.a.row_zero != NULL:
        g.epilogue.row_zero = p.a.row_zero + row * g.epilogue.row_stride
    if parts.row_sums:
        row_sums = <int32_t *>work
        work += parts.row_sums
        p.kernels.products[<int>MP_QUADS].row_sums(g.shape.m, p.k, at.a, g.operands.lda, g.operands.a_flip, row_sums)
        for i in range(g.shape.m):
            zero = g.epilogue.row_zero[i * g.epilogue.row_stride] if g.epilogue.row_zero != NULL else 0
            row_sums[i] -= <int32_t>p.k * (<int32_t>(g.operands.a_flip & 255) + zero)
        g.epilogue.row_sum = row_sums
    return work
