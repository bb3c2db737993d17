/* AVX2 with AVX-VNNI: vpdpbusd on 256-bit registers. */
#define MP_NATIVE_VNNI
#include "avx2.h"
