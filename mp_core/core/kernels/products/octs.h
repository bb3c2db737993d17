/* Octs: int8 of B in groups of eight along K, for instructions that multiply two rows of A by two columns of B (smmla
 * and usmmla of AArch64). Such an instruction adds to a block of 2 x 2 sums:
 *
 *     row i      a[0 .. 7]       column j    column j + 1                c[i][j]      c[i][j + 1]
 *     row i + 1  a[0 .. 7]   x   b[0 .. 7]   b[0 .. 7]      added to     c[i + 1][j]  c[i + 1][j + 1]
 *
 * In a register block, the sums of two rows are eight such blocks: those of columns 0 to 7 in c[i], of columns 8 to 15
 * in c[i + 1]. */
_Static_assert(MP_NR_VECTORS == 1, "octs are in micro-panels of 16 columns");

/* Multiply octs of 16 columns by two rows of a at a time. The sums are in blocks of 2 x 2 (blocks_of_rows). If the
 * number of rows is odd, the last row is multiplied twice, and one of its sums is ignored. */
MP_INLINE void multiply_octs(vf32 (*c)[MOST_VECTORS], const place *at, const int kind, const int rows) {
    two_octs a[MOST_ROWS / 2];
    MP_UNROLL_8 for (int i = 0; i < rows; i += 2) {
        const char *const row = at->a + i * at->lda;
        a[i / 2] = load_octs(row, i + 1 == rows ? row : row + at->lda);
    }
    MP_UNROLL_8 for (int half = 0; half < 2; half++) {
        if (half) MP_COMPILER_BARRIER; /* one half of b at a time: sums, both halves and a do not fit the registers */
        const vu32 b = load_u32(at->b + half * 64);
        MP_UNROLL_8 for (int i = 0; i < rows; i += 2) {
            const vu32 sum = as_u32(c[i + half][0]);
            c[i + half][0]
                = as_f32(kind == KIND_octs_s8 ? dot_octs_s8(sum, a[i / 2], b) : dot_octs_u8(sum, a[i / 2], b));
        }
    }
}

/* Convert the sums of two rows to blocks of 2 x 2 sums, columns 0 to 7 and 8 to 15, and back. */
MP_INLINE void blocks_of_rows(vf32 (*c)[MOST_VECTORS], const int rows) {
    if (rows % 2) c[rows][0] = set_f32(0.0f);
    MP_UNROLL_8 for (int i = 0; i < rows; i += 2) {
        const vu32 x = as_u32(c[i][0]), y = as_u32(c[i + 1][0]);
        c[i][0] = as_f32(zip_octs(x, y, 0)), c[i + 1][0] = as_f32(zip_octs(x, y, 1));
    }
}
MP_INLINE void rows_of_blocks(vf32 (*c)[MOST_VECTORS], const int rows) {
    MP_UNROLL_8 for (int i = 0; i < rows; i += 2) {
        const vu32 x = as_u32(c[i][0]), y = as_u32(c[i + 1][0]);
        c[i][0] = as_f32(unzip_octs(x, y, 0)), c[i + 1][0] = as_f32(unzip_octs(x, y, 1));
    }
}
