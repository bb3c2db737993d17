# library/plan.h as Cython sees it.
from mp_core.core.header cimport mp_cpu_family, mp_kernels, mp_tuning

cdef extern from "library/plan.h" nogil:
    enum:
        A_U8 "MP_A_U8"

    ctypedef enum Way "mp_way":
        PANELS "MP_PANELS"
        IN_PLACE "MP_IN_PLACE"
        TRANSPOSED "MP_TRANSPOSED"

    ctypedef enum Decoding "mp_decoding":
        WIDER "MP_WIDER"
        OCTS "MP_OCTS"

    ctypedef struct Machine "mp_machine":
        const mp_tuning *tuning
        Py_ssize_t l1d, l2

    ctypedef struct Layout "mp_layout":
        int format, size
        Py_ssize_t rs, cs

    ctypedef struct Problem "mp_problem":
        const mp_kernels *kernels
        const Machine *machine
        Py_ssize_t matrices, m, n, k
        int threads
        Layout a, b
        bint packed, quantized_here, own_scales, row_zero, zero_point
        Py_ssize_t group
        bint reproducible

    ctypedef struct Scratch "mp_task_scratch":
        Py_ssize_t row_scales, a_copy, a_narrow, a_gathered, row_sums, accumulators, partial_sums, made, decoded
        Py_ssize_t column_sums, group_scales, total

    ctypedef struct Plan "mp_plan":
        int arithmetic, format
        Py_ssize_t k_block
        Way way
        Decoding decoded
        bint small, direct, amx, sums_wanted, from_memory, prefetch_within, prefetch_next
        Py_ssize_t mc, row_tasks, task_panels, panel_tasks, kc, nc_panels, tail
        Scratch scratch

    Py_ssize_t round_up "mp_round_up"(Py_ssize_t n, Py_ssize_t unit)
    Py_ssize_t multiplied_bytes "mp_multiplied_bytes"(const Plan *p, Py_ssize_t k)
    int arithmetic_of "mp_arithmetic_of"(int a_format, int b_format)
    Machine machine_of "mp_machine_of"(mp_cpu_family family, Py_ssize_t l1d, Py_ssize_t l2)
    const Machine *this_machine "mp_this_machine"()
    Py_ssize_t few_rows "mp_few_rows"(const Problem *q, int arithmetic)
    void make_plan "mp_make_plan"(const Problem *q, Plan *p)
    void find_plan "mp_find_plan"(const Problem *q, Plan *p)
