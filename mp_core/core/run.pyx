"""Running a product: `run_product` asks plan.pyx for a plan, and the pool's threads run its tasks.

A task (`run_task`) takes MC rows of A, copies them into scratch if the kernels cannot read them as they lie, and
goes through its panels: NC columns at a time, KC elements of K at a time, one call of a kernel for each panel. (Where
B is multiplied in place by at most MR rows, one call takes all NC columns; where it is transposed, one takes all of K.)
"""

from libc.stdint cimport int32_t, uint8_t
from libc.string cimport memcpy, memset

from mp_core.core.cpu cimport is_recording, kernels, parallel_for, scratch, threads_for
from mp_core.core.header cimport (
    MP_BF16, MP_CODE_I8, MP_F16, MP_F32, MP_FLOATS, MP_LANES, MP_PAIRS, MP_PANEL, MP_QUADS, MP_ROWS, MP_WIDE,
    MP_WITHIN, mp_column_bytes, mp_element_bytes, mp_epilogue, mp_gemm, mp_group, mp_group_bytes, mp_part,
)
from mp_core.core.steps cimport Cost, Kind, recording
from mp_core.core.plan cimport (
    A_U8, IN_PLACE, TRANSPOSED, Machine, Problem, Scratch, a_bytes, arithmetic_of, make_plan, round_up, this_machine,
)

cdef Py_ssize_t MOST = <Py_ssize_t>1 << 50  # elements: a larger K is refused, so that no size of scratch overflows

include "run_rows.pxi"
include "run_loops.pxi"
include "run_recorded.pxi"


cdef void run_task(const Product *p, Py_ssize_t index, char *work) noexcept nogil:
    """One task: MC rows of A by some panels of B, of one matrix of the batch; `work` has p.plan.scratch.total bytes."""
    cdef mp_gemm g = p.common
    cdef Py_ssize_t first_panel = index % p.plan.panel_tasks * p.plan.task_panels, rest = index // p.plan.panel_tasks
    cdef Py_ssize_t row = rest % p.plan.row_tasks * p.plan.mc, matrix = rest // p.plan.row_tasks
    cdef Py_ssize_t column = first_panel * MP_PANEL, end
    cdef Py_ssize_t last_column = min(p.n, (first_panel + p.plan.task_panels) * MP_PANEL)
    cdef Place at = place_of(p, matrix, row)
    g.shape.m = min(p.plan.mc, p.m - row)
    work = prepare_rows(p, &g, &at, matrix * p.m + row, work)
    while column < last_column:
        end = min(column + p.plan.nc_panels * MP_PANEL, last_column)
        if p.plan.way == IN_PLACE:
            run_in_place(p, &g, &at, column, end, work)
        else:
            run_panels(p, &g, &at, column, end, work)
        column = end


