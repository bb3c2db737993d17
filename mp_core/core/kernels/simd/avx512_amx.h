/* AVX-512 with BF16, and Intel AMX: registers of 16 rows of 64 bytes, which tiles.inc multiplies as 8-bit integers. */
#define MP_BASE avx512_bf16
#define MP_NATIVE_TILES
#include "avx512_bf16.h"
