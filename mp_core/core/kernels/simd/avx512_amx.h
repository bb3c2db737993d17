/* AVX-512 with BF16, and Intel AMX: eight AMX tiles, registers of 16 rows of 64 bytes, which products/amx.h
 * multiplies. */
#define MP_NATIVE_TILES
#include "avx512_bf16.h"
