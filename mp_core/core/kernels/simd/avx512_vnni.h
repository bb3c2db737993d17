/* AVX-512 with VNNI: vpdpbusd multiplies unsigned by signed bytes and adds four products without saturating. */
#define MP_NATIVE_VNNI
#include "avx512.h"
