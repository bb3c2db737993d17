# Included by run.pyx: a product as a step of a recording.

cdef enum:
    MOST_AXES = 64              # of a batch

cdef struct ProductStep:
    Product product
    Py_ssize_t m, matrices
    mp_gemm common              # this and the sums of B as they were noted: a plan changes them in the product
    const int32_t *sums
    bint one_scale              # the scale of A is `scale`
    float scale
    Axis batch[MOST_AXES]


cdef Py_ssize_t prepare_product(void *context, Py_ssize_t rows, int threads, bint reproducible) noexcept nogil:
    """Plan the product for so many rows of A and threads, in an order of sums; return the number of tasks."""
    cdef ProductStep *s = <ProductStep *>context
    cdef Product *p = &s.product
    p.m = s.m if rows < 0 else rows
    p.batch, p.b.sums, p.common = s.batch, s.sums, s.common
    if s.one_scale:
        p.a.row_scale = &s.scale
    p.kernels, p.reproducible = kernels(), reproducible
    plan_product(p, s.matrices, threads)
    return tasks_of(p, s.matrices)


cdef void run_recorded(void *context, Py_ssize_t index) noexcept nogil:
    run_task(&(<ProductStep *>context).product, index)


cdef int note_product(const Product *p, Py_ssize_t matrices) except -1:
    """Note a product on the tape of this thread."""
    cdef ProductStep s
    cdef Py_ssize_t axis, base = <Py_ssize_t>&s, weights
    memset(&s, 0, sizeof(s))
    s.product, s.m, s.matrices, s.common, s.sums = p[0], p.m, matrices, p.common, p.b.sums
    for axis in range(p.batch_axes):
        s.batch[axis] = p.batch[axis]
    if p.k == 0:
        s.product.a.data = s.product.b.data = NULL  # nothing is read there, and no memory is
    if p.a.quantized_here and p.a.scales == NULL and p.a.row_scale != NULL:
        s.one_scale, s.scale, s.product.a.row_scale = True, p.a.row_scale[0], NULL
    pointers = tuple([
        <Py_ssize_t>field - base for field in (
            <Py_ssize_t>&s.product.a.data, <Py_ssize_t>&s.product.a.row_scale, <Py_ssize_t>&s.product.a.row_zero,
            <Py_ssize_t>&s.product.a.scales, <Py_ssize_t>&s.product.a.zeros, <Py_ssize_t>&s.product.b.data,
            <Py_ssize_t>&s.sums, <Py_ssize_t>&s.product.b.scale, <Py_ssize_t>&s.product.b.group_scale,
            <Py_ssize_t>&s.product.b.zero_point, <Py_ssize_t>&s.product.out.data, <Py_ssize_t>&s.product.residual.data,
            <Py_ssize_t>&s.product.bias)])
    weights = mp_column_bytes(p.b.format, p.k) * p.n
    recording().note(
        f"product {p.k}x{p.n}", Kind(prepare_product, run_recorded, sizeof(s), <Py_ssize_t>&s.product.failed - base),
        &s, pointers,
        Cost(p.m if matrices == 1 else 0, 2.0 * matrices * p.m * p.n * p.k,
             MP_QUADS if p.a.quantized_here else arithmetic_of(p.a.format, p.b.format),
             matrices * (p.m * p.k * p.a.size + p.m * p.n * p.out.size) + weights))
    return 0
