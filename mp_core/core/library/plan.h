/* How a product is computed, as data: the way in which kernels read B, the tasks and ranges of K into which it is cut,
 * and the scratch that it needs. One call of a kernel multiplies MC rows of A by a range of K of one panel or
 * micro-panel, or of rows or columns of B where they lie; see mp_products in kernels/kernels.h. */
#ifndef MP_PLAN_H
#define MP_PLAN_H

#include "library/tuning.h"

MP_SHARED_BEGIN

/* The way of a product: what kernels read of B (docs/architecture.md). A panel is one of a packed B, or packed into
 * scratch one range of K at a time. */
typedef enum {
    MP_PANELS,        /* panels as they were packed */
    MP_IN_TURN,       /* several panels of a packed B in turn, beside one row of A */
    MP_DECODED,       /* copies of panels in the type of the arithmetic: `decoded` of mp_products */
    MP_WIDER,         /* copies of twice the width, as the rows of A are copied: `recoded`, with widen_row */
    MP_OCTS,          /* copies in groups of eight integers along K: `recoded`, without widen_row */
    MP_TILES,         /* panels, by AMX tiles */
    MP_DECODED_TILES, /* copies in the type of the arithmetic, by AMX tiles */
    MP_IN_PLACE,      /* rows of a row-major B, where they lie */
    MP_TRANSPOSED,    /* columns of a transposed B, piece by piece */
} mp_way;

/* The machine, as far as a plan depends on it. */
typedef struct {
    const mp_tuning *tuning;
    ptrdiff_t l1d, l2; /* bytes of these caches, rounded down to powers of two */
} mp_machine;

/* An operand as the caller has it. It has no padding, because problems are compared byte by byte (plan_kept.c). */
typedef struct {
    int format;
    int size;         /* bytes of an element */
    ptrdiff_t rs, cs; /* bytes from one row, one column to the next; a packed one has none */
} mp_layout;

/* All that a plan depends on. */
typedef struct {
    const mp_kernels *kernels;
    const mp_machine *machine;
    ptrdiff_t matrices, m, n, k; /* products of the batch; the shape of each */
    int threads;                 /* that run its tasks */
    mp_layout a, b;
    int packed;                  /* B is packed panels */
    int quantized_here;          /* A is float, and its rows become int8 during the product */
    int finds_scales;              /* ... by scales that are found: each row's amax / 127 */
    int row_zero;                /* A has zero points by row */
    int zero_point;              /* B has zero points, by column */
    int code_zero;               /* B is int4 with zero points */
    ptrdiff_t group;             /* elements of K in a scale group of B; 0: there are no scale groups */
    int reproducible;            /* pairs are added in the order that every CPU can compute, not by AMX tiles */
} mp_problem;

/* Bytes of the parts of a task's scratch, in the order in which they lie there. */
typedef struct {
    ptrdiff_t row_scales;   /* scales of the rows of A that the task quantizes */
    ptrdiff_t a_copy;       /* rows of A as the kernels read them */
    ptrdiff_t a_narrow;     /* the same rows in the type of the arithmetic, before mp_rewrites_rows */
    ptrdiff_t a_gathered;   /* the same rows before conversion: made contiguous in their own type, or widened to float32
                               in order to be quantized */
    ptrdiff_t row_sums;     /* of A */
    ptrdiff_t block_sums;   /* of A too, one for each K block: see mp_operands */
    ptrdiff_t accumulators; /* of NC columns */
    ptrdiff_t partial_sums; /* of a K block that ends in a later call */
    ptrdiff_t made;         /* a panel's range of K, packed on the fly; in place: the last rows of B, zero padded */
    ptrdiff_t copy;         /* a copy of a panel's range of K: see mp_copies */
    ptrdiff_t column_sums;  /* of B, of NC columns */
    ptrdiff_t group_scales; /* the scales of all scale groups of a panel */
    ptrdiff_t group_zeros;  /* mp_zeros of a panel's range of K */
    ptrdiff_t group_sums;   /* where sums of integers start in each K block of the range: `init` of mp_accumulators */
    ptrdiff_t total;
} mp_task_scratch;

