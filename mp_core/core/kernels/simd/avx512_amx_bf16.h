/* The same, with products of bf16 by tiles, which add in an order of their own. */
#define MP_OWN_ORDER
#include "avx512_amx.h"
