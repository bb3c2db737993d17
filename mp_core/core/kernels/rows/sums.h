/* The sum of a row; its order is part of the numerics contract. A row is cut into row blocks of MP_BLOCK_ROW elements.
 * In each, lane i adds the elements i, i + 16, i + 32, ... in order, starting at +0. Row blocks are added, lane by
 * lane, in a tree: the sum of m row blocks is the sum of the first 2^t plus the sum of the others, where 2^t is the
 * largest power of two below m. At the end sum_f32 adds the 16 lanes. */
typedef struct {
    ptrdiff_t n;      /* numbers to be added */
    ptrdiff_t blocks; /* how many row blocks were added */
    vf32 only;        /* if n <= MP_BLOCK_ROW: the sum of the only row block, which stays in a register */
    vf32 part[52];    /* else: part[i] is the sum of 2^i consecutive row blocks if bit i of `blocks` is set */
} row_sum;

MP_INLINE void start_sum(row_sum *sum, ptrdiff_t n) { sum->n = n, sum->blocks = 0, sum->only = set_f32(0.0f); }

MP_INLINE void add_block(row_sum *sum, vf32 block) {
    sum->only = block;
    if (sum->n <= MP_BLOCK_ROW) return;
    int i = 0;
    for (; sum->blocks >> i & 1; i++) block = add_f32(sum->part[i], block);
    sum->part[i] = block;
    sum->blocks++;
}

MP_INLINE float sum_of_blocks(const row_sum *sum) {
    if (sum->n <= MP_BLOCK_ROW) return sum_f32(sum->only);
    int i = 0;
    while (!(sum->blocks >> i & 1)) i++;
    vf32 total = sum->part[i];
    while (sum->blocks >> ++i)
        if (sum->blocks >> i & 1) total = add_f32(sum->part[i], total);
    return sum_f32(total);
}