cdef void run_here(const Product *p, char *work) noexcept nogil:
    """Run a planned product of one matrix on this thread; it may have fewer rows than the plan is for."""
    cdef Py_ssize_t index
    for index in range((p.m + p.plan.mc - 1) // p.plan.mc * p.plan.panel_tasks):
        run_task(p, index, work)


cdef void run_pooled(void *context, Py_ssize_t index) noexcept nogil:
    """One task for the threads of the pool, in the scratch of the thread that takes it."""
    cdef Product *p = <Product *>context
    cdef char *work = <char *>scratch(p.plan.scratch.total)
    if work == NULL:
        p.failed = True
        return
    run_task(p, index, work)


cdef void run_small(Product *p) noexcept nogil:
    """Run a small plan on the caller's thread: one task, one range of K, no accumulators in scratch."""
    cdef Place at
    cdef char *work = NULL
    at.a, at.b, at.sums, at.residual, at.out = p.a.data, p.b.data, p.b.sums, p.residual.data, p.out.data
    p.common.shape.m, p.common.epilogue.row_scale, p.common.epilogue.row_zero = p.m, p.a.row_scale, p.a.row_zero
    p.common.operands.lda = p.a.rs // a_bytes(p.plan.arithmetic)
    if p.plan.scratch.total:
        work = <char *>scratch(p.plan.scratch.total)
        if work == NULL:
            p.failed = True
            return
    if not p.plan.direct:
        at.a, p.common.operands.lda = work, p.k
        gather_rows(p, p.a.data, p.m, work, NULL)
        work += p.plan.scratch.a_copy
    run_panels(p, &p.common, &at, 0, p.n, work)


cdef const Machine *MACHINE = this_machine()


cdef void plan_product(Product *p, Py_ssize_t matrices, int threads) noexcept nogil:
    """Plan a product whose kernels, operands, result and epilogue are set, and set what all its tasks share."""
    cdef Problem q
    q.kernels, q.machine, q.matrices, q.m, q.n, q.k = p.kernels, MACHINE, matrices, p.m, p.n, p.k
    q.a.format, q.a.size, q.a.rs, q.a.cs = p.a.format, p.a.size, p.a.rs, p.a.cs
    q.b.format, q.b.size, q.b.rs, q.b.cs = p.b.format, mp_element_bytes[p.b.format], p.b.rs, p.b.cs
    q.packed, q.quantized_here, q.row_zero, q.zero_point = (
        p.b.packed, p.a.quantized_here, p.a.row_zero != NULL, p.b.zero_point != NULL)
    q.own_scales = p.a.quantized_here and p.a.row_scale == NULL and p.a.scales == NULL
    q.group, q.threads = p.b.group if p.b.group_scale != NULL else 0, threads
    make_plan(&q, &p.plan)
    if p.plan.arithmetic == MP_QUADS:
        p.common.operands.a_flip = 0 if p.a.format == A_U8 else 0x80808080u
        p.common.epilogue.a_zero = 0 if p.a.format == A_U8 or p.plan.amx else 128
    if not p.plan.sums_wanted:
        p.b.sums = NULL
    p.common.shape.k_block = p.plan.k_block
    p.common.prefetch.from_memory, p.common.prefetch.own = p.plan.from_memory, p.plan.prefetch_within
    p.common.epilogue.ldo = p.out.rs // p.out.size
    if p.residual.data != NULL:
        p.common.epilogue.ldr = p.residual.rs // p.residual.size


cdef int refuse_huge(Py_ssize_t k) except -1:
    """Raise for a depth beside which sizes of scratch may overflow."""
    if k > MOST:
        raise MemoryError(f"no memory for the scratch of a matrix product with k = {k}")
    return 0


cdef int run_product(Product *p, Py_ssize_t matrices) except -1:
    """Run a product whose operands, result and epilogue are set."""
    cdef double work = <double>matrices * p.m * p.n * max(p.k, 1)
    cdef Py_ssize_t axis, tasks
    cdef int threads
    if matrices == 0 or p.m == 0 or p.n == 0:
        return 0
    refuse_huge(p.k)
    if (p.n == 1 and p.m > 1 and not p.b.packed and p.out.rs == p.out.size and p.bias == NULL
            and p.residual.data == NULL and p.a.row_scale == NULL and p.a.row_zero == NULL
            and (max(p.a.format, p.b.format) < MP_FLOATS or p.a.format == p.b.format)):
        # One column: compute the row that is its transpose. a b = b a, and the order of sums along K is the same.
        p.m, p.n = 1, p.m
        p.a.data, p.b.data = p.b.data, p.a.data
        p.a.rs, p.a.cs, p.b.rs, p.b.cs = p.b.cs, p.b.rs, p.a.cs, p.a.rs
        p.a.format, p.b.format = p.b.format, p.a.format
        p.a.size = mp_element_bytes[p.a.format]
        for axis in range(p.batch_axes):
            p.batch[axis].a, p.batch[axis].b = p.batch[axis].b, p.batch[axis].a
    if is_recording():
        note_product(p, matrices)
    p.kernels = kernels()
    threads = threads_for(work, MACHINE.tuning.thread_work) if work >= MACHINE.tuning.thread_work else 1
    plan_product(p, matrices, threads)
    if p.plan.small:
        run_small(p)
    else:
        tasks = matrices * p.plan.row_tasks * p.plan.panel_tasks
        with nogil:
            parallel_for(threads, tasks, run_pooled, p)
    if p.failed:
        raise MemoryError("no memory for the scratch of a matrix product")
    return 0