typedef struct {
    int arithmetic;
    int format;            /* by which columns are measured: that of B or, if panels are copied, that of the arithmetic.
                              MP_WIDER panels take twice its bytes: mp_multiplied_bytes */
    ptrdiff_t k_block;     /* elements of K whose sum starts at +0: part of the numerics contract */
    mp_way way;
    int small;             /* one task on the caller's thread, each panel over all of K at once */
    int reads_a_in_place;  /* A is read where it lies: its rows are contiguous, in the type that the kernels read */
    int shifted;           /* panels are int4 with zero points, or beside integers: mp_is_shifted */
    int sums_wanted;       /* the sums of B's columns are needed, for zero points of A or for unsigned a ^ 0x80 */
    int from_memory;       /* B is taken to come from memory, not from a cache */
    int prefetch_within;   /* kernels prefetch what follows in the panel that they multiply (mp_prefetch.this_panel) */
    int prefetch_next;     /* kernels prefetch the next range of K of B while they multiply one (mp_prefetch.next) */
    ptrdiff_t mc;          /* MC: rows of A in a task; all of them meet one panel before the next */
    ptrdiff_t row_tasks;   /* tasks along M */
    ptrdiff_t task_panels; /* panels of B in a task */
    ptrdiff_t panel_tasks; /* tasks along N */
    ptrdiff_t kc;          /* KC: elements of K in one call of a kernel: whole K blocks, a part of one, or all of K */
    ptrdiff_t nc_panels;   /* NC in panels: those multiplied over one range of K before the next range begins */
    ptrdiff_t tail;        /* in place: the last rows of B, which are read from a copy */
    mp_task_scratch scratch;
} mp_plan;

