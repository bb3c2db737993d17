/* Special cases of products, casts and quantization: faster code for some shapes or types, with the same results.
 * Meson's option `without` leaves one of them out of a build. asv_bench/lab/special_cases.py explains each case, and
 * measures its gain by such builds (docs/performance.md).
 *
 * MP_HAS(CASE) is 1 if this build has the case: a constant, for #if too. */
#ifndef MP_SPECIAL_CASES_H
#define MP_SPECIAL_CASES_H

#define MP_CASE_NONE 0
#define MP_CASE_IN_PLACE 1
#define MP_CASE_TRANSPOSED 2
#define MP_CASE_NC_OF_ROW_MAJOR_B 3
#define MP_CASE_ONE_ROW_IN_PLACE 4
#define MP_CASE_PANELS_IN_TURN 5
#define MP_CASE_PREFETCH_PACKED 6
#define MP_CASE_PREFETCH_ROWS 7
#define MP_CASE_PREFETCH_ROWS_ONE_ROW 8
#define MP_CASE_PREFETCH_COLUMNS 9
#define MP_CASE_MEMORY_OR_CACHE 10
#define MP_CASE_DECODE_IN_REGISTERS 11
#define MP_CASE_DECODE_INTO_A_PANEL 12
#define MP_CASE_STORES_BEFORE_LOADS 13
#define MP_CASE_TWO_VECTORS_AT_ONCE 14
#define MP_CASE_MADE_WIDER 15
#define MP_CASE_MICRO_PANELS 16
#define MP_CASE_TWO_GROUPS_IN_AN_ITERATION 17
#define MP_CASE_WIDE_BLOCKS_OF_FEW_ROWS 18
#define MP_CASE_COLUMNS_WHERE_THEY_LIE 19
#define MP_CASE_TRANSPOSING_BY_EIGHT 20
#define MP_CASE_SMALL_CALLS 21
#define MP_CASE_KEPT_PLANS 22
#define MP_CASE_EVEN_HEIGHTS 23
#define MP_CASE_BLOCKS_IN_ONE_CALL 24
#define MP_CASE_EPILOGUE_IN_REGISTERS 25
#define MP_CASE_ZERO_POINTS_FIRST 26
#define MP_CASE_STREAMING_STORES 27
#define MP_CASE_RECIPROCALS 28

#ifndef MP_WITHOUT
#define MP_WITHOUT MP_CASE_NONE
#endif
#define MP_HAS(CASE) (MP_WITHOUT != MP_CASE_##CASE)

#endif
