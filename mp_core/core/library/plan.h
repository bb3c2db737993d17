/* The plan of a product: how kernels read B, how the product is cut into tasks and ranges of K, and how much scratch it
 * needs. One call of a kernel multiplies MC rows of A by a range of K of a panel, of a micro-panel, or of an array that
 * is not packed; see mp_products in kernels/kernels.h. */
#ifndef MP_PLAN_H
#define MP_PLAN_H

#include "library/tuning.h"

MP_SHARED_BEGIN

/* In which form kernels read B (docs/architecture.md). Panels are those of a packed B. If B is an array, one range of
 * K at a time is packed into scratch. */
typedef enum {
    MP_PANELS,        /* panels as they were packed */
    MP_IN_TURN,       /* several panels of a packed B, one after the other, for one row of A */
    MP_DECODED,       /* panels copied into the type of the arithmetic: `decoded` of mp_products */
    MP_WIDER,         /* panels copied into elements of twice the width, and the rows of A too: `recoded`, widen_row */
    MP_OCTS,          /* panels copied into groups of eight integers along K: `recoded`, without widen_row */
    MP_TILES,         /* panels, multiplied by AMX tiles */
    MP_DECODED_TILES, /* panels copied into the type of the arithmetic, multiplied by AMX tiles */
    MP_IN_PLACE,      /* a row-major array, read in place */
    MP_TRANSPOSED,    /* a transposed array, read in place, a piece of its columns at a time */
} mp_way;

/* The properties of a machine on which a plan depends. */
typedef struct {
    const mp_tuning *tuning;
    ptrdiff_t l1d, l2; /* bytes of these caches, rounded down to powers of two */
} mp_machine;

/* How the caller stores an operand. The struct has no padding, since problems are compared as bytes (plan_kept.c). */
typedef struct {
    int format;
    int size;         /* bytes of an element */
    ptrdiff_t rs, cs; /* bytes from one row to the next, from one column to the next; 0 if packed */
} mp_layout;

/* Everything that a plan depends on. */
typedef struct {
    const mp_kernels *kernels;
    const mp_machine *machine;
    ptrdiff_t matrices, m, n, k; /* number of products in the batch; the shape of each */
    int threads;                 /* how many run the tasks */
    mp_layout a, b;
    int windows;                 /* rows of A are windows of an array */
    int packed;                  /* B is packed in panels */
    int quantized_here;          /* A is float; the product quantizes its rows to int8 */
    int finds_scales;            /* ... and computes their scales: amax / 127 of each row */
    int row_zero;                /* A has a zero point for each row */
    int zero_point;              /* B has a zero point for each column */
    int code_zero;               /* B is int4 with zero points */
    ptrdiff_t group;             /* elements along K that share a scale of B; 0: no scale groups */
    int reproducible;            /* pairs are added in an order that every CPU can compute: no AMX tiles */
} mp_problem;

/* The parts of a task's scratch, in bytes, in their order in memory. */
typedef struct {
    ptrdiff_t row_scales;   /* scales of the rows of A that the task quantizes */
    ptrdiff_t a_copy;       /* rows of A as the kernels read them */
    ptrdiff_t a_narrow;     /* the same rows in the type of the arithmetic, if mp_rewrites_rows */
    ptrdiff_t a_gathered;   /* the same rows before conversion: contiguous in their own type, or float32 that is to be
                               quantized */
    ptrdiff_t row_sums;     /* sums of the rows of A */
    ptrdiff_t block_sums;   /* sums of the rows of A, one for each K block: see mp_operands */
    ptrdiff_t accumulators; /* for NC columns */
    ptrdiff_t partial_sums; /* sums over a K block that ends in a later call */
    ptrdiff_t made;         /* a range of K of a panel, packed on the fly; in place: the last rows of B, zero padded */
    ptrdiff_t copy;         /* the copy of a range of K of a panel: see mp_copies */
    ptrdiff_t column_sums;  /* sums of NC columns of B */
    ptrdiff_t group_scales; /* the scales of all scale groups of a panel */
    ptrdiff_t group_zeros;  /* mp_zeros for a range of K of a panel */
    ptrdiff_t group_sums;   /* the initial integer sums of each K block of the range: `init` of mp_accumulators */
    ptrdiff_t total;
} mp_task_scratch;

typedef struct {
    int arithmetic;
    int format;            /* of the panels that are multiplied: B's, or the arithmetic's if panels are copied. MP_WIDER
                              panels take twice its bytes: mp_multiplied_bytes */
    ptrdiff_t k_block;     /* elements of K in a block, whose sum starts at +0: part of the numerics contract */
    mp_way way;
    int small;             /* one task on the caller's thread; each panel is multiplied over all of K at once */
    int reads_a_in_place;  /* kernels read the caller's A: its rows are contiguous and of the type that they read */
    int shifted;           /* mp_is_shifted: int4 with zero points, or four-bit codes times integers */
    int sums_wanted;       /* column sums of B are needed: A has zero points, or kernels multiply a ^ 0x80 */
    int from_memory;       /* B is assumed to be in memory, not in a cache */
    int prefetch_within;   /* kernels prefetch later parts of the panel that they multiply (mp_prefetch.this_panel) */
    int prefetch_next;     /* kernels prefetch the next range of K of B while they multiply one (mp_prefetch.next) */
    ptrdiff_t mc;          /* MC: rows of A in a task. A panel is multiplied by all of them before the next panel */
    ptrdiff_t row_tasks;   /* number of tasks along M */
    ptrdiff_t task_panels; /* panels of B in a task */
    ptrdiff_t panel_tasks; /* number of tasks along N */
    ptrdiff_t kc;          /* KC: elements of K in one call of a kernel: whole K blocks, a part of one, or all of K */
    ptrdiff_t nc_panels;   /* NC, in panels: how many are multiplied over a range of K before the next range */
    ptrdiff_t tail;        /* in place: number of last rows of B that are read from a copy */
    mp_task_scratch scratch;
} mp_plan;