static inline ptrdiff_t mp_min(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline ptrdiff_t mp_max(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static inline ptrdiff_t mp_ceil_div(ptrdiff_t n, ptrdiff_t by) { return (n + by - 1) / by; }
static inline ptrdiff_t mp_round_up(ptrdiff_t n, ptrdiff_t unit) { return mp_ceil_div(n, unit) * unit; }

/* Of a task: an operation can end early only between two of them. */
enum { MP_MOST_ELEMENTS = 1 << 22 };

/* How many of `count` items, each of `elements` elements, a task has: an equal share of `parts`, unless that is too
 * many. */
static inline ptrdiff_t mp_share(ptrdiff_t count, ptrdiff_t parts, ptrdiff_t elements) {
    return mp_max(1, mp_min(mp_ceil_div(count, parts), MP_MOST_ELEMENTS / mp_max(1, elements)));
}

/* Bytes of an element in the type of the arithmetic. */
static inline ptrdiff_t mp_own_bytes(int arithmetic) {
    static const int bytes[MP_ARITHMETICS] = {[MP_WIDE] = 4, [MP_PAIRS] = 2, [MP_QUADS] = 1};
    return bytes[arithmetic];
}

/* Whether panels are copied before they are multiplied. */
static inline int mp_copies_panels(const mp_plan *p) {
    return p->way == MP_DECODED || p->way == MP_WIDER || p->way == MP_OCTS || p->way == MP_DECODED_TILES;
}

/* Whether panels or copies of them are multiplied by AMX tiles. */
static inline int mp_by_tiles(const mp_plan *p) { return p->way == MP_TILES || p->way == MP_DECODED_TILES; }

/* 1 if A and B are made wider, else 0. */
static inline int mp_wider(const mp_plan *p) { return p->way == MP_WIDER; }

/* Whether copies are those of `recoded`: made wider or octs. */
static inline int mp_recoded(const mp_plan *p) { return p->way == MP_WIDER || p->way == MP_OCTS; }

/* Bytes of k elements of a column of the panels that are multiplied. */
static inline ptrdiff_t mp_multiplied_bytes(const mp_plan *p, ptrdiff_t k) {
    return mp_column_bytes(p->format, p->way == MP_OCTS ? mp_round_up(k, MP_OCT) : k) << mp_wider(p);
}

/* Bytes of an element of A as kernels read it. */
static inline ptrdiff_t mp_a_bytes(const mp_plan *p) { return mp_own_bytes(p->arithmetic) << mp_wider(p); }

/* Whether int4 beside integers is multiplied as it is packed: gemm_shifted of quads. */
static inline int mp_by_nibbles(const mp_plan *p) {
    return p->shifted && p->arithmetic == MP_QUADS && p->way == MP_PANELS;
}

/* Whether rows of A are copied as recoded or shifted panels need them, after they are in the type of the arithmetic. */
static inline int mp_rewrites_rows(const mp_plan *p) { return mp_wider(p) || mp_by_nibbles(p); }

/* Elements of a row of A that is copied as kernels read it: rows that are made wider have an even number, those beside
 * nibbles a multiple of eight. */
static inline ptrdiff_t mp_a_row(const mp_plan *p, ptrdiff_t k) {
    return k + (-k & (mp_by_nibbles(p) ? 7 : mp_wider(p)));
}

/* Integers beside integers: quads. Two formats that bfloat16 holds exactly: pairs. All others: wide, in float32. */
static inline int mp_arithmetic_of(int a_format, int b_format) {
    return a_format >= MP_FLOATS ? MP_QUADS : a_format >= MP_BF16 && b_format >= MP_BF16 ? MP_PAIRS : MP_WIDE;
}

/* Whether kernels multiply signed integers of A as a ^ 0x80, or by b ^ 0x80, which are 128 too large. */
static inline int mp_flips(const mp_kernels *kernels, const mp_plan *p) {
    return p->arithmetic == MP_QUADS && !mp_by_tiles(p) && !mp_wider(p) && !kernels->products[MP_QUADS]->is_signed;
}

/* Whether panels are int4 that gemm_shifted multiplies and copy_shifted copies. */
static inline int mp_is_shifted(const mp_problem *q, int arithmetic) {
    return q->b.format == MP_I4 && (q->code_zero || arithmetic == MP_QUADS);
}

/* The most rows of A in a task beside which panels of B are not decoded (float32: copied) into scratch first: few_rows
 * of the instruction set; of float16 and of int4 beside integers that of the CPU family if it is less, of an unpacked
 * float32 twice as many. */
static inline ptrdiff_t mp_few_rows(const mp_problem *q, int arithmetic) {
    const mp_copies *const decoded = &q->kernels->products[arithmetic]->decoded;
    const ptrdiff_t few = decoded->few_rows[q->b.format];
    if (mp_is_shifted(q, arithmetic))
        return mp_min(decoded->few_rows_shifted,
                      arithmetic == MP_QUADS ? q->machine->tuning->few_rows[1] : PTRDIFF_MAX);
    if (q->b.format == MP_F32 && !q->packed) return 2 * few; /* micro-panels are a second copy, after packing */
    return q->b.format == MP_F16 ? mp_min(few, q->machine->tuning->few_rows[0]) : few;
}

/* Multiplications of all products of the batch. */
static inline double mp_multiplications(const mp_problem *q) {
    return (double)q->matrices * (double)q->m * (double)q->n * (double)mp_max(q->k, 1);
}

/* A machine whose CPUs are of that family, with caches of so many bytes. */
mp_machine mp_machine_of(mp_cpu_family family, ptrdiff_t l1d, ptrdiff_t l2);

/* The machine that runs this; read at the first call. */
const mp_machine *mp_this_machine(void);

/* Make the plan of a problem. It reads no element, and depends on nothing but the problem. */
void mp_make_plan(const mp_problem *q, mp_plan *p);

/* Set the plan of a problem: to one that this thread has kept, or to a new one (plan_kept.c). The padding of a problem
 * should be zeros; if it is not, its plan is made anew each time. */
void mp_find_plan(const mp_problem *q, mp_plan *p);

MP_SHARED_END
#endif