static inline ptrdiff_t mp_min(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline ptrdiff_t mp_max(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static inline ptrdiff_t mp_ceil_div(ptrdiff_t n, ptrdiff_t by) { return (n + by - 1) / by; }
static inline ptrdiff_t mp_round_up(ptrdiff_t n, ptrdiff_t unit) { return mp_ceil_div(n, unit) * unit; }

/* The most elements in a task. An operation can be stopped only between two tasks. */
enum { MP_MOST_ELEMENTS = 1 << 22 };

/* How many of `count` items, of `elements` elements each, a task has: 1 / `parts` of them, at most MP_MOST_ELEMENTS
 * elements. */
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

/* 1 if elements of A and B are copied at twice their width, else 0. */
static inline int mp_wider(const mp_plan *p) { return p->way == MP_WIDER; }

/* Whether panels are copied by `recoded` of mp_products: MP_WIDER or MP_OCTS. */
static inline int mp_recoded(const mp_plan *p) { return p->way == MP_WIDER || p->way == MP_OCTS; }

/* Bytes of k elements of a column, in the panels that are multiplied. */
static inline ptrdiff_t mp_multiplied_bytes(const mp_plan *p, ptrdiff_t k) {
    return mp_column_bytes(p->format, p->way == MP_OCTS ? mp_round_up(k, MP_OCT) : k) << mp_wider(p);
}

/* Bytes of an element of A as kernels read it. */
static inline ptrdiff_t mp_a_bytes(const mp_plan *p) { return mp_own_bytes(p->arithmetic) << mp_wider(p); }

/* Whether four-bit codes times integers are multiplied as they are packed: gemm_shifted of quads. */
static inline int mp_by_nibbles(const mp_plan *p) {
    return p->shifted && p->arithmetic == MP_QUADS && p->way == MP_PANELS;
}

/* Whether rows of A, once they have the type of the arithmetic, are copied again in the layout that recoded or shifted
 * panels need. */
static inline int mp_rewrites_rows(const mp_plan *p) { return mp_wider(p) || mp_by_nibbles(p); }

/* Elements of a copied row of A: k rounded up, to an even number if elements are widened, to a multiple of eight for
 * mp_by_nibbles. */
static inline ptrdiff_t mp_a_row(const mp_plan *p, ptrdiff_t k) {
    return k + (-k & (mp_by_nibbles(p) ? 7 : mp_wider(p)));
}

/* The arithmetic for two formats. Two integers: quads. Two formats that bfloat16 represents exactly: pairs. All others:
 * wide, in float32. */
static inline int mp_arithmetic_of(int a_format, int b_format) {
    return a_format >= MP_FLOATS ? MP_QUADS : a_format >= MP_BF16 && b_format >= MP_BF16 ? MP_PAIRS : MP_WIDE;
}

/* Whether kernels multiply unsigned integers, and signed ones are passed as a ^ 0x80 or b ^ 0x80: 128 too large. */
static inline int mp_flips(const mp_kernels *kernels, const mp_plan *p) {
    return p->arithmetic == MP_QUADS && !mp_by_tiles(p) && !mp_wider(p) && !kernels->products[MP_QUADS]->is_signed;
}

/* Whether panels are for gemm_shifted and copy_shifted: int4 with zero points, or four-bit codes times integers. */
static inline int mp_is_shifted(const mp_problem *q, int arithmetic) {
    return q->b.format >= MP_I4 && (q->code_zero || arithmetic == MP_QUADS);
}

/* A task with at most this many rows of A decodes panels of B in registers; one with more rows first decodes (float32:
 * copies) them into scratch. The number is few_rows of the instruction set, with three exceptions: for float16, and for
 * four-bit codes times integers, the CPU family may set a lower one; for float32 that is not packed, it is twice as
 * large. */
static inline ptrdiff_t mp_few_rows(const mp_problem *q, int arithmetic) {
    const mp_copies *const decoded = &q->kernels->products[arithmetic]->decoded;
    const ptrdiff_t few = decoded->few_rows[q->b.format];
    if (mp_is_shifted(q, arithmetic))
        return mp_min(decoded->few_rows_shifted,
                      arithmetic == MP_QUADS ? q->machine->tuning->few_rows[1] : PTRDIFF_MAX);
    if (q->b.format == MP_F32 && !q->packed) return 2 * few; /* micro-panels are a second copy, after packing */
    return q->b.format == MP_F16 ? mp_min(few, q->machine->tuning->few_rows[0]) : few;
}

/* The number of multiplications in all products of the batch. */
static inline double mp_multiplications(const mp_problem *q) {
    return (double)q->matrices * (double)q->m * (double)q->n * (double)mp_max(q->k, 1);
}

/* A machine with CPUs of that family, and with caches of l1d and l2 bytes. */
mp_machine mp_machine_of(mp_cpu_family family, ptrdiff_t l1d, ptrdiff_t l2);

/* The machine that runs this code; it is read at the first call. */
const mp_machine *mp_this_machine(void);

/* Make the plan of a problem. It depends only on the problem, not on the values of elements. */
void mp_make_plan(const mp_problem *q, mp_plan *p);

/* Like mp_make_plan, but use a plan that this thread has kept, if there is one (plan_kept.c). Set the padding of a
 * problem to zeros: otherwise a new plan is made each time. */
void mp_find_plan(const mp_problem *q, mp_plan *p);

MP_SHARED_END
#endif
